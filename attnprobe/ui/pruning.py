"""The panels of the pruning page: scores and effects, one head a layer, curves, cutting out."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pandas as pd
import streamlit as st

from attnprobe import figures
from attnprobe.analyses import ablation
from attnprobe.analyses.pruning import cost, effects, importance, ranking
from attnprobe.analyses.pruning.effects import Effects
from attnprobe.data import TextSet
from attnprobe.export import Figure
from attnprobe.metrics import Quantity
from attnprobe.ui.cached import computed
from attnprobe.ui.experiments import Experiment
from attnprobe.ui.overview import number_column
from attnprobe.ui.run import Outcome, Progress, run
from attnprobe.ui.show import card, metrics, show
from attnprobe.ui.state import picking_head

LEVEL = 0.9

LOSS = Quantity(
    "loss_change",
    "change of loss",
    "nats",
    kind="diverging",
    definition="Mean over texts of the loss with this head off minus the loss as it is.",
)
SCORES = {
    "importance": Quantity(
        "importance",
        "importance",
        "nats per unit gate",
        domain=(0, None),
        definition="Mean over texts of |∂L/∂ξ|, the absolute value taken per text "
        "(Michel, Levy & Neubig 2019, eq. 2).",
    ),
    "importance_l2": Quantity(
        "importance_l2",
        "importance, ℓ2-normalised per layer",
        domain=(0, 1),
        definition="Importance divided by its ℓ2 norm over the heads of the layer: heads of one "
        "layer compare, layers no longer do.",
    ),
    "per_token": Quantity(
        "per_token",
        "importance per token",
        "nats per unit gate",
        domain=(0, None),
        definition="Mean over texts of Σ over positions of |context · ∂L/∂context|, the variant in "
        "the authors' code; never below importance.",
    ),
    "per_token_l2": Quantity(
        "per_token_l2",
        "importance per token, ℓ2-normalised per layer",
        domain=(0, 1),
        definition="The per-token variant divided by its ℓ2 norm over the heads of the layer.",
    ),
}
PLACE = Quantity(
    "step", "step in which the head goes", "step", domain=(1, None), format="d",
    definition="1 goes first.",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Pruning:
    """What the page's widgets say: the experiment, its two parts, what an off head gives."""

    experiment: Experiment
    scoring: TextSet
    evaluation: TextSet
    ablation: str
    score: str

    @property
    def parameters(self) -> dict[str, object]:
        return self.experiment.parameters | {"ablation": self.ablation}

    @property
    def said(self) -> str:
        """One sentence for captions: how heads are switched off and on how many texts."""
        return (
            f"Off means {ablation.ABLATIONS[self.ablation]}. {len(self.scoring)} texts score, "
            f"{len(self.evaluation)} others evaluate. Read-out: "
            f"{self.experiment.readout.statement}."
        )

    def instead(self, tick: Callable[[], None]) -> ablation.Replacement:
        return ablation.replacement(self.ablation, self.experiment.readout, self.scoring, tick)


def pruning(experiment: Experiment) -> Pruning:
    """The widgets of the analysis, and what they say."""
    scoring, evaluation = experiment.texts.split()
    left, right = st.columns(2)
    with left:
        off = st.selectbox(
            "A head that is off gives",
            list(ablation.ABLATIONS),
            format_func=ablation.ABLATIONS.__getitem__,
            key="pruning_ablation",
            persist_state="session",
        )
    with right:
        score = st.selectbox(
            "Score",
            list(SCORES),
            format_func=lambda name: SCORES[name].label,
            key="pruning_score",
            persist_state="session",
            help="Raw scores keep what layers differ in; normalised ones give every layer the same "
            "weight, as the paper's experiments do.",
        )
    return Pruning(experiment, scoring, evaluation, off, score)


def scored(state: Pruning) -> pd.DataFrame | None:
    """Importance and effect of every head on the scoring part; None before it was run."""
    read, view = state.experiment.readout, state.experiment.view
    passes = cost.one_layer_sweep(view.loaded) + cost.IMPORTANCE

    def steps(progress: Progress) -> tuple[pd.DataFrame, Effects]:
        scores = importance.importance(
            read, state.scoring, progress=lambda done, total: progress.tick()
        )
        so_far = progress.partial[1] if progress.partial else None

        def report(done: int, total: int, partial: Effects | None = None) -> None:
            progress(done, total, (scores, partial) if partial else None)

        instead = state.instead(progress.tick)
        found = effects.one_head_off(read, state.scoring, instead, so_far=so_far, progress=report)
        return scores, found

    outcome = run(
        view, "heads", state.parameters, steps,
        cost=price(state, "scoring", passes), label="Score every head",
    )  # fmt: skip
    if outcome is None:
        return None
    scores, found = outcome.value
    noted(outcome, len(found.numbers), len(state.scoring))
    return ranking.table(scores, found.frame())


def price(state: Pruning, part: str, passes: float) -> str:
    """What a run will cost, in forward passes and in time as measured here."""
    parts = {"scoring": state.scoring, "evaluation": state.evaluation}
    second = computed(
        state.experiment.view, "seconds per text", state.experiment.parameters,
        lambda tick: cost.seconds_per_text(state.experiment.readout, state.scoring),
    )  # fmt: skip
    texts = len(parts[part])
    return (
        f"About {passes:.0f} forward passes of each of {texts} texts: "
        f"{duration(second * passes * texts)} on this machine."
    )


def duration(seconds: float) -> str:
    """Seconds for a person: under a minute to the second, then minutes."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min"


def noted(outcome: Outcome, done: int, total: int) -> None:
    """Says so when a run was stopped before all texts were done."""
    if not outcome.complete:
        st.caption(f":material/info: Stopped: {done} of {total} texts are in these numbers.")


def numbers(state: Pruning, heads: pd.DataFrame) -> None:
    """The run in four numbers."""
    signed = ranking.agreement(heads, state.score)
    sized = ranking.agreement(heads, state.score, size=True)
    worst = heads.loc[heads["loss_change"].idxmax()]
    metrics(
        ("Heads", f"{len(heads)}"),
        (
            "Certain effects",
            f"{int(effects.significant(heads).sum())}",
            "Heads whose 95 % interval of the change of loss leaves 0 out.",
        ),
        ("Largest effect", f"L{worst['layer']:.0f}.H{worst['head']:.0f}", "By change of loss."),
        (
            "Score against effect",
            _rho(signed),
            "Spearman's rank correlation over heads. The score is a slope at ξ = 1 and need not "
            "agree with what switching off does.",
        ),
        (
            "Score against its size",
            _rho(sized),
            "The same with the size of the change of loss: the score has no sign, so a head that "
            "harms counts like one that helps.",
        ),
    )


def _rho(value: float | None) -> str:
    return "undefined" if value is None else f"ρ = {value:.2f}"


def atlases(state: Pruning, heads: pd.DataFrame, page: str) -> None:
    """Score and effect side by side; a click opens the head on `page`."""
    view = state.experiment.page
    here = (view.layer, view.head)
    for place, q in zip(st.columns(2), (SCORES[state.score], LOSS), strict=True):
        figure = Figure(
            name=f"pruning-{q.name}",
            chart_for=partial(_head_map, heads, q, here),
            frame=heads,
            caption=f"{q.definition} {state.said}",
            alt=f"Heat map of {q.title} for every layer and head.",
            provenance=provenance(state, heads),
        )
        with place:
            show(
                view, figure, q.label.capitalize(), key=f"pruning:{q.name}",
                on_pick=picking_head(view, page),
                selected={"layer": view.layer, "head": view.head},
            )  # fmt: skip


def _head_map(
    heads: pd.DataFrame, q: Quantity, selected: tuple[int, int] | None, mode: figures.Mode
):
    return figures.head_map(heads, q, mode=mode, selected=selected, size=330)


def provenance(state: Pruning, frame: pd.DataFrame, **extra: object):
    """Where a figure of this page comes from."""
    texts = {"counted texts": int(frame["texts"].iloc[0])} if "texts" in frame else {}
    return state.experiment.provenance(
        ablation=ablation.ABLATIONS[state.ablation], **texts, **extra
    )


def table(state: Pruning, heads: pd.DataFrame) -> None:
    """All heads with their intervals, sortable."""
    q = SCORES[state.score]
    names = [
        "layer", "head", q.name, "loss_change", "loss_low", "loss_high",
        "metric_change", "metric_low", "metric_high", "importance_rank", "effect_rank",
    ]  # fmt: skip
    shown = heads[names].sort_values("loss_change", ascending=False)
    config = {q.name: number_column(q), "loss_change": number_column(LOSS)}
    with card(
        "Every head, with 95 % intervals",
        caption=f"Metric: {heads['metric'].iloc[0]}. Intervals: paired bootstrap over "
        f"{heads['texts'].iloc[0]} texts.",
    ):
        st.dataframe(shown, hide_index=True, column_config=config, key="pruning:table")


def largest(state: Pruning, heads: pd.DataFrame) -> None:
    """The heads with the largest effects, as bars with whiskers."""
    most = 14
    order = heads["loss_change"].abs().nlargest(most).index
    named = heads.loc[order].assign(
        label=lambda t: "L" + t["layer"].astype(str) + ".H" + t["head"].astype(str)
    )
    figure = Figure(
        name="pruning-largest",
        chart_for=lambda mode: figures.bars(
            named, LOSS, "label", interval=("loss_low", "loss_high"), mode=mode, width=300
        ),
        frame=named,
        caption=f"The {len(named)} largest changes of loss with 95 % paired bootstrap intervals; "
        "below 0 the model is better without the head. " + state.said,
        alt="Bars of the change of loss per head with whiskers.",
        provenance=provenance(state, heads),
    )
    show(state.experiment.page, figure, "Largest effects", key="pruning:largest", width="content")
