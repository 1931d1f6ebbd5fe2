"""What every row of an attention head looks like, from one pass over tiles that stay in cache.

A row is the softmax of one query's scaled logits over the keys that it sees. No [query key] matrix
and no mask of that shape is ever built: a tile of a few rows is computed, summed and overwritten.

The textbook forms (−Σ p ln p, Σp² − 2Σp³ + (Σp²)², 1 − Σp²) cancel in saturated rows, which are
the rows of interest. Here every sum leaves out the one largest entry. With m the largest scaled
logit, d = s − m and e = exp(d) of the others, the sums kept per row are

    rest z = Σe    tilt a = Σd·e    squares Σe²    cubes Σe³

so that with Z = 1 + z the peak is 1/Z and its complement z/Z; `_statistics` writes everything else
in these without cancellation.

Nothing here is differentiable: tiles are overwritten in place. Call it under `torch.no_grad()`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnprobe.errors import BadInput

# An unseen key gets this logit: its exp is exactly 0, and 0 times it is 0 where 0·inf is NaN.
_UNSEEN = -1e37
# Squares and cubes are kept 2¹⁰⁰ times too large: a float32 square underflows at e = 1e-19, and
# such rows still have a Jacobian. 2¹⁰⁰ times 2²⁰ keys is far from overflow.
_LIFT = 2.0**50
# Keys are padded to whole groups: the largest of a row is sought among the groups' largest, because
# a plain argmax costs ten times as much as amax.
_GROUP = 32
_TILE_ROWS = 32
# Elements of a tile. On a CPU two buffers of this size stay in the second and third level cache.
_TILE_ELEMENTS = {"cpu": 12 * 32 * 1024}
_TILE_ELEMENTS_ELSEWHERE = 2**25
# A step of the spectral iteration leaves a relative error below six times its own square.
_STEP = 3e-4
_STEPS = 8


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
    scale: float | Float[Tensor, "..."]
    """Scaled logits are raw logits times this."""

    @property
    def effective_keys(self) -> Float[Tensor, "*row"]:
        """exp(entropy): so many equally weighted keys have this entropy."""
        return self.entropy.exp()

    @property
    def normalised_entropy(self) -> Float[Tensor, "*row"]:
        """Entropy over ln(keys), in [0, 1]; NaN, undefined, where fewer than two keys are seen."""
        return torch.where(self.keys > 1, self.entropy / self.keys.to(self.entropy).log(), math.nan)

    @property
    def scaled_mean(self) -> Float[Tensor, "*row"]:
        """Mean of the scaled logits over the keys that the row sees."""
        return self.raw_mean * self.scale

    @property
    def scaled_std(self) -> Float[Tensor, "*row"]:
        """Population standard deviation of the scaled logits over the keys that the row sees."""
        return self.raw_std * abs(self.scale)


def attention_rows(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch head key d_head"],
    value: Float[Tensor, "batch head key d_value"],
    *,
    scale: float,
    valid: Bool[Tensor, "batch key"] | None,
    causal: bool,
    dtype: torch.dtype = torch.float32,
    spectral: bool = True,
) -> tuple[Float[Tensor, "batch head query d_value"], RowStatistics]:
    """The context A·V, in the value's dtype, and the statistics of A's rows, from one pass.

    `valid` says which keys are real tokens (None: all); `causal` lets query i see keys 0 … i only.
    The context of a row that sees no key is 0. All arithmetic is done in `dtype`, float32 or
    float64. Without `spectral` the spectral norm is left out, which saves time.
    """
    _check(scale, dtype)
    sums = _RowSums.empty(query.shape[:3], dtype, query.device)
    context = torch.empty(*query.shape[:3], value.shape[-1], dtype=dtype, device=query.device)
    for sight in _sights(query, key, valid, causal):
        rows = query[sight.members].to(dtype).flatten(0, 1)
        keys, values = (sight.keep(x).to(dtype).flatten(0, 1) for x in (key, value))
        new_context, new_sums = _stream(rows, keys, values, sight.counts, scale, spectral)
        new_sums = new_sums._replace(largest=sight.position(new_sums.largest))
        for whole, new in zip((context, *sums), (new_context, *new_sums), strict=True):
            whole[sight.members] = new.unflatten(0, (-1, query.shape[1]))
    return context.to(value.dtype), _statistics(sums, scale, spectral)


def row_statistics(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch head key d_head"],
    *,
    scale: float,
    valid: Bool[Tensor, "batch key"] | None,
    causal: bool,
    dtype: torch.dtype = torch.float32,
    spectral: bool = True,
) -> RowStatistics:
    """The statistics of `attention_rows` without the context."""
    nothing = key[..., :0]
    options = {"scale": scale, "valid": valid, "causal": causal, "dtype": dtype}
    return attention_rows(query, key, nothing, **options, spectral=spectral)[1]


def statistics_of(
    logits: Float[Tensor, "*row key"],
    mask: Bool[Tensor, "*row key"] | None,
    *,
    scale: float = 1.0,
    dtype: torch.dtype = torch.float32,
    spectral: bool = True,
) -> RowStatistics:
    """The statistics of the softmax over given scaled logits; `mask` is True where a key is seen.

    `scale` is what the raw logits were multiplied by to give these; with 1 the raw mean and
    standard deviation are those of the given logits. The logits are left as they are.
    """
    _check(scale, dtype)
    shape, width = logits.shape[:-1], logits.shape[-1]
    seen = torch.ones_like(logits, dtype=torch.bool) if mask is None else mask
    padding = (0, _whole(width) - width)
    logits, seen = (F.pad(x.reshape(-1, width), padding) for x in (logits, seen))
    sums = _RowSums.empty((1, len(logits)), dtype, logits.device)
    for tile in _tiles(1, [width] * len(logits), logits.device):
        block = logits[None, tile.rows].to(dtype, copy=True)
        unseen = _Unseen(0, ~seen[tile.rows])
        count = seen[tile.rows].sum(-1)
        sums.store(tile, _row_sums(block, torch.empty_like(block), unseen, count, spectral)[0])
    sums = _RowSums(*(x.reshape(shape) for x in sums))
    return _statistics(sums, scale, spectral)


def attention_weights(
    query: Float[Tensor, "*head query d_head"],
    key: Float[Tensor, "*head key d_head"],
    *,
    scale: float,
    valid: Bool[Tensor, "*batch key"] | None,
    causal: bool,
    rows: slice | None = None,
) -> Float[Tensor, "*head row key"]:
    """The weights themselves, in float32 or better, for one head's picture: [query key] large.

    Unseen keys have weight exactly 0, and so has every key of a row that sees none. `rows` picks
    queries. `valid` is [key], or [batch key] with the batch axis first in query and key.
    """
    rows = slice(None) if rows is None else rows
    dtype = torch.promote_types(query.dtype, torch.float32)
    logits = query[..., rows, :].to(dtype) @ key.to(dtype).mT * scale
    hidden = torch.zeros(logits.shape[-2:], dtype=torch.bool, device=logits.device)
    if causal:
        _check_square(query.shape[-2], key.shape[-2])
        positions = torch.arange(key.shape[-2], device=logits.device)
        hidden = positions > positions[rows, None]
    if valid is not None:
        batch, axes = valid.shape[:-1], logits.dim() - valid.dim()
        hidden = hidden | ~valid.reshape(*batch, *[1] * axes, valid.shape[-1])
    weights = logits.masked_fill(hidden, -math.inf).softmax(-1)
    return weights.masked_fill(hidden, 0.0)


def spectral_norm(weights: Float[Tensor, "*row key"]) -> Float[Tensor, "*row"]:
    """Largest eigenvalue of diag(p) − ppᵀ for rows of weights p ≥ 0 that sum to 1, at most ½.

    Found as a root of the secular equation; no [key key] matrix is built. 0 for a row of one key.
    """
    width = weights.shape[-1]
    rows = F.pad(weights.reshape(1, -1, width), (0, _whole(width) - width))
    largest = _largest(rows)
    peak = rows.gather(-1, largest)
    others = rows.scatter(-1, largest, 0.0) / peak
    squares = (others * _LIFT).square().sum(-1)
    root = _root(others, others.sum(-1), squares, torch.empty_like(others))
    return (root * peak[..., 0]).reshape(weights.shape[:-1])


class _RowSums(NamedTuple):
    """What a pass leaves of each row; exponentials are relative to the row's largest."""

    total: Tensor  # Σs of the scaled logits
    deviation: Tensor  # √Σ(s − mean)²
    rest: Tensor  # Σe, as all sums below without the largest entry
    tilt: Tensor  # Σd·e
    squares: Tensor  # 2¹⁰⁰ Σe²
    cubes: Tensor  # 2¹⁰⁰ Σe³
    root: Tensor  # Z times the largest eigenvalue of diag(p) − ppᵀ, NaN where not asked for
    largest: Tensor  # index of the largest entry
    count: Tensor  # number of seen keys

    @classmethod
    def empty(cls, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> _RowSums:
        kinds = [dtype] * 7 + [torch.int64] * 2
        return cls(*(torch.empty(shape, dtype=kind, device=device) for kind in kinds))

    def store(self, tile: _Tile, part: _RowSums) -> None:
        for whole, new in zip(self, part, strict=True):
            whole[tile.groups, tile.rows] = new


class _Sight(NamedTuple):
    """Batch members whose rows see the same keys: row i the first `counts[i]` of those kept."""

    members: Tensor | slice
    kept: Tensor | None
    counts: list[int]

    def keep(self, x: Float[Tensor, "batch head key d"]) -> Float[Tensor, "member head kept d"]:
        """The kept keys, padded with zeros to whole groups, at least one."""
        x = x[self.members] if self.kept is None else x[self.members][:, :, self.kept]
        length = x.shape[2]
        return F.pad(x, (0, 0, 0, max(_GROUP, length + -length % _GROUP) - length))

    def position(self, index: Tensor) -> Tensor:
        """Where the kept keys of these indices stood among all; arbitrary if a row sees none."""
        if self.kept is None:
            return index
        return F.pad(self.kept, (0, 2 * _GROUP))[index]


def _sights(query: Tensor, key: Tensor, valid: Tensor | None, causal: bool) -> Iterator[_Sight]:
    """One sight for each different row of `valid`; invalid keys are cut out, not masked."""
    queries, keys = query.shape[2], key.shape[2]
    if causal:
        _check_square(queries, keys)
    if valid is None or bool(valid.all()):
        yield _Sight(slice(None), None, [*range(1, keys + 1)] if causal else [keys] * queries)
        return
    patterns, which = valid.unique(dim=0, return_inverse=True)
    for number, pattern in enumerate(patterns):
        kept = pattern.nonzero().flatten()
        counts = pattern.cumsum(0).tolist() if causal else [len(kept)] * queries
        yield _Sight((which == number).nonzero().flatten(), kept, counts)


class _Tile(NamedTuple):
    """Some rows of some groups (a group is one head of one batch member), over the first keys."""

    groups: slice
    rows: slice
    shape: tuple[int, int, int]


def _tiles(groups: int, counts: list[int], device: torch.device) -> Iterator[_Tile]:
    """Tiles of about equal size that cover every row; `counts` must not decrease."""
    elements = _TILE_ELEMENTS.get(device.type, _TILE_ELEMENTS_ELSEWHERE)
    row = 0
    while row < len(counts):
        rows = min(len(counts) - row, max(_TILE_ROWS, elements // (groups * _whole(counts[-1]))))
        width = _whole(counts[row + rows - 1])
        together = max(1, elements // (rows * width))
        for group in range(0, groups, together):
            some = min(together, groups - group)
            yield _Tile(slice(group, group + some), slice(row, row + rows), (some, rows, width))
        row += rows


def _whole(keys: int) -> int:
    """So many keys, rounded up to whole groups, at least one."""
    return max(_GROUP, keys + -keys % _GROUP)


class _Unseen(NamedTuple):
    """Where the rows of a tile do not look: `mask` over the keys from `start` on."""

    start: int
    mask: Bool[Tensor, "row key_from_start"]

    @classmethod
    def beyond(cls, counts: list[int], width: int, device: torch.device) -> _Unseen:
        keys = torch.arange(counts[0], width, device=device)
        return cls(counts[0], keys >= torch.tensor(counts, device=device)[:, None])

    def fill(self, tile: Tensor, value: float) -> None:
        tile[..., self.start :].masked_fill_(self.mask, value)


def _stream(
    query: Float[Tensor, "group query d_head"],
    key: Float[Tensor, "group key d_head"],
    value: Float[Tensor, "group key d_value"],
    counts: list[int],
    scale: float,
    spectral: bool,
) -> tuple[Float[Tensor, "group query d_value"], _RowSums]:
    """Context and row sums, tile by tile, in two buffers that are used again and again."""
    sums = _RowSums.empty(query.shape[:2], query.dtype, query.device)
    context = query.new_empty(*query.shape[:2], value.shape[-1])
    tiles = list(_tiles(len(query), counts, query.device))
    room = query.new_empty(2, max((math.prod(tile.shape) for tile in tiles), default=0))
    for groups, rows, shape in tiles:
        logits, scratch = (x[: math.prod(shape)].view(shape) for x in room)
        keys = key[groups, : shape[-1]].mT
        torch.baddbmm(logits, query[groups, rows], keys, beta=0, alpha=scale, out=logits)
        unseen = _Unseen.beyond(counts[rows], shape[-1], query.device)
        count = torch.tensor(counts[rows], device=query.device)
        part, weights = _row_sums(logits, scratch, unseen, count, spectral)
        sums.store(_Tile(groups, rows, shape), part)
        total = (1 + part.rest)[..., None]
        context[groups, rows] = torch.bmm(weights, value[groups, : shape[-1]]).div_(total)
    context.masked_fill_(sums.count[..., None] == 0, 0.0)
    return context, sums


def _row_sums(
    logits: Float[Tensor, "group row key"],
    scratch: Float[Tensor, "group row key"],
    unseen: _Unseen,
    count: Int[Tensor, " row"],
    spectral: bool,
) -> tuple[_RowSums, Float[Tensor, "group row key"]]:
    """The sums of scaled logits, which are overwritten, and the weights times Z, in `scratch`."""
    unseen.fill(logits, 0.0)
    total = logits.sum(-1)
    centred = torch.sub(logits, (total / count)[..., None], out=scratch)
    unseen.fill(centred, 0.0)
    deviation = torch.linalg.vector_norm(centred, dim=-1)
    unseen.fill(logits, _UNSEEN)
    largest = _largest(logits)
    below = logits.sub_(logits.gather(-1, largest))
    weights = torch.exp(below, out=scratch).scatter_(-1, largest, 0.0)
    rest = weights.sum(-1)
    tilt = below.mul_(weights).sum(-1)
    lifted = torch.mul(weights, _LIFT, out=logits).square_()
    squares = lifted.sum(-1)
    cubes = lifted.mul_(weights).sum(-1)
    root = _root(weights, rest, squares, logits) if spectral else torch.full_like(rest, math.nan)
    weights.scatter_(-1, largest, 1.0)
    numbers = (total, deviation, rest, tilt, squares, cubes, root)
    return _RowSums(*numbers, largest[..., 0], count.expand(rest.shape)), weights


def _largest(logits: Float[Tensor, "group row key"]) -> Int[Tensor, "group row 1"]:
    """Index of each row's first largest logit."""
    grouped = logits.unflatten(-1, (-1, _GROUP))
    group = grouped.amax(-1).argmax(-1)[..., None]
    best = grouped.gather(-2, group[..., None].expand(*group.shape, _GROUP))[..., 0, :]
    return group * _GROUP + best.argmax(-1, keepdim=True)


def _root(
    weights: Float[Tensor, "group row key"],
    rest: Float[Tensor, "group row"],
    squares: Float[Tensor, "group row"],
    scratch: Float[Tensor, "group row key"],
) -> Float[Tensor, "group row"]:
    """Z·λ, with λ the largest root of the secular equation Σ p² / (p − λ) = 1.

    Because Σp = 1 the equation is Σ p / (p − λ) = 0. In units where the largest weight is 1 and x
    stands for Z·λ it reads, without cancellation,

        1 / (1 − x) = h(x),    h(x) = Σ e / (x − e),    second largest e ≤ x ≤ 1.

    The pole of the second largest e is kept exactly; the others are replaced by one pole, first
    with their weight and mean (their osculation at infinity), then with the value and the slope
    that they have at the last x. As 1/h is concave, each root is below the next and below the true
    one, and the steps converge quadratically from a start that is within a few per cent.
    """
    small, eps = torch.finfo(weights.dtype).tiny, torch.finfo(weights.dtype).eps
    second = weights.amax(-1)
    others = (rest - second).clamp_min(0.0)
    mean = (squares - (second * _LIFT) ** 2) / others.clamp_min(small) / _LIFT / _LIFT
    x = _two_pole_root(second, others, (second - mean).clamp_min(0.0).minimum(second))
    for _ in range(_STEPS):
        x = x.maximum(second * (1 + 4 * eps)).clamp_min(small)
        ratio = torch.sub(x[..., None], weights, out=scratch)
        torch.div(weights, ratio, out=ratio)
        value, slope = ratio.sum(-1), ratio.square_().sum(-1)
        above = x - second
        pole = second / above
        value, slope = (value - pole).clamp_min(0.0), value + slope - pole - pole**2
        distance = torch.where(slope > 0, x * value / slope, x).clamp_max(x).maximum(above)
        previous, x = x, _two_pole_root(second, value * distance, distance - above)
        if bool(((x - previous).abs() <= _STEP * x).all()):
            break
    return x.maximum(second).clamp_max(1.0).masked_fill(rest == 0, 0.0)


def _two_pole_root(second: Tensor, weight: Tensor, gap: Tensor) -> Tensor:
    """The x ≥ second with 1 / (1 − x) = second / (x − second) + weight / (x − second + gap).

    Solved for (x − second) / (second + weight), the positive root of a quadratic whose ends have
    opposite signs, so that neither a row near uniform nor a saturated one loses digits.
    """
    total = (second + weight).clamp_min(torch.finfo(second.dtype).tiny)
    gap, share = gap / total, second / total
    middle = gap * (1 + second) - (1 - second)
    product = (1 - second) * share * gap
    spread = (middle**2 + 4 * (1 + total) * product).sqrt()
    far_end = 2 * product / (middle + spread).clamp_min(torch.finfo(second.dtype).tiny)
    above = torch.where(middle > 0, far_end, (spread - middle) / (2 * (1 + total)))
    return second + total * above


def _statistics(sums: _RowSums, scale: float, spectral: bool) -> RowStatistics:
    """Every statistic from the row sums, none by a difference of nearly equal numbers.

    With μ the peak, t its complement, r = Σ'p² and c = Σ'p³ over all but the largest:
    entropy = ln(1 + z) − Σ'd·p; ‖J‖² = t²(μ² + (r/t²)(1 + 2μ² + r) − 2c/t²); trace = t(1 + μ) − r.
    """
    z = 1 + sums.rest
    peak, complement = 1 / z, sums.rest / z
    lifted = (sums.rest * _LIFT).square().clamp_min(torch.finfo(z.dtype).tiny)
    square_share = sums.squares / lifted
    cube_share = sums.cubes / lifted * peak
    squares = square_share * complement**2
    inner = peak**2 + square_share * (1 + 2 * peak**2 + squares) - 2 * cube_share
    none = sums.count == 0
    numbers = {
        "entropy": sums.rest.log1p() - sums.tilt / z,
        "peak": peak,
        "complement": complement,
        "jacobian_frobenius": complement * inner.clamp_min(0.0).sqrt(),
        "jacobian_max": peak * complement,
        "jacobian_trace": complement * (1 + peak) - squares,
        "jacobian_spectral": sums.root / z,
        "raw_mean": sums.total / sums.count / scale,
        "raw_std": sums.deviation / sums.count.sqrt() / abs(scale),
    }
    numbers = {name: x.masked_fill(none, math.nan) for name, x in numbers.items()}
    if not spectral:
        numbers["jacobian_spectral"] = None
    return RowStatistics(
        **numbers,
        peak_key=sums.largest.masked_fill(none, -1),
        keys=sums.count,
        scale=scale,
    )


def _check(scale: float, dtype: torch.dtype) -> None:
    if not math.isfinite(scale) or scale == 0:
        raise BadInput(f"the scale is {scale}; a finite number other than 0 is needed")
    if dtype not in (torch.float32, torch.float64):
        raise BadInput(
            f"statistics were asked for in {dtype}; choose torch.float32 or torch.float64"
        )


def _check_square(queries: int, keys: int) -> None:
    if queries != keys:
        raise BadInput(
            f"causal attention needs as many queries as keys, and {queries} and {keys} came"
        )
