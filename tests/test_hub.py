"""Downloads against a small Hub on localhost: progress, stop and resume, refusals, offline."""

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

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
        self.server.asked.append(self.path)
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
        start = 0
        if wanted := self.headers.get("Range"):
            start = int(wanted.removeprefix("bytes=").split("-")[0])
            self.server.resumed.append((path.name, start))
        headers = {"ETag": tag, "X_Repo_Commit": COMMIT, "Accept_Ranges": "bytes"}
        if start:
            headers["Content_Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        self.answer(206 if start else 200, body[start:], **headers)


@pytest.fixture(scope="module")
def server(tiny_folder):
    folder = tiny_folder("bert")
    (folder / "pytorch_model.bin").write_bytes(b"not to be fetched")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as running:
        running.folder, running.asked, running.resumed = folder, [], []
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def python(server, cache: Path, code: str, *, offline: bool = False):
    environment = os.environ | {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(cache),
        "HF_HUB_OFFLINE": "1" if offline else "0",
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "127.0.0.1",
    }
    environment.pop("HF_HUB_CACHE", None)
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


LOAD = """
from attnprobe import hub, sources
from attnprobe.models import load
seen = []
loaded = load("owner/tiny", device="cpu", progress=lambda done, total: seen.append((done, total)))
assert loaded.revision == "{commit}", loaded.revision
assert loaded.origin == "Hugging Face Hub"
print(seen[0][1] if seen else 0, seen[-1][0] if seen else 0, len(seen), *hub.cached_models())
"""


def test_a_download_reports_its_bytes_and_the_next_load_needs_no_network(server, tmp_path):
    first = python(server, tmp_path, LOAD.format(commit=COMMIT))
    assert first.returncode == 0, first.stderr
    total, done, _, cached = first.stdout.split()
    assert total == done == str(sum((server.folder / name).stat().st_size for name in FILES))
    assert cached == "owner/tiny"
    assert not any("pytorch_model.bin" in path for path in server.asked)
    server.asked.clear()
    again = python(server, tmp_path, LOAD.format(commit=COMMIT), offline=True)
    assert again.returncode == 0, again.stderr
    assert again.stdout.split()[0] == "0"
    assert not server.asked


def test_a_stopped_download_resumes(server, tmp_path):
    stop = """
from huggingface_hub import constants
constants.DOWNLOAD_CHUNK_SIZE = 4096
from huggingface_hub import file_download
from attnprobe import hub
from attnprobe.errors import Stopped
def stop(done, total):
    if done > total // 2:
        raise Stopped("enough")
try:
    hub.snapshot("owner/tiny", None, stop)
except Stopped:
    print("stopped")
"""
    stopped = python(server, tmp_path, stop)
    assert stopped.stdout.strip() == "stopped", stopped.stderr
    assert not list(tmp_path.rglob("snapshots/*/model.safetensors"))
    server.resumed.clear()
    again = python(server, tmp_path, LOAD.format(commit=COMMIT))
    assert again.returncode == 0, again.stderr


REFUSE = """
from attnprobe.models import load
from attnprobe.errors import UnsupportedModel
for name, revision in {cases!r}:
    try:
        load(name, revision=revision)
    except UnsupportedModel as error:
        print(error)
"""


def test_every_refusal_is_one_sentence_that_says_which(server, tmp_path):
    cases = {
        ("owner/unknown", None): "not on the Hub",
        ("owner/gated", None): "gated",
        ("owner/tiny", "nowhere"): "no revision 'nowhere'",
        ("owner//tiny", None): "nor a Hub id",
    }
    done = python(server, tmp_path, REFUSE.format(cases=list(cases)))
    for sentence, part in zip(done.stdout.strip().splitlines(), cases.values(), strict=True):
        assert part in sentence
    offline = python(server, tmp_path, REFUSE.format(cases=[("owner/tiny", None)]), offline=True)
    assert "cannot be reached" in offline.stdout
    assert len(offline.stdout.strip().splitlines()) == 1


def test_a_model_too_large_for_the_disk_is_refused_before_it_is_fetched(server, tmp_path):
    code = """
import shutil
from attnprobe import hub
from attnprobe.errors import TooLarge
shutil.disk_usage = lambda path: shutil._ntuple_diskusage(10, 10, 10)
try:
    hub.snapshot("owner/tiny")
except TooLarge as error:
    print(error)
"""
    server.asked.clear()
    done = python(server, tmp_path, code)
    assert "to download" in done.stdout, done.stderr
    assert not any("resolve" in path for path in server.asked)
