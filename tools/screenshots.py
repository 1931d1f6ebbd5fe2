"""Screenshots of every page from a real Chromium: what the README shows, and what to look at.

    python -m tools.screenshots                     docs/screenshot.png, for the README
    python -m tools.screenshots --all FOLDER        every page, light and dark, 1280 and 1920 wide

Needs playwright (requirements-dev.txt) and a Chromium: the one that playwright installed, or the
system's.
"""

import argparse
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from playwright.sync_api import Browser, Page, expect, sync_playwright

ROOT = Path(__file__).parents[1]
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
SYSTEM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
START = 120
SETTLED = 180_000


@contextmanager
def server() -> Iterator[str]:
    """The app on a free port of this machine; yields its address and stops it afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.headless", "true"]
    process = subprocess.Popen(
        [*command, "--server.port", str(port)],
        cwd=ROOT,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        stdout=subprocess.DEVNULL,
    )
    try:
        _wait(process, port)
        yield f"http://localhost:{port}"
    finally:
        _stop(process)


def _stop(process: subprocess.Popen) -> None:
    """Ends the server; one that is in the middle of a long computation is not waited for."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen, port: int) -> None:
    for _ in range(START * 2):
        if process.poll() is not None:
            raise SystemExit(f"the server ended with status {process.returncode}")
        try:
            urlopen(f"http://localhost:{port}/_stcore/health", timeout=1).close()
            return
        except OSError:
            time.sleep(0.5)
    raise SystemExit(f"the server did not answer within {START} s")


class NoBrowser(Exception):
    """There is no Chromium on this machine."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium: playwright's own if it is installed, else the system's."""
    with sync_playwright() as play:
        own = Path(play.chromium.executable_path)
        path = own if own.exists() else next(filter(None, map(shutil.which, SYSTEM)), None)
        if path is None:
            raise NoBrowser("no Chromium was found; run `playwright install chromium`")
        browser = play.chromium.launch(executable_path=str(path), args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def settled(page: Page) -> None:
    """Waits until there is a certificate or an error and Streamlit's script has run to its end."""
    there = page.get_by_text("Certificate").or_(page.get_by_role("alert"))
    expect(there.first).to_be_visible(timeout=SETTLED)
    running = page.locator('[data-testid="stApp"][data-test-script-state="running"]')
    expect(running).to_have_count(0, timeout=SETTLED)
    expect(page.locator('[data-testid="stSkeleton"]')).to_have_count(0, timeout=SETTLED)
    page.wait_for_timeout(1200)


def whole(page: Page, path: Path, width: int) -> None:
    """The page at its full height, which Streamlit scrolls inside itself."""
    inner = page.evaluate("document.querySelector('[data-testid=\"stMain\"]').scrollHeight")
    page.set_viewport_size({"width": width, "height": max(800, min(4000, int(inner)))})
    page.wait_for_timeout(600)
    page.screenshot(path=path)


def shot(
    browser: Browser, url: str, path: Path, *, scheme: str, width: int, text: str = ""
) -> None:
    context = browser.new_context(
        color_scheme=scheme, viewport={"width": width, "height": 900}, device_scale_factor=1
    )
    page = context.new_page()
    page.goto(url)
    settled(page)
    if text:
        page.get_by_label("Text", exact=True).fill(text)
        page.get_by_role("button", name="Analyse").click()
        page.wait_for_timeout(1000)
        settled(page)
    whole(page, path, width)
    context.close()


def pages() -> list[str]:
    """The paths of all pages as Streamlit names them."""
    names = sorted(path.stem for path in (ROOT / "pages").glob("[0-9]*.py"))
    return ["", *(name.split("_", 1)[1] for name in names)]


def everything(folder: Path, only: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with server() as base, chromium() as browser:
        for name in pages():
            if only and only.lower() not in (name or "overview").lower():
                continue
            for scheme in ("light", "dark"):
                for width in (1280, 1920):
                    path = folder / f"{name or 'Overview'}-{scheme}-{width}.png"
                    url = f"{base}/{name}?model=bundled%3Abert&layer=2&head=5"
                    shot(browser, url, path, scheme=scheme, width=width, text=text)


def for_readme() -> None:
    path = ROOT / "docs" / "screenshot.png"
    path.parent.mkdir(exist_ok=True)
    with server() as base, chromium() as browser:
        url = f"{base}/?model=bundled%3Abert&layer=2&head=5"
        shot(browser, url, path, scheme="light", width=1280)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="every page, into this folder")
    parser.add_argument("--only", default="", help="with --all: pages whose name holds this word")
    parser.add_argument("--text", default="", help="with --all: analyse this text")
    given = parser.parse_args()
    if given.all:
        everything(given.all, given.only, given.text)
    else:
        for_readme()
