"""Panels on the spread of scores: variance, devices, quarter root, exponent, extremes."""

import numpy as np
import pandas as pd
import streamlit as st

from attnprobe import figures
from attnprobe.analyses import theory_on_model
from attnprobe.figures import theory as pictures
from attnprobe.metrics import Quantity
from attnprobe.theory import exponent, variance
from attnprobe.ui.cached import trace
from attnprobe.ui.show import metrics
from attnprobe.ui.theory.lab import HIGH, WIDE, WIDER, Lab

WIDTHS = (2, 4, 8, 16, 32, 64, 128, 256, 512)
D_K = Quantity("d_k", "d_k", scale="log", format="d")
STD = Quantity("std", "standard deviation of q·k", "logit", scale="log")
SIZE = {"width": WIDE, "height": HIGH}


def counting(lab: Lab) -> None:
    """Spread against width for a kind of components, and the two histograms."""
    with st.container(horizontal=True):
        kind = st.selectbox(
            lab.say("Components"), list(variance.COMPONENTS), key="theory:components",
            persist_state="session", width=200, format_func=lab.say,
        )  # fmt: skip
        d_k = st.select_slider(
            lab.say("d_k of the histogram"), WIDTHS[1:], 64, key="theory:histogram_d_k", width=300
        )
        seed = st.number_input(lab.say("Seed"), 0, 10**6, 7, key="theory:variance_seed", width=140)
        correlation = 0.1
        if kind == "correlated":
            correlation = st.slider(
                lab.say("Correlation ρ"), 0.0, 1.0, 0.1, 0.05, key="theory:rho", width=260
            )
    draws = 4_000
    settings = {"components": kind, "draws": draws, "seed": seed, "correlation": correlation}
    frame = lab.frame("variance", variance.variance, dims=WIDTHS, **settings)
    shapes = lab.frame("histogram", variance.histogram, d_k=d_k, **settings)
    left, right = st.columns(2)
    with left:
        lab.show(
            "variance", "Spread of q·k against d_k", frame,
            lambda mode: pictures.against_prediction(
                frame, D_K, "std", "predicted_std", STD, error="std_error", mode=mode, **SIZE
            ),
            "Components: {components}; {draws:,} draws per width, seed {seed}. Points: measured, "
            "with two standard errors either way; line: √Var(q·k) as predicted.",
            **settings,
        )  # fmt: skip
    with right:
        lab.show(
            "histogram", "Scores at d_k = {d_k}", shapes,
            lambda mode: figures.curves(
                shapes, Quantity("value", "logit"), Quantity("density", "density"), by="score",
                mode=mode, **SIZE,
            ),
            "Components: {components}; {draws:,} draws, seed {seed}; density of q·k and of "
            "q·k/√d_k.",
            d_k=d_k, **settings,
        )  # fmt: skip
    if lab.on_model("variance"):
        _heads_against_predictions(lab)


_PREDICTIONS = {
    "textbook_std": "√d_k (unit variance)",
    "component_std": "measured component variance",
    "moments_std": "all second moments",
}


def _heads_against_predictions(lab: Lab) -> None:
    traced = trace(lab.view)
    frame = lab.of_all("variance", lambda told: theory_on_model.variance(traced, told))
    tidy = frame.melt(
        ["layer", "head", "raw_std"], list(_PREDICTIONS), "prediction", "predicted"
    ).replace({"prediction": _PREDICTIONS})
    ends = sorted([*tidy["raw_std"], *tidy["predicted"]])
    ends = [ends[0], ends[-1]]
    identity = pd.DataFrame({"predicted": ends, "raw_std": ends, "bound": "equal"})
    lab.show_on_model(
        "variance-model", "Every head against three predictions", tidy,
        lambda mode: figures.scatter(
            tidy,
            Quantity("predicted", "predicted standard deviation", "logit", scale="log"),
            Quantity("raw_std", "measured standard deviation of q·k", "logit", scale="log"),
            by="prediction", bounds=identity, mode=mode, width=WIDER, height=300,
        ),
        "One point per head and prediction, over all query–key pairs of the text, masked ones "
        "included. With all second moments of queries and keys the prediction is an identity.",
    )  # fmt: skip


_NAMES = {
    (False, False): "neither",
    (True, False): "LayerNorm",
    (False, True): "initialisation",
    (True, True): "both",
}


def _devices(growth: float, hidden_std: float, seed: int) -> pd.DataFrame:
    widths = WIDTHS[1:]
    parts = [
        variance.devices(d_k, 256, 1_000, seed, hidden_std, growth).assign(d_k=d_k)
        for d_k in widths
    ]
    frame = pd.concat(parts, ignore_index=True)
    flags = zip(frame["layer_norm"], frame["initialisation"], strict=True)
    return frame.assign(devices=[_NAMES[pair] for pair in flags])


def devices(lab: Lab) -> None:
    """Three switches, and the spread against width of the combination that they choose."""
    with st.container(horizontal=True, vertical_alignment="center"):
        init = st.toggle(lab.say("Initialisation 1/√d_model"), True, key="theory:init")
        norm = st.toggle(lab.say("LayerNorm"), True, key="theory:norm")
        division = st.toggle(lab.say("Division by √d_k"), False, key="theory:division")
    with st.container(horizontal=True):
        hidden = st.slider(
            lab.say("Standard deviation of the hidden states"), 0.5, 10.0, 3.0, 0.5,
            key="theory:hidden_std", width=300,
        )  # fmt: skip
        growth = st.slider(
            lab.say("Weights grown by"), 0.5, 4.0, 1.0, 0.1, key="theory:growth", width=300
        )
    frame = lab.frame("devices", _devices, growth=growth, hidden_std=hidden, seed=7)
    chosen = (frame["layer_norm"] == norm) & (frame["initialisation"] == init)
    line = frame[chosen & (frame["division"] == division)].set_index("d_k")["std"]
    metrics(
        *((lab.say("Spread at d_k = {d_k}", d_k=d_k), f"{line[d_k]:.3g}") for d_k in (4, 64, 512)),
        (lab.say("From d_k = 4 to 512"), f"× {line[512] / line[4]:.3g}"),
    )
    for column, divided in zip(st.columns(2), (False, True), strict=True):
        part = frame[frame["division"] == divided]
        marked = part[chosen[part.index]] if division == divided else None
        with column:
            lab.show(
                f"devices-{'divided' if divided else 'undivided'}",
                "Divided by √d_k" if divided else "Not divided", part,
                lambda mode, part=part, marked=marked: figures.curves(
                    part, D_K,
                    Quantity("std", "standard deviation of the scores", "logit", scale="log"),
                    by="devices", marked=marked, mode=mode, **SIZE,
                ),
                "d_model = 256, 1,000 pairs, seed 7, measured; rings: what is switched on above. "
                "On an axis of equal ratios √d_k is a slope of one half.",
                hidden_std=hidden, growth=growth, seed=7,
            )  # fmt: skip


def _quarter_roots(draws: int, seed: int) -> pd.DataFrame:
    parts = [variance.quarter_root(d_k, draws, seed) for d_k in WIDTHS[1:]]
    return pd.concat(parts, ignore_index=True)


def quarter_root(lab: Lab) -> None:
    """Variance of the scores against width, for the factor put on nothing, variance, weights."""
    draws, seed = 4_000, 7
    frame = lab.frame("quarter root", _quarter_roots, draws=draws, seed=seed)
    lab.show(
        "quarter-root", "What d_k^(−1/4) leaves of the variance", frame,
        lambda mode: pictures.against_prediction(
            frame, D_K, "variance", "predicted_variance",
            Quantity("score_variance", "variance of q·k", "logit²", scale="log"),
            by="factor_on", mode=mode, width=WIDER, height=240,
        ),
        "Normal components, {draws:,} draws per width, seed {seed}; points measured, lines "
        "predicted: d_k with no factor, √d_k with the factor on the variance (wrong), 1 with the "
        "factor on each weight, which is on the standard deviation (right).",
        draws=draws, seed=seed,
    )  # fmt: skip


def _exponents(widths: tuple[int, ...], keys: int, draws: int, seed: int) -> pd.DataFrame:
    parts = [exponent.exponent(d_k, keys=keys, draws=draws, seed=seed) for d_k in widths]
    frame = pd.concat(parts, ignore_index=True)
    return frame.assign(width=[f"d_k = {d_k}" for d_k in frame["d_k"]])


_MEASURES = {
    "Standard deviation of the scores": Quantity(
        "std", "standard deviation of the scores", "logit", scale="log"
    ),
    "Mean peak": Quantity("peak", "mean peak", "weight", domain=(0, 1)),
    "Mean normalised entropy": Quantity(
        "normalised_entropy", "mean normalised entropy", "share of ln keys", domain=(0, 1)
    ),
    "Saturated rows": Quantity("saturated", "rows with peak ≥ 0.9", "share", domain=(0, 1)),
}


def exponents(lab: Lab) -> None:
    """Spread, peak, entropy and saturation against the exponent for several widths."""
    with st.container(horizontal=True):
        keys = st.select_slider(
            lab.say("Keys T"), (10, 30, 100, 300), 100, key="theory:keys", width=300
        )
        seed = st.number_input(lab.say("Seed"), 0, 10**6, 0, key="theory:exponent_seed", width=140)
    settings = {"keys": keys, "draws": 60, "seed": seed}
    frame = lab.frame("exponent", _exponents, widths=(16, 64, 256), **settings)
    places = [*st.columns(2), *st.columns(2)]
    for place, (title, quantity) in zip(places, _MEASURES.items(), strict=True):
        with place:
            lab.show(
                f"exponent-{quantity.name}", title, frame,
                lambda mode, q=quantity: figures.curves(
                    frame, POWER, q, by="width", mode=mode, **SIZE
                ),
                "Scores q·k / d_k^α of {draws} queries with {keys} keys each, seed {seed}.",
                **settings,
            )  # fmt: skip
    if lab.on_model("exponent"):
        _heads_exponent(lab)


POWER = Quantity("exponent", "exponent α of d_k")
_SHARES = {
    "peak": "mean peak",
    "normalised_entropy": "mean normalised entropy",
    "saturated": "rows with peak ≥ 0.9",
    "jacobian_frobenius": "mean ‖J‖, Frobenius",
}
_SPREADS = {"std": "this head", "predicted_std": "unit variance, independent"}


def _heads_exponent(lab: Lab) -> None:
    """The same sweep over α with the q·k that the chosen head has on the text."""
    traced = trace(lab.view)
    frame = lab.of_model("exponent", lambda **at: theory_on_model.exponent(traced, **at), **lab.at)
    width = int(frame["d_k"].iloc[0])
    spreads = _renamed(frame, _SPREADS, "scores", "std")
    shares = _renamed(frame, _SHARES, "measure", "value")
    left, right = st.columns(2)
    with left:
        lab.show_on_model(
            "exponent-spread-model", "Spread on layer {layer}, head {head}", frame,
            lambda mode: figures.curves(
                spreads, POWER, _MEASURES["Standard deviation of the scores"], by="scores",
                marked=_at_half(spreads), mode=mode, **SIZE,
            ),
            "q·k / d_k^α over all keys that the queries see, d_k = {width}. Rings: α = ½. On this "
            "text the head would need α = {own:.2f} for a spread of 1.",
            said={"own": _power_to_one(frame), "width": width}, of_head=True,
        )  # fmt: skip
    with right:
        lab.show_on_model(
            "exponent-shares-model", "Softmax on layer {layer}, head {head}", frame,
            lambda mode: figures.curves(
                shares, POWER, Quantity("value", "mean over rows, or share", domain=(0, 1)),
                by="measure", marked=_at_half(shares), mode=mode, **SIZE,
            ),
            "Means over the rows that see two keys or more, d_k = {width}; entropy as a share of "
            "the ln of the keys seen. Rings: α = ½.",
            said={"width": width}, of_head=True,
        )  # fmt: skip


def _renamed(frame: pd.DataFrame, names: dict[str, str], by: str, value: str) -> pd.DataFrame:
    """The columns `names` below each other, by their names to read."""
    part = frame[["exponent", *names]].rename(columns=names)
    return part.melt("exponent", list(names.values()), by, value)


def _at_half(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["exponent"] == 0.5]


def _power_to_one(frame: pd.DataFrame) -> float:
    """The α at which the spread would be 1: ln of the undivided one over ln d_k."""
    start = frame.iloc[0]
    return float(np.log(start["std"]) / np.log(start["d_k"]))


_CLAIMED = pd.DataFrame(
    {
        "keys": [100, 100],
        "largest": [24.0, 3.0],
        "peak": [1.0, 0.17],
        "label": ["claimed, σ = 8", "claimed, σ = 1"],
    }
)


def _extremes(draws: int, seed: int) -> pd.DataFrame:
    frame = exponent.extremes((1, 2, 4, 8), (3, 10, 30, 100, 300, 1000), draws, seed)
    return frame.assign(spread=[f"σ = {std:g}" for std in frame["std"]])


def extremes(lab: Lab) -> None:
    """The largest logit and the peak against the number of keys, with the claims' points."""
    seed = st.number_input(lab.say("Seed"), 0, 10**6, 0, key="theory:extremes_seed", width=140)
    settings = {"draws": 2_000, "seed": seed}
    frame = lab.frame("extremes", _extremes, **settings)
    keys = Quantity("keys", "keys T", scale="log", format="d")
    largest = Quantity("largest", "largest logit, mean", "logit", domain=(0, None))
    peak = Quantity("peak", "peak, mean", "weight", domain=(0, 1.05))
    left, right = st.columns(2)
    with left:
        lab.show(
            "extremes-largest", "Largest of T normal logits", frame,
            lambda mode: pictures.against_prediction(
                frame, keys, "largest", "expected_largest", largest, by="spread",
                bound="asymptote", marked=_CLAIMED, mode=mode, width=WIDE, height=260,
            ),
            "Points: mean over {draws:,} rows, seed {seed}. Solid lines: the exact mean. Dotted: "
            "the bound σ√(2 ln T), which the mean stays below at every T. Crosses: claimed.",
            **settings,
        )  # fmt: skip
    with right:
        lab.show(
            "extremes-peak", "Peak of their softmax", frame,
            lambda mode: pictures.against_prediction(
                frame, keys, "peak", "expected_peak", peak, by="spread",
                error="peak_error", marked=_CLAIMED, mode=mode, width=WIDE, height=260,
            ),
            "Points: mean over {draws:,} rows, seed {seed}, with two standard errors; lines: the "
            "exact mean. Crosses: claimed.",
            **settings,
        )  # fmt: skip
