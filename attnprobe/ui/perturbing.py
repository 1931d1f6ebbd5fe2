"""The perturbation page: what is edited, its experiments' frames, and what all panels share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import streamlit as st

from attnprobe.analyses.perturbation import experiments
from attnprobe.analyses.perturbation.edits import ALL_ROWS, ROWS, Scope
from attnprobe.analyses.perturbation.experiments import Cost, Unit
from attnprobe.analyses.perturbation.replacement import EDITS
from attnprobe.analyses.perturbation.runs import CleanRun, clean_run
from attnprobe.export import Provenance
from attnprobe.metrics import Number
from attnprobe.ui.cached import computed
from attnprobe.ui.experiments import Experiment
from attnprobe.ui.run import Progress, run
from attnprobe.ui.show import metrics
from attnprobe.ui.state import choice
from attnprobe.ui.view import View

TVD = "TVD of the output"
SCOPES = ("This head", "Its layer", "All layers")
_NAMES = {
    "uniform": "uniform",
    "mean": "mean of others",
    "zero": "ablation",
    "first token": "first token",
    "frozen": "other text's",
}


@dataclass(frozen=True, eq=False)
class _Parts:
    """What finished units gave, and at most one that was begun and is done again to go on."""

    whole: tuple[experiments.Part, ...]
    begun: tuple[experiments.Part, ...] = ()


@dataclass(frozen=True, eq=False)
class Perturbing:
    """What the page's widgets say: texts and read-out, and which weights are edited."""

    experiment: Experiment
    scope: Scope

    @property
    def view(self) -> View:
        return self.experiment.page

    @property
    def lengths(self) -> list[int]:
        reader = self.view.loaded.reader
        return [reader.count(item.text) for item in self.experiment.texts.texts]

    @property
    def said(self) -> str:
        """For captions: how many texts, what is edited, what is watched."""
        n = len(self.lengths)
        alone = "" if n > 1 else " Other texts are bundled ones at least as long."
        return (
            f"N = {n} text{'s' * (n > 1)}, edits in {self.scope.label}, {self.scope.rows}, "
            f"read-out: {self.experiment.readout.statement}.{alone}"
        )

    def provenance(self, **extra: object) -> Provenance:
        return self.experiment.provenance(
            layer=self.scope.layer,
            head=self.scope.head,
            edited=f"{self.scope.label}, {self.scope.rows}",
            **extra,
        )

    def frames(
        self,
        name: str,
        parameters: Mapping[str, object],
        units: Callable[[Sequence[CleanRun]], list[Unit]],
        cost: Cost,
    ) -> dict[str, pd.DataFrame] | None:
        """An experiment's frames once it was started; if it was stopped, those of finished units
        and what an unfinished one had found."""
        scope = [self.scope.layer, self.scope.head, self.scope.rows]
        everything = {**self.experiment.parameters, "scope": scope, **parameters}

        def steps(progress: Progress) -> _Parts:
            runs = experiments.clean_runs(
                self.experiment.readout, self.experiment.texts.texts, progress.tick
            )
            kept = progress.partial.whole if progress.partial else ()

            def report(done: int | float, total: int, parts: tuple[experiments.Part, ...]) -> None:
                progress(done, total, _Parts(parts[: int(done)], parts[int(done) :]))

            return _Parts(experiments.in_turn(units(runs), report, progress.tick, kept))

        price = cost.statement(self.pace())
        outcome = run(self.experiment.view, name, everything, steps, cost=price)
        if outcome is None:
            return None
        if not outcome.complete and outcome.value.whole:
            st.caption(
                f":material/info: Stopped: {len(outcome.value.whole):,} of {outcome.total:,} parts "
                "are in these numbers."
            )
        return experiments.joined([*outcome.value.whole, *outcome.value.begun])

    def pace(self) -> float:
        """Seconds per token and layer on this machine."""
        first = self.experiment.texts.texts[0]
        return computed(
            self.experiment.view,
            "perturbation pace",
            self.experiment.parameters,
            lambda tick: experiments.pace(clean_run(self.experiment.readout, first)),
        )


def perturbing(experiment: Experiment) -> Perturbing:
    """The widgets of what is edited, and what they say."""
    view = experiment.page
    left, right = st.columns(2)
    with left:
        width = choice("Edited weights", SCOPES, key="perturbation_scope")
    with right:
        offered = (ALL_ROWS,) if experiment.readout.pooled else ROWS
        rows = choice(
            "Query rows",
            offered,
            key=f"perturbation_rows:{len(offered)}",
            help="The read-out's row is the query position that the read-out watches; a read-out "
            "that pools over all tokens has none.",
        )
    layer, head = {
        "This head": (view.layer, view.head),
        "Its layer": (view.layer, None),
        "All layers": (None, None),
    }[width]
    return Perturbing(experiment, Scope(layer, head, rows))


def baselines(state: Perturbing, frames: Mapping[str, pd.DataFrame]) -> None:
    """What plain replacements do to the same texts: beside every other number, never left out."""
    own = only(state, frames["replaced"])
    means = own.groupby("edit")["tvd"].mean()
    metrics(
        *(
            (f"TVD, {_NAMES[edit]}", shown(means.get(edit)), f"{said.capitalize()}. Mean TVD.")
            for edit, said in EDITS.items()
        )
    )


def only(state: Perturbing, frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the chosen scope, without those of the null."""
    return frame[chosen(state, frame)]


def chosen(state: Perturbing, frame: pd.DataFrame) -> pd.Series:
    layer, head = (-1 if at is None else at for at in (state.scope.layer, state.scope.head))
    return (frame["layer"].fillna(-1) == layer) & (frame["head"].fillna(-1) == head)


def shown(number: Number | None, digits: str = ".3g") -> str:
    """A number for a person; what is undefined is said to be."""
    return "undefined" if number is None or pd.isna(number) else f"{number:{digits}}"
