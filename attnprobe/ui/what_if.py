"""The panel that gives the captured logits of one head another scale, without a forward pass."""

from functools import partial

import streamlit as st

from attnprobe import figures
from attnprobe.analyses import scaling
from attnprobe.metrics import METRICS, Quantity
from attnprobe.trace import Trace
from attnprobe.ui.cached import computed
from attnprobe.ui.scaling import figure_of, of_head
from attnprobe.ui.show import heading, metrics, show, value
from attnprobe.ui.state import choice
from attnprobe.ui.view import View

FACTOR = Quantity(
    "factor", "factor on the scale", "log", scale="log", format=".3g",
    ticks=tuple(2.0**power for power in range(-3, 6)),
)  # fmt: skip
UNITLESS = Quantity("value", "peak, norm, entry", domain=(0, 1), format=".3f")
QUERY = Quantity("query", "query", format="d")
SHORT = {
    "peak": "peak",
    "jacobian_frobenius": "‖J‖ Frobenius",
    "jacobian_max": "largest entry of J",
    "entropy": "entropy",
}
CURVES = tuple(name for name in SHORT if name != "entropy")
NUMBERS = {
    "peak": "Peak",
    "entropy": "Entropy (nats)",
    "jacobian_frobenius": "‖J‖ Frobenius",
    "jacobian_max": "Largest entry of J",
    "saturated": "Saturated rows",
}


def what_if(view: View, trace: Trace) -> None:
    """A slider for the scale, the head's means under it, the curve, and every row."""
    curve = computed(
        view, "scaling:curve", {"layer": view.layer, "head": view.head},
        lambda tick: scaling.what_if(trace, view.layer, view.head),
    )  # fmt: skip
    factor = st.select_slider(
        "Multiply this head's scale by", curve["factor"].tolist(), 1.0, key="scaling:factor",
        format_func=partial(factor_name, 1 / trace.scales[view.layer]),
        help="1 is the model as it is. A scale of 0 is not offered: every row would be uniform.",
    )  # fmt: skip
    point = curve[curve["factor"] == factor]
    now = point.iloc[0]
    metrics(*((NUMBERS[n], value(now[n]), METRICS[n].definition) for n in NUMBERS))
    long = curve.melt("factor", list(CURVES), "quantity", "value")
    long["quantity"] = long["quantity"].map(SHORT)
    with st.container(horizontal=True):
        _curve(view, "what-if", long, point, UNITLESS, by="quantity")
        _curve(view, "what-if-entropy", curve, point, METRICS["entropy"])
    _rows(view, trace, factor)


def factor_name(undone: float, factor: float) -> str:
    """A factor as the slider shows it; `undone` is the one that leaves logits undivided."""
    note = " (as the model)" if factor == 1 else ""
    if abs(factor / undone - 1) < 0.01:
        note = " (not divided by √d_k)"
    return f"×{factor:.3g}{note}"


def _curve(view: View, name: str, frame, point, q: Quantity, by: str | None = None) -> None:
    if by:
        marked = point.melt("factor", list(CURVES), "quantity", q.name)[["factor", q.name]]
    else:
        marked = point[["factor", q.name]]
    factor = point.iloc[0]["factor"]
    figure = figure_of(
        view, name,
        lambda mode: figures.curves(frame, FACTOR, q, by=by, marked=marked, mode=mode),
        frame,
        "Means over the head's rows that see at least two keys, with its captured scaled logits "
        f"multiplied by the factor. The ring is the slider's factor, ×{factor:.3g}.",
        f"{q.label} against the factor on the scale of {of_head(view)}.",
        factor=f"{factor:.4g}",
    )  # fmt: skip
    show(view, figure, f"{heading(q.label)} over the scale", key=f"scaling:{name}")


def _rows(view: View, trace: Trace, factor: float) -> None:
    name = choice("Row by row", list(SHORT), key="scaling_row", format_func=SHORT.__getitem__)
    frame = scaling.what_if_rows(trace, view.layer, view.head, factor)
    frame = frame.assign(run=frame["factor"].map(_run))
    figure = figure_of(
        view, "what-if-rows",
        lambda mode: figures.curves(
            frame, QUERY, METRICS[name], by="run", dots=len(trace.tokens) <= 64, mode=mode,
            width=900, height=200,
        ),
        frame,
        f"{heading(SHORT[name])} of every row, as the model is and with the factor. Rows that see "
        "one key are left out.",
        f"{SHORT[name]} of each row of {of_head(view)} under two scales.",
        factor=f"{factor:.4g}",
    )  # fmt: skip
    show(view, figure, f"Rows of {of_head(view)}: {SHORT[name]}", key="scaling:rows")


def _run(factor: float) -> str:
    return "as the model" if factor == 1 else f"×{factor:.3g}"
