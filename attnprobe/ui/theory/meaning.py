"""Panels on what attention is: bound, hull, direction, kernel, and order without positions."""

from functools import partial

import pandas as pd
import streamlit as st

from attnprobe import figures
from attnprobe.analyses import orders, theory_on_model
from attnprobe.errors import BadInput
from attnprobe.figures import theory as pictures
from attnprobe.metrics import Quantity
from attnprobe.theory import equivariance, meaning
from attnprobe.ui.cached import trace
from attnprobe.ui.show import metrics
from attnprobe.ui.theory.lab import HIGH, WIDE, WIDER, Lab

FARTHEST = 1e6
MOST_POINTS = 24
EPSILON = Quantity("epsilon", "ε = 1 − peak", "weight", scale="log")
NORM = Quantity("jacobian_frobenius", "‖J‖, Frobenius", "weight per logit", scale="log")


def saturated_row(lab: Lab) -> None:
    """‖J‖ against ε for three arrangements, and the rows of the chosen head under the bound."""
    frame = lab.frame("meaning", meaning.meaning)
    on_model = lab.on_model("bound")
    left, right = _places(on_model)
    with left:
        lab.show(
            "saturated-row", "Jacobian of a row with peak 1 − ε", frame,
            lambda mode: figures.curves(
                frame, EPSILON, NORM, by="arrangement", mode=mode, width=WIDER, height=260
            ),
            "Twelve keys; ε goes to one rival, evenly to all, or at random (the largest of 200 "
            "draws, seed 0). One rival reaches the bound 2ε(1 − ε).",
            seed=0,
        )  # fmt: skip
    if on_model:
        with right:
            _rows_under_the_bound(lab)


def _places(two: bool) -> tuple:
    """Where one figure goes, or two side by side."""
    return tuple(st.columns(2)) if two else (st.container(), None)


def _rows_under_the_bound(lab: Lab) -> None:
    traced = trace(lab.view)
    frame = lab.of_model("rows", lambda **at: theory_on_model.jacobian_rows(traced, **at), **lab.at)
    if frame.empty:
        raise BadInput("no row of this text sees two keys; type a longer text")
    line = frame.dropna().sort_values("epsilon")
    bound = line.assign(jacobian_frobenius=line["bound"], bound="2ε(1 − ε)")
    bounds = None if line.empty else bound
    lab.show_on_model(
        "saturated-row-model", "Rows of layer {layer}, head {head}", frame,
        lambda mode: figures.scatter(
            frame, EPSILON, NORM, names=("query",), bounds=bounds, mode=mode, width=WIDER,
            height=260,
        ),
        "One point per query that sees two keys or more. The bound holds for ε ≤ ½.",
        of_head=True,
    )  # fmt: skip


_POINTS = pd.DataFrame(meaning.TRIANGLE, columns=["x", "y"]).assign(
    score=[0.5, 1.0, 0.0, -0.5, 1.5]
)


def hull(lab: Lab) -> None:
    """Points and scores to edit, the hull with the output, and how far real outputs stay inside."""
    left, right = st.columns([2, 3])
    with left:
        st.caption(
            lab.say(
                "Each row of the table is one point of the picture: change a number, or add a row "
                "at the end, and the point, its weight and the output move."
            )
        )
        edited = _edited(lab)
    points = edited[["x", "y"]].to_numpy(dtype=float)
    frame = meaning.convex_hull(points.tolist(), edited["score"].tolist())
    output = frame.iloc[-1]
    with left:
        metrics(
            (lab.say("Output, x"), f"{output['x']:.3f}"),
            (lab.say("Output, y"), f"{output['y']:.3f}"),
        )
    with right:
        lab.show(
            "hull", "The output lies inside the hull of the values", frame,
            lambda mode: pictures.convex_hull(
                frame, meaning.hull_corners(points), mode=mode, side=300
            ),
            "v0, v1, …: the rows of the table, each with its weight, the softmax of its score, "
            "which is also the area of its dot. The cross is the output Σ p v.",
        )  # fmt: skip
    if lab.on_model("hull"):
        _slack(lab)


def _edited(lab: Lab) -> pd.DataFrame:
    """The table as it was edited; rows that are not whole yet are left out."""
    number = partial(
        st.column_config.NumberColumn, min_value=-FARTHEST, max_value=FARTHEST, width=80
    )
    columns = {
        "_index": st.column_config.NumberColumn(lab.say("point"), format="v%d", width=60),
        "x": number("x", help=lab.say("first component")),
        "y": number("y", help=lab.say("second component")),
        "score": number(lab.say("score")),
    }
    rows = st.data_editor(
        _POINTS, num_rows="dynamic", hide_index=False, key="theory:points", column_config=columns
    ).dropna()
    if len(rows) > MOST_POINTS:
        raise BadInput(
            f"{len(rows)} points came and at most {MOST_POINTS} are drawn; remove some rows"
        )
    return rows


def _slack(lab: Lab) -> None:
    traced = trace(lab.view)
    frame = lab.of_model("contraction", lambda: theory_on_model.contraction(traced))
    chosen = lab.view.layer, lab.view.head
    for place, (name, (title, words)) in zip(st.columns(2), _RATIOS.items(), strict=True):
        ratio = Quantity(name, f"‖out‖ / largest ‖v‖, {words}", "maximum norms", domain=(0, 1))
        with place:
            lab.show_on_model(
                f"contraction-{words}-model", title, frame,
                lambda mode, ratio=ratio: figures.head_map(
                    frame, ratio, mode=mode, selected=chosen, size=300
                ),
                "Largest component of a head's output over the largest among the values that the "
                "query sees, {words} over queries. The largest of all is {most:.3f}; it cannot "
                "exceed 1.",
                said={"most": frame["largest_ratio"].max(), "words": words},
            )  # fmt: skip


_RATIOS = {
    "mean_ratio": ("How far inside on average: every head", "mean"),
    "largest_ratio": ("How far inside at most: every head", "maximum"),
}

KINDS = ("separate", "tied", "turned by a quarter")


def direction(lab: Lab) -> None:
    """The matrix of scores with separate, tied and turned projections."""
    left, right = st.columns([2, 3])
    with left:
        kind = st.segmented_control(
            lab.say("W_Q and W_K"), KINDS, default=KINDS[0], required=True,
            key="theory:projections", format_func=lab.say,
        )  # fmt: skip
        seed = st.number_input(lab.say("Seed"), 0, 10**6, 0, key="theory:asymmetry_seed", width=140)
        frame = lab.frame("asymmetry", meaning.asymmetry, seed=seed)
        found = frame.groupby("projections", sort=False)["asymmetry"].first()
        for name, value in found.items():
            metrics((f"{lab.say('Asymmetry')}, {lab.say(name)}", f"{value:.3f}"))
    part = frame[frame["projections"] == kind]
    with right:
        lab.show(
            "asymmetry", "Scaled logits, projections {projections}", part,
            lambda mode: pictures.labelled_grid(
                part, "query", "key",
                Quantity("scaled_logit", "scaled logit", kind="diverging"), mode=mode,
                cell=(28, 26),
            ),
            "Twelve random tokens, d_model = 32, d_k = 8, seed {seed}; entry (i, j): what token i "
            "asks of token j.",
            projections=kind, seed=seed,
        )  # fmt: skip
    if lab.on_model("asymmetry"):
        _directions(lab)


def _directions(lab: Lab) -> None:
    traced = trace(lab.view)
    frame = lab.of_all("asymmetry", lambda told: theory_on_model.asymmetry(traced, told))
    directed = Quantity("asymmetry", "asymmetry of S", domain=(0, 1))
    own = Quantity("self_weight", "weight on itself", "mean weight", domain=(0, 1))
    tied = Quantity("tied_self_weight", "the same with K = Q", "mean weight", domain=(0, 1))
    left, right = st.columns(2)
    with left:
        lab.show_on_model(
            "asymmetry-model", "Asymmetry of every head", frame,
            lambda mode: figures.head_map(
                frame, directed, mode=mode, selected=(lab.view.layer, lab.view.head), size=300
            ),
            "‖S − Sᵀ‖ / (‖S‖ + ‖Sᵀ‖) of the raw logits, all pairs of the text: 0 symmetric.",
        )  # fmt: skip
    with right:
        lab.show_on_model(
            "tied-model", "What tying would do", frame,
            lambda mode: figures.scatter(frame, own, tied, mode=mode, width=WIDE, height=260),
            "One point per head: mean weight of a token on itself, as it is and with the keys "
            "replaced by the queries.",
        )  # fmt: skip


def kernels(lab: Lab) -> None:
    """How far the kernel forms are from attention as the norms of the keys drift apart."""
    seed = st.number_input(lab.say("Seed"), 0, 10**6, 0, key="theory:kernel_seed", width=140)
    spreads = tuple(round(0.1 * i, 1) for i in range(13))
    frame = lab.frame("kernels", meaning.kernels, spreads=spreads, seed=seed)
    on_model = lab.on_model("kernels")
    left, right = _places(on_model)
    with left:
        lab.show(
            "kernels", "Kernel forms against softmax attention", frame,
            lambda mode: figures.curves(
                frame, Quantity("spread", "spread of ln ‖k‖"),
                Quantity("max_abs_difference", "largest difference of the outputs"), by="kernel",
                dots=True, mode=mode, width=WIDER, height=240,
            ),
            "Twelve queries of various norms, d_k = 16, seed {seed}. At spread 0 all keys have "
            "norm √d_k.",
            seed=seed,
        )  # fmt: skip
    if on_model:
        with right:
            _real_kernels(lab)


def _real_kernels(lab: Lab) -> None:
    traced = trace(lab.view)
    frame = lab.of_all("kernels", lambda told: theory_on_model.kernels(traced, told))
    lab.show_on_model(
        "kernels-model", "The Gaussian kernel on every head", frame,
        lambda mode: figures.scatter(
            frame, Quantity("key_norm_spread", "spread of ‖k‖ over its mean"),
            Quantity("rbf_difference", "relative difference of the context"), mode=mode,
            width=WIDER, height=260,
        ),
        "One point per head. The exponential kernel gives every context within "
        "{worst:.1e}.",
        said={"worst": frame["exponential_difference"].max()},
    )  # fmt: skip


def order(lab: Lab) -> None:
    """f(PX) against P f(X) for random tokens, and through the layers of the loaded model."""
    with st.container(horizontal=True):
        tokens = st.slider(lab.say("Tokens"), 2, 40, 11, key="theory:tokens", width=300)
        seed = st.number_input(lab.say("Seed"), 0, 10**6, 0, key="theory:order_seed", width=140)
    frame = lab.frame("equivariance", equivariance.equivariance, tokens=tokens, seed=seed)
    difference = Quantity("relative_difference", "difference / largest component", scale="log")
    seen = frame[frame["relative_difference"] > 0]
    on_model = lab.on_model("order")
    left, right = _places(on_model)
    with left:
        lab.show(
            "equivariance", "Permuted in, permuted out?", frame,
            lambda mode: figures.curves(
                seen, Quantity("permutation", "permutation", format="d"), difference,
                by="positions", dots=True, mode=mode, width=WIDER, height=HIGH,
            ),
            "One random attention layer, {tokens} tokens, twenty permutations, seed {seed}; 10⁻¹⁶ "
            "is rounding, and an exact 0 is not drawn.",
            tokens=tokens, seed=seed,
        )  # fmt: skip
    if on_model:
        with right:
            _model_order(lab)


_ORDERS = (
    "Eight permutations of all tokens of the text, special ones included, seed 0: median and range "
    "of the largest difference between f(PX) and P f(X)."
)
_MASKED = (
    "Eight permutations of all tokens of the text, special ones included, seed 0: median and range "
    "of the largest difference between f(PX) and P f(X). The causal mask remains, so the order "
    "still counts."
)


def _model_order(lab: Lab) -> None:
    view = lab.view
    frame = lab.of_all(
        "order",
        lambda told: orders.equivariance(view.loaded, view.tokens, told=told),
    )
    spread = frame.groupby(["positions", "layer"], sort=False)["relative_difference"]
    summary = spread.agg(median="median", low="min", high="max").reset_index()
    summary = summary[summary["low"] > 0]
    lab.show_on_model(
        "equivariance-model", "The loaded model, layer by layer", frame,
        lambda mode: figures.curves(
            summary, Quantity("layer", "after layer (0: input)", format="d"),
            Quantity("median", "difference / largest component", scale="log"), by="positions",
            band=("low", "high"), dots=True, mode=mode, width=WIDER, height=HIGH,
        ),
        _MASKED if view.loaded.causal else _ORDERS,
    )  # fmt: skip
