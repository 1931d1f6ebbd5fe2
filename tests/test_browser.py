"""The app in a real Chromium: links, clicks, hover, export, two tabs, hostile texts, no network."""

import io
import re
from urllib.parse import quote, urlsplit

import pypdf
import pytest
from playwright.sync_api import expect

import attnprobe as ap
from tools.screenshots import settled

pytestmark = pytest.mark.browser

LONG = 240_000
CAT = "The cat sat on the mat because it was tired."
expect.set_options(timeout=LONG)


@pytest.fixture
def tab(browser):
    """Opens tabs that know no one else; afterwards not one request has left this machine."""
    contexts, asked = [], []

    def new():
        context = browser.new_context(viewport={"width": 1280, "height": 1400})
        context.set_default_timeout(LONG)
        context.on("request", lambda request: asked.append(request.url))
        contexts.append(context)
        return context.new_page()

    yield new
    for context in contexts:
        context.close()
    outside = [url for url in asked if not is_local(url)]
    assert asked
    assert not outside


def is_local(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("data", "blob") or parts.hostname in ("localhost", "127.0.0.1")


def link(
    address, page: str = "", model: str = "bundled:bert", layer: int = 2, head: int = 5
) -> str:
    return f"{address}/{page}?model={quote(model, safe='')}&layer={layer}&head={head}"


def opened(tab, *where, **what):
    page = tab()
    page.goto(link(*where, **what))
    settled(page)
    return page


def analyse(page, text: str) -> None:
    page.get_by_label("Text", exact=True).fill(text)
    page.get_by_role("button", name="Analyse").click()


def map_of(page):
    """The canvas of the token map, which has to be drawn before it can be pointed at."""
    canvas = page.locator(".map canvas")
    expect(canvas).to_be_visible()
    page.wait_for_function("canvas => canvas.width > 300", arg=canvas.element_handle())
    return canvas


def test_a_fresh_link_opens_the_page_with_its_layer_and_head(tab, address):
    page = opened(tab, address, "Head_inspector", layer=3, head=7)
    expect(page.get_by_text("Layer 3, head 7: weight")).to_be_visible()
    expect(page.get_by_label("Layer", exact=True)).to_have_value("3")
    expect(page.get_by_label("Head", exact=True)).to_have_value("7")


def test_a_click_in_the_atlas_opens_that_head(tab, address):
    page = opened(tab, address)
    atlas = page.locator('[data-testid="stVegaLiteChart"]').first
    cell = atlas.locator('path[aria-label*="layer: 4"][aria-label*="head: 9"]').first
    box = cell.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page.get_by_text("Layer 4, head 9: weight")).to_be_visible()
    expect(page).to_have_url(re.compile(r"/Head_inspector\?.*layer=4&head=9"))


def test_layer_head_and_text_survive_a_change_of_page_and_a_reload_keeps_the_head(tab, address):
    page = opened(tab, address, "Head_inspector", layer=1, head=8)
    analyse(page, "zebra apple mango")
    expect(page.get_by_text("Row of query 1: zebra")).to_be_visible()
    page.get_by_role("link", name="Overview").click()
    expect(page.get_by_text("Head atlas: entropy")).to_be_visible()
    expect(page).to_have_url(re.compile("layer=1&head=8"))
    expect(page.get_by_label("Text", exact=True)).to_have_value("zebra apple mango")
    page.get_by_role("link", name="Head inspector").click()
    expect(page.get_by_text("Layer 1, head 8: weight")).to_be_visible()
    expect(page.get_by_text("Row of query 1: zebra")).to_be_visible()
    page.reload()
    expect(page.get_by_text("Layer 1, head 8: weight")).to_be_visible()


def test_hovering_a_cell_shows_its_tokens_and_its_weight(tab, address, bundled_bert):
    page = opened(tab, address, "Head_inspector", layer=2, head=5)
    box = map_of(page).bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.5)
    tip = page.locator(".map .tip")
    expect(tip).to_be_visible()
    said = re.sub("[\u2068\u2069]", "", tip.inner_text())  # isolates have no width
    query, key = (int(place) for place in re.findall(r"\((\d+)\)", said))
    tokens = bundled_bert.read(CAT).display
    assert f"{tokens[query]} ({query})" in said
    assert f"{tokens[key]} ({key})" in said
    weight = ap.trace(bundled_bert, CAT).weights(2, 5)[query, key].item()
    shown = re.search(r"weight ([\d.]+(?:e[+−-]\d+)?)", said).group(1).replace("−", "-")
    assert float(shown) == pytest.approx(weight, rel=1e-3)


def test_a_click_in_the_map_pins_the_row_under_the_pointer(tab, address, bundled_bert):
    page = opened(tab, address, "Head_inspector", layer=2, head=5)
    box = map_of(page).bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.6)
    tip = page.locator(".map .tip")
    expect(tip).to_be_visible()
    query = int(re.search(r"\((\d+)\)", tip.inner_text()).group(1))
    page.mouse.down()
    page.mouse.up()
    token = bundled_bert.read(CAT).display[query]
    expect(page.get_by_text(f"Row of query {query}: {token}", exact=True)).to_be_visible()


def test_a_drag_in_the_map_shows_that_part_until_the_whole_map_is_asked_for(tab, address):
    page = opened(tab, address, "Head_inspector", layer=2, head=5)
    box = map_of(page).bounding_box()
    whole = page.get_by_role("button", name="Whole map")
    expect(whole).to_have_count(0)
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.4)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.7, steps=4)
    page.mouse.up()
    whole.click()
    expect(whole).to_have_count(0)


def test_a_click_on_a_small_picture_chooses_that_head_and_one_on_a_line_pins_its_query(
    tab, address, bundled_bert
):
    page = opened(tab, address, "Head_inspector", layer=2, head=5)
    picture = page.locator(".gallery canvas")
    expect(picture).to_be_visible()
    picture.click(position={"x": 20, "y": 40})
    expect(page.get_by_text("Layer 2, head 0: weight")).to_be_visible()
    expect(page).to_have_url(re.compile("layer=2&head=0"))
    expect(page.get_by_label("Head", exact=True)).to_have_value("0")
    sheet = page.locator(".lines canvas")
    expect(sheet).to_be_visible()
    sheet.hover(position={"x": 40, "y": 130})
    said = page.locator(".lines .tip")
    expect(said).to_be_visible()
    query = int(re.search(r"\((\d+)\)", said.inner_text()).group(1))
    assert query > 1  # which is pinned from the start
    sheet.click(position={"x": 40, "y": 130})
    token = bundled_bert.read(CAT).display[query]
    expect(page.get_by_text(f"Row of query {query}: {token}", exact=True)).to_be_visible()


def test_an_export_is_a_pdf_whose_text_can_be_read(tab, address):
    page = opened(tab, address, "Head_inspector", layer=2, head=5)
    page.get_by_role("button", name="Export").first.click()
    with page.expect_download(timeout=LONG) as download:
        page.get_by_role("button", name="PDF", exact=True).click()
    assert download.value.suggested_filename == "attnprobe_bundled-bert_L2.H5_map-weight.pdf"
    data = download.value.path().read_bytes()
    text = pypdf.PdfReader(io.BytesIO(data)).pages[0].extract_text()
    for expected in ("tired", "bundled:bert", "L2.H5", "Certificate"):
        assert expected in text


def test_two_tabs_with_different_models_and_texts_never_mix(
    tab, address, tiny_folder, bundled_bert
):
    small = ap.load(str(tiny_folder("gpt2")), device="cpu")
    sides = [
        (opened(tab, address, "Head_inspector", layer=2, head=1), bundled_bert, 2),
        (
            opened(tab, address, "Head_inspector", model=small.name, layer=1, head=1),
            small,
            1,
        ),
    ]
    for texts in (("zebra apple", "a cat"), ("mango and dog", "the mat ran")):
        for (page, _, _), text in zip(sides, texts, strict=True):
            analyse(page, text)
        for (page, loaded, layer), text in zip(sides, texts, strict=True):
            table = ap.head_table(ap.trace(loaded, text))
            line = table[(table["layer"] == layer) & (table["head"] == 1)].iloc[0]
            for label, name in (("Entropy (nats)", "entropy"), ("Peak", "peak")):
                metric = page.get_by_test_id("stMetric").filter(has_text=label)
                expect(metric).to_contain_text(f"{line[name]:.3g}")


@pytest.mark.parametrize("where", ["", "Head_inspector"])
def test_html_in_a_text_is_shown_and_never_run(tab, address, where):
    page = opened(tab, address, where)
    page.on("dialog", lambda dialog: pytest.fail(f"a dialog opened: {dialog.message}"))
    hostile = '</script><img src=x onerror="window.hacked=1"> <b onclick=alert(1)>:red[x] $5$ *a*'
    analyse(page, hostile)
    words = page.get_by_text(re.compile(r"^4\d of at most 512 tokens|^3\d of at most 512 tokens"))
    expect(words).to_be_visible()
    settled(page)
    assert page.evaluate("window.hacked") is None
    assert page.locator('img[src="x"]').count() == 0
    assert page.get_by_role("alert").count() == 0


def test_an_unknown_model_is_one_sentence_and_the_app_goes_on(tab, address):
    page = opened(tab, address, model="no/such-model")
    alert = page.get_by_role("alert")
    expect(alert).to_have_count(1)
    expect(alert).to_contain_text("no/such-model")
    assert "Traceback" not in page.content()
