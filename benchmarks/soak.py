"""Many people at once for minutes: do results mix, does memory grow, does a closed tab end its run?

Threads call the engine and compare each result, bit for bit, with its serial twin; among their work
are sweeps that are stopped after their first batch. Meanwhile tabs of a real Chromium, each with
its own model and text, read numbers off the screen of one server, and one more tab after another
starts a sweep there and stops it or is closed. Needs playwright and a Chromium.
"""

import itertools
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import quote

import numpy as np
import psutil
import torch
from playwright.sync_api import Browser, Page, expect

import attnprobe as ap
from attnprobe import data, readout
from attnprobe.analyses.pruning import effects, importance
from attnprobe.errors import Stopped
from attnprobe.ui.show import value
from benchmarks.turns import MIB, Noted
from tools.screenshots import chromium, server, settled

HELP = "threads and browser tabs for two minutes: mixing, growth of memory, closed tabs"
MODELS = ("bundled:bert", "bundled:gpt2")
WORDS = (
    "The cat sat on the mat because it was tired.",
    "A dog ran.",
    "Zebra, apple and mango, and then it ran.",
    "It was the dog and the dog was tired of it.",
    "Then came the zebra on a mat.",
)
LAYER, HEAD = 1, 2
IDLE, LOOK, WAIT = 0.05, 2.0, 120.0
"""A server counts as idle when it uses less than this share of a core for so many seconds; it is
waited for so many seconds."""
STEADY = 30
LONG = 240_000


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--tabs", type=int, default=4)
    parser.add_argument("--runs", type=int, default=200, help="for the slope of memory")


def measure(args: Namespace) -> Mapping[str, object]:
    torch.set_num_threads(1)  # sums in one order: results are compared bit for bit
    models = {name: ap.load(name, device="cpu") for name in MODELS}
    found = Noted({"seconds": args.seconds, "threads": args.threads, "tabs": args.tabs})
    found.add(_growth(models, args.runs))
    before = {name: _logits(model) for name, model in models.items()}
    counts, twins, expected = _Counts(), _twins(models), entropies(models)
    with ThreadPoolExecutor(args.threads) as pool, server() as address, chromium() as browser:
        screen = _Screen(browser, address, expected)
        tabs = [screen.opened(MODELS[i % 2]) for i in range(args.tabs)]
        deadline = time.monotonic() + args.seconds
        workers = [pool.submit(_work, twins, n, deadline, counts) for n in range(args.threads)]
        try:
            found.add(_turns(screen, tabs, deadline))
        finally:
            _finished(workers)
        found.add({"thread_results": counts.done, "thread_results_unlike_serial": counts.wrong})
        found.add(_closed(screen))
    same = all(torch.equal(_logits(model), before[name]) for name, model in models.items())
    found.add({"models_bit_equal_afterwards": same})
    return found


def _logits(model: ap.LoadedModel) -> torch.Tensor:
    with torch.no_grad():
        return model.forward(model.batch(model.read(WORDS[0])))


@dataclass
class _Counts:
    done: int = 0
    wrong: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, right: bool) -> None:
        with self.lock:
            self.done += 1
            self.wrong += not right


@dataclass(frozen=True)
class _Twin:
    """A piece of work and what it gives when nobody else computes."""

    work: Callable[[], torch.Tensor]
    alone: torch.Tensor


def _twins(models: Mapping[str, ap.LoadedModel]) -> list[_Twin]:
    """Traces, certificates, ablation sweeps and gradients on every model, each with its result."""
    texts = data.bundled("topics").first(4)
    work = []
    for model in models.values():
        read = readout.default(model, texts) if model.causal else _labels(model, texts)
        for text in WORDS:
            work.append(lambda m=model, t=text: _numbers(ap.head_table(ap.trace(m, t))))
            work.append(lambda m=model, t=text: _numbers(ap.certify(m, m.read(t))))
        work.append(lambda r=read: effects.one_head_off(r, texts).loss_change)
        work.append(lambda r=read, m=model: _logits_after_a_stop(r, m, texts))
        work.append(lambda r=read: _numbers(importance.importance(r, texts, draws=5)))
    return [_Twin(act, act()) for act in work]


def _logits_after_a_stop(
    read: readout.ReadOut, model: ap.LoadedModel, texts: data.TextSet
) -> torch.Tensor:
    """What the model says after a sweep was left in the middle."""

    def progress(done: int, total: int, partial: object = None) -> None:
        raise Stopped("the sweep was left")

    with suppress(Stopped):
        effects.one_head_off(read, texts, progress=progress)
    return _logits(model)


def _labels(model: ap.LoadedModel, texts: data.TextSet) -> readout.ReadOut:
    return readout.label_sentences(model, texts.sentences)


def _numbers(frame) -> torch.Tensor:
    return torch.from_numpy(frame.select_dtypes("number").to_numpy(dtype=float))


def _work(twins: list[_Twin], number: int, deadline: float, counts: _Counts) -> None:
    """One thread: the twins in an order of its own until the time is up."""
    torch.set_num_threads(1)
    order = np.random.default_rng(number).permutation(len(twins))
    for at in itertools.cycle(order):
        if time.monotonic() > deadline:
            return
        again = twins[at].work()
        counts.add(_equal(again, twins[at].alone))


def _equal(again: torch.Tensor, alone: torch.Tensor) -> bool:
    """Bit for bit, undefined where undefined."""
    same = again.shape == alone.shape and torch.equal(again.isnan(), alone.isnan())
    return same and torch.equal(again.nan_to_num(), alone.nan_to_num())


def _finished(workers: list[Future]) -> None:
    for worker in workers:
        worker.result()


def _growth(models: Mapping[str, ap.LoadedModel], runs: int) -> dict[str, object]:
    """Resident memory after each of `runs` traces of changing texts, as a least-squares slope."""
    process, resident = psutil.Process(), []
    for number in range(STEADY + runs):
        model = models[MODELS[number % 2]]
        ap.head_table(ap.trace(model, WORDS[number % len(WORDS)]))
        if number >= STEADY:
            resident.append(process.memory_info().rss)
    return {
        "runs": runs,
        "kib_per_run": float(np.polyfit(range(runs), resident, 1)[0]) / 1024,
        "resident_mib_first": resident[0] / MIB,
        "resident_mib_last": resident[-1] / MIB,
    }


def entropies(models: Mapping[str, ap.LoadedModel]) -> dict[tuple[str, str], str]:
    """What the head inspector has to show for every model and text; no two may look alike."""
    shown = {}
    for name, model in models.items():
        for text in WORDS:
            table = ap.head_table(ap.trace(model, text)).set_index(["layer", "head"])
            shown[name, text] = value(table.loc[(LAYER, HEAD), "entropy"])
    if len(set(shown.values())) < len(shown):
        raise SystemExit(f"texts that look alike cannot show that they were mixed: {shown}")
    return shown


class _Screen:
    """Tabs of one browser on one server, and what they have to show."""

    def __init__(
        self, browser: Browser, address: str, expected: Mapping[tuple[str, str], str]
    ) -> None:
        self._browser, self._address, self._expected = browser, address, expected
        port = address.rsplit(":", 1)[1]
        family = psutil.Process().children(recursive=True)
        self.server = next(p for p in family if port in p.cmdline())

    def opened(self, model: str, page: str = "Head_inspector") -> Page:
        context = self._browser.new_context(viewport={"width": 1280, "height": 1400})
        context.set_default_timeout(LONG)
        tab = context.new_page()
        where = f"{page}?model={quote(model, safe='')}&layer={LAYER}&head={HEAD}"
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
        """A sweep is started on the pruning page; its tab is closed at once or stops it first."""
        tab = self.opened(MODELS[0], "Pruning")
        buttons = tab.get_by_test_id("stBaseButton-secondary")
        tab.get_by_role("button", name="Score every head").click()
        stop = buttons.filter(has_text="Stop")
        stop.wait_for()
        if not close:
            stop.click()
            stop.wait_for(state="detached")
        tab.context.close()


def _turns(screen: _Screen, tabs: list[Page], deadline: float) -> dict[str, object]:
    """Every tab asks for another text in each turn, then one more tab sweeps and goes."""
    shown = wrong = 0
    resident = []
    for turn in itertools.count():
        asked = [(tab, MODELS[i % 2], WORDS[(turn + i) % len(WORDS)]) for i, tab in enumerate(tabs)]
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


def _closed(screen: _Screen) -> dict[str, object]:
    """With nothing else at work: a sweep's tab is closed; does the server come to rest?"""
    screen.sweep(close=True)
    begin = time.monotonic()
    while not (idle := _idle(screen.server)) and time.monotonic() - begin < WAIT:
        continue
    return {"closed_tab_ends_its_run": idle, "closed_tab_idle_s": time.monotonic() - begin - LOOK}


def _idle(process: psutil.Process) -> bool:
    process.cpu_percent()
    return process.cpu_percent(interval=LOOK) < 100 * IDLE
