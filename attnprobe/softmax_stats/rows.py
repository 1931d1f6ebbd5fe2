"""The door: statistics, context and weights from queries, keys and values or from logits.

Nothing here is differentiable where statistics are concerned: tiles are overwritten in place, so
call it under `torch.no_grad()`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attnprobe.errors import BadInput
from attnprobe.softmax_stats.statistics import RowStatistics, statistics
from attnprobe.softmax_stats.tiles import Room, Sight, stream, sum_tile, tiles, whole_blocks


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
    queries = query.to(dtype)
    context = queries.new_empty(*query.shape[:3], value.shape[-1])
    room = Room.empty(query.shape[:3], queries, spectral)
    seen = torch.empty(len(query), 1, query.shape[2], dtype=torch.int64, device=query.device)
    for sight in _sights(query, key, valid, causal):
        members, apart = sight.members, (-1, query.shape[1])
        some = (sight.keep(x).to(dtype).flatten(0, 1) for x in (key, value))
        rows = queries[members].flatten(0, 1)
        part, (numbers, largest) = stream(rows, *some, sight.counts, scale, spectral)
        context[members] = part.unflatten(0, apart)
        room.numbers[:, members] = numbers.unflatten(1, apart)
        room.largest[members] = sight.position(largest).unflatten(0, apart)
        seen[members] = torch.tensor(sight.counts, device=query.device)
    return context.to(value.dtype), statistics(*room.named(), room.largest, seen, scale)


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
    mask: Bool[Tensor, "... key"] | None,
    *,
    scale: float = 1.0,
    dtype: torch.dtype = torch.float32,
    spectral: bool = True,
) -> RowStatistics:
    """The statistics of the softmax over given scaled logits, which are left as they are.

    `mask`, of a shape that expands to that of the logits, is True where a row sees a key; a logit
    of −∞ is a key that no row sees. `scale` is what the raw logits were multiplied by to give
    these; with 1 the raw mean and standard deviation are those of the given logits.
    """
    _check(scale, dtype)
    shape, width = logits.shape[:-1], logits.shape[-1]
    padding = (0, whole_blocks(width) - width)
    rows = F.pad(logits.reshape(shape.numel(), width), padding)
    seen = logits != -math.inf if mask is None else mask & (logits != -math.inf)
    everything = bool(seen.all())
    seen = F.pad(seen.reshape(shape.numel(), width), padding)
    keys = seen.sum(-1)
    room = Room.empty((1, len(rows)), logits.new_empty(0, dtype=dtype), spectral)
    for tile in tiles(1, [width] * len(rows), logits.device):
        block, count = rows[None, tile.rows].to(dtype, copy=True), keys[tile.rows].to(dtype)
        sight = Sight.first(count, width, tile.shape[-1])
        if not everything:
            block.masked_fill_(~seen[tile.rows], 0.0)
            sight = Sight.where(0, seen[tile.rows].to(dtype))
        sum_tile(block, torch.empty_like(block), sight, count, room.of(tile))
    room = Room(room.numbers.reshape(len(room.numbers), *shape), room.largest.reshape(shape))
    return statistics(*room.named(), room.largest, keys.view(shape), scale)


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


class _Sight(NamedTuple):
    """Batch members whose rows see the same keys: row i the first `counts[i]` of those kept."""

    members: Tensor | slice
    kept: Tensor | None
    counts: list[int]

    def keep(self, x: Float[Tensor, "batch head key d"]) -> Float[Tensor, "member head kept d"]:
        """The kept keys, padded with zeros to whole blocks."""
        x = x[self.members] if self.kept is None else x[self.members][:, :, self.kept]
        missing = whole_blocks(x.shape[2]) - x.shape[2]
        return F.pad(x, (0, 0, 0, missing)) if missing else x

    def position(self, index: Tensor) -> Tensor:
        """Where the kept keys of these indices stood among all; arbitrary if a row sees none."""
        if self.kept is None:
            return index
        return F.pad(self.kept, (0, whole_blocks(len(self.kept)) - len(self.kept)))[index]


def _sights(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch head key d_head"],
    valid: Bool[Tensor, "batch key"] | None,
    causal: bool,
) -> Iterator[_Sight]:
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


def _check(scale: float, dtype: torch.dtype) -> None:
    if not math.isfinite(scale) or scale == 0:
        raise BadInput(f"the scale is {scale}; a finite number other than 0 is needed")
    if dtype not in (torch.float32, torch.float64):
        raise BadInput(f"statistics in {dtype} lose their digits; ask for float32 or float64")


def _check_square(queries: int, keys: int) -> None:
    if queries != keys:
        raise BadInput(
            f"causal attention needs as many queries as keys, and {queries} and {keys} came"
        )
