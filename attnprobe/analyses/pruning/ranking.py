"""Heads side by side: importance and measured effect in one table, and how far they agree."""

import pandas as pd

from attnprobe.analyses.frames import heads_as_tensor
from attnprobe.analyses.pruning import curve
from attnprobe.analyses.pruning.curve import Order

SCORES = {
    "importance": "importance, E|∂L/∂ξ|",
    "importance_l2": "importance, ℓ2-normalised per layer",
    "per_token": "importance per token (authors' code)",
    "per_token_l2": "importance per token, ℓ2-normalised per layer",
}
"""The columns of an importance frame by which heads can be ranked."""


def table(importance: pd.DataFrame, effects: pd.DataFrame) -> pd.DataFrame:
    """One row per head with every importance and effect; both must be of the same model."""
    both = importance.drop(columns="texts").merge(effects, on=["layer", "head"], validate="1:1")
    return both.assign(
        importance_rank=both["importance"].rank(ascending=False, method="min").astype(int),
        effect_rank=both["loss_change"].rank(ascending=False, method="min").astype(int),
    )


def agreement(
    heads: pd.DataFrame, score: str = "importance", *, size: bool = False
) -> float | None:
    """Spearman's ρ between a score and the measured change of loss; None if one is constant.

    Importance is the slope of the loss at ξ = 1 and says nothing exact about ξ = 0. It has no sign
    either: with `size`, it is compared with the size of the change, whichever way that goes.
    """
    change = heads["loss_change"].abs() if size else heads["loss_change"]
    pair = heads[[score]].assign(change=change)
    if bool((pair.nunique() < 2).any()):
        return None
    return float(pair.rank().corr().iloc[0, 1])


def orders(
    heads: pd.DataFrame,
    score: str = "importance",
    *,
    random: int = curve.RANDOM_ORDERS,
    seed: int = 0,
) -> dict[str, list[Order]]:
    """The orders that a curve compares: by the score, its reverse, by measured effect, random."""
    by_score = curve.order_by(heads_as_tensor(heads, score))
    by_effect = curve.order_by(heads_as_tensor(heads, "loss_change"))
    return {
        "importance": [by_score],
        "reverse": [by_score.flip(0)],
        "effect": [by_effect],
        "random": curve.random_orders(len(heads), random, seed),
    }
