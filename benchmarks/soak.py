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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import psutil
import torch

import attnprobe as ap
from attnprobe import data, readout
from attnprobe.analyses.pruning import effects, importance
from attnprobe.errors import Stopped
from benchmarks.screen import browser_tools
from benchmarks.turns import MIB, Noted

HELP = "threads and browser tabs for two minutes: mixing, growth of memory, closed tabs"
MODELS = ("bundled:bert", "bundled:gpt2")
WORDS = (
    "The cat sat on the mat because it was tired.",
    "A dog ran.",
    "Zebra, apple and mango, and then it ran.",
    "It was the dog and the dog was tired of it.",
    "Then came the zebra on a mat.",
)
STEADY = 30


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--tabs", type=int, default=4)
    parser.add_argument("--runs", type=int, default=200, help="for the slope of memory")


def measure(args: Namespace) -> Mapping[str, object]:
    screen, tools = browser_tools("benchmarks.soak_tabs"), browser_tools("tools.screenshots")
    torch.set_num_threads(1)  # sums in one order: results are compared bit for bit
    models = {name: ap.load(name, device="cpu") for name in MODELS}
    found = Noted({"seconds": args.seconds, "engine_threads": args.threads, "tabs": args.tabs})
    found.add(_growth(models, args.runs))
    before = {name: _logits(model) for name, model in models.items()}
    counts, twins, expected = Counts(), _twins(models), _entropies(models, screen.PLACE)
    with (
        ThreadPoolExecutor(args.threads) as pool,
        tools.server() as address,
        tools.chromium() as browser,
    ):
        shown = screen.Screen(browser, address, expected)
        tabs = [shown.opened(MODELS[i % 2]) for i in range(args.tabs)]
        deadline = time.monotonic() + args.seconds
        workers = [pool.submit(work, twins, n, deadline, counts) for n in range(args.threads)]
        try:
            found.add(screen.turns(shown, tabs, deadline))
        finally:
            _finished(workers)
        found.add({"thread_results": counts.done, "thread_results_unlike_serial": counts.wrong})
        found.add(screen.closed(shown))
    same = all(torch.equal(_logits(model), before[name]) for name, model in models.items())
    found.add({"models_bit_equal_afterwards": same})
    return found


def _logits(model: ap.LoadedModel) -> torch.Tensor:
    with torch.no_grad():
        return model.forward(model.batch(model.read(WORDS[0])))


@dataclass
class Counts:
    done: int = 0
    wrong: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, right: bool) -> None:
        with self.lock:
            self.done += 1
            self.wrong += not right


@dataclass(frozen=True)
class Twin:
    """A piece of work and what it gives when nobody else computes."""

    work: Callable[[], torch.Tensor]
    alone: torch.Tensor


def _twins(models: Mapping[str, ap.LoadedModel]) -> list[Twin]:
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
    return [Twin(act, act()) for act in work]


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


def work(
    twins: Sequence[Twin],
    number: int,
    deadline: float,
    counts: Counts,
    now: Callable[[], float] = time.monotonic,
) -> None:
    """One thread: the twins in an order of its own until the time is up."""
    torch.set_num_threads(1)
    order = np.random.default_rng(number).permutation(len(twins))
    for at in itertools.cycle(order):
        if now() > deadline:
            return
        again = twins[at].work()
        counts.add(equal(again, twins[at].alone))


def equal(again: torch.Tensor, alone: torch.Tensor) -> bool:
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


def _entropies(
    models: Mapping[str, ap.LoadedModel], place: tuple[int, int]
) -> dict[tuple[str, str], float]:
    """The entropy of the head at `place` for every model and text."""
    return {
        (name, text): ap.head_table(ap.trace(model, text))
        .set_index(["layer", "head"])
        .loc[place, "entropy"]
        for name, model in models.items()
        for text in WORDS
    }
