"""Do two ways of saying which tokens matter agree? Rank correlations with what chance gives.

Short texts make large correlations by chance and long ones are ruled by their unimportant tail, so
τ never stands alone: its spread under independence, a weighted τ and the overlap of the most
important tokens stand beside it.
"""

import math
from dataclasses import asdict, dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor

TOP_SHARE, TOP_AT_LEAST = 0.2, 3


@dataclass(frozen=True)
class Agreement:
    """How far two importances of the same n tokens agree; NaN where undefined.

    `tau` is Kendall's τ-b, `null_sd` its standard deviation under independence without ties,
    `p_value` two-sided against independence, `weighted_tau` Vigna's weighted τ (hyperbolic, most
    important first), `top_overlap` the share of one's `top_k` tokens that are among the other's,
    `top_chance` what that share is by chance.
    """

    n: int
    tau: float
    null_sd: float
    p_value: float
    weighted_tau: float
    top_k: int
    top_overlap: float
    top_chance: float

    def row(self) -> dict[str, float | int]:
        return asdict(self)


def agreement(
    a: Float[np.ndarray, " token"], b: Float[np.ndarray, " token"], *, top_k: int | None = None
) -> Agreement:
    """Agreement of two importances. Undefined (NaN) when fewer than two tokens came or one side
    is the same for all tokens, as a uniform head is: it ranks nothing."""
    n = len(a)
    k = min(n, top_k or max(TOP_AT_LEAST, math.ceil(TOP_SHARE * n)))
    if n < 2 or not ranks(a) or not ranks(b):
        undefined = float("nan")
        return Agreement(
            n, undefined, null_sd(n), undefined, undefined, k, undefined, k / max(n, 1)
        )
    tau = stats.kendalltau(a, b)
    weighted = stats.weightedtau(a, b).statistic
    return Agreement(
        n, float(tau.statistic), null_sd(n), float(tau.pvalue), float(weighted),
        k, top_overlap(a, b, k), k / n,
    )  # fmt: skip


def ranks(values: Float[np.ndarray, " token"]) -> bool:
    """Whether the numbers order anything: all finite and not all the same."""
    return bool(np.isfinite(values).all() and (values != values[0]).any())


def null_sd(n: int) -> float:
    """Standard deviation of Kendall's τ between two independent orders of n things:
    √(2(2n+5)/(9n(n−1))), Kendall 1938; undefined (NaN) for n < 2."""
    return math.sqrt(2 * (2 * n + 5) / (9 * n * (n - 1))) if n >= 2 else float("nan")


def top_overlap(a: Float[np.ndarray, " token"], b: Float[np.ndarray, " token"], k: int) -> float:
    """Share of the k largest of `a` that are among the k largest of `b`; by chance k/n.

    Ties at the border count in part: each tied token is in with the same probability.
    """
    return float(_membership(a, k) @ _membership(b, k)) / k


def _membership(values: Float[np.ndarray, " token"], k: int) -> Float[np.ndarray, " token"]:
    border = np.sort(values)[-k]
    above, at = values > border, values == border
    return above + at * ((k - above.sum()) / at.sum())


def rollout(
    weights: Float[Tensor, "layer query key"], *, residual: float = 0.5
) -> Float[Tensor, "layer query key"]:
    """Attention rollout of head-mean weights, up to and including each layer.

    R_l = (r·I + (1 − r)·A_l) R_{l−1} with r = ½ (Abnar & Zuidema 2020, section 3). Rows sum to 1.
    In a causal model it drifts to the first token with depth whatever the heads do.
    """
    same = torch.eye(weights.shape[-1], dtype=weights.dtype, device=weights.device)
    rolled, parts = same, []
    for layer in weights:
        rolled = (residual * same + (1 - residual) * layer) @ rolled
        parts.append(rolled)
    return torch.stack(parts)
