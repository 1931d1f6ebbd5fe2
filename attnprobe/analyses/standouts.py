"""Which heads of a trace stand out: for each simple thing a head can do, the one that does it most.

Unlike `roles.role_table`, which asks a model with random repeated tokens, this describes one text:
a high score says what a head does here, not what it is for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from attnprobe.analyses import roles
from attnprobe.trace import Trace

Score = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Habit:
    """A thing a head can do; the score is a mean weight in [0, 1] over the queries that can."""

    title: str
    definition: str
    score: Score


def self_token(weights: Float[Tensor, "layer head query key"]) -> Float[Tensor, "layer head"]:
    """Mean weight of a query on itself, in [0, 1]; a first query that sees only itself counts not.

    The first query is left out because a causal head has no choice there.
    """
    return weights.diagonal(dim1=-2, dim2=-1)[..., 1:].mean(-1)


def next_token(weights: Float[Tensor, "layer head query key"]) -> Float[Tensor, "layer head"]:
    """Mean weight on the token just after the query, in [0, 1]; the last query has none."""
    return weights.diagonal(offset=1, dim1=-2, dim2=-1).mean(-1)


def first_token(weights: Float[Tensor, "layer head query key"]) -> Float[Tensor, "layer head"]:
    """Mean weight on the text's first token, in [0, 1]; the first query itself is left out."""
    return weights[..., 1:, 0].mean(-1)


def last_token(weights: Float[Tensor, "layer head query key"]) -> Float[Tensor, "layer head"]:
    """Mean weight on the text's last token, in [0, 1]; the last query itself is left out."""
    return weights[..., :-1, -1].mean(-1)


def standouts(trace: Trace, *, tick: Callable[[], None] | None = None) -> pd.DataFrame:
    """One row per habit that the text gives an occasion for: its strongest head and the score.

    Columns habit, layer, head, score; the highest score first. Of heads with equal scores the first
    is named. For a causal model the habits that look ahead are left out.
    """
    scores = _scores(trace, tick)
    rows = []
    for name, values in scores.items():
        if torch.isnan(values).all():
            continue
        best = int(torch.nan_to_num(values, nan=-1.0).argmax())
        layer, head = divmod(best, trace.n_heads)
        rows.append((name, layer, head, float(values.flatten()[best])))
    frame = pd.DataFrame(rows, columns=["habit", "layer", "head", "score"])
    return frame.sort_values("score", ascending=False, kind="stable", ignore_index=True)


def _scores(
    trace: Trace, tick: Callable[[], None] | None
) -> dict[str, Float[Tensor, "layer head"]]:
    """Every habit of every head, one head's matrix in memory at a time."""
    ids = torch.tensor(trace.tokens.ids, device=trace.queries.device)
    habits = {name: habit for name, habit in HABITS.items() if not (trace.causal and name in AHEAD)}
    scores = {name: torch.empty(trace.n_layers, trace.n_heads) for name in habits}
    for layer in range(trace.n_layers):
        if tick is not None:
            tick()
        for head in range(trace.n_heads):
            weights = trace.weights(layer, head)[None, None]
            for name, habit in habits.items():
                scores[name][layer, head] = habit.score(weights, ids)[0, 0]
    return scores


AHEAD = ("next_token", "last_token")

HABITS: Mapping[str, Habit] = {
    "previous_token": Habit(
        "looks one back",
        "mean weight on the token before",
        lambda weights, ids: roles.previous_token(weights),
    ),
    "next_token": Habit(
        "looks one ahead",
        "mean weight on the token after",
        lambda weights, ids: next_token(weights),
    ),
    "self_token": Habit(
        "looks at itself",
        "mean weight on the query's own position",
        lambda weights, ids: self_token(weights),
    ),
    "first_token": Habit(
        "rests on the first token",
        "mean weight on the first token",
        lambda weights, ids: first_token(weights),
    ),
    "last_token": Habit(
        "rests on the last token",
        "mean weight on the last token",
        lambda weights, ids: last_token(weights),
    ),
    "duplicate_token": Habit(
        "finds the same token",
        "mean weight on the last earlier occurrence of the query's token",
        roles.duplicate_token,
    ),
    "induction": Habit(
        "continues a repeat",
        "mean weight on the token after the last earlier occurrence of the query's token",
        roles.induction,
    ),
}
"""Habits by the name that stands in the frame."""
