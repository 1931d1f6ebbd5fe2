"""What a text will cost before it is computed: memory from its size, time from what was measured.

The time scales the last longer trace of the same model on this machine by arithmetic operations;
before there was one, nothing is said about it.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from attnprobe import memory
from attnprobe.models import LoadedModel
from attnprobe.trace import bytes_for

WORTH_SAYING = 128
"""Tokens from which a text's cost is stated."""

LONG_ENOUGH = 64
"""Tokens from which a pass says something about longer ones; shorter ones are mostly overhead."""

_pace: dict[str, float] = {}
_MOST = 16


def operations(loaded: LoadedModel, tokens: int) -> int:
    """About how many multiply-adds a forward pass takes: every weight per token, and attention."""
    return tokens * loaded.parameters + 2 * loaded.n_layers * loaded.d_model * tokens**2


@contextmanager
def timed(loaded: LoadedModel, tokens: int) -> Iterator[None]:
    """Notes how long the block takes for a text of this length, if that says anything."""
    start = time.perf_counter()
    yield
    if tokens < LONG_ENOUGH:
        return
    _pace[loaded.key] = (time.perf_counter() - start) / operations(loaded, tokens)
    while len(_pace) > _MOST:
        _pace.pop(next(iter(_pace)))


def seconds_for(loaded: LoadedModel, tokens: int) -> float | None:
    """How long the trace of a text may take here, or None before anything was measured."""
    pace = _pace.get(loaded.key)
    return None if pace is None else pace * operations(loaded, tokens)


def stated(loaded: LoadedModel, tokens: int) -> str:
    """The cost of a longer text, as the end of a sentence; nothing for a short one."""
    if tokens < WORTH_SAYING:
        return ""
    seconds = seconds_for(loaded, tokens)
    passing = "" if seconds is None else f", a pass about {duration(seconds)}"
    return f"; about {memory.size(bytes_for(loaded, tokens))}{passing}"


def duration(seconds: float) -> str:
    """Seconds for a person: 0.4 s, 12 s, 3 min."""
    if seconds < 9.5:
        return f"{seconds:.1g} s"
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
