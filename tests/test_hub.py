"""Downloads against a small Hub on localhost: progress, stop and resume, refusals, offline."""

import hashlib
import http.server
import json
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from attnprobe import hub
from attnprobe.errors import Stopped, TooLarge, UnsupportedModel
from attnprobe.models import load

COMMIT = "1234567890123456789012345678901234567890"
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


class Hub(http.server.BaseHTTPRequestHandler):
    """Just enough of the Hub's interface to hand out one folder as `owner/tiny`."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args) -> None:
        """Requests are recorded by the server, not printed."""

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        path = self.path.split("?")[0]
        if "gated" in path:
            self.answer(403, X_Error_Code="GatedRepo")
        elif "nowhere" in path:
            self.answer(404, X_Error_Code="RevisionNotFound")
        elif "owner/tiny" not in path:
            self.answer(404, X_Error_Code="RepoNotFound")
        elif path.startswith("/api/"):
            siblings = [
                {"rfilename": name, "size": (self.server.folder / name).stat().st_size}
                for name in (*FILES, "pytorch_model.bin")
            ]
            info = {"id": "owner/tiny", "sha": COMMIT, "siblings": siblings, "private": False}
            self.answer(200, json.dumps(info).encode(), Content_Type="application/json")
        else:
            self.file(self.server.folder / path.rsplit("/", 1)[-1])

    def file(self, path: Path) -> None:
        body = path.read_bytes()
        tag = f'"{hashlib.sha256(body).hexdigest()}"'
        first = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        if not first:
            self.answer(200, body, ETag=tag, X_Repo_Commit=COMMIT)
            return
        self.server.resumed.append(first)
        rest, span = body[first:], f"bytes {first}-{len(body) - 1}/{len(body)}"
        self.answer(206, rest, ETag=tag, X_Repo_Commit=COMMIT, Content_Range=span)


@pytest.fixture(scope="module")
def server(tiny_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub") / "tiny"
    shutil.copytree(tiny_folder("bert"), folder)
    (folder / "pytorch_model.bin").write_bytes(b"not to be fetched")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as running:
        running.folder, running.asked, running.resumed = folder, [], []
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def hub_here(server, tmp_path, monkeypatch):
    """huggingface_hub pointed at the small Hub and an empty cache, online until told otherwise."""
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 4096)
    server.asked.clear()
    server.resumed.clear()
    return server


def test_a_download_reports_its_bytes_and_the_next_load_needs_no_network(hub_here, monkeypatch):
    told = []
    loaded = load("owner/tiny", device="cpu", progress=lambda *bytes_: told.append(bytes_))
    assert (loaded.revision, loaded.origin) == (COMMIT, "Hugging Face Hub")
    size = sum((hub_here.folder / name).stat().st_size for name in FILES)
    assert {total for _, total in told} == {size}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] == size
    assert hub.cached_models() == ("owner/tiny",)
    assert not any("pytorch_model.bin" in path for path in hub_here.asked)

    hub_here.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert load("owner/tiny", device="cpu").revision == COMMIT
    assert not hub_here.asked


def _stop_halfway(done, total):
    if done > total // 2:
        raise Stopped("enough")


def test_a_stopped_download_leaves_no_model_and_goes_on_from_the_byte_where_it_ended(hub_here):
    with pytest.raises(Stopped):
        hub.snapshot("owner/tiny", None, _stop_halfway)
    assert hub.cached_models() == ()
    (part,) = Path(constants.HF_HUB_CACHE).rglob("*.incomplete")
    kept = part.stat().st_size
    weights = (hub_here.folder / "model.safetensors").read_bytes()
    assert 0 < kept < len(weights)

    hub_here.asked.clear()
    told = []
    assert hub.snapshot("owner/tiny", None, lambda *both: told.append(both)).name == COMMIT
    fetched = {ask.rsplit("/", 1)[-1] for ask in hub_here.asked if ask.startswith("GET /owner")}
    assert fetched == {"model.safetensors"}
    assert hub_here.resumed == [kept]
    assert told[0][0] > kept
    assert told[-1][0] == told[-1][1]
    path = hub.snapshot("owner/tiny") / "model.safetensors"
    assert path.read_bytes() == weights
    assert not list(Path(constants.HF_HUB_CACHE).rglob("*.incomplete"))
    assert load("owner/tiny", device="cpu").revision == COMMIT


def test_a_part_that_does_not_fit_the_rest_is_thrown_away_in_one_sentence(hub_here):
    with pytest.raises(Stopped):
        hub.snapshot("owner/tiny", None, _stop_halfway)
    (part,) = Path(constants.HF_HUB_CACHE).rglob("*.incomplete")
    part.write_bytes(bytes(part.stat().st_size))
    with pytest.raises(UnsupportedModel, match=r"model\.safetensors of owner/tiny came damaged"):
        hub.snapshot("owner/tiny")
    assert load("owner/tiny", device="cpu").revision == COMMIT


def test_a_part_larger_than_its_file_is_begun_anew(hub_here):
    with pytest.raises(Stopped):
        hub.snapshot("owner/tiny", None, _stop_halfway)
    (part,) = Path(constants.HF_HUB_CACHE).rglob("*.incomplete")
    weights = (hub_here.folder / "model.safetensors").read_bytes()
    part.write_bytes(bytes(len(weights) + 1))
    assert (hub.snapshot("owner/tiny") / "model.safetensors").read_bytes() == weights
    assert hub_here.resumed == []


@pytest.mark.parametrize(
    ("name", "revision", "part"),
    [
        ("owner/unknown", None, "not on the Hub"),
        ("owner/gated", None, "gated"),
        ("owner/tiny", "nowhere", "no revision 'nowhere'"),
        ("owner//tiny", None, "nor a Hub id"),
    ],
)
def test_every_refusal_is_one_sentence_that_says_which(hub_here, name, revision, part):
    with pytest.raises(UnsupportedModel, match=part) as caught:
        load(name, revision=revision)
    assert "\n" not in str(caught.value)


def test_offline_and_unreachable_are_one_sentence(hub_here, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UnsupportedModel, match="cannot be reached"):
        load("owner/tiny")
    assert not hub_here.asked
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UnsupportedModel, match="cannot be reached"):
        load("owner/tiny")


def test_a_model_too_large_for_the_disk_is_refused_before_it_is_fetched(hub_here, monkeypatch):
    monkeypatch.setattr(hub.shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(TooLarge, match="to download"):
        hub.snapshot("owner/tiny")
    assert not any("resolve" in path for path in hub_here.asked)
