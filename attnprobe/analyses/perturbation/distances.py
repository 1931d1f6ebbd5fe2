"""How far apart two distributions are: outputs by total variation, weights by Jensen–Shannon.

Both arguments hold distributions along the last axis. Weights are renormalised in at least
float32 first, so that half-precision rows are not compared with what they fail to sum to.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

LN2 = math.log(2.0)


def tvd(p: Float[Tensor, "*#batch outcome"], q: Float[Tensor, "*#batch outcome"]) -> Tensor:
    """Total variation distance ½Σ|p − q|, in [0, 1]: 0 for equal, 1 for disjoint distributions."""
    return 0.5 * (p - q).abs().sum(-1)


def decision_flips(
    p: Float[Tensor, "*#batch outcome"], q: Float[Tensor, "*#batch outcome"]
) -> Bool[Tensor, "*#batch"]:
    """Whether the most probable outcome differs."""
    return p.argmax(-1) != q.argmax(-1)


def jsd(p: Float[Tensor, "*#batch key"], q: Float[Tensor, "*#batch key"]) -> Tensor:
    """Jensen–Shannon divergence in nats, in [0, ln 2].

    Computed as two relative entropies against the middle, without a constant inside the
    logarithms; a key without weight on either side adds nothing. Differentiable where weights
    are 0. Rows without any weight are undefined (NaN).
    """
    p, q = _normalised(p), _normalised(q)
    middle = 0.5 * (p + q)
    return (0.5 * (_relative(p, middle) + _relative(q, middle)).sum(-1)).clamp_min(0.0)


def _normalised(weights: Tensor) -> Tensor:
    weights = weights if weights.dtype == torch.float64 else weights.float()
    return weights / weights.sum(-1, keepdim=True)


def _relative(p: Tensor, middle: Tensor) -> Tensor:
    tiny = torch.finfo(p.dtype).tiny
    return p * (p.clamp_min(tiny).log() - middle.clamp_min(tiny).log())


def attainable_jsd(
    weights: Float[Tensor, "*batch key"], valid: Bool[Tensor, "*valid key"]
) -> Float[Tensor, "*batch"]:
    """The largest JSD that any weights can have to these: φ(a), with a the least valid weight.

    φ(a) = ½[ln(2/(1+a)) + a·ln(2a/(1+a)) + (1−a)·ln 2], reached by all weight on the least
    attended key. ln 2 needs a key with no weight at all: for a uniform row over three keys φ is
    0.318. JSD/φ is comparable between rows, JSD alone is not.
    """
    weights = _normalised(weights)
    least = weights.masked_fill(~valid, math.inf).amin(-1).double()
    bound = torch.log(2 / (1 + least)) + torch.xlogy(least, 2 * least / (1 + least))
    return (0.5 * (bound + (1 - least) * LN2)).to(weights.dtype)
