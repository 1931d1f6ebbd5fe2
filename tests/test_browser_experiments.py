"""Pruning and perturbation in a real Chromium: start, progress, stop, what stays, export."""

import re
from contextlib import suppress
from urllib.parse import quote

import pandas as pd
import pytest
from playwright.sync_api import TimeoutError, expect

import attnprobe as ap
from tools.screenshots import settled

pytestmark = pytest.mark.browser

LONG = 120_000
CAT = "The cat sat on the mat because it was tired."
expect.set_options(timeout=LONG)


@pytest.fixture
def opened(browser, address):
    """Opens a page from its link in a fresh tab."""
    contexts = []

    def open_link(page: str, model: str = "bundled:bert"):
        context = browser.new_context(viewport={"width": 1280, "height": 1800})
        context.set_default_timeout(LONG)
        contexts.append(context)
        tab = context.new_page()
        tab.goto(f"{address}/{page}?model={quote(model, safe='')}&layer=0&head=5")
        settled(tab)
        return tab

    yield open_link
    for context in contexts:
        context.close()


def start(tab, name: str) -> None:
    """Presses a button of the page: Streamlit has a "Stop" of its own in the header."""
    tab.get_by_test_id("stMain").get_by_role("button", name=name, exact=True).click()


def write(tab, label: str, text: str) -> None:
    box = tab.get_by_label(label)
    box.fill(text)
    box.press("Control+Enter")


def stop_after_the_first_part(tab, counted: str = r"[1-9]\d*") -> None:
    """As a person in a hurry: presses Stop again until it is answered.

    What is started here takes minutes: a browser that a busy machine keeps waiting shows what was
    true some time ago, and a short run would be over before its first part is seen.
    """
    expect(tab.get_by_text(re.compile(rf"^{counted} of \d+$")).first).to_be_visible()
    stop = tab.get_by_test_id("stMain").get_by_role("button", name="Stop", exact=True)
    stopped = tab.get_by_text(re.compile(r"Stopped: \d+ of \d+ \w+ are in these numbers"))
    while stop.count():
        with suppress(TimeoutError):
            stop.dispatch_event("click", timeout=500)
        tab.wait_for_timeout(200)
    expect(stopped).to_be_visible()
    expect(tab.get_by_role("button", name="Go on", exact=True)).to_be_visible()


def exported_table(tab) -> pd.DataFrame:
    tab.get_by_role("button", name="Export").first.click()
    with tab.expect_download(timeout=LONG) as download:
        tab.get_by_role("button", name="CSV", exact=True).click()
    tab.keyboard.press("Escape")
    return pd.read_csv(download.value.path(), comment="#")


def expect_the_model_as_it_was(tab, loaded) -> None:
    """Another page of the same session shows the entropy of a freshly loaded model."""
    tab.get_by_role("link", name="Head inspector").click()
    table = ap.head_table(ap.trace(loaded, CAT))
    line = table[(table["layer"] == 0) & (table["head"] == 5)].iloc[0]
    metric = tab.get_by_test_id("stMetric").filter(has_text="Entropy (nats)")
    expect(metric).to_contain_text(f"{line['entropy']:.3g}")
    expect(tab.get_by_text("Certificate holds").first).to_be_visible()


def test_a_stopped_pruning_run_keeps_its_texts_exports_and_leaves_the_model_alone(
    opened, bundled_bert
):
    tab = opened("Pruning")
    tab.get_by_role("radio", name="Typed").click()
    write(tab, "One text a line", "\n".join(f"{number} {CAT * 5}" for number in range(160)))
    write(tab, "Label sentences", "cats = This is about cats.\nfood = This is about food.")
    tab.get_by_role("slider").first.press("End")
    expect(tab.get_by_text("forward passes of each of 80 texts")).to_be_visible()
    start(tab, "Score every head")
    stop_after_the_first_part(tab, r"([7-9]|[1-9]\d+)")  # a batch of texts goes through six layers
    settled(tab)
    heads = exported_table(tab)
    assert len(heads) == bundled_bert.n_layers * bundled_bert.n_heads
    assert 0 < heads["texts"].iloc[0] < 80
    expect_the_model_as_it_was(tab, bundled_bert)


def test_a_stopped_perturbation_keeps_its_parts_exports_and_leaves_the_model_alone(
    opened, bundled_bert
):
    tab = opened("Perturbation")
    tab.get_by_role("radio", name="Bundled topics").click()
    number = tab.get_by_label("Permutations", exact=True)
    number.fill("1000")
    number.press("Enter")
    settled(tab)
    start(tab, "Run")
    stop_after_the_first_part(tab)
    settled(tab)
    points = exported_table(tab)
    assert {"layer", "head", "median", "peak"} <= set(points.columns)
    assert 0 < len(points) < 8 * 13
    expect_the_model_as_it_was(tab, bundled_bert)


def test_a_click_opens_another_experiment(opened):
    tab = opened("Perturbation")
    for panel, label in (
        ("Adversary", "Restarts"),
        ("Permutation and replacement", "Permutations"),
    ):
        tab.get_by_role("radio", name=panel).click()
        expect(tab.get_by_label(label, exact=True)).to_be_visible()
        expect(tab).to_have_url(re.compile(f"perturbation={panel.split()[0]}"))
