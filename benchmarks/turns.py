"""Contenders in processes of their own that take turns, so that none profits from another's memory.

A contender is built once in its process. Its memory is the peak of its resident set while it runs
(VmHWM of /proc/self/status, reset before each run), above what was resident with the model loaded
and warm. Where there is no /proc the peak since the process began stands for it (ru_maxrss).
"""

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import psutil
import torch

MIB = 2**20
Run = Callable[[int], object]
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


@dataclass(frozen=True)
class Turn:
    """One run: wall and processor seconds, and the peak of resident memory above the model."""

    seconds: float
    processor: float
    extra_mib: float


class Contender:
    """A process that builds something to run; ask `absent` before the first run."""

    def __init__(self, build: Build, *arguments: object, warm: int = 16) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        task = (theirs, build, arguments, torch.get_num_threads(), warm)
        self._process = context.Process(target=_serve, args=task, daemon=True)
        self._process.start()
        theirs.close()

    @cached_property
    def absent(self) -> str | None:
        """Waits until the contender is built and warm; why it is not there, if it is not."""
        return self._answer()

    def run(self, tokens: int) -> Turn:
        self._pipe.send(tokens)
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


def _serve(pipe: Connection, build: Build, arguments: tuple, threads: int, warm: int) -> None:
    torch.set_num_threads(threads)
    try:
        with torch.no_grad():
            run = build(*arguments)
            run(warm)
            loaded = psutil.Process().memory_info().rss
            pipe.send(None)
            for tokens in iter(pipe.recv, None):
                pipe.send(turn(run, tokens, loaded))
    except Absent as reason:
        pipe.send(str(reason))


def turn(run: Run, tokens: int, loaded: int) -> Turn:
    """Runs once; `loaded` is the resident set to count memory from, in bytes."""
    forget_peak()
    begin, processor = time.perf_counter(), time.process_time()
    run(tokens)
    seconds, used = time.perf_counter() - begin, time.process_time() - processor
    return Turn(seconds, used, max(0, peak() - loaded) / MIB)


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


@dataclass(frozen=True)
class Tally:
    """The turns of one contender at one length."""

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

    def over(self, other: "Tally", what: str = "seconds") -> float:
        """Median of the ratios to the other's turn of the same round, which shares its noise."""
        pairs = zip(self.turns, other.turns, strict=False)
        return median(getattr(mine, what) / getattr(theirs, what) for mine, theirs in pairs)


def tallies(contenders: Mapping[str, Contender], tokens: int, rounds: int) -> dict[str, Tally]:
    """Every contender runs once a round, forwards and backwards through the list in turn."""
    found: dict[str, list[Turn]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name in _order(list(contenders), number):
            found[name].append(contenders[name].run(tokens))
    return {name: Tally(tuple(turns)) for name, turns in found.items()}


def _order(names: Sequence[str], number: int) -> Sequence[str]:
    return names[:: 1 if number % 2 == 0 else -1]


def started(
    stack: ExitStack, builds: Mapping[str, tuple]
) -> tuple[dict[str, Contender], dict[str, str]]:
    """The contenders that are there, and why the others are not."""
    every = {name: stack.enter_context(Contender(*task)) for name, task in builds.items()}
    absent = {name: who.absent for name, who in every.items() if who.absent}
    return {name: who for name, who in every.items() if not who.absent}, absent
