"""Which heads of a trace stand out: for each simple thing a head can do, the one that does it most.

Unlike `roles.role_table`, which asks a model with random repeated tokens, this describes one text:
a high score says what a head does here, not what it is for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnprobe.analyses.roles import earlier_occurrence
from attnprobe.trace import Trace

LEAST_QUERIES = 3
"""A habit that fewer queries have an occasion for is left out: it would be an accident."""

Pairs = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Habit:
    """A thing a head can do, by the key that each query would look at.

    `targets` gives the queries that have an occasion for it and the key of each. The score is the
    mean weight of these queries on these keys, in [0, 1]. `ahead` says that keys come later.
    """

    title: str
    targets: Callable[[Int[Tensor, " query"]], Pairs]
    ahead: bool = False


def standouts(trace: Trace, *, tick: Callable[[], None] | None = None) -> pd.DataFrame:
    """One row per habit that the text gives an occasion for: its strongest head and the score.

    Columns habit, layer, head, score, queries (how many the score is a mean of); the highest score
    first. Of heads with equal scores the first is named. A causal model has no habits that look
    ahead.
    """
    ids = torch.tensor(trace.tokens.ids, device=trace.queries.device)
    targets = {
        name: habit.targets(ids)
        for name, habit in HABITS.items()
        if not (trace.causal and habit.ahead)
    }
    targets = {name: pair for name, pair in targets.items() if len(pair[0]) >= LEAST_QUERIES}
    rows = [
        (name, *_strongest(scores), len(targets[name][0]))
        for name, scores in _scores(trace, targets, tick).items()
    ]
    frame = pd.DataFrame(rows, columns=["habit", "layer", "head", "score", "queries"])
    return frame.sort_values("score", ascending=False, kind="stable", ignore_index=True)


def _strongest(scores: Float[Tensor, "layer head"]) -> tuple[int, int, float]:
    best = int(scores.argmax())
    return *divmod(best, scores.shape[1]), float(scores.flatten()[best])


def _scores(
    trace: Trace, targets: Mapping[str, Pairs], tick: Callable[[], None] | None
) -> dict[str, Float[Tensor, "layer head"]]:
    """Every habit of every head, one head's matrix in memory at a time."""
    scores = {name: torch.empty(trace.n_layers, trace.n_heads) for name in targets}
    for layer in range(trace.n_layers):
        if tick is not None:
            tick()
        for head in range(trace.n_heads):
            weights = trace.weights(layer, head)
            for name, (query, key) in targets.items():
                scores[name][layer, head] = weights[query, key].mean()
    return scores


def _shifted(ids: Int[Tensor, " query"], by: int) -> Pairs:
    """Each query that has one with the key `by` places on; itself only where it had a choice."""
    query = torch.arange(len(ids), device=ids.device)
    key = query + by
    inside = (key >= 0) & (key < len(ids)) & ((query > 0) | (key > 0))
    return query[inside], key[inside]


def _fixed(ids: Int[Tensor, " query"], place: int) -> Pairs:
    """Every other query with the key at `place`, which may count from the end."""
    place %= len(ids)
    query = torch.arange(len(ids), device=ids.device)
    query = query[query != place]
    return query, torch.full_like(query, place)


def _repeat(ids: Int[Tensor, " query"]) -> Pairs:
    """The key after the last earlier occurrence of the query's token, if that is not the query."""
    query, earlier = earlier_occurrence(ids)
    apart = query - earlier > 1
    return query[apart], earlier[apart] + 1


HABITS: Mapping[str, Habit] = {
    "previous_token": Habit("looks one back", lambda ids: _shifted(ids, -1)),
    "next_token": Habit("looks one ahead", lambda ids: _shifted(ids, 1), ahead=True),
    "self_token": Habit("looks at itself", lambda ids: _shifted(ids, 0)),
    "first_token": Habit("rests on first token", lambda ids: _fixed(ids, 0)),
    "last_token": Habit("rests on last token", lambda ids: _fixed(ids, -1), ahead=True),
    "duplicate_token": Habit("finds the same token", earlier_occurrence),
    "induction": Habit("continues a repeat", _repeat),
}
"""Habits by the name that stands in the frame."""
