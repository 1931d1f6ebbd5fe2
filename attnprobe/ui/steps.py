"""One head step by step: formula, code and tensor of each, side by side."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import streamlit as st

from attnprobe import figures
from attnprobe.export import Figure
from attnprobe.metrics import METRICS, Quantity
from attnprobe.scratch import arithmetic
from attnprobe.scratch.head import HeadSteps, layer_input, steps_from
from attnprobe.scratch.twin import TWINS
from attnprobe.ui.cached import Store, digest_of, kept
from attnprobe.ui.scaling import of_head
from attnprobe.ui.show import HALF, card, draw, provenance, two_cards
from attnprobe.ui.state import choice
from attnprobe.ui.view import View

COMPONENT = Quantity("entry", "entry", kind="diverging", format=".4f")
INPUTS = Store(8)
MADE = Store(4)


@dataclass(frozen=True)
class Step:
    """One line of the computation: its formula, the code, and which tensor it yields."""

    title: str
    formula: str
    code: Callable[[View], Callable]
    tensor: Callable[[HeadSteps], object]
    square: bool = True
    note: Callable[[View], str] = lambda view: ""


def _of(view: View, name: str) -> Callable:
    return getattr(TWINS[view.loaded.family.model_type], name)


def _scale(view: View) -> str:
    """What the model's own scale is: GPT-2 has flags that change it."""
    scale = TWINS[view.loaded.family.model_type].settings(view.loaded.config).scales[view.layer]
    d_head = view.loaded.d_head
    return f"Layer {view.layer} multiplies by {scale:.4g}; 1/√d_k = {d_head**-0.5:.4g}."


def _mask(view: View) -> str:
    if view.loaded.causal:
        return "This model is causal: a token sees itself and what comes before it."
    return "This model is not causal: every token sees all, and the logits stay as they are."


STEPS = {
    step.title: step
    for step in (
        Step("Q", r"Q = XW_Q + b_Q", lambda v: _of(v, "query_key_value"), lambda s: s.query, False),
        Step("K", r"K = XW_K + b_K", lambda v: _of(v, "query_key_value"), lambda s: s.key, False),
        Step("V", r"V = XW_V + b_V", lambda v: _of(v, "query_key_value"), lambda s: s.value, False),
        Step("QKᵀ", r"S = QK^\top", lambda v: arithmetic.raw_logits, lambda s: s.raw_logits),
        Step(
            "/√d_k", r"S \cdot \text{scale}, \quad \text{scale} = 1 / \sqrt{d_k}",
            lambda v: arithmetic.scale_logits, lambda s: s.scaled_logits, note=_scale,
        ),
        Step(
            "mask", r"S_{ij} = -\infty \text{ for } j > i", lambda v: arithmetic.mask_future,
            lambda s: s.masked_logits, note=_mask,
        ),
        Step(
            "softmax", r"A_{ij} = e^{s_{ij}} / \textstyle\sum_k e^{s_{ik}}",
            lambda v: arithmetic.softmax, lambda s: s.weights,
        ),
        Step("·V", r"C = AV", lambda v: arithmetic.weighted_values, lambda s: s.context, False),
        Step(
            "W_O", r"\text{this head's rows of } CW_O", lambda v: _of(v, "attention_output"),
            lambda s: s.output, False,
        ),
    )
}  # fmt: skip


def steps(view: View) -> None:
    """Formula, code and tensor of each step, side by side, for the chosen head."""
    name = choice("Step", list(STEPS), key="scratch_step", label_visibility="collapsed")
    step = STEPS[name]
    figure = _tensor(view, step, step.tensor(made(view)).double().cpu().numpy())
    left, right = two_cards(view)
    with left, card(f"The formula and the code of {name}"):
        st.latex(step.formula)
        if step.note(view):
            st.caption(step.note(view))
        st.code(inspect.getsource(step.code(view)), language="python", wrap_lines=True)
    with right, card(f"{name} of {of_head(view)}", caption=figure.caption, export=figure):
        draw(view, figure, key=f"scratch:{name}")


def made(view: View, faults: Sequence[str] = ()) -> HeadSteps:
    """The chosen head's tensors. Those of a long text are large, so few are kept."""
    at = (view.digest, view.layer)
    hidden = kept(
        INPUTS, digest_of("input", *at), lambda tick: layer_input(view.loaded, view.tokens, at[1])
    )
    return kept(
        MADE, digest_of("steps", *at, view.head, list(faults)),
        lambda tick: steps_from(view.loaded, hidden, view.layer, view.head, faults),
    )  # fmt: skip


def _tensor(view: View, step: Step, values: np.ndarray) -> Figure:
    q = METRICS["weight"] if step.title == "softmax" else COMPONENT
    if step.square:
        values = np.where(np.isfinite(values), values, np.nan)
        frame = partial(figures.matrix_frame, values, view.tokens.display, q.name)
        shape, caption = "Query × key", figures.pooling_note(len(view.tokens), q.kind)

        def chart(mode: figures.Mode):
            return figures.token_map(frame(), q, mode=mode, size=HALF)
    else:
        frame = partial(figures.component_frame, values, q.name)
        shape, caption = "Position × component", figures.component_note(values.shape)
        chart = partial(figures.component_map, values, q)
    return Figure(
        f"step-{list(STEPS).index(step.title)}", lambda mode: chart(mode=mode), frame,
        f"{shape}, from the model's own input of layer {view.layer}. {caption}".strip(),
        f"Heat map of {step.title} of {of_head(view)}.",
        provenance(view, layer=view.layer, head=view.head),
    )  # fmt: skip
