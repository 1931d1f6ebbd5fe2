"""The panels on how a head's captured logits are spread, and what their spread comes from."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st

from attnprobe import figures
from attnprobe.analyses import scaling
from attnprobe.export import Figure
from attnprobe.metrics import Quantity
from attnprobe.trace import Trace
from attnprobe.ui.cached import computed
from attnprobe.ui.show import heading, metrics, provenance, show, value
from attnprobe.ui.state import choice, is_number, picking_head
from attnprobe.ui.view import View

LOGIT = Quantity("logit", "logit", format=".3f")
DENSITY = Quantity("density", "density", "per unit of logit", domain=(0, None))
MEASURED = Quantity("measured_std", "measured √Var(q·k)", "raw logit", scale="log")
PREDICTED = Quantity("predicted_std", "predicted from moments", "raw logit", scale="log")
VARIANCE = Quantity("variance", "Var(q·k)", "squared raw logit", kind="diverging", format=".3g")
NEEDED = "Valid keys only."
LEAST = 1e-6
"""A deviation of q·k below this share of √d_k is rounding: the head's logits are all alike."""
Picked = dict[str, int]


def of_head(view: View) -> str:
    return f"layer {view.layer}, head {view.head}"


def figure_of(
    view: View, name, chart, frame, caption, alt, *, head: bool = True, **extra
) -> Figure:
    """A figure of the view's text, of its chosen head unless `head` says otherwise."""
    place = {"layer": view.layer, "head": view.head} if head else {}
    return Figure(name, chart, frame, caption, alt, provenance(view, **place, **extra))


def spread(view: View, trace: Trace) -> None:
    """The head's deviation against √d_k, logits as a histogram, and every head's as a box."""
    layer = computed(
        view, "scaling:spread", {"layer": view.layer},
        lambda tick: scaling.spread(trace, view.layer),
    )  # fmt: skip
    _deviation(view, trace, layer)
    with st.container(horizontal=True):
        of = choice("Histogram of", ["this head", "this layer"], key="scaling_histogram")
        kind = choice("Boxes of", ["raw logits", "scaled logits"], key="scaling_kind")
        scope = choice("Heads in the boxes", ["this layer", "all heads"], key="scaling_scope")
    wide = scope == "all heads"
    frame = layer
    if wide:
        frame = computed(view, "scaling:spread", {}, lambda tick: scaling.spread(trace))
    with st.container() if wide else st.container(horizontal=True):
        _histogram(view, trace, whole_layer=of == "this layer")
        _boxes(view, trace, frame[frame["kind"] == kind], scope)


def _deviation(view: View, trace: Trace, frame: pd.DataFrame) -> None:
    mine = frame[(frame["layer"] == view.layer) & (frame["head"] == view.head)].set_index("kind")
    raw, textbook = mine.loc["raw logits", "std"], trace.d_head**0.5
    metrics(
        ("Std of raw logits", value(raw), f"Of q·k in {of_head(view)}, over valid keys."),
        ("√d_k", value(textbook), f"d_k = {trace.d_head}: the textbook's standard deviation."),
        ("Std / √d_k", value(raw / textbook), "1 is what the textbook assumes."),
        ("Scale", value(trace.scales[view.layer]), "What the model multiplies q·k by."),
        ("Std of scaled logits", value(mine.loc["scaled logits", "std"]), "After the scale."),
    )


def _histogram(view: View, trace: Trace, *, whole_layer: bool) -> None:
    head = None if whole_layer else view.head
    what = f"all heads of layer {view.layer}" if whole_layer else of_head(view)
    frame = computed(
        view, "scaling:histogram", {"layer": view.layer, "head": head},
        lambda tick: scaling.histogram(trace, view.layer, head),
    )  # fmt: skip
    shown = frame.rename(columns={"left": "logit", "kind": "logits"})
    figure = figure_of(
        view, "logits",
        lambda mode: figures.histogram(shown, LOGIT, by="logits", share=DENSITY, mode=mode),
        shown[["logits", "logit", "right", "density"]],
        f"Raw logits q·k and scaled logits (times {trace.scales[view.layer]:.4g}) of {what}; each "
        f"outline has area 1. {NEEDED}",
        f"Histograms of raw and scaled logits of {what}.", head=not whole_layer, heads=what,
    )  # fmt: skip
    show(view, figure, f"Logits of {what}", key="scaling:histogram")


def _boxes(view: View, trace: Trace, part: pd.DataFrame, scope: str) -> None:
    kind, here = part["kind"].iloc[0], view.head
    boxes = part
    if scope == "all heads":
        names = [f"{a}.{b}" for a, b in zip(part["layer"], part["head"], strict=True)]
        boxes, here = part.assign(head=names), f"{view.layer}.{view.head}"
    boxes = boxes.rename(
        columns={"q5": "low", "q25": "q1", "q50": "median", "q75": "q3", "q95": "high"}
    ).assign(n=int(trace.valid().sum()))
    figure = figure_of(
        view, "spread",
        lambda mode: figures.boxes(boxes, LOGIT, "head", mode=mode, selected=here, width=460),
        part,
        f"Boxes hold the middle half, whiskers 5 to 95 % of the {kind} of each head. {NEEDED} "
        "Click a box to choose its head.",
        f"Box plot of the {kind} of every head.", head=False,
    )  # fmt: skip
    show(
        view, figure, f"{heading(kind)}, {scope}", key=f"scaling:boxes:{scope}",
        on_pick=lambda mark: picking_head(view)(place_of(view, mark)), selected={"head": here},
    )  # fmt: skip


def place_of(view: View, box: Mapping[str, Any]) -> Picked:
    """The layer and the head of a box: its head alone, or both as "2.3"; empty if it names none."""
    numbers = str(box.get("head")).split(".")
    if not all(is_number(number) for number in numbers):
        return {}
    layer, head = [view.layer, *map(int, numbers)][-2:]
    return {"layer": layer, "head": head}


def causes(view: View, trace: Trace) -> None:
    """Measured against predicted deviation of all heads, and the parts for the chosen one."""
    frame = computed(view, "scaling:causes", {}, lambda tick: scaling.causes(trace))
    with st.container(horizontal=True):
        _deviations(view, trace, with_deviations(frame))
        _parts(view, frame)


def with_deviations(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame of `scaling.causes` with the roots of both variances, and whether they are `drawn`.

    A head whose logits are all alike has a deviation of 0 or what rounding leaves of it, which has
    no place on a logarithmic axis.
    """
    roots = {f"{name}_std": frame[name].clip(lower=0) ** 0.5 for name in ("measured", "predicted")}
    least = LEAST * frame["textbook"] ** 0.5
    drawn = (roots["measured_std"] > least) & (roots["predicted_std"] > least)
    return frame.assign(**roots, drawn=drawn)


def _deviations(view: View, trace: Trace, frame: pd.DataFrame) -> None:
    drawn, textbook = frame[frame["drawn"]], trace.d_head**0.5
    if drawn.empty:
        st.caption("No head's logits differ on this text, so there is no deviation to compare.")
        return
    bounds = _lines(drawn, textbook)
    mine = drawn[(drawn["layer"] == view.layer) & (drawn["head"] == view.head)]
    marked = mine.assign(label=f"L{view.layer}.H{view.head}")
    sentences = (
        "Standard deviation of q·k over valid pairs against the one that the second moments of q "
        "and k give for independent pairs, both axes logarithmic. Textbook components (mean 0, "
        f"variance 1, uncorrelated) give √d_k = {textbook:.3g}. Click a dot to choose its head.",
        without(len(frame) - len(drawn)),
    )
    figure = figure_of(
        view, "deviation",
        lambda mode: figures.scatter(
            drawn, PREDICTED, MEASURED, bounds=bounds, marked=marked, mode=mode
        ),
        frame,
        " ".join(filter(None, sentences)),
        "Scatter of measured against predicted standard deviation of raw logits, one dot a head.",
        head=False,
    )  # fmt: skip
    show(
        view, figure, "Does Var(q·k) = d_k hold here?", key="scaling:deviation",
        on_pick=picking_head(view), selected={"layer": view.layer, "head": view.head},
    )  # fmt: skip


def without(heads: int) -> str:
    """Which heads a logarithmic picture of deviations leaves out; empty where it shows all."""
    if not heads:
        return ""
    some = "1 head whose" if heads == 1 else f"{heads} heads whose"
    return f"Not drawn: {some} logits are all alike (a deviation below a millionth of √d_k)."


def _lines(drawn: pd.DataFrame, textbook: float) -> pd.DataFrame:
    """Where both deviations agree, and the textbook's, from the smallest dot to the largest."""
    both = drawn[["measured_std", "predicted_std"]]
    low, high = float(both.min().min()), float(both.max().max())
    low, high = min(low, textbook) / 1.1, max(high, textbook) * 1.1
    return pd.DataFrame(
        {
            "predicted_std": [low, high, low, high],
            "measured_std": [low, high, textbook, textbook],
            "bound": ["measured = predicted"] * 2 + ["√d_k"] * 2,
        }
    )


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
    figure = figure_of(
        view, "causes",
        lambda mode: figures.bars(parts, VARIANCE, "part", ordered=False, row=44, mode=mode),
        parts,
        "Predicted = tr(Σ_q Σ_k) + μ_qᵀ Σ_k μ_q + μ_kᵀ Σ_q μ_k: from the components' variances, "
        "from correlations between components, and from means that are not 0. Measured is over "
        "valid pairs, which a causal mask makes dependent.",
        f"Bars of the parts of the variance of q·k in {of_head(view)}.",
    )  # fmt: skip
    show(view, figure, f"Where the spread of {of_head(view)} comes from", key="scaling:causes")
