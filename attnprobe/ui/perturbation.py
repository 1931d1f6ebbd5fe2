"""The perturbation page: what is edited, and the panels of permutation and replacement."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pandas as pd
import streamlit as st

from attnprobe import figures
from attnprobe.analyses.perturbation import experiments, permutation
from attnprobe.analyses.perturbation.edits import ALL_ROWS, ROWS, Scope
from attnprobe.analyses.perturbation.experiments import Cost, Unit
from attnprobe.analyses.perturbation.permutation import Draws
from attnprobe.analyses.perturbation.replacement import EDITS
from attnprobe.analyses.perturbation.runs import CleanRun, clean_run
from attnprobe.export import Figure, Provenance
from attnprobe.figures.violins import violins
from attnprobe.metrics import Number, Quantity
from attnprobe.ui.cached import computed
from attnprobe.ui.experiments import Experiment
from attnprobe.ui.run import Progress, run
from attnprobe.ui.show import card, draw, metrics, show
from attnprobe.ui.state import choice
from attnprobe.ui.view import View

TVD = "TVD of the output"
PEAK = Quantity(
    "peak", "peak", "weight", domain=(0, 1), definition="Largest weight of a row, mean over rows."
)
MEDIAN = Quantity("median", f"{TVD}, median over permutations", domain=(0, None))
DRAWN = Quantity("tvd", f"{TVD}, one permutation", domain=(0, None))
EFFECT = Quantity("tvd", f"{TVD}, mean over texts", domain=(0, None))
RATIO = Quantity("ratio", "permutation TVD / ablation TVD", domain=(0, None))
SCOPES = ("This head", "Its layer", "All layers")
CHOSEN, OTHERS = "chosen", "others, the null"


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


_SAID = {**EDITS, "permutation": "each row's weights in a random order, median"}
_MEANINGS = "; ".join(f"{edit}: {said}" for edit, said in _SAID.items()).capitalize()
_LACKS = {
    "mean": "there is no other text",
    "frozen": "no other text is long enough",
    "permutation": "no row has two keys to exchange",
}
_NAMES = {
    "uniform": "uniform",
    "mean": "mean of others",
    "zero": "ablation",
    "first token": "first token",
    "frozen": "other text's",
}


def only(state: Perturbing, frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the chosen scope, without those of the null."""
    return frame[chosen(state, frame)]


def chosen(state: Perturbing, frame: pd.DataFrame) -> pd.Series:
    layer, head = (-1 if at is None else at for at in (state.scope.layer, state.scope.head))
    return (frame["layer"].fillna(-1) == layer) & (frame["head"].fillna(-1) == head)


def shown(number: Number | None, digits: str = ".3g") -> str:
    """A number for a person; what is undefined is said to be."""
    return "undefined" if number is None or pd.isna(number) else f"{number:{digits}}"


def permutations(state: Perturbing) -> None:
    """Permutation and replacement: the paper's figures, and what stands beside them."""
    draws, others = _settings()
    loaded = state.view.loaded
    null = permutation.other_scopes(loaded, state.scope, others, draws.seed)
    scopes = [state.scope, *null]
    cost = experiments.permutation_cost(state.lengths, loaded.n_layers, scopes, draws)
    frames = state.frames(
        "permutation",
        {"draws": draws.statement, "others": others},
        lambda runs: experiments.permutation_units(runs, scopes, draws),
        cost,
    )
    if frames is None:
        return
    baselines(state, frames)
    summary = permutation.per_text(frames["draws"])
    left, right = st.columns(2)
    with left:
        _scatter(state, summary, draws)
    with right:
        _violins(state, frames["draws"], draws)
    left, right = st.columns(2)
    with left:
        _ratios(state, permutation.ratios(summary, frames["replaced"]), draws)
    with right:
        _replaced(state, frames, summary)


def _settings() -> tuple[Draws, int]:
    columns = st.columns(4)
    with columns[0]:
        number = st.number_input(
            "Permutations", 10, 1000, 100, 10, key="permutations", persist_state="session"
        )
    with columns[1]:
        others = st.number_input(
            "Random others as the null", 0, 48, 12, key="permutation_others",
            persist_state="session",
            help="Other heads (or layers) that the same is done to, so that a ratio can be placed.",
        )  # fmt: skip
    with columns[2]:
        seed = st.number_input("Seed", 0, 2**31, 0, key="permutation_seed", persist_state="session")
    with columns[3]:
        specials = st.toggle(
            "Move special tokens too", True, key="permutation_specials", persist_state="session"
        )
    return Draws(int(number), specials, int(seed)), int(others)


def _scatter(state: Perturbing, summary: pd.DataFrame, draws: Draws) -> None:
    which = chosen(state, summary).map({True: CHOSEN, False: OTHERS})
    frame = summary.assign(weights=which).sort_values("weights")
    figure = Figure(
        name="permutation-peak",
        chart_for=lambda mode: figures.scatter(
            frame, PEAK, MEDIAN, by="weights", names=("layer", "head", "text"),
            interval=("q25", "q75"), mode=mode,
        ),
        frame=frame,
        caption=f"A point per text and scope: the output's median TVD over {draws.statement}, "
        "against the peak of the edited rows (Jain & Wallace 2019); the rule through it spans the "
        f"middle half of the permutations. {state.said} A small TVD says little where the ablation "
        "is small too.",
        alt="Median TVD under permutation against the peak, one point per text with its quartiles.",
        provenance=state.provenance(permutations=draws.statement),
    )  # fmt: skip
    show(state.view, figure, "Permutation against peak", key="perturbation:scatter")


def _violins(state: Perturbing, drawn: pd.DataFrame, draws: Draws) -> None:
    frame = permutation.violins(only(state, drawn))
    if frame.empty:
        with card("Permutation by peak"):
            st.markdown("Undefined: no row has two keys to exchange.")
        return
    figure = Figure(
        name="permutation-violins",
        chart_for=lambda mode: violins(frame, DRAWN, "peak_bin", mode=mode),
        frame=frame,
        caption=f"All permutations of {state.scope.label}, by the peak of their text's rows; n "
        f"counts permutations. {state.said} {draws.statement.capitalize()}.",
        alt="Violins of the TVD of single permutations, one per bin of the peak.",
        provenance=state.provenance(permutations=draws.statement),
    )
    show(state.view, figure, "Permutation by peak", key="perturbation:violins")


def _ratios(state: Perturbing, ratios: pd.DataFrame, draws: Draws) -> None:
    names = [
        Scope(None if pd.isna(a) else int(a), None if pd.isna(b) else int(b)).label
        for a, b in zip(ratios["layer"], ratios["head"], strict=True)
    ]
    which = chosen(state, ratios).map({True: CHOSEN, False: OTHERS})
    frame = ratios.assign(scope=names, weights=which).sort_values("weights", kind="stable")
    own = only(state, frame).iloc[0]
    said = (
        f"{state.scope.label}: ratio {shown(own['ratio'])}, larger than {own['null_share']:.0%} of "
        f"{own['null_scopes']} random others (5 to 95 %: {shown(own['null_low'])} to "
        f"{shown(own['null_high'])})."
        if pd.notna(own["null_share"])
        else f"{state.scope.label}: ratio {shown(own['ratio'])}."
    )
    figure = Figure(
        name="permutation-ratio",
        chart_for=lambda mode: figures.bars(frame, RATIO, "scope", by="weights", mode=mode),
        frame=frame,
        caption=f"{said} Mean over texts of the median permutation TVD, over the mean ablation "
        "TVD. Above 1, wrong weights do more than no weights; undefined where the ablation does "
        f"nothing. {state.said}",
        alt="Ratio of permutation TVD to ablation TVD for the chosen scope and random others.",
        provenance=state.provenance(permutations=draws.statement),
    )
    show(state.view, figure, "Permutation over ablation", key="perturbation:ratio")


def _replaced(state: Perturbing, frames: Mapping[str, pd.DataFrame], summary: pd.DataFrame) -> None:
    table = effects_table(only(state, frames["replaced"]), only(state, summary))
    figure = Figure(
        name="replacement",
        chart_for=partial(_replacement_bars, table),
        frame=table,
        caption="Mean TVD of the output when the weights are replaced; the permutations' median "
        f"stands beside them. {state.said} {undefined_said(table)}{_MEANINGS}.",
        alt="Mean TVD for each replacement of the weights.",
        provenance=state.provenance(),
    )
    with card("Replacement", caption=figure.caption, export=figure, key="perturbation:replaced"):
        draw(state.view, figure, key="perturbation:replaced:chart")
        st.dataframe(
            table,
            hide_index=True,
            placeholder="undefined",
            column_order=["edit", "tvd", "flips", "texts"],
            column_config={
                "tvd": st.column_config.NumberColumn("mean TVD", format="%.4f"),
                "flips": st.column_config.NumberColumn("decisions flipped", format="percent"),
                "texts": st.column_config.NumberColumn("texts", format="%d"),
            },
        )


def undefined_said(table: pd.DataFrame) -> str:
    """Which edits of the table are undefined and why, one sentence each; empty if none is."""
    undefined = set(table.loc[table["tvd"].isna(), "edit"])
    return "".join(f"Undefined, {edit}: {_LACKS[edit]}. " for edit in _LACKS if edit in undefined)


def _replacement_bars(table: pd.DataFrame, mode: figures.Mode):
    return figures.bars(table, EFFECT, "edit", mode=mode)


def effects_table(replaced: pd.DataFrame, summary: pd.DataFrame) -> pd.DataFrame:
    """One row per edit: mean TVD, share of flipped decisions, texts, and what it is."""
    grouped = replaced.groupby("edit", sort=False)
    table = grouped[["tvd", "flips"]].mean().assign(texts=grouped["tvd"].count())
    table.loc["permutation"] = [
        summary["median"].mean(),
        summary["flips"].mean(),
        summary["median"].count(),
    ]
    table = table.reset_index().assign(meaning=lambda t: t["edit"].map(_SAID))
    return table.astype({"texts": int})
