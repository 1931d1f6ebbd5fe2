"""The theory lab: each experiment on 1/√d_k and its neighbours as numbers, without a model.

`EXPERIMENTS[name].run()` is the experiment with its default settings, as a frame;
`EXPERIMENTS[name].parts` holds the further frames of the same room, "claims" among them: what was
claimed beside what is measured now. All draws come from a seed and, but for measured times, repeat
exactly.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

import pandas as pd

from attnprobe.theory import (
    claims,
    cost,
    equivariance,
    exponent,
    freezing,
    linear,
    meaning,
    softmax,
    variance,
)
from attnprobe.theory.inputs import listed

Frame = Callable[..., pd.DataFrame]


@dataclass(frozen=True)
class Experiment:
    """One experiment: its main frame, its further frames by name, and the claims that it tests."""

    name: str
    title: str
    run: Frame
    claims: tuple[claims.Claim, ...]
    parts: Mapping[str, Frame] = field(default_factory=dict)


def _table(*experiments: Experiment) -> Mapping[str, Experiment]:
    """By name, each with one part more: its claims beside what is measured."""
    return MappingProxyType({each.name: _with_claims(each) for each in experiments})


def _with_claims(experiment: Experiment) -> Experiment:
    judged = {"claims": partial(claims.measured, experiment.claims)}
    return replace(experiment, parts={**experiment.parts, **judged})


EXPERIMENTS = _table(
    Experiment(
        "variance",
        "Variance",
        variance.variance,
        variance.CLAIMS,
        {
            "histogram": variance.histogram,
            "devices": variance.devices,
            "quarter-root": variance.quarter_root,
        },
    ),
    Experiment(
        "softmax",
        "Softmax",
        softmax.softmax,
        softmax.CLAIMS,
        {
            "curve": softmax.multiplier_curve,
            "weights": softmax.row_weights,
            "jacobian": softmax.jacobian_map,
        },
    ),
    Experiment(
        "exponent",
        "Exponent",
        exponent.exponent,
        exponent.CLAIMS,
        {"extremes": exponent.extremes},
    ),
    Experiment(
        "freezing",
        "Freezing",
        freezing.freezing,
        freezing.CLAIMS,
        {
            "weights": freezing.freezing_weights,
            "phase": freezing.phase,
            "gradient-check": freezing.gradient_check,
        },
    ),
    Experiment(
        "meaning",
        "Meaning",
        meaning.meaning,
        meaning.CLAIMS,
        {
            "hull": meaning.convex_hull,
            "contraction": meaning.contraction,
            "asymmetry": meaning.asymmetry,
            "kernels": meaning.kernels,
        },
    ),
    Experiment("linear", "Linear attention", linear.linear, linear.CLAIMS, {"times": linear.times}),
    Experiment(
        "cost",
        "Heads and cost",
        cost.cost,
        cost.CLAIMS,
        {
            "memory": cost.score_memory,
            "work": cost.against_tokens,
            "streaming": cost.streaming,
            "times": cost.times,
        },
    ),
    Experiment("equivariance", "Order", equivariance.equivariance, equivariance.CLAIMS),
)


def experiment(name: str) -> Experiment:
    """The experiment of that name; `BadInput` names the choices."""
    listed("the experiment", name, list(EXPERIMENTS))
    return EXPERIMENTS[name]


def verdicts(name: str) -> pd.DataFrame:
    """The claims of one experiment beside what is measured now (columns: `claims.measured`)."""
    return experiment(name).parts["claims"]()
