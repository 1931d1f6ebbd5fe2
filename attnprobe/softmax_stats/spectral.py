"""The largest eigenvalue of the softmax Jacobian diag(p) − ppᵀ, for many rows at once.

The eigenvalues are the roots of the secular equation Σ p² / (p − λ) = 1 (Golub 1973, "Some modified
matrix eigenvalue problems"); the largest lies between the second largest weight and the largest.
Because Σp = 1 the equation is also Σ p / (p − λ) = 0. With e = p / peak, x = λ / peak, and the sum
over all but the largest weight, it reads, without cancellation in a saturated row,

    1 / (1 − x) = Σ e / (x − e),    second ≤ x ≤ 1.

The pole at the second largest e is kept exactly. What the others add is a Stieltjes function of x,
which few poles describe well: first one pole with their mean and, to first order, their variance
(x then errs by 2 % at most in all that was tried), then, from the function's value, slope and
curvature there, a second. So one pass over the row suffices for float32, two for float64: the worst
case that a random search over spectra found errs by 1.3e-6 after one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

# Sums of squares and cubes are kept 2¹⁰⁰ times too large: a float32 square underflows at e = 1e-19,
# and such rows still have a Jacobian. 2¹⁰⁰ times 2²⁰ keys is far from overflow.
LIFT = 2.0**100


class Secular(NamedTuple):
    """The secular equation of each row near its root: what one pass leaves, all over the peak."""

    second: Float[Tensor, "*row"]
    """The second largest weight."""
    place: Float[Tensor, "*row"]
    """An x near the root, above `second`."""
    first: Float[Tensor, "*row"]
    """Σq with q = e / (x − e)."""
    square: Float[Tensor, "*row"]
    """Σq²."""
    cube: Float[Tensor, "*row"]
    """Σq³."""


def secular(
    weights: Float[Tensor, "*row key"],
    peak: Float[Tensor, "*row"],
    rest: Float[Tensor, "*row"],
    squares: Float[Tensor, "*row"],
    cubes: Float[Tensor, "*row"],
    scratch: Float[Tensor, "*row key"],
    out: Secular,
) -> None:
    """One pass over weights without their largest; squares and cubes are LIFT times the sums."""
    torch.amax(weights, -1, out=out.second).div_(peak)
    start = _start(out.second, rest / peak, squares / peak**2, cubes / peak**3)
    _near(start, weights, peak, scratch, out)
    if weights.dtype == torch.float64:
        _near(largest_root(out), weights, peak, scratch, out)


def _near(x: Tensor, weights: Tensor, peak: Tensor, scratch: Tensor, out: Secular) -> None:
    """The equation near this x, which is moved off the pole at `second` if need be."""
    x = x.maximum(out.second * (1 + 4 * torch.finfo(x.dtype).eps)).clamp_min(_tiny(x))
    out.place.copy_(x)
    ratio = torch.sub((x * peak)[..., None], weights, out=scratch)
    torch.div(weights, ratio, out=ratio)
    torch.sum(ratio, -1, out=out.first)
    torch.linalg.vector_norm(ratio, dim=-1, out=out.square).square_()
    torch.sum(ratio.pow_(3), -1, out=out.cube)


def largest_root(equation: Secular) -> Float[Tensor, "*row"]:
    """The largest eigenvalue over the peak, from the secular equation near its root."""
    second, place, first, square, cube = equation
    tiny = _tiny(second)
    above = place - second
    pole, steepest = second / above, place / above
    value = (first - pole).clamp_min(0.0)
    bend = (value + square - pole**2).clamp_min(0.0)
    curve = (bend + square - pole**2 + cube - pole**3).clamp_min(0.0)
    # The others' sum at place · (1 + t) is value / (1 + a·t / (1 + b·t)), two poles below `second`.
    a = (bend / value.clamp_min(tiny)).clamp_min(1.0).minimum(steepest)
    b = (curve / bend.clamp_min(tiny) - a).clamp_min(0.0).minimum(steepest)
    x = place
    for _ in range(2):
        t = x / place - 1
        widen = 1 + b * t
        weight = value * place * widen**2 / a
        distance = place * widen * (widen + a * t) / a
        x = second + _above(second, weight, (distance - (x - second)).clamp_min(0.0))
    return x.clamp_max(1.0).masked_fill(second == 0, 0.0)


def spectral_norm(weights: Float[Tensor, "*row key"]) -> Float[Tensor, "*row"]:
    """Largest eigenvalue of diag(p) − ppᵀ for rows p ≥ 0 that sum to 1: 0 (one key) to ½.

    No [key key] matrix is built. A row of nothing but zeros, one that sees no key, has 0.
    """
    peak, largest = weights.max(-1, keepdim=True)
    others = weights.scatter(-1, largest, 0.0)
    peak = peak[..., 0].clamp_min(_tiny(weights))
    lifted = (others * math.sqrt(LIFT)).square()
    sums = others.sum(-1), lifted.sum(-1), (lifted * others).sum(-1)
    equation = Secular._make(peak.new_empty(len(Secular._fields), *peak.shape))
    secular(others, peak, *sums, lifted, equation)
    return peak * largest_root(equation)


def _start(second: Tensor, rest: Tensor, squares: Tensor, cubes: Tensor) -> Tensor:
    """An x near the root from three moments of the e and their largest."""
    tiny = _tiny(second)
    others = (rest - second).clamp_min(0.0)
    share = others.clamp_min(tiny)
    lifted = (second * math.sqrt(LIFT)).square()
    mean = ((squares - lifted) / share / LIFT).clamp_min(0.0).minimum(second)
    variance = (cubes - lifted * second) / share / LIFT - mean**2
    gap = second - mean
    above = _above(second, others, gap)
    far = (above + gap).clamp_min(tiny)
    spread = (variance / far / far).clamp(0.0, 1.0)
    value = others / far
    steepness = second / above.square() + value / far + (1 - second - above).square().reciprocal()
    return (second + above + torch.nan_to_num(value * spread / steepness)).clamp_max(1.0)


def _above(second: Tensor, weight: Tensor, gap: Tensor) -> Tensor:
    """The y ≥ 0 with 1 / (1 − second − y) = second / y + weight / (y + gap).

    As a share of second + weight it is the positive root of a quadratic whose ends have opposite
    signs, so that neither a row near uniform nor a saturated one loses digits.
    """
    tiny = _tiny(second)
    total = (second + weight).clamp_min(tiny)
    gap, share, room = gap / total, second / total, 1 - second
    middle = gap * (1 + second) - room
    product = room * share * gap
    spread = (middle.square() + 4 * (1 + total) * product).sqrt()
    near = 2 * product / (middle + spread).clamp_min(tiny)
    return total * torch.where(middle > 0, near, (spread - middle) / (2 * (1 + total)))


def _tiny(x: Tensor) -> float:
    return torch.finfo(x.dtype).tiny
