"""The server as a stranger finds it: who may connect, and what it gives away."""

import http.client
import sys
import tomllib
from pathlib import Path

import psutil
import pytest
from guarded import Guarded, guarded_server, handshake

ROOT = Path(__file__).parents[1]
EVIL = "evil.example"


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Guarded:
    with guarded_server(tmp_path_factory.mktemp("server") / "refused.txt") as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def asked_at_first(server) -> list[str]:
    """What the server asked others for until its own page was let in."""
    host = f"localhost:{server.port}"
    get(server, "/")
    handshake(server, host, f"http://{host}")
    return server.refused()


def get(server: Guarded, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("localhost", server.port, timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


@pytest.mark.skipif(
    sys.platform != "linux", reason="other systems show the table of sockets to administrators only"
)
def test_the_server_listens_on_this_machine_only(server):
    inside = psutil.net_connections("tcp")
    listening = {c.laddr.ip for c in inside if c.status == "LISTEN" and c.laddr.port == server.port}
    assert listening
    assert listening <= {"127.0.0.1", "::1"}


def test_a_page_of_this_machine_is_let_in(server):
    for name in ("localhost", "127.0.0.1"):
        host = f"{name}:{server.port}"
        assert handshake(server, host, f"http://{host}") == 101


@pytest.mark.parametrize("origin", [f"http://{EVIL}", "https://localhost.evil.example", "null"])
def test_a_page_of_another_site_is_not_let_in(server, origin):
    assert handshake(server, f"localhost:{server.port}", origin) == 403


@pytest.mark.parametrize(
    "host", [EVIL, f"{EVIL}:80", "localhost.evil.example", "localhost@evil.example", "0.0.0.0"]
)
def test_another_host_name_for_this_machine_is_not_let_in_even_with_its_own_origin(server, host):
    """DNS rebinding: a name of the attacker's that was made to point here."""
    assert handshake(server, host, f"http://{host}") == 403
    assert handshake(server, host, None) == 403


def test_another_host_name_gets_the_empty_page_by_http_and_nothing_of_anybody(server):
    """Streamlit checks the host of the WebSocket alone; everything of a session goes through it."""
    status, body = get(server, "/", Host=EVIL)
    assert (status, body) == get(server, "/")
    assert b"attnprobe" not in body


@pytest.mark.parametrize(
    "path",
    [
        "/../../../../etc/passwd", "/..%2f..%2f..%2fetc/passwd", "/static/../../../etc/passwd",
        "/app/static/../app.py", "/app/static/..%2fapp.py", "/media/../../../etc/passwd",
        "/component/attnprobe/../../../etc/passwd", "//etc/passwd", "/app.py",
        "/attnprobe/__init__.py", "/.streamlit/config.toml", "/pages/1_Head_inspector.py",
    ],
)  # fmt: skip
def test_no_file_of_this_machine_can_be_asked_for(server, path):
    _, body = get(server, path)
    assert b"root:" not in body
    assert b"import " not in body
    assert b"allowedHosts" not in body


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_nobody_uploads_or_deletes_without_a_session(server, method):
    status, _ = get(server, "/_stcore/upload_file/session/file", method, Origin=f"http://{EVIL}")
    assert 400 <= status < 500


def test_starting_the_server_and_letting_a_page_in_asks_nobody_for_anything(asked_at_first):
    """Before a first page has run, a page of another site that knocks makes Streamlit look up its
    own outer address; see `attnprobe.ui.offline` for afterwards."""
    assert asked_at_first == []


def test_the_configuration_says_so():
    config = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text("utf-8"))
    assert config["server"]["address"] == "localhost"
    assert config["server"]["allowedHosts"] == ["localhost", "127.0.0.1"]
    assert config["browser"]["gatherUsageStats"] is False
    assert config["client"]["showErrorDetails"] == "none"
    assert config["server"].get("enableCORS", True)
    assert config["server"].get("enableXsrfProtection", True)
