"""The panel on where weight goes that means little: the first token and the special ones."""

import pandas as pd
import streamlit as st

from attnprobe import figures
from attnprobe.analyses import sinks
from attnprobe.export import Figure
from attnprobe.metrics import METRICS, Quantity
from attnprobe.trace import Trace
from attnprobe.ui.cached import computed
from attnprobe.ui.jacobian import picked
from attnprobe.ui.show import provenance, show
from attnprobe.ui.state import picking_head
from attnprobe.ui.view import View

SHARE = Quantity(
    "share", "mean weight", "share of a row", domain=(0, 1),
    definition="Mean over counted rows of the weight on this token.",
)  # fmt: skip
MASS = Quantity("mass", "weight on ordinary keys", "share of a row", domain=(0, 1))
LEFT = {"entropy": METRICS["entropy"], "peak": METRICS["peak"], "mass": MASS}
MEANINGS = {
    "entropy": "Mean −Σ p ln p over ordinary keys",
    "peak": "Mean largest weight of an ordinary key",
    "mass": "Mean weight on all ordinary keys together",
}


def where_weight_goes(view: View, trace: Trace) -> None:
    """Weight on the first and the special tokens, and what is left without the special ones."""
    shares = computed(view, "sinks:shares", {}, lambda tick: sinks.shares(trace))
    places = shares[["position", "token"]].drop_duplicates()
    names = {p: f"{p}: {t}" for p, t in zip(places["position"], places["token"], strict=True)}
    left, right = st.columns(2)
    with left:
        position = st.selectbox(
            "Token", list(names), format_func=names.__getitem__, key=f"sinks:token:{view.digest}"
        )
        _shares(view, shares[shares["position"] == position], names[position])
    with right:
        _left(view, trace)


def _shares(view: View, frame: pd.DataFrame, token: str) -> None:
    figure = Figure(
        "sinks",
        lambda mode: figures.head_map(
            frame, SHARE, mode=mode, selected=(view.layer, view.head), size=340
        ),
        frame,
        f"{SHARE.definition} Click a cell to choose the head.",
        "Heat map of each head's mean weight on one token.",
        provenance(view, token=token),
    )
    show(
        view, figure, f"Weight on {token}", key="sinks:shares", on_pick=picking_head(view),
        selected=picked(view),
    )  # fmt: skip


def _left(view: View, trace: Trace) -> None:
    """What heads do among the ordinary tokens, if there are two of them."""
    if sum(not special for special in view.tokens.special) < 2:
        st.caption("Without special tokens fewer than two tokens are left.")
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        name = st.selectbox(
            "Without special tokens", list(LEFT), format_func=lambda n: LEFT[n].title,
            key="sinks:left",
        )  # fmt: skip
        renormalised = st.toggle(
            "Renormalised", key="sinks:renormalised", disabled=name == "mass",
            help="On: softmax over the ordinary keys alone. Off: the weights as they are.",
        )  # fmt: skip
    frame = computed(
        view, "sinks:without", {"renormalised": renormalised},
        lambda tick: sinks.without_special(trace, renormalised=renormalised),
    )  # fmt: skip
    weights = renormalised and name != "mass"
    how = "renormalised over them" if weights else "as they are, not renormalised"
    figure = Figure(
        f"sinks-without-{name}",
        lambda mode: figures.head_map(
            frame, LEFT[name], mode=mode, selected=(view.layer, view.head), size=340
        ),
        frame,
        f"{MEANINGS[name]}, weights {how}; rows of special tokens and rows that see fewer than two "
        "ordinary keys are left out.",
        f"Heat map of each head's {LEFT[name].label} without special tokens.",
        provenance(view, excluded="special tokens", weights=how),
    )  # fmt: skip
    title = "renormalised" if weights else "not renormalised"
    show(
        view, figure, f"Without special tokens, {title}", key=f"sinks:without:{name}",
        on_pick=picking_head(view), selected=picked(view),
    )  # fmt: skip
