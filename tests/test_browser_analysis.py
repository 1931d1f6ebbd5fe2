"""Pages 2 to 4 in a real Chromium: deep links, sliders, faults, gradients, exports, no network."""

import re
from urllib.parse import quote, urlsplit

import pandas as pd
import pytest
from playwright.sync_api import expect

import attnprobe as ap
from attnprobe.analyses import gradient, scaling
from attnprobe.data import bundled
from attnprobe.readout import default
from tools.screenshots import settled

pytestmark = pytest.mark.browser

LONG = 120_000
CAT = "The cat sat on the mat because it was tired."
SCALING, SCRATCH, JACOBIAN = "Logits_and_scaling", "From_scratch", "Saturation_and_Jacobian"
SECTIONS = {
    SCALING: ("spread", "captured", "model", "pairs"),
    SCRATCH: ("certificate", "faults", "steps", "facts"),
    JACOBIAN: ("heads", "bounds", "row", "gradient", "sinks"),
}
expect.set_options(timeout=LONG)


@pytest.fixture
def opened(browser, address):
    """Opens a section from its link in a fresh tab; no request may leave this machine."""
    contexts, asked = [], []

    def open_link(page: str, section: str, *, layer: int = 2, head: int = 3, model="bundled:bert"):
        context = browser.new_context(viewport={"width": 1280, "height": 1800})
        context.set_default_timeout(LONG)
        context.on("request", lambda request: asked.append(request.url))
        contexts.append(context)
        tab = context.new_page()
        chosen = f"model={quote(model, safe='')}&layer={layer}&head={head}&part={section}"
        tab.goto(f"{address}/{page}?{chosen}")
        settled(tab)
        return tab

    yield open_link
    for context in contexts:
        context.close()
    outside = [url for url in asked if not is_local(url)]
    assert asked
    assert not outside


def is_local(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("data", "blob") or parts.hostname in ("localhost", "127.0.0.1")


def metric(tab, label: str):
    return tab.get_by_test_id("stMetric").filter(has_text=label)


def saved(tab, title: str, form: str):
    """The file of one format that the export menu of the card with this title gives."""
    card = tab.locator('[data-testid="stVerticalBlock"]').filter(
        has=tab.get_by_text(title, exact=True)
    )
    card.last.get_by_role("button", name="Export").first.click()
    with tab.expect_download(timeout=LONG) as download:
        tab.get_by_role("button", name=form, exact=True).click()
    return download.value


@pytest.mark.parametrize("page", list(SECTIONS))
def test_every_section_opens_from_a_fresh_link_with_its_layer_and_head(opened, page):
    for section in SECTIONS[page]:
        tab = opened(page, section, layer=1, head=7)
        expect(tab.get_by_label("Layer", exact=True)).to_have_value("1")
        expect(tab.get_by_label("Head", exact=True)).to_have_value("7")
        expect(tab).to_have_url(re.compile(rf"layer=1&head=7.*part={section}"))
        expect(tab.locator(".stVegaLiteChart, [data-testid=stVegaLiteChart]").first).to_be_visible()
        assert tab.get_by_role("alert").count() == 0


def test_the_slider_changes_the_numbers_to_those_of_the_engine(opened, bundled_bert):
    tab = opened(SCALING, "captured")
    curve = scaling.what_if(ap.trace(bundled_bert, CAT), 2, 3)
    as_is = curve[curve["factor"] == 1.0].iloc[0]
    expect(metric(tab, "Peak")).to_contain_text(f"{as_is['peak']:.3g}")
    tab.get_by_role("slider").focus()
    tab.keyboard.press("ArrowRight")
    after = curve[curve["factor"] > 1.0].iloc[0]
    expect(metric(tab, "Peak")).to_contain_text(f"{after['peak']:.3g}")
    expect(metric(tab, "Entropy (nats)")).to_contain_text(f"{after['entropy']:.3g}")
    expect(tab.get_by_text(f"×{after['factor']:.3g}").first).to_be_visible()


def test_a_fault_turns_its_stages_red_and_one_without_effect_says_so(opened):
    tab = opened(SCRATCH, "faults")
    expect(metric(tab, "First red stage")).to_contain_text("scaled logits")
    tab.get_by_label("Put these mistakes into the re-implementation").click()
    tab.keyboard.press("Backspace")
    tab.get_by_role("option", name="double softmax").click()
    expect(tab.get_by_text("Double softmax: the weights go through")).to_be_visible()
    expect(metric(tab, "First red stage")).to_contain_text("weights")
    tab.get_by_label("Put these mistakes into the re-implementation").click()
    tab.get_by_role("option", name="no causal mask").click()
    expect(tab.get_by_text("“No causal mask” changes nothing here")).to_be_visible()


def test_the_real_gradient_names_the_heads_that_starve(opened, bundled_bert):
    tab = opened(JACOBIAN, "gradient")
    read = default(bundled_bert, bundled("topics"))
    rows = gradient.rows(gradient.gradients(read, read.prepare([CAT])))
    heads = gradient.heads(rows)
    count = int(heads["starved"].sum())
    expect(tab.get_by_text(f"{count} of {len(heads)} heads")).to_be_visible()


@pytest.mark.parametrize(
    ("page", "section", "title", "stem"),
    [
        (SCALING, "spread", "Where the spread of layer 2, head 3 comes from", "causes"),
        (SCRATCH, "certificate", "Every stage of every layer, float32", "certificate"),
        (JACOBIAN, "row", "The row p itself", "jacobian-row-weights"),
    ],
)
def test_an_export_gives_a_picture_and_its_numbers(opened, page, section, title, stem):
    tab = opened(page, section)
    picture = saved(tab, title, "SVG")
    assert picture.suggested_filename.endswith(f"{stem}.svg")
    assert picture.path().read_text(encoding="utf-8").lstrip().startswith("<svg")
    tab.keyboard.press("Escape")
    numbers = saved(tab, title, "CSV")
    frame = pd.read_csv(numbers.path(), comment="#")
    assert len(frame) > 3


def test_a_click_in_the_boxes_chooses_that_head(opened):
    tab = opened(SCALING, "spread")
    chart = tab.locator('[data-testid="stVegaLiteChart"]').nth(1)
    bar = chart.locator('path[aria-label*="head: 5"]').first
    box = bar.bounding_box()
    tab.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(tab.get_by_text("Logits of layer 2, head 5")).to_be_visible()
    expect(tab).to_have_url(re.compile("layer=2&head=5"))


def test_a_cell_chooses_its_head_again_after_another_control_has_moved_on(opened):
    tab = opened(JACOBIAN, "heads")

    def click():
        cell = tab.locator('[data-testid="stVegaLiteChart"] path[aria-label*="layer: 4"]')
        box = cell.filter(visible=True).first.bounding_box()
        tab.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

    click()
    expect(tab.get_by_label("Layer", exact=True)).to_have_value("4")
    expect(tab.get_by_text(re.compile(r"^Rows of layer 4, head \d+$"))).to_be_visible()
    tab.get_by_label("Layer", exact=True).press("ArrowUp")
    expect(tab.get_by_text(re.compile(r"^Rows of layer 5, head \d+$"))).to_be_visible()
    settled(tab)
    click()
    expect(tab.get_by_text(re.compile(r"^Rows of layer 4, head \d+$"))).to_be_visible()
    expect(tab).to_have_url(re.compile("layer=4"))
