"""Many people at once for minutes: do results mix, does memory grow, does a closed tab end its run?

Threads call the engine and compare each result with its serial twin; meanwhile tabs of a real
Chromium, each with its own model and text, read numbers off the screen of one server, and one more
tab after another starts a sweep there and is closed. Needs playwright and a Chromium.
"""

import itertools
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from urllib.parse import quote

import numpy as np
import psutil
import torch
from playwright.sync_api import Browser, Page, expect

import attnprobe as ap
from attnprobe import data, readout
from attnprobe.analyses.pruning import effects, importance
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
IDLE, WAIT = 0.15, 60.0
"""A server counts as idle below this share of one core; it is waited for so many seconds."""
STEADY = 30
MIB = 2**20
LONG = 240_000


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--tabs", type=int, default=4)
    parser.add_argument("--runs", type=int, default=200, help="for the slope of memory")


def measure(args: Namespace) -> Mapping[str, object]:
    torch.set_num_threads(1)  # sums in one order: results are compared bit for bit
    models = {name: ap.load(name, device="cpu") for name in MODELS}
    found: dict[str, object] = dict(_growth(models, args.runs))
    before = {name: _logits(model) for name, model in models.items()}
    counts = _Counts()
    twins = _twins(models)
    with ThreadPoolExecutor(args.threads) as pool:
        deadline = time.monotonic() + args.seconds
        workers = [pool.submit(_work, twins, n, deadline, counts) for n in range(args.threads)]
        found |= _tabs(models, args.tabs, deadline)
        _finished(workers)
    unchanged = all(torch.equal(_logits(model), before[name]) for name, model in models.items())
    return found | {
        "seconds": args.seconds,
        "threads": args.threads,
        "thread_results": counts.done,
        "thread_results_unlike_serial": counts.wrong,
        "models_bit_equal_afterwards": unchanged,
    }


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
        work.append(lambda r=read: _numbers(importance.importance(r, texts, draws=5)))
    return [_Twin(act, act()) for act in work]


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


def _tabs(models: Mapping[str, ap.LoadedModel], count: int, deadline: float) -> dict[str, object]:
    with server() as address, chromium() as browser:
        process = _server_process(address)
        tabs = [_opened(browser, address, MODELS[i % 2]) for i in range(count)]
        shown = wrong = 0
        idle, resident = [], []
        for turn in itertools.count():
            for i, tab in enumerate(tabs):
                _ask(tab, WORDS[(turn + i) % len(WORDS)])
            for i, tab in enumerate(tabs):
                shown += 1
                text = WORDS[(turn + i) % len(WORDS)]
                wrong += not _shows(tab, _entropy(models[MODELS[i % 2]], text))
            resident.append(process.memory_info().rss / MIB)
            if time.monotonic() > deadline:
                break
            _start_and_close(browser, address)
        _start_and_close(browser, address)
        idle = _seconds_until_idle(process)
    return {
        "tabs": count,
        "tab_results": shown,
        "tab_results_unlike_serial": wrong,
        "closed_tab_idle_s": idle,
        "server_mib_first": resident[0],
        "server_mib_last": resident[-1],
    }


def _server_process(address: str) -> psutil.Process:
    port = address.rsplit(":", 1)[1]
    return next(p for p in psutil.process_iter() if port in _command(p))


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _opened(browser: Browser, address: str, model: str, page: str = "Head_inspector") -> Page:
    context = browser.new_context(viewport={"width": 1280, "height": 1400})
    context.set_default_timeout(LONG)
    tab = context.new_page()
    tab.goto(f"{address}/{page}?model={quote(model, safe='')}&layer={LAYER}&head={HEAD}")
    settled(tab)
    return tab


def _ask(tab: Page, text: str) -> None:
    tab.get_by_label("Text", exact=True).fill(text)
    tab.get_by_role("button", name="Analyse").click()


def _entropy(model: ap.LoadedModel, text: str) -> str:
    table = ap.head_table(ap.trace(model, text))
    return f"{table[(table['layer'] == LAYER) & (table['head'] == HEAD)].iloc[0]['entropy']:.3g}"


def _shows(tab: Page, entropy: str) -> bool:
    metric = tab.get_by_test_id("stMetric").filter(has_text="Entropy (nats)")
    try:
        expect(metric).to_contain_text(entropy, timeout=LONG)
    except AssertionError:
        return False
    return True


def _start_and_close(browser: Browser, address: str) -> None:
    """A sweep is started on the pruning page and its tab closed at once."""
    tab = _opened(browser, address, MODELS[0], "Pruning")
    tab.get_by_role("button", name="Score every head").click()
    tab.get_by_role("button", name="Stop").wait_for()
    tab.context.close()


def _seconds_until_idle(process: psutil.Process) -> float:
    """How long after the last tab has gone the server still computes."""
    start = time.monotonic()
    process.cpu_percent()
    while time.monotonic() - start < WAIT:
        if process.cpu_percent(interval=0.5) < 100 * IDLE:
            break
    return time.monotonic() - start
