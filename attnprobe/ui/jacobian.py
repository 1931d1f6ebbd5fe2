"""The panels on saturation: atlas, rows, exact bounds, and the Jacobian of one row."""

from dataclasses import replace

import numpy as np
import pandas as pd
import streamlit as st

from attnprobe import figures
from attnprobe.analyses import saturation
from attnprobe.export import Figure
from attnprobe.metrics import METRICS, Quantity
from attnprobe.trace import Trace, head_table
from attnprobe.ui.cached import computed
from attnprobe.ui.scaling import of_head
from attnprobe.ui.show import NO_ROW, heading, provenance, show, two_cards, value
from attnprobe.ui.state import choice, picking_head
from attnprobe.ui.view import View

ATLAS = ("saturated", "normalised_entropy", *saturation.NORMS)
ENTRY = Quantity("entry", "∂p/∂s", kind="diverging", format=".2g")
COLOURS = {
    "by logarithm": replace(ENTRY, label="∂p/∂s, colours by signed logarithm", scale="symlog"),
    "linear": ENTRY,
}
"""A long row's map is one colour where colours are linear: a few entries outweigh the others."""
QUERY = Quantity("query", "query", format="d")
TITLES = ("weight on key i", "scaled logit of key j")
MOST_POINTS = 2000
WIDER = 352


ROWS = {
    "peak": "peak",
    "normalised_entropy": "normalised entropy",
    "jacobian_frobenius": "‖J‖ Frobenius",
    "jacobian_spectral": "‖J‖ spectral",
    "jacobian_max": "largest entry of J",
    "jacobian_trace": "trace of J",
}
"""What a row has; which of them the picture shows is the person's choice."""


def picked(view: View) -> dict[str, int]:
    return {"layer": view.layer, "head": view.head}


def atlas(view: View, trace: Trace) -> None:
    """All heads by one norm, and the share of saturated rows at a chosen threshold."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        name = st.selectbox(
            "Colour by", ATLAS, format_func=lambda n: METRICS[n].title, key="jacobian:metric",
            width=320,
        )  # fmt: skip
        threshold = st.slider(
            "A row is saturated from a peak of", 0.5, 0.999, 0.9, 0.001, key="jacobian:threshold",
            format="%.3f", width=320,
        )  # fmt: skip
    names = st.pills(
        "Lines of the rows", list(ROWS), selection_mode="multi", key="jacobian:lines",
        default=["peak", "normalised_entropy", "jacobian_frobenius"],
        format_func=ROWS.__getitem__,
    ) or ["peak"]  # fmt: skip
    table = computed(
        view, "jacobian:table", {"threshold": threshold},
        lambda tick: head_table(trace, saturated_from=threshold),
    )  # fmt: skip
    q = METRICS[name]
    caption = q.definition
    if name == "saturated":
        caption = f"Share of counted rows whose peak is at least {threshold:.3f}."
    figure = Figure(
        f"jacobian-{name}",
        lambda mode: figures.head_map(
            table, q, mode=mode, selected=(view.layer, view.head), size=380
        ),
        table[["layer", "head", name, "rows"]],
        f"{caption} Click a cell to choose the head.",
        f"Heat map of {q.title} for every head.",
        provenance(view, saturated_from=threshold),
    )
    with st.container(horizontal=True):
        show(
            view, figure, f"Every head: {q.label}", key=f"jacobian:atlas:{name}",
            on_pick=picking_head(view), selected=picked(view), width="content",
        )  # fmt: skip
        _profile(view, trace, threshold, names)


def left_out(tokens: int, counted: int) -> str:
    """Why fewer rows count than there are tokens; nothing where all do."""
    if counted == tokens:
        return ""
    return f" The first of {tokens} tokens has no row that counts: it sees one key, itself."


def chosen_last(view: View, frame: pd.DataFrame) -> pd.DataFrame:
    """Rows thinned to what a figure can hold; all of the chosen head stay and are drawn on top.

    The column `rows` tells the chosen head from the others.
    """
    mine = (frame["layer"] == view.layer) & (frame["head"] == view.head)
    others = frame[~mine]
    others = others.iloc[:: -(-max(1, len(others)) // MOST_POINTS)]
    named = [others.assign(rows="other heads"), frame[mine].assign(rows=of_head(view))]
    return pd.concat(named, ignore_index=True)


def _profile(view: View, trace: Trace, threshold: float, names: list[str]) -> None:
    frame = computed(view, "jacobian:rows", {}, lambda tick: saturation.rows(trace))
    mine = frame[(frame["layer"] == view.layer) & (frame["head"] == view.head)]
    if mine.empty:
        st.caption(NO_ROW)
        return
    mine = mine.assign(query_token=[view.tokens.display[i] for i in mine["query"]])
    saturated = int((mine["peak"] >= threshold).sum())

    long = mine.melt(["query", "query_token"], names, "quantity")
    long["quantity"] = long["quantity"].map(ROWS)
    figure = Figure(
        "jacobian-profile",
        lambda mode: figures.curves(
            long, QUERY, Quantity("value", "value", domain=(0, 1)), by="quantity",
            dots=len(mine) <= 64, mode=mode, width=480, height=240,
        ),
        mine,
        f"{saturated} of {len(mine)} rows are saturated (peak ≥ {threshold:.3f})."
        f"{left_out(len(view.tokens), len(mine))}",
        f"{', '.join(ROWS[name] for name in names)} of every row of {of_head(view)}.",
        provenance(view, **picked(view), saturated_from=threshold),
    )  # fmt: skip
    show(view, figure, f"Rows of {of_head(view)}", key="jacobian:profile")


def against_bounds(view: View, trace: Trace) -> None:
    """Every row of every head: its peak against a norm, with the exact bounds."""
    name = choice(
        "Norm", saturation.NORMS, key="jacobian_norm",
        format_func=lambda n: heading(METRICS[n].label.removeprefix("Jacobian, ")),
    )  # fmt: skip
    frame = computed(view, "jacobian:rows", {}, lambda tick: saturation.rows(trace))
    if frame.empty:
        st.caption(NO_ROW)
        return
    shown = chosen_last(view, frame)
    limits = saturation.bounds(name)
    figure = Figure(
        f"bounds-{name}",
        lambda mode: figures.scatter(
            shown, METRICS["peak"], METRICS[name], by="rows", names=("layer", "head", "query"),
            bounds=limits, mode=mode, width=620, height=380,
        ),
        frame[["layer", "head", "query", "peak", name]],
        f"{len(shown):,} of {len(frame):,} counted rows of all heads, all of {of_head(view)}; "
        "lines are exact bounds, m the peak, ε = 1 − m. Click a row to choose its head.",
        f"Scatter of peak against {METRICS[name].label} with bounds.",
        provenance(view),
    )  # fmt: skip
    show(
        view, figure, "Saturation closes the softmax", key=f"jacobian:bounds:{name}",
        on_pick=picking_head(view),
    )  # fmt: skip


def one_row(view: View, trace: Trace) -> None:
    """The Jacobian of one row as a signed map, beside the row that it belongs to."""
    tokens = [f"{i}: {token}" for i, token in enumerate(view.tokens.display)]
    # A key for each text: with one for all the box goes on showing a word of the text before.
    with st.container(horizontal=True, vertical_alignment="bottom"):
        query = st.selectbox(
            "Query", range(len(tokens)), len(tokens) - 1, format_func=tokens.__getitem__,
            key=f"jacobian:query:{view.digest}", width=320,
        )  # fmt: skip
        colours = choice("Colours of the map", list(COLOURS), key="jacobian_colours")
    matrix = saturation.jacobian(trace, view.layer, view.head, query).cpu().numpy()
    keys = np.flatnonzero(trace.valid()[query].cpu().numpy())
    names = [view.tokens.display[k] for k in keys]
    left, right = two_cards(view, [3, 2], most=WIDER)
    with left:
        _jacobian_map(view, matrix, names, tokens[query], COLOURS[colours])
    with right:
        _row(view, trace, query, names, tokens[query])


def _jacobian_map(
    view: View, matrix: np.ndarray, names: list[str], query: str, q: Quantity
) -> None:
    frame = figures.matrix_frame(matrix, names, "entry")
    sentences = (
        f"Entry (i, j) is ∂p_i/∂s_j = p_i(δ_ij − p_j) of the row of {query!r}: how the weight on "
        "key i moves with the scaled logit of key j.",
        figures.bend_note(matrix, q),
        figures.pooling_note(len(names), q.kind),
    )
    figure = Figure(
        "jacobian-row",
        lambda mode: figures.token_map(frame, q, mode=mode, size=WIDER, titles=TITLES),
        frame.rename(
            columns={
                "query": "key_i", "key": "key_j",
                "query_token": "key_i_token", "key_token": "key_j_token",
            }
        ),
        " ".join(filter(None, sentences)),
        f"Signed heat map of the softmax Jacobian of one row of {of_head(view)}.",
        provenance(view, **picked(view), query=query),
    )  # fmt: skip
    show(view, figure, f"J of query {query} in {of_head(view)}", key="jacobian:row")


def _row(view: View, trace: Trace, query: int, names: list[str], title: str) -> None:
    weights = trace.weights(view.layer, view.head)[query][: len(names)].double().cpu().numpy()
    frame = pd.DataFrame({"key": range(len(names)), "key_token": names, "weight": weights})
    numbers = {
        name: getattr(trace.rows, name)[view.layer, view.head, query].item() for name in ROWS
    }
    figure = Figure(
        "jacobian-row-weights",
        lambda mode: figures.row_bars(frame, mode=mode, width=300, height=260),
        frame,
        " · ".join(f"{ROWS[name]} {value(number)}" for name, number in numbers.items()) + ".",
        f"Bars of the weights of one row of {of_head(view)}.",
        provenance(view, **picked(view), query=title),
    )  # fmt: skip
    show(view, figure, "The row p itself", key="jacobian:weights")
