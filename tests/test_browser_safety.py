"""A hostile text in every view of a real Chromium, with a guard on the server's sockets."""

import re
from urllib.parse import quote, urlsplit

import pytest
from guarded import guarded_server, handshake
from playwright.sync_api import expect

from tools.screenshots import pages, settled

pytestmark = pytest.mark.browser

LONG = 240_000
HOSTILE = (
    '<img src=x onerror="window.hacked=1"> </script><script>window.hacked=2</script> '
    '" onmouseover="window.hacked=3 \' <svg onload=window.hacked=4> '
    "[a](javascript:window.hacked=5) ${window.hacked=6} {{constructor}} a<b<c"
)
expect.set_options(timeout=LONG)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with guarded_server(tmp_path_factory.mktemp("guarded") / "refused.txt") as server:
        yield server


@pytest.fixture(scope="module")
def asked() -> list[str]:
    """Every address that the browser asked for."""
    return []


@pytest.fixture(scope="module")
def page(browser, server, asked):
    """One tab with the hostile text typed into it, as a person would."""
    context = browser.new_context(viewport={"width": 1280, "height": 1400})
    context.set_default_timeout(LONG)
    context.on("request", lambda request: asked.append(request.url))
    page = context.new_page()
    page.on("dialog", lambda dialog: dialog.dismiss())
    page.goto(f"{server.address}/?model={quote('bundled:bert', safe='')}&layer=2&head=5")
    settled(page)
    page.get_by_label("Text", exact=True).fill(HOSTILE)
    page.get_by_role("button", name="Analyse").click()
    expect(page.get_by_text(re.compile(r"^\d+ of at most 512 tokens"))).not_to_contain_text("12 of")
    settled(page)
    yield page
    context.close()


def is_inert(page) -> bool:
    planted = "img[src='x'], [onerror], [onmouseover], [onload], a[href^='javascript']"
    return page.evaluate("window.hacked") is None and page.locator(planted).count() == 0


def title(name: str) -> str:
    return name.replace("_", " ") or "Overview"


@pytest.mark.parametrize("name", pages(), ids=title)
def test_markup_in_the_text_is_inert_on_every_page(page, name):
    page.get_by_role("link", name=title(name), exact=True).click()
    expect(page.locator("h1")).to_have_text(title(name))
    settled(page)
    expect(page.get_by_label("Text", exact=True)).to_have_value(HOSTILE)
    assert is_inert(page)
    assert "Traceback" not in page.content()
    assert page.get_by_text("defect in attnprobe").count() == 0


def test_markup_in_the_text_is_inert_in_a_tooltip(page):
    page.get_by_role("link", name="Head inspector", exact=True).click()
    canvas = page.locator(".map canvas")
    expect(canvas).to_be_visible()
    settled(page)
    page.wait_for_function("canvas => canvas.width > 300", arg=canvas.element_handle())
    box = canvas.bounding_box()
    said = set()
    for step in range(4, 40, 3):
        page.mouse.move(box["x"] + box["width"] * 0.35, box["y"] + box["height"] * step / 40)
        said.add(page.locator(".map .tip").inner_text())
    assert any("<" in each for each in said)
    assert is_inert(page)


@pytest.mark.parametrize("kind", ["SVG", "PDF"])
def test_markup_in_the_text_is_inert_in_an_exported_file(page, browser, kind, tmp_path):
    page.get_by_role("link", name="Head inspector", exact=True).click()
    settled(page)
    page.get_by_role("button", name="Export").first.click()
    with page.expect_download(timeout=LONG) as download:
        page.get_by_role("button", name=kind, exact=True).click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    page.keyboard.press("Escape")
    assert path.stat().st_size > 1_000
    if kind == "SVG":
        alone = browser.new_page()
        alone.goto(path.as_uri())
        assert alone.evaluate("document.querySelectorAll('script, img, [onerror]').length") == 0
        assert alone.evaluate("window.hacked") is None
        alone.close()


def test_nothing_was_asked_of_anybody_else_by_browser_or_server(page, server, asked):
    outside = [url for url in asked if not is_local(url)]
    assert len(asked) > 10
    assert not outside
    assert handshake(server, f"localhost:{server.port}", "http://evil.example") == 403
    assert server.refused() == []


def is_local(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("data", "blob", "file") or parts.hostname in ("localhost", "127.0.0.1")
