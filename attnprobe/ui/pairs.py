"""The panels on pairs of tokens: how symmetric a head is, and what one logit is made of."""

import pandas as pd
import streamlit as st

from attnprobe import figures
from attnprobe.analyses import scaling
from attnprobe.metrics import Quantity
from attnprobe.trace import Trace
from attnprobe.ui.cached import computed
from attnprobe.ui.scaling import figure_of, of_head
from attnprobe.ui.show import show, value
from attnprobe.ui.state import picking_head
from attnprobe.ui.view import View

ASYMMETRY = Quantity(
    "asymmetry", "QK asymmetry", domain=(0, 1),
    definition="‖S − Sᵀ‖ / (‖S‖ + ‖Sᵀ‖) of the raw logits over all pairs; 0 is symmetric.",
)  # fmt: skip
SUMMAND = Quantity("summand", "q_c · k_c", "raw logit", kind="diverging", format=".4g")
CUMULATIVE = Quantity("cumulative", "sum of the largest", "raw logit", format=".4g")
TAKEN = Quantity("order", "summands taken", format="d")
PART = Quantity("logit", "part of q·k", "raw logit", kind="diverging", format=".4g")
PARTS = {
    "summand": "whole logit q·k",
    "bias_only": "biases b_q·b_k",
    "query_only": "query (q − b_q)·b_k",
    "key_only": "key b_q·(k − b_k)",
    "both": "both (q − b_q)·(k − b_k)",
}
MOST, ROW = 24, 16


def symmetry(view: View, trace: Trace) -> None:
    """How differently each head scores the two directions of a pair."""
    frame = computed(view, "scaling:asymmetry", {}, lambda tick: scaling.asymmetry(trace))
    figure = figure_of(
        view, "asymmetry",
        lambda mode: figures.head_map(
            frame, ASYMMETRY, mode=mode, selected=(view.layer, view.head), size=330
        ),
        frame, f"{ASYMMETRY.definition} Click a cell to choose the head.",
        "Heat map of the QK asymmetry of every head.", head=False,
    )  # fmt: skip
    show(
        view, figure, "QK asymmetry", key="scaling:asymmetry", on_pick=picking_head(view),
        selected={"layer": view.layer, "head": view.head},
    )  # fmt: skip


def pair(view: View, trace: Trace) -> None:
    """Beside the symmetry of all heads one logit: the parts that biases add, and its summands."""
    names = [f"{i}: {token}" for i, token in enumerate(view.tokens.display)]
    last = len(names) - 1
    with st.container(horizontal=True):
        query = st.selectbox("Query", range(len(names)), last, format_func=names.__getitem__)
        keys = range(query + 1) if trace.causal else range(len(names))
        key = st.selectbox("Key", keys, 0, format_func=names.__getitem__)
    frame = scaling.summands(view.loaded, trace, view.layer, view.head, query, key)
    chosen = {"query": names[query], "key": names[key]}
    left, right = st.columns(2)
    with left:
        symmetry(view, trace)
    with right:
        _parts(view, frame, chosen)
    _summands(view, frame, chosen)


def _parts(view: View, frame: pd.DataFrame, chosen: dict[str, str]) -> None:
    sums = frame[list(PARTS)].sum()
    parts = pd.DataFrame({"part": list(PARTS.values()), "logit": sums.to_numpy()})
    figure = figure_of(
        view, "logit-parts",
        lambda mode: figures.bars(parts, PART, "part", ordered=False, row=34, mode=mode),
        parts,
        "Biases are the same for every pair; the query's part shifts a whole row and leaves the "
        "weights as they are; the key's part is the same in every row.",
        "Bars of the parts of one logit.", **chosen,
    )  # fmt: skip
    title = f"q·k = {value(sums['summand'])}, query {chosen['query']}, key {chosen['key']}"
    show(view, figure, title, key="scaling:parts")


def _summands(view: View, frame: pd.DataFrame, chosen: dict[str, str]) -> None:
    named = frame.assign(
        name=[f"c = {c}" for c in frame["component"]], order=range(1, len(frame) + 1)
    )
    drawn = min(MOST, len(frame))
    bars = figure_of(
        view, "summands",
        lambda mode: figures.bars(named, SUMMAND, "name", most=MOST, row=ROW, mode=mode),
        named,
        f"The {drawn} largest of the {len(frame)} summands of q·k, by magnitude."
        if drawn < len(frame) else "The summands of q·k, largest magnitude first.",
        "Bars of the summands of one logit.", **chosen,
    )  # fmt: skip
    running = figure_of(
        view, "cumulative",
        lambda mode: figures.curves(
            named, TAKEN, CUMULATIVE, dots=True, mode=mode, height=drawn * ROW
        ),
        named, "Sum of the largest summands; the last value is the logit.",
        "Cumulative sum of the summands.", **chosen,
    )  # fmt: skip
    with st.container(horizontal=True):
        show(view, bars, f"Its d_k = {len(frame)} summands in {of_head(view)}", key="scaling:bars")
        show(view, running, "Summed up, largest first", key="scaling:cumulative")
