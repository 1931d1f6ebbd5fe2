"""The app's server with a guard: whatever it sends or asks for beyond this machine is refused.

python guarded.py PORT LOG       each refusal is a line in the file LOG
"""

import os
import runpy
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

ROOT = Path(__file__).parents[1]
HERE = {None, "", "localhost", "127.0.0.1", "::1", "0.0.0.0", "::", b"localhost", b"127.0.0.1"}
WATCHED = {"socket.connect": 1, "socket.sendto": 1, "socket.getaddrinfo": 0,
           "socket.gethostbyname": 0}  # fmt: skip
START = 240


@dataclass(frozen=True)
class Guarded:
    """A running server: where it answers, its process, and the file of what it was refused."""

    port: int
    process: subprocess.Popen
    log: Path

    @property
    def address(self) -> str:
        return f"http://localhost:{self.port}"

    def refused(self) -> list[str]:
        return self.log.read_text().splitlines()


def handshake(server: Guarded, host: str, origin: str | None) -> int:
    """The status that a WebSocket is answered with: 101 lets it in."""
    lines = [
        "GET /_stcore/stream HTTP/1.1",
        f"Host: {host}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version: 13",
        *([f"Origin: {origin}"] if origin else []),
    ]
    with socket.create_connection(("localhost", server.port), timeout=60) as connection:
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        return int(connection.recv(100).split()[1])


@contextmanager
def guarded_server(log: Path) -> Iterator[Guarded]:
    """The app on a free port, without HF_HUB_OFFLINE: nobody told it not to ask."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log.touch()
    quiet = {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}
    environment = {name: value for name, value in os.environ.items() if name not in quiet}
    process = subprocess.Popen(
        [sys.executable, __file__, str(port), str(log)],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait(process, port)
        yield Guarded(port, process, log)
    finally:
        process.terminate()
        process.wait(30)


def _wait(process: subprocess.Popen, port: int) -> None:
    for _ in range(START * 4):
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode}")
        try:
            urlopen(f"http://localhost:{port}/_stcore/health", timeout=5).close()
            return
        except OSError:
            time.sleep(0.25)
    raise RuntimeError(f"the server did not answer within {START} s")


def _guard(log: str) -> None:
    def hook(event: str, arguments: tuple) -> None:
        if event not in WATCHED:
            return
        target = arguments[WATCHED[event]]
        host = target[0] if isinstance(target, tuple) else target
        unix = isinstance(host, str) and host.startswith("/")
        if host in HERE or unix:
            return
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{event} {host!r}\n")
        raise OSError(f"{event} to {host!r} was refused by the guard")

    sys.addaudithook(hook)


if __name__ == "__main__":
    _, port, log = sys.argv
    _guard(log)
    sys.argv = ["streamlit", "run", "app.py", "--server.headless", "true", "--server.port", port]
    runpy.run_module("streamlit", run_name="__main__")
