"""The statistics of a row and the formulae that give them from a few sums.

The textbook forms (−Σ p ln p, Σp² − 2Σp³ + (Σp²)², 1 − Σp²) cancel in saturated rows, which are the
rows of interest: in float32 no digit is left. Here every sum leaves out the one largest weight, and
every statistic is an expression of these sums without a difference of nearly equal numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnprobe.softmax_stats.spectral import LIFT, Secular, largest_root


@dataclass(frozen=True)
class RowStatistics:
    """Statistics of every attention row, all of one shape [... query].

    A row that sees no key has `keys` 0, `peak_key` −1 and NaN in everything else.
    """

    entropy: Float[Tensor, "*row"]
    """−Σ p ln p in nats: 0 where one key has all the weight, at most ln(keys)."""
    peak: Float[Tensor, "*row"]
    """The largest weight."""
    complement: Float[Tensor, "*row"]
    """1 − peak, summed from the other weights so that it keeps its digits where the peak is 1."""
    peak_key: Int[Tensor, "*row"]
    """Index of the key with the largest weight, the first of equals."""
    jacobian_frobenius: Float[Tensor, "*row"]
    """Frobenius norm of diag(p) − ppᵀ."""
    jacobian_max: Float[Tensor, "*row"]
    """Largest entry of diag(p) − ppᵀ: peak · (1 − peak), at most ¼."""
    jacobian_trace: Float[Tensor, "*row"]
    """1 − Σp²."""
    jacobian_spectral: Float[Tensor, "*row"] | None
    """Largest eigenvalue of diag(p) − ppᵀ, at most ½; None where it was not asked for."""
    raw_mean: Float[Tensor, "*row"]
    """Mean of the raw logits over the keys that the row sees."""
    raw_std: Float[Tensor, "*row"]
    """Population standard deviation of the raw logits over the keys that the row sees."""
    keys: Int[Tensor, "*row"]
    """Number of keys that the row sees."""
    scale: float | Float[Tensor, "*#row"]
    """Scaled logits are raw logits times this."""

    @property
    def effective_keys(self) -> Float[Tensor, "*row"]:
        """exp(entropy): so many equally weighted keys have this entropy."""
        return self.entropy.exp()

    @property
    def normalised_entropy(self) -> Float[Tensor, "*row"]:
        """Entropy over ln(keys), in [0, 1]; NaN, undefined, where fewer than two keys are seen."""
        most = self.keys.to(self.entropy).log()
        return torch.where(self.keys > 1, self.entropy / most, math.nan)

    @property
    def scaled_mean(self) -> Float[Tensor, "*row"]:
        """Mean of the scaled logits over the keys that the row sees."""
        return self.raw_mean * self.scale

    @property
    def scaled_std(self) -> Float[Tensor, "*row"]:
        """Population standard deviation of the scaled logits over the keys that the row sees."""
        return self.raw_std * abs(self.scale)


class RowSums(NamedTuple):
    """What a pass over scaled logits s and their weights p leaves of each row.

    The p are as the softmax gave them: they share one factor, its rounding over a long row, which
    division by `peak` removes.
    """

    total: Float[Tensor, "*row"]
    """Σs."""
    deviation: Float[Tensor, "*row"]
    """√Σ(s − mean)²."""
    peak: Float[Tensor, "*row"]
    """The largest weight; the sums below are over the others."""
    rest: Float[Tensor, "*row"]
    """Σp."""
    tilt: Float[Tensor, "*row"]
    """Σ(s − max s)·p."""
    squares: Float[Tensor, "*row"]
    """LIFT · Σp²."""
    cubes: Float[Tensor, "*row"]
    """LIFT · Σp³."""


def statistics(
    sums: RowSums,
    equation: Secular | None,
    largest: Int[Tensor, "*row"],
    keys: Int[Tensor, "*#row"],
    scale: float,
) -> RowStatistics:
    """Every statistic from the row sums.

    With μ the peak, t = 1 − μ its complement, z = t/μ, and r = Σp², c = Σp³ over the others:
    entropy = ln(1 + z) − Σ(s − max s)·p, ‖J‖² = t²(μ² + (r/t²)(1 + 2μ² + r) − 2c/t²) and
    trace = t(1 + μ) − r. Where t is so small that t² underflows, r/t² and c/t² still have digits.
    """
    z = sums.rest / sums.peak
    peak, complement = 1 / (1 + z), z / (1 + z)
    lifted = (sums.rest * math.sqrt(LIFT)).square().clamp_min(torch.finfo(z.dtype).tiny)
    square_share = sums.squares / lifted
    cube_share = sums.cubes / lifted / sums.peak * peak
    squares = square_share * complement**2
    inner = peak**2 + square_share * (1 + 2 * peak**2 + squares) - 2 * cube_share
    spectral = {} if equation is None else {"jacobian_spectral": peak * largest_root(equation)}
    keys = keys.expand(z.shape)
    numbers = spectral | {
        "entropy": z.log1p() - sums.tilt / sums.peak * peak,
        "peak": peak,
        "complement": complement,
        "jacobian_frobenius": complement * inner.clamp_min(0.0).sqrt(),
        "jacobian_max": peak * complement,
        "jacobian_trace": complement * (1 + peak) - squares,
        "raw_mean": sums.total / keys / scale,
        "raw_std": sums.deviation / keys.sqrt() / abs(scale),
    }
    sightless = keys == 0
    return RowStatistics(
        **{"jacobian_spectral": None}
        | {name: number.masked_fill(sightless, math.nan) for name, number in numbers.items()},
        peak_key=largest.masked_fill(sightless, -1),
        keys=keys,
        scale=scale,
    )
