"""The panels of the pruning page about layers and about other texts."""

import streamlit as st

from attnprobe import data, figures
from attnprobe.analyses.pruning import cost, effects
from attnprobe.analyses.pruning.effects import Effects
from attnprobe.export import Figure
from attnprobe.metrics import Quantity
from attnprobe.ui.pruning import LOSS, Pruning, price, provenance
from attnprobe.ui.run import Progress, run
from attnprobe.ui.show import show


def one_a_layer(state: Pruning) -> None:
    """All heads of a layer off but the best one."""
    read, view = state.experiment.readout, state.experiment.view
    passes = cost.one_layer_sweep(view.loaded)

    def steps(progress: Progress) -> tuple[Effects, Effects]:
        instead = state.instead(progress.tick)
        first = effects.all_but_one(
            read,
            state.scoring,
            instead,
            progress=lambda done, total, _=None: progress(done, 2 * total),
        )
        second = effects.all_but_one(
            read, state.evaluation, instead,
            progress=lambda done, total, _=None: progress(total + done, 2 * total),
        )  # fmt: skip
        return first, second

    outcome = run(
        view, "keep one", state.parameters, steps,
        cost=price(state, "scoring", 2 * passes), label="Try one head per layer",
    )  # fmt: skip
    if outcome is None:
        return
    kept = effects.best_to_keep(*outcome.value).assign(
        label=lambda t: "layer " + t["layer"].astype(str) + ", keeps H" + t["head"].astype(str)
    )
    figure = Figure(
        name="pruning-one-head-a-layer",
        chart_for=lambda mode: figures.bars(
            kept,
            LOSS,
            "label",
            interval=("loss_low", "loss_high"),
            ordered=False,
            most=len(kept),
            mode=mode,
        ),
        frame=kept,
        caption="Change of loss when a layer keeps only its best head: chosen on the scoring part, "
        "shown on the evaluation part, with 95 % intervals. " + state.said,
        alt="Bars of the change of loss per layer.",
        provenance=provenance(state, kept),
    )
    show(state.experiment.page, figure, "All heads but one", key="pruning:kept", width="content")


def transfer(state: Pruning) -> None:
    """Single-head effects on the scoring part against those on other texts."""
    read, view = state.experiment.readout, state.experiment.view
    others = {
        "the evaluation part": state.evaluation,
        "bundled topics": data.bundled("topics").first(len(state.evaluation)),
        "bundled prose": data.bundled("prose").first(len(state.evaluation)),
    }
    name = st.selectbox("Compare with", list(others), key="pruning_other", persist_state="session")
    other = others[name]

    def steps(progress: Progress) -> tuple[Effects, Effects]:
        instead = state.instead(progress.tick)
        first = effects.one_head_off(
            read, state.scoring, instead,
            progress=lambda done, total, _=None: progress(done, 2 * total),
        )  # fmt: skip
        second = effects.one_head_off(
            read, other, instead,
            progress=lambda done, total, _=None: progress(total + done, 2 * total),
        )  # fmt: skip
        return first, second

    outcome = run(
        view, "transfer", state.parameters | {"other": other.digest}, steps,
        cost=price(state, "scoring", 2 * cost.one_layer_sweep(view.loaded)),
        label="Compare effects",
    )  # fmt: skip
    if outcome is None:
        return
    frame, found = effects.transfer(*outcome.value)
    said = {
        key: "undefined" if found[key] is None else f"{found[key]:.2f}"
        for key in ("pearson", "spearman")
    }
    x = Quantity("first", "change of loss, scoring part", "nats")
    y = Quantity("second", f"change of loss, {name}", "nats")
    figure = Figure(
        name="pruning-transfer",
        chart_for=lambda mode: figures.scatter(frame, x, y, mode=mode),
        frame=frame,
        caption=f"Each point is a head: Pearson's r = {said['pearson']}, Spearman's ρ = "
        f"{said['spearman']} over {found['heads']} heads. {state.said}",
        alt="Scatter of single-head effects on two sets of texts.",
        provenance=provenance(state, frame, compared_with=f"{name}, {len(other)} texts"),
    )
    show(state.experiment.page, figure, "Do effects carry over?", key="pruning:transfer")
