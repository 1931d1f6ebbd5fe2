"""Tabs of one Chromium on one server while others compute: what they show, and what they leave.

Needs playwright and a Chromium, which only the soak asks for.
"""

import itertools
import re
import time
from collections.abc import Mapping
from urllib.parse import quote

import psutil
from playwright.sync_api import Browser, Page, expect

from attnprobe.ui.show import value
from benchmarks.turns import MIB
from tools.screenshots import settled

PLACE = (1, 2)
"""Layer and head whose entropy is read off the screen."""
IDLE, LOOK, WAIT = 0.05, 2.0, 120.0
"""A server counts as idle when it uses less than this share of a core for so many seconds; it is
waited for so many seconds."""
LONG = 240_000
STARTS = re.compile("Score every head|Go on")


class Screen:
    """Tabs of one browser on one server, and what they have to show."""

    def __init__(
        self, browser: Browser, address: str, entropies: Mapping[tuple[str, str], float]
    ) -> None:
        self._browser, self._address = browser, address
        self.models, self.texts = (
            list(dict.fromkeys(each)) for each in zip(*entropies, strict=True)
        )
        self._expected = {asked: value(entropy) for asked, entropy in entropies.items()}
        if len(set(self._expected.values())) < len(self._expected):
            raise SystemExit(f"texts that look alike cannot show a mixture: {self._expected}")
        port = address.rsplit(":", 1)[1]
        family = psutil.Process().children(recursive=True)
        self.server = next(p for p in family if port in p.cmdline())

    def opened(self, model: str, page: str = "Head_inspector") -> Page:
        context = self._browser.new_context(viewport={"width": 1280, "height": 1400})
        context.set_default_timeout(LONG)
        tab = context.new_page()
        where = f"{page}?model={quote(model, safe='')}&layer={PLACE[0]}&head={PLACE[1]}"
        tab.goto(f"{self._address}/{where}")
        settled(tab)
        return tab

    def shows(self, tab: Page, model: str, text: str) -> bool:
        metric = tab.get_by_test_id("stMetric").filter(has_text="Entropy (nats)")
        try:
            expect(metric.get_by_test_id("stMetricValue")).to_have_text(
                self._expected[model, text], timeout=LONG
            )
        except AssertionError:
            return False
        return True

    def sweep(self, *, close: bool) -> None:
        """A sweep is started on the pruning page; its tab is closed at once or stops it first.

        It is over all texts there are, so that it does not come to its end, and goes on from what
        the sweep before has kept.
        """
        tab = self.opened(self.models[0], "Pruning")
        buttons = tab.get_by_test_id("stBaseButton-secondary")
        tab.get_by_test_id("stMain").get_by_role("slider").first.press("End")
        settled(tab)
        tab.get_by_role("button", name=STARTS).click()
        stop = buttons.filter(has_text="Stop")
        stop.wait_for()
        if not close:
            stop.click()
            stop.wait_for(state="detached")
        tab.context.close()


def turns(screen: Screen, tabs: list[Page], deadline: float) -> dict[str, object]:
    """Every tab asks for another text in each turn, then one more tab sweeps and goes."""
    models, texts = screen.models, screen.texts
    shown = wrong = 0
    resident = []
    for turn in itertools.count():
        asked = [
            (tab, models[i % len(models)], texts[(turn + i) % len(texts)])
            for i, tab in enumerate(tabs)
        ]
        for tab, _, text in asked:
            _ask(tab, text)
        for tab, model, text in asked:
            shown += 1
            wrong += not screen.shows(tab, model, text)
        screen.sweep(close=turn % 2 == 0)
        resident.append(screen.server.memory_info().rss / MIB)
        if time.monotonic() > deadline:
            break
    return {
        "tab_results": shown,
        "tab_results_unlike_serial": wrong,
        "sweeps_left": len(resident),
        "server_mib_first": resident[0],
        "server_mib_last": resident[-1],
    }


def _ask(tab: Page, text: str) -> None:
    tab.get_by_label("Text", exact=True).fill(text)
    tab.get_by_role("button", name="Analyse").click()


def closed(screen: Screen) -> dict[str, object]:
    """With nothing else at work: a sweep's tab is closed; does the server come to rest?"""
    screen.sweep(close=True)
    begin = time.monotonic()
    while not (idle := _idle(screen.server)) and time.monotonic() - begin < WAIT:
        continue
    return {"closed_tab_ends_its_run": idle, "closed_tab_idle_s": time.monotonic() - begin - LOOK}


def _idle(process: psutil.Process) -> bool:
    process.cpu_percent()
    return process.cpu_percent(interval=LOOK) < 100 * IDLE
