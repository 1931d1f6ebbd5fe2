"""Runs that take seconds: cost before, progress and stop during, what was finished kept after.

Streamlit ends a script when the person touches anything, by a signal raised where the script
touches Streamlit. Here that happens only inside `Progress`. A run that was cut off that way goes on
by itself in the next script if the same thing is still wanted; the stop button says that it is not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import streamlit as st

from attnprobe.ui.bar import Bar
from attnprobe.ui.cached import RESULTS, digest_of
from attnprobe.ui.lock import TORCH, tick
from attnprobe.ui.view import View

RUNS = "runs"


@dataclass(frozen=True)
class Outcome:
    """What a run has so far: `value` is the result, whole only if `complete`."""

    value: Any
    done: int | float
    total: int

    @property
    def complete(self) -> bool:
        return self.done >= self.total


@dataclass(eq=False)
class _Start:
    """Somebody asked for a run; `wanted` until it is finished, failed or stopped.

    What it computes is what the widgets say when the page is next made: the button may have been
    pressed while the page still stood as it was before a widget moved.
    """

    digest: str = ""
    wanted: bool = True

    def stop(self) -> None:
        self.wanted = False


class Progress:
    """Handed to the work: call it after each batch."""

    def __init__(self, digest: str, bar, partial: Any) -> None:
        self.partial = partial
        self.leaving = True
        self._digest = digest
        self._bar = Bar(bar)

    def __call__(self, done: int | float, total: int, partial: Any = None, note: str = "") -> None:
        """`done` of `total` batches are finished and `partial` is their result; a fraction of one
        may be.

        Leaves the run here if the person stopped it or went elsewhere.
        """
        if partial is not None:
            RESULTS.put(f"{self._digest}:partial", Outcome(partial, done, total))
        self.leaving = True
        self._bar(done / max(1, total), note or f"{done:,} of {total:,}")
        self.leaving = False
        self.tick()

    def tick(self) -> None:
        """A point to leave within a batch; also lets other sessions compute in between."""
        self.leaving = True
        tick()
        TORCH.lend()
        self.leaving = False


def run(
    view: View,
    name: str,
    parameters: dict[str, Any],
    steps: Callable[[Progress], Any],
    *,
    cost: str,
    label: str = "Run",
    say: Callable[..., str] = str.format,
) -> Outcome | None:
    """The outcome of `steps(progress)`, started by a button; None before it was ever started.

    Kept for each model, text, `name` and `parameters`; a change of these asks for a new start.
    `say(template, **values)` words the buttons, for a page that speaks another language.
    """
    digest = digest_of("run", name, parameters, view.digest)
    starts = st.session_state.setdefault(RUNS, {})
    start = starts.get(name)
    if start is not None and not start.digest:
        start.digest = digest
    finished = RESULTS.get(digest)
    if finished is not None:
        return finished
    if start is None or start.digest != digest or not start.wanted:
        _offer(starts, name, digest, cost, label, say)
        return RESULTS.get(f"{digest}:partial")
    return _go(start, name, steps, say)


def _offer(
    starts: dict[str, _Start],
    name: str,
    digest: str,
    cost: str,
    label: str,
    say: Callable[..., str],
) -> None:
    partial = RESULTS.get(f"{digest}:partial")
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            label if partial is None else say("Go on"),
            key=f"{name}:start",
            type="primary",
            icon=":material/play_arrow:",
            on_click=lambda: starts.__setitem__(name, _Start()),
        )
        if partial is not None:
            cost = say(
                "Stopped after {done:,} of {total:,}; what was found by then is shown.",
                done=partial.done, total=partial.total,
            )  # fmt: skip
        st.caption(cost)


def _go(
    start: _Start, name: str, steps: Callable[[Progress], Any], say: Callable[..., str]
) -> Outcome:
    place = st.empty()
    with place.container(horizontal=True, vertical_alignment="center"):
        st.button(say("Stop"), key=f"{name}:stop", icon=":material/stop:", on_click=start.stop)
        bar = st.progress(0.0, text=say("Starting"))
    partial = RESULTS.get(f"{start.digest}:partial")
    progress = Progress(start.digest, bar, partial.value if partial else None)
    try:
        with TORCH.taken():
            progress.leaving = False
            outcome = Outcome(steps(progress), 1, 1)
    finally:
        start.wanted = start.wanted and progress.leaving
    RESULTS.put(start.digest, outcome)
    place.empty()
    return outcome
