"""The theory lab in a real Chromium: links, play and scrub, languages, export, no network."""

import io
import re
from urllib.parse import urlsplit

import pypdf
import pytest
from playwright.sync_api import expect

from tools.screenshots import settled

pytestmark = pytest.mark.browser

LONG = 240_000
expect.set_options(timeout=LONG)


@pytest.fixture
def lab(browser, address):
    """Opens a section in a tab of its own; afterwards not one request has left this machine."""
    contexts, asked = [], []

    def opened(section: str, language: str = "en"):
        context = browser.new_context(viewport={"width": 1280, "height": 1400})
        context.set_default_timeout(LONG)
        context.on("request", lambda request: asked.append(request.url))
        contexts.append(context)
        page = context.new_page()
        page.goto(f"{address}/Theory_lab?model=bundled%3Abert&section={section}&lang={language}")
        settled(page)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert asked
    assert [url for url in asked if not _is_local(url)] == []


def _is_local(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("data", "blob") or parts.hostname in ("localhost", "127.0.0.1")


def test_a_link_opens_its_section_and_another_tab_keeps_its_own(lab):
    freezing, exponent = lab("freezing"), lab("exponent")
    expect(freezing.get_by_text("C4 reproduced")).to_be_visible()
    expect(exponent.get_by_text("C11 wrong as written")).to_be_visible()
    expect(exponent.get_by_text("C12 wrong as written")).to_be_visible()
    exponent.get_by_role("radio", name="Order").click()
    expect(exponent.get_by_text("C20 right")).to_be_visible()
    expect(exponent).to_have_url(re.compile("section=equivariance"))
    expect(freezing.get_by_text("C4 reproduced")).to_be_visible()


def test_the_descent_plays_and_is_scrubbed(lab):
    page = lab("freezing")
    expect(page.get_by_text("Weights at step 0", exact=True)).to_be_visible()
    page.get_by_role("button", name="Play").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    expect(page.get_by_text(re.compile(r"^Weights at step [1-9]\d*$"))).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    slider = page.get_by_role("slider", name="Step")
    slider.press("End")
    expect(page.get_by_text("Weights at step 399", exact=True)).to_be_visible()
    expect(page.get_by_test_id("stMetric").filter(has_text="Loss, undivided")).to_contain_text(
        "1.89"
    )


def test_the_language_switch_turns_labels_captions_and_verdicts(lab):
    page = lab("cost")
    expect(page.get_by_text("C18 right")).to_be_visible()
    page.get_by_role("radio", name="한국어").click()
    expect(page.get_by_text("C18 맞음")).to_be_visible()
    expect(page.get_by_text("헤드 하나와 견주면")).to_be_visible()
    expect(page).to_have_url(re.compile("lang=ko"))


def test_a_figure_leaves_as_a_pdf_that_can_be_read(lab):
    page = lab("softmax", "ko")
    page.get_by_role("button", name="내보내기").first.click()
    with page.expect_download(timeout=LONG) as download:
        page.get_by_role("button", name="PDF", exact=True).click()
    assert download.value.suggested_filename.endswith("theory-row-weights.pdf")
    data = download.value.path().read_bytes()
    text = pypdf.PdfReader(io.BytesIO(data)).pages[0].extract_text()
    for expected in ("undivided", "Softmax of the scores", "4.287"):
        assert expected in text


def test_no_number_among_the_scores_is_one_sentence(lab):
    page = lab("softmax")
    page.get_by_role("radio", name="own scores").click()
    field = page.get_by_label("Scores, with commas between")
    field.fill("1, nan, 1e999")
    field.press("Enter")
    expect(page.get_by_role("alert").first).to_contain_text("not a finite number")
    field.fill("1e308, -1e308, 3")
    field.press("Enter")
    expect(page.get_by_text("1e+308").first).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
