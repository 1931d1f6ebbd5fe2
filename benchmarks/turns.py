"""Contenders in processes of their own that take turns, so that none profits from another's memory.

A contender is built once in its process, and runs what it is given: a number of tokens, or whatever
its benchmark asks of it. Its memory is the peak of its resident set while it runs (VmHWM of
/proc/self/status, reset before each run), above what was resident with the model loaded and warm.
Where there is no /proc the peak since the process began stands for it (ru_maxrss). Benchmarks on a
GPU read the allocator of the device instead, see `Gauge`.
"""

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import torch

MIB = 2**20
Run = Callable[[Any], object]
Build = Callable[..., Run]


class Absent(Exception):
    """A contender cannot take part; the message says why."""


class Noted(dict):
    """Figures by name, each also told on the error output as soon as it is there.

    What a benchmark that was stopped had measured can be read there.
    """

    def add(self, figures: Mapping[str, object]) -> None:
        self.update(figures)
        for name, figure in figures.items():
            print(name, figure, file=sys.stderr, flush=True)


def resident() -> int:
    """The resident set of this process now, in bytes."""
    return psutil.Process().memory_info().rss


def forget_peak() -> None:
    """Lets the peak of this process's resident set begin anew, where the system can."""
    if Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak() -> int:
    """The largest resident set of this process, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(x for x in status.read_text("utf-8").splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def done_already() -> None:
    """A processor has done what it was asked when the call returns."""


@dataclass(frozen=True)
class Gauge:
    """How memory is read, in bytes held now and their peak since it was last forgotten.

    `wait` returns when the device has done all that it was asked.
    """

    now: Callable[[], int]
    peak: Callable[[], int]
    forget: Callable[[], None]
    wait: Callable[[], None]


RESIDENT = Gauge(resident, peak, forget_peak, done_already)
GAUGES = {
    "cpu": RESIDENT,
    "cuda": Gauge(
        torch.cuda.memory_allocated,
        torch.cuda.max_memory_allocated,
        torch.cuda.reset_peak_memory_stats,
        torch.cuda.synchronize,
    ),
}
"""By type of device. A contender on a GPU has a CUDA context of its own."""


@dataclass(frozen=True)
class Turn:
    """One run: wall and processor seconds, and the peak of memory above the model."""

    seconds: float
    processor: float
    extra_mib: float


class Stand:
    """What a contender's process holds: its run, warm, and what the last turn gave."""

    def __init__(self, run: Run, warm: object, gauge: Gauge = RESIDENT) -> None:
        self._run, self._gauge = run, gauge
        run(warm)
        gauge.wait()
        self._loaded = gauge.now()
        self._given: object = None

    def turn(self, work: object) -> Turn:
        self._given = None
        self._gauge.forget()
        begin, processor = time.perf_counter(), time.process_time()
        self._given = self._run(work)
        self._gauge.wait()
        seconds, used = time.perf_counter() - begin, time.process_time() - processor
        return Turn(seconds, used, max(0, self._gauge.peak() - self._loaded) / MIB)

    def result(self) -> np.ndarray:
        """What the last turn gave, a tensor, as an array."""
        return self._given.numpy(force=True)


class Contender:
    """A process that builds something to run; ask `absent` before the first run.

    It has as many threads as this process. `warm` is what it runs once, before its memory is read.
    """

    def __init__(
        self, build: Build, *arguments: object, warm: object = 16, gauge: Gauge = RESIDENT
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        task = (theirs, build, arguments, torch.get_num_threads(), warm, gauge)
        self._process = context.Process(target=_serve, args=task, daemon=True)
        self._process.start()
        theirs.close()

    @cached_property
    def absent(self) -> str | None:
        """Waits until the contender is built and warm; why it is not there, if it is not."""
        return self._answer()

    def run(self, work: object) -> Turn:
        self._pipe.send((Stand.turn, work))
        return self._answer()

    def result(self) -> np.ndarray:
        """What its last run gave, if that is a tensor."""
        self._pipe.send((Stand.result,))
        return self._answer()

    def _answer(self):
        try:
            return self._pipe.recv()
        except EOFError:
            self._process.join()
            raise SystemExit(
                f"a contender's process ended with status {self._process.exitcode}; see above"
            ) from None

    def __enter__(self) -> "Contender":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.is_alive():
            self._pipe.send(None)
        self._process.join()


def _serve(
    pipe: Connection, build: Build, arguments: tuple, threads: int, warm: object, gauge: Gauge
) -> None:
    torch.set_num_threads(threads)
    try:
        with torch.no_grad():
            stand = Stand(build(*arguments), warm, gauge)
            pipe.send(None)
            for ask, *given in iter(pipe.recv, None):
                pipe.send(ask(stand, *given))
    except Absent as reason:
        pipe.send(str(reason))


@dataclass(frozen=True)
class Tally:
    """The turns of one contender."""

    turns: tuple[Turn, ...]

    @property
    def seconds(self) -> float:
        return median(turn.seconds for turn in self.turns)

    @property
    def processor(self) -> float:
        return median(turn.processor for turn in self.turns)

    @property
    def extra_mib(self) -> float:
        return max(turn.extra_mib for turn in self.turns)

    def total(self, what: str = "seconds") -> float:
        """Sum over all turns, where each was another piece of the work."""
        return sum(getattr(turn, what) for turn in self.turns)

    def over(self, other: "Tally", what: str = "seconds") -> float:
        """Median of the ratios to the other's turn of the same round, which shares its noise."""
        pairs = zip(self.turns, other.turns, strict=False)
        return median(getattr(mine, what) / getattr(theirs, what) for mine, theirs in pairs)


def in_turn(
    contenders: Mapping[str, Contender], works: Iterable[object]
) -> Iterator[dict[str, Turn]]:
    """A round for each work: all run it, forwards and backwards through the list in turn."""
    for number, work in enumerate(works):
        turns = {name: contenders[name].run(work) for name in _order(list(contenders), number)}
        yield {name: turns[name] for name in contenders}


def _order(names: Sequence[str], number: int) -> Sequence[str]:
    return names[:: 1 if number % 2 == 0 else -1]


def gathered(rounds: Iterable[Mapping[str, Turn]]) -> dict[str, Tally]:
    """The turns of all rounds by contender."""
    every = list(rounds)
    return {name: Tally(tuple(turns[name] for turns in every)) for name in every[0]}


def tallies(contenders: Mapping[str, Contender], work: object, rounds: int) -> dict[str, Tally]:
    """The same work in every round."""
    return gathered(in_turn(contenders, repeat(work, rounds)))


def largest_difference(contenders: Mapping[str, Contender], reference: str) -> float:
    """Between what the last turn of one contender gave and that of any other; NaN where one is."""
    results = {name: who.result() for name, who in contenders.items()}
    own = results.pop(reference)
    return float(np.max([np.abs(other - own).max() for other in results.values()]))


def started(
    stack: ExitStack, builds: Mapping[str, tuple], **options: object
) -> tuple[dict[str, Contender], dict[str, str]]:
    """The contenders that are there, and why the others are not; `options` are a `Contender`'s."""
    every = {
        name: stack.enter_context(Contender(*task, **options)) for name, task in builds.items()
    }
    absent = {name: who.absent for name, who in every.items() if who.absent}
    return {name: who for name, who in every.items() if not who.absent}, absent
