"""The panels that hold the model against its re-implementation, and attention against its laws."""

from collections.abc import Callable, Sequence
from functools import partial

import pandas as pd
import streamlit as st

from attnprobe import figures
from attnprobe.analyses import orders
from attnprobe.export import Figure
from attnprobe.metrics import METRICS, Quantity
from attnprobe.scratch.certificate import Certificate, certify, summary
from attnprobe.scratch.faults import FAULTS
from attnprobe.scratch.head import difference, properties, slack
from attnprobe.scratch.twin import TWINS
from attnprobe.trace import Trace
from attnprobe.ui import cached
from attnprobe.ui.cached import computed
from attnprobe.ui.pictures import coloured
from attnprobe.ui.run import Progress, run
from attnprobe.ui.scaling import of_head
from attnprobe.ui.show import HALF, NO_ROW, card, heading, metrics, provenance, show, two_cards
from attnprobe.ui.steps import made
from attnprobe.ui.view import View

DIFFERENCE = Quantity("difference", "twin − model", "weight", kind="diverging", format=".3g")
SLACK = Quantity("used", "range used", "share of the values' range", domain=(0, 1))
USED = Quantity("used", "measured", "share of what is allowed", domain=(0, None))
QUERY = Quantity("query", "query", format="d")
MOVED = Quantity("relative_difference", "difference", "share of the largest component", scale="log")
LEAST = 1e-9
HEAT = (
    "Colours: log10 of the largest error over what rounding explains, red above 0. Smaller errors "
    "than a ten-thousandth of that are drawn at the lower end, an error of exactly 0 too."
)


def has_twin(view: View) -> bool:
    return view.loaded.family.model_type in TWINS


def certificate(view: View) -> None:
    """Stage by stage in the model's precision, and in float64 on request."""
    _verdict(summary(view.certificate))
    _stages(view, view.certificate, view.loaded.precision, "certificate")
    other = "float64" if view.loaded.precision != "float64" else "float32"

    def steps(progress: Progress) -> pd.DataFrame:
        progress(0, 2, None)
        loaded = cached.model(view.loaded.name, str(view.loaded.device), other, _revision(view))
        progress(1, 2, None)
        return certify(loaded, view.tokens)

    with card(f"The same in {other}"):
        outcome = run(
            view, "scratch:other", {"dtype": other}, steps, label=f"Certify in {other}",
            cost=f"Loads {view.loaded.name} once more, in {other}, and runs it a few times.",
        )  # fmt: skip
    if outcome is not None and outcome.value is not None:
        _stages(view, outcome.value, other, "certificate-other")


def _verdict(short: Certificate) -> None:
    """The sidebar's badge in a sentence."""
    what = "stages of attention" if short.attention_only else "stages"
    st.markdown(
        f":green[:material/verified: **Certificate holds**] in all {short.stages} {what}. Nearest "
        f"to its limit is {short.place}: an error of {short.max_abs_error:.2g}, where rounding "
        f"explains {short.tolerance:.2g}."
    )


def _revision(view: View) -> str | None:
    return view.loaded.revision if view.loaded.origin == "Hugging Face Hub" else None


def _stages(
    view: View,
    certificate: pd.DataFrame,
    precision: str,
    name: str,
    mistakes: Sequence[str] = (),
) -> None:
    frame, beyond = figures.stage_frame(certificate), figures.beyond_note(certificate)
    made_wrong = ", ".join(FAULTS[fault].title for fault in mistakes)
    with_them = f" with mistakes put in ({made_wrong})" if mistakes else ""
    there = {"faults": ", ".join(mistakes)} if mistakes else {}
    figure = Figure(
        name,
        lambda mode: figures.stage_map(frame, mode=mode),
        certificate,
        f"The running model in {precision} against the re-implementation{with_them} in "
        f"allowed follows from rounding in {precision}. Each layer starts from the model's own "
        f"input to it. {HEAT} {beyond}".strip(),
        f"Heat table of certificate stages by layer, {precision}. {beyond}".strip(),
        provenance(view, precision=precision, **there),
    )  # fmt: skip
    show(view, figure, f"Every stage of every layer, {precision}", key=f"scratch:{name}")


def faults(view: View, trace: Trace) -> None:
    """Put mistakes into the re-implementation and see which stages notice."""
    chosen = st.multiselect(
        "Put these mistakes into the re-implementation", list(FAULTS), ["no_scale"],
        format_func=lambda name: FAULTS[name].title, key="scratch:faults",
    )  # fmt: skip
    settings = TWINS[view.loaded.family.model_type].settings(view.loaded.config)
    for name in chosen:
        fault = FAULTS[name]
        st.caption(f"{heading(fault.title)}: {fault.meaning}.")
        if fault.idle(settings):
            st.info(
                f"“{heading(fault.title)}” changes nothing here: {fault.idle(settings)}.",
                icon=":material/info:",
            )
    if not chosen:
        st.caption("Choose at least one; the model itself is never changed.")
        return
    wrong = computed(
        view, "scratch:wrong", {"faults": chosen},
        lambda tick: certify(view.loaded, view.tokens, faults=chosen, tick=tick),
    )  # fmt: skip
    red = wrong[~wrong["ok"]]
    first = red.iloc[0]["stage"] if len(red) else "none"
    metrics(
        ("Red stages", f"{len(red)} of {len(wrong)}", "Stage by layer: each cell of the table."),
        ("First red stage", first, "In the order of computation."),
        ("Red layers", f"{red['layer'].nunique()} of {view.loaded.n_layers}"),
    )
    _stages(view, wrong, view.loaded.precision, "faults", mistakes=chosen)
    _difference(view, trace, chosen)


def _difference(view: View, trace: Trace, chosen: list[str]) -> None:
    steps = made(view, chosen)
    there = provenance(view, layer=view.layer, head=view.head, faults=", ".join(chosen))
    maps = {
        "fault-weights": (
            coloured(METRICS["weight"], len(view.tokens)), steps.weights,
            "What the re-implementation with the mistakes makes of this head.",
            f"Weights of {of_head(view)} with the mistakes",
        ),
        "fault-difference": (
            coloured(DIFFERENCE, len(view.tokens)),
            difference(trace, steps, view.layer, view.head),
            "Weights with the mistakes, minus the model's.",
            f"What the mistakes change in {of_head(view)}",
        ),
    }  # fmt: skip
    for column, (name, (q, values, caption, title)) in zip(
        two_cards(view), maps.items(), strict=True
    ):
        frame = partial(
            figures.matrix_frame, values.double().cpu().numpy(), view.tokens.display, q.name
        )
        note = figures.pooling_note(len(view.tokens), q.kind)
        figure = Figure(
            name, partial(_square, frame, q), frame, f"{caption} {note}".strip(),
            f"Map of the {q.label} of {of_head(view)}.", there,
        )  # fmt: skip
        with column:
            show(view, figure, title, key=f"scratch:{name}")


def _square(frame: Callable[[], pd.DataFrame], q: Quantity, mode: figures.Mode):
    return figures.token_map(frame(), q, mode=mode, size=HALF)


def facts(view: View, trace: Trace) -> None:
    """Properties of attention, checked on the chosen head, and equivariance of the model."""
    frame = properties(trace, view.layer, view.head)
    frame = frame.assign(meaning=frame["property"].map(MEANINGS))
    caption = "Measured on the captured head; the bound is what rounding explains."
    table = Figure(
        "properties", partial(_lengths, frame), frame, caption,
        f"Bars of how far {of_head(view)} is from each property.",
        provenance(view, layer=view.layer, head=view.head),
    )  # fmt: skip
    with card(f"Checked on {of_head(view)}", caption=caption, export=table):
        st.dataframe(
            frame[["property", "meaning", "measured", "bound", "holds"]], hide_index=True,
            column_config={
                name: st.column_config.NumberColumn(name, format="%.1e", width="small")
                for name in ("measured", "bound")
            } | {"holds": st.column_config.CheckboxColumn(width="small")},
        )  # fmt: skip
    with st.container(horizontal=True):
        _slack(view, trace)
        _order(view)


MEANINGS = {
    "rows sum to 1": "the largest |Σp − 1| of a row of weights",
    "convex combination": "how far a context leaves its values' range, over the largest |value|",
    "Nadaraya–Watson": "context minus Σ Kv / Σ K, K = exp(scale · q·k), over the largest |value|",
    "permutation": "attention over shuffled tokens, mask too, minus the shuffled context, likewise",
}


def _lengths(frame: pd.DataFrame, mode: figures.Mode):
    return figures.bars(
        frame.assign(used=frame["measured"] / frame["bound"]), USED, "property", ordered=False,
        row=30, mode=mode,
    )  # fmt: skip


def _slack(view: View, trace: Trace) -> None:
    frame = slack(trace, view.layer, view.head)
    if frame.empty:
        st.caption(NO_ROW)
        return
    figure = Figure(
        "convex-slack",
        lambda mode: figures.curves(
            frame, QUERY, SLACK, dots=len(frame) <= 64, mode=mode, width=430
        ),
        frame,
        "How near each context comes to the edge of its values' range, mean over components: 0 in "
        "the middle, 1 at the smallest or largest value. It can never pass 1.",
        f"Share of the values' range that each context of {of_head(view)} uses.",
        provenance(view, layer=view.layer, head=view.head),
    )
    show(view, figure, "A context is a convex combination of values", key="scratch:slack")


def _order(view: View) -> None:
    if len(view.tokens) < 2:
        st.caption("A text of one token has no other order.")
        return
    frame = computed(
        view, "scratch:order", {},
        lambda tick: orders.equivariance(view.loaded, view.tokens, permutations=4),
    )  # fmt: skip
    worst = frame.groupby(["positions", "layer"], as_index=False)["relative_difference"].max()
    exact = int((worst["relative_difference"] < LEAST).sum())
    worst["relative_difference"] = worst["relative_difference"].clip(lower=LEAST)
    why = (
        "The causal mask keeps an order of its own: without positions the result still moves."
        if view.loaded.causal
        else "Rounding alone is left when the position vectors are taken away."
    )
    figure = Figure(
        "equivariance",
        lambda mode: figures.curves(
            worst, Quantity("layer", "after layer", format="d"), MOVED, by="positions", dots=True,
            mode=mode, width=430,
        ),
        frame,
        "Largest difference between the model on permuted tokens and the permuted result, worst of "
        f"4 permutations. {why}" + f" Points at {LEAST:g} are less than that." * (exact > 0),
        "Difference under permutation by layer, with and without positions.",
        provenance(view, permutations=4, seed=0),
    )  # fmt: skip
    title = "Order without positions" if view.loaded.causal else "Order comes from positions alone"
    show(view, figure, title, key="scratch:order")
