"""Vega-Lite and SVG to files, by vl-convert in a child process: no browser, no network.

A malformed string makes vl-convert abort its whole process. Strings are cleaned before they get
here; the process of its own is the second guard. It costs about a second per export, once for all
figures of a `with` block, and gives its memory back at the end.
"""

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import altair as alt

from attnprobe.errors import ExportFailed

FONTS = Path(__file__).parent / "fonts"
WORKER = Path(__file__).parent / "worker.py"
# The Vega-Lite that altair writes for, as vl-convert names it: "v6.4.1" is "6.4".
VL_VERSION = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
SECONDS = 300.0


class Converter:
    """A running converter; use it as a context manager. Not for several threads at once."""

    def __enter__(self) -> "Converter":
        # -P: the folder of the script must not shadow the standard library.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER), str(FONTS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._alarm = threading.Timer(SECONDS, self._process.kill)
        self._alarm.daemon = True
        self._alarm.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._alarm.cancel()
        self._process.kill()
        self._process.communicate()

    def svg(self, spec: dict[str, Any]) -> str:
        """A Vega-Lite specification as SVG text."""
        return self._ask({"act": "svg", "spec": spec, "vl_version": VL_VERSION}).decode()

    def pdf(self, svg: str) -> bytes:
        """SVG text as a PDF of one page with real text and embedded fonts."""
        return self._ask({"act": "pdf", "svg": svg})

    def png(self, svg: str, scale: float) -> bytes:
        """SVG text as PNG, `scale` pixels per SVG unit."""
        return self._ask({"act": "png", "svg": svg, "scale": scale})

    def _ask(self, request: dict[str, Any]) -> bytes:
        inlet, outlet = self._process.stdin, self._process.stdout
        try:
            inlet.write(json.dumps(request, allow_nan=False).encode() + b"\n")
            inlet.flush()
        except BrokenPipeError as error:
            raise self._crashed(request) from error
        state, _, length = outlet.readline().partition(b" ")
        body = outlet.read(int(length)) if length else b""
        if not length or len(body) < int(length):
            raise self._crashed(request)
        if state != b"ok":
            raise ExportFailed(
                f"the {request['act'].upper()} could not be made: {body.decode()}; "
                "try another format, PNG is the most forgiving"
            )
        return body

    def _crashed(self, request: dict[str, Any]) -> ExportFailed:
        return ExportFailed(
            f"the chart converter stopped while making the {request['act'].upper()}; "
            "try a shorter text or another format"
        )
