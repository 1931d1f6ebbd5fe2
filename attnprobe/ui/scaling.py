"""The panels on captured logits: their spread, its causes, another scale, one pair's summands."""

from functools import partial

import pandas as pd
import streamlit as st

from attnprobe import figures
from attnprobe.analyses import scaling
from attnprobe.export import Figure
from attnprobe.metrics import METRICS, Quantity
from attnprobe.trace import Trace
from attnprobe.ui.cached import computed
from attnprobe.ui.inspector import value
from attnprobe.ui.show import card, draw, metrics, provenance, show
from attnprobe.ui.state import choice
from attnprobe.ui.view import View

LOGIT = Quantity("logit", "logit", format=".3f")
FACTOR = Quantity("factor", "factor on the scale", "log", scale="log", format=".3g")
ENTROPY = METRICS["entropy"]
UNITLESS = Quantity("value", "peak, norm, entry", domain=(0, 1), format=".3f")
MEASURED = Quantity("measured_std", "measured √Var(q·k)", "raw logit", domain=(0, None))
PREDICTED = Quantity("predicted_std", "predicted from moments", "raw logit", domain=(0, None))
ASYMMETRY = Quantity(
    "asymmetry", "QK asymmetry", domain=(0, 1),
    definition="‖S − Sᵀ‖ / (‖S‖ + ‖Sᵀ‖) of the raw logits over all pairs; 0 is symmetric.",
)  # fmt: skip
VARIANCE = Quantity("variance", "Var(q·k)", "squared raw logit", kind="diverging", format=".3g")
SUMMAND = Quantity("summand", "q_c · k_c", "raw logit", kind="diverging", format=".4g")
CUMULATIVE = Quantity("cumulative", "sum of the largest", "raw logit", format=".4g")
CURVES = {
    "peak": "peak",
    "jacobian_frobenius": "‖J‖ Frobenius",
    "jacobian_max": "largest entry of J",
}
NEEDED = "Valid keys only."


def of_head(view: View) -> str:
    return f"layer {view.layer}, head {view.head}"


def _figure(view: View, name, chart, frame, caption, alt, *, head: bool = True, **extra) -> Figure:
    place = {"layer": view.layer, "head": view.head} if head else {}
    return Figure(name, chart, frame, caption, alt, provenance(view, **place, **extra))


def spread(view: View, trace: Trace) -> None:
    """The chosen head's logits as a histogram, and every head's as a box."""
    with st.container(horizontal=True):
        kind = choice("Logits", ["raw logits", "scaled logits"], key="scaling_kind")
        scope = choice("Heads in the boxes", ["this layer", "all heads"], key="scaling_scope")
    if scope == "all heads":
        _boxes(view, trace, kind, scope)
        _histogram(view, trace)
        return
    with st.container(horizontal=True):
        _histogram(view, trace)
        _boxes(view, trace, kind, scope)


def _histogram(view: View, trace: Trace) -> None:
    frame = computed(
        view, "scaling:histogram", {"layer": view.layer, "head": view.head},
        lambda tick: scaling.histogram(trace, view.layer, view.head),
    )  # fmt: skip
    shown = frame.assign(
        logit=frame["left"], share=frame["density"] * (frame["right"] - frame["left"])
    )
    figure = _figure(
        view, "logits",
        lambda mode: figures.histogram(shown, LOGIT, by="kind", mode=mode),
        shown[["kind", "logit", "right", "share"]],
        f"Raw logits q·k and scaled logits (times {trace.scales[view.layer]:.4g}). {NEEDED}",
        f"Histograms of raw and scaled logits of {of_head(view)}.",
    )  # fmt: skip
    show(view, figure, f"Logits of {of_head(view)}", key="scaling:histogram")


def _boxes(view: View, trace: Trace, kind: str, scope: str) -> None:
    frame = computed(view, "scaling:spread", {}, lambda tick: scaling.spread(trace))
    part = frame[frame["kind"] == kind]
    if scope == "this layer":
        part = part[part["layer"] == view.layer]
        by, here = "head", view.head
    else:
        names = [f"{a}.{b}" for a, b in zip(part["layer"], part["head"], strict=True)]
        part, by = part.assign(**{"layer.head": names}), "layer.head"
        here = f"{view.layer}.{view.head}"
    boxes = part.rename(
        columns={"q5": "low", "q25": "q1", "q50": "median", "q75": "q3", "q95": "high"}
    ).assign(n=int(trace.valid().sum()))
    figure = _figure(
        view, "spread",
        lambda mode: figures.boxes(boxes, LOGIT, by, mode=mode, selected=here),
        part,
        f"Boxes hold the middle half, whiskers 5 to 95 % of the {kind} of each head. {NEEDED}",
        f"Box plot of the {kind} of every head.", head=False,
    )  # fmt: skip
    show(view, figure, f"{kind.capitalize()}, {scope}", key=f"scaling:boxes:{scope}")


def causes(view: View, trace: Trace) -> dict | None:
    """Measured against predicted deviation of all heads, and the parts for the chosen one."""
    frame = computed(view, "scaling:causes", {}, lambda tick: scaling.causes(trace))
    frame = frame.assign(
        measured_std=frame["measured"] ** 0.5, predicted_std=frame["predicted"].clip(lower=0) ** 0.5
    )
    with st.container(horizontal=True):
        clicked = _deviations(view, trace, frame)
        _parts(view, frame)
    return clicked


def _deviations(view: View, trace: Trace, frame: pd.DataFrame) -> dict | None:
    most = float(frame[["measured_std", "predicted_std"]].max().max())
    textbook = trace.d_head**0.5
    bounds = pd.DataFrame(
        {
            "predicted_std": [0.0, most, 0.0, most],
            "measured_std": [0.0, most, textbook, textbook],
            "bound": ["equal", "equal", "√d_k", "√d_k"],
        }
    )
    mine = frame[(frame["layer"] == view.layer) & (frame["head"] == view.head)]
    marked = mine.assign(label=f"{view.layer}.{view.head}")
    figure = _figure(
        view, "deviation",
        lambda mode: figures.scatter(
            frame, PREDICTED, MEASURED, bounds=bounds, marked=marked, mode=mode
        ),
        frame,
        "Standard deviation of q·k over valid pairs against the one that the second moments of q "
        "and k give for independent pairs. Textbook components (mean 0, variance 1, uncorrelated) "
        f"give √d_k = {textbook:.3g}.",
        "Scatter of measured against predicted standard deviation of raw logits, one dot a head.",
        head=False,
    )  # fmt: skip
    return show(
        view, figure, "Does Var(q·k) = d_k hold here?", key="scaling:deviation", selectable=True,
        selected={"layer": view.layer, "head": view.head},
    )  # fmt: skip


PARTS = {
    "textbook": "textbook d_k",
    "measured": "measured",
    "predicted": "predicted",
    "from_variances": "… from the variances",
    "from_correlation": "… from correlations",
    "from_means": "… from the means",
}


def _parts(view: View, frame: pd.DataFrame) -> None:
    row = frame[(frame["layer"] == view.layer) & (frame["head"] == view.head)].iloc[0]
    parts = pd.DataFrame({"part": list(PARTS.values()), "variance": [row[name] for name in PARTS]})
    figure = _figure(
        view, "causes",
        lambda mode: figures.bars(parts, VARIANCE, "part", ordered=False, mode=mode),
        parts,
        "Predicted = tr(Σ_q Σ_k) + μ_qᵀ Σ_k μ_q + μ_kᵀ Σ_q μ_k: from the components' variances, "
        "from correlations between components, and from means that are not 0.",
        f"Bars of the parts of the variance of q·k in {of_head(view)}.",
    )  # fmt: skip
    show(view, figure, f"Where the spread of {of_head(view)} comes from", key="scaling:causes")


def what_if(view: View, trace: Trace) -> None:
    """Another scale on the captured logits of the chosen head, without a forward pass."""
    here = {"layer": view.layer, "head": view.head}
    curve = computed(
        view, "scaling:curve", here,
        lambda tick: scaling.what_if(trace, view.layer, view.head),
    )  # fmt: skip
    factors = curve["factor"].tolist()
    factor = st.select_slider(
        "Multiply this head's scale by", factors, 1.0, key="scaling:factor",
        format_func=partial(factor_name, trace.d_head),
        help="1 is the model as it is, √d_k is as if the logits were not divided at all.",
    )  # fmt: skip
    point = curve[curve["factor"] == factor]
    now = point.iloc[0]
    names = ("peak", "entropy", "jacobian_frobenius", "jacobian_max", "saturated")
    metrics(*((METRICS[n].label.capitalize(), value(now[n]), METRICS[n].definition) for n in names))
    long = curve.melt("factor", list(CURVES), "quantity", "value")
    long["quantity"] = long["quantity"].map(CURVES)
    with st.container(horizontal=True):
        _curve(view, "what-if", long, point, UNITLESS, by="quantity")
        _curve(view, "what-if-entropy", curve, point, ENTROPY)
    _rows(view, trace, factor)


def factor_name(d_head: int, factor: float) -> str:
    note = " (as the model)" if factor == 1 else ""
    if abs(factor / d_head**0.5 - 1) < 0.01:
        note = " (√d_k: not divided)"
    return f"×{factor:.3g}{note}"


def _curve(view: View, name: str, frame, point, q: Quantity, by: str | None = None) -> None:
    if by:
        marked = point.melt("factor", list(CURVES), "quantity", q.name)[["factor", q.name]]
    else:
        marked = point[["factor", q.name]]
    figure = _figure(
        view, name,
        lambda mode: figures.curves(frame, FACTOR, q, by=by, marked=marked, mode=mode),
        frame,
        "Means over the head's rows that see at least two keys, with its captured scaled logits "
        "multiplied by the factor. The ring is the slider.",
        f"{q.label} against the factor on the scale of {of_head(view)}.",
    )  # fmt: skip
    show(view, figure, f"{q.label.capitalize()} over the scale", key=f"scaling:{name}")


def _rows(view: View, trace: Trace, factor: float) -> None:
    frame = scaling.what_if_rows(trace, view.layer, view.head, factor)
    frame = frame.assign(run=frame["factor"].map(lambda f: f"×{f:.3g}"))
    figure = _figure(
        view, "what-if-rows",
        lambda mode: figures.curves(
            frame, Quantity("query", "query", format="d"), METRICS["peak"], by="run", dots=True,
            mode=mode, width=900, height=200,
        ),
        frame,
        "Peak of every row as it is and with the factor. Rows with one key are left out.",
        f"Peak of each row of {of_head(view)} under two scales.",
        factor=f"{factor:.4g}",
    )  # fmt: skip
    show(view, figure, "Row by row", key="scaling:rows")


def symmetry(view: View, trace: Trace) -> dict | None:
    """How differently each head scores the two directions of a pair."""
    frame = computed(view, "scaling:asymmetry", {}, lambda tick: scaling.asymmetry(trace))
    figure = _figure(
        view, "asymmetry",
        lambda mode: figures.head_map(
            frame, ASYMMETRY, mode=mode, selected=(view.layer, view.head), size=330
        ),
        frame, ASYMMETRY.definition, "Heat map of the QK asymmetry of every head.", head=False,
    )  # fmt: skip
    return show(
        view, figure, "QK asymmetry", key="scaling:asymmetry", selectable=True,
        selected={"layer": view.layer, "head": view.head}, width="content",
    )  # fmt: skip


def pair(view: View, trace: Trace) -> None:
    """One logit as its d_k summands, with the parts that the biases add."""
    tokens = [f"{i}: {token}" for i, token in enumerate(view.tokens.display)]
    last = len(tokens) - 1
    with card(f"One logit of {of_head(view)} as its summands"):
        with st.container(horizontal=True):
            query = st.selectbox("Query", range(len(tokens)), last, format_func=tokens.__getitem__)
            keys = range(query + 1) if trace.causal else range(len(tokens))
            key = st.selectbox("Key", keys, 0, format_func=tokens.__getitem__)
        frame = scaling.summands(view.loaded, trace, view.layer, view.head, query, key)
        sums = frame[["summand", "bias_only", "query_only", "key_only", "both"]].sum()
        metrics(
            ("Raw logit q·k", value(sums["summand"])),
            ("Biases only", value(sums["bias_only"]), "b_q · b_k: the same for every pair."),
            ("Query only", value(sums["query_only"]), "(q − b_q) · b_k: shifts a whole row."),
            ("Key only", value(sums["key_only"]), "b_q · (k − b_k): the same in every row."),
            ("Both", value(sums["both"]), "(q − b_q) · (k − b_k)."),
        )
        named = frame.assign(
            name=[f"c = {c}" for c in frame["component"]], order=range(1, len(frame) + 1)
        )
        figure = _figure(
            view, "summands",
            lambda mode: figures.bars(named, SUMMAND, "name", mode=mode, width=330),
            named, "The summands of q·k, largest magnitude first (at most 30 drawn).",
            "Bars of the summands of one logit.", query=tokens[query], key=tokens[key],
        )  # fmt: skip
        running = _figure(
            view, "cumulative",
            lambda mode: figures.curves(
                named, Quantity("order", "summands taken", format="d"), CUMULATIVE, dots=True,
                mode=mode, height=300,
            ),
            named, "Sum of the largest summands; the last value is the logit.",
            "Cumulative sum of the summands.", query=tokens[query], key=tokens[key],
        )  # fmt: skip
        with st.container(horizontal=True):
            draw(view, figure, key="scaling:summands")
            draw(view, running, key="scaling:cumulative")
