"""Context and row sums, tile by tile, in two buffers that are used again and again.

A group is one head of one batch member. Rows see a prefix of their keys: row i the first
`counts[i]`, with counts that never decrease, so that a tile is no wider than its last row.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnprobe.softmax_stats.spectral import LIFT, Secular, secular
from attnprobe.softmax_stats.statistics import RowSums

# Keys are padded to whole blocks: the largest of a row is sought among the blocks' largest, because
# a plain argmax costs ten times as much as amax.
BLOCK = 64
# An unseen key gets this logit: its weight is exactly 0, and 0 times it is 0 where 0·inf is NaN.
_UNSEEN = -1e37
# A tile has at least 32 rows, or a product of matrices is slow, and at most 256, which is enough.
_FEWEST, _MOST = 32, 256
# Elements of a tile for each thread of a CPU, and at most: two such buffers stay in the last cache,
# and the thirty calls that a tile takes cost little beside its arithmetic. Elsewhere a few large
# steps are better than many small ones.
_ELEMENTS_PER_THREAD, _ELEMENTS_AT_MOST = 2**19, 2**21
_ELEMENTS_ELSEWHERE = 2**26


class Tile(NamedTuple):
    """These rows of these groups, and the shape of their logits."""

    groups: slice
    rows: slice
    shape: tuple[int, int, int]


class Sight(NamedTuple):
    """Where the rows of a tile look: 1 where seen, 0 where not, over the keys from `start` on.

    All earlier keys are seen; None: all of them. Multiplying by it and adding a `bias` take a
    fifth of the time that filling by a boolean mask takes.
    """

    start: int
    seen: Float[Tensor, "row key_from_start"] | None = None
    bias: Float[Tensor, "row key_from_start"] | None = None

    @classmethod
    def first(cls, counts: Float[Tensor, " row"], start: int, width: int) -> Sight:
        """Row i sees the first `counts[i]` of `width` keys, `start` at least."""
        if start == width:
            return cls(start)
        keys = torch.arange(start, width, dtype=counts.dtype, device=counts.device)
        return cls.where(start, (keys < counts[:, None]).to(counts.dtype))

    @classmethod
    def where(cls, start: int, seen: Float[Tensor, "row key_from_start"]) -> Sight:
        return cls(start, seen, torch.rsub(seen, 1).mul_(_UNSEEN))

    def erase(self, tile: Float[Tensor, "group row key"]) -> None:
        """Finite numbers at unseen keys become 0."""
        if self.seen is not None:
            tile[..., self.start :].mul_(self.seen)

    def bury(self, tile: Float[Tensor, "group row key"]) -> None:
        """Zeros at unseen keys become a logit of no weight."""
        if self.bias is not None:
            tile[..., self.start :].add_(self.bias)


class Room(NamedTuple):
    """What passes leave of many rows: `numbers` holds a RowSums and, if wanted, a Secular."""

    numbers: Float[Tensor, "number group row"]
    largest: Int[Tensor, "group row"]

    @classmethod
    def empty(cls, shape: tuple[int, ...], like: Tensor, spectral: bool) -> Room:
        number = len(RowSums._fields) + len(Secular._fields) * spectral
        return cls(like.new_empty(number, *shape), like.new_empty(shape, dtype=torch.int64))

    def of(self, tile: Tile) -> Room:
        return Room(self.numbers[:, tile.groups, tile.rows], self.largest[tile.groups, tile.rows])

    def named(self) -> tuple[RowSums, Secular | None]:
        numbers, first = self.numbers.unbind(), len(RowSums._fields)
        equation = Secular._make(numbers[first:]) if numbers[first:] else None
        return RowSums._make(numbers[:first]), equation


def whole_blocks(keys: int) -> int:
    """So many keys, rounded up to whole blocks, at least one."""
    return max(BLOCK, keys + -keys % BLOCK)


def tiles(groups: int, counts: list[int], device: torch.device) -> Iterator[Tile]:
    """Tiles that cover every row: tall ones, but less than a quarter of each may be unseen keys."""
    threads = torch.get_num_threads() if device.type == "cpu" else 1
    most = min(_ELEMENTS_PER_THREAD * threads, _ELEMENTS_AT_MOST)
    elements = most if device.type == "cpu" else _ELEMENTS_ELSEWHERE
    row = 0
    while row < len(counts):
        alike = bisect_right(counts, max(counts[row] * 5 // 4, counts[row] + BLOCK - 1))
        height = max(_FEWEST, min(_MOST, elements // threads // whole_blocks(counts[row])))
        last = min(alike, row + height)
        width = whole_blocks(counts[last - 1])
        together = max(1, elements // ((last - row) * width))
        for first in range(0, groups, together):
            some = min(together, groups - first)
            yield Tile(slice(first, first + some), slice(row, last), (some, last - row, width))
        row = last


def stream(
    query: Float[Tensor, "group query d_head"],
    key: Float[Tensor, "group key d_head"],
    value: Float[Tensor, "group key d_value"],
    counts: list[int],
    scale: float,
    spectral: bool,
) -> tuple[Float[Tensor, "group query d_value"], Room]:
    """The context and what `statistics` needs; keys and values come in whole blocks."""
    context = query.new_zeros(*query.shape[:2], value.shape[-1])
    room = Room.empty(query.shape[:2], query, spectral)
    seen = torch.tensor(counts, dtype=query.dtype, device=query.device)
    plan = list(tiles(len(query), counts, query.device))
    buffers = query.new_empty(2, max((math.prod(tile.shape) for tile in plan), default=0))
    for tile in plan:
        logits, scratch = buffers[:, : math.prod(tile.shape)].view(2, *tile.shape)
        groups, rows, (_, _, width) = tile
        keys = key[groups, :width].mT
        torch.baddbmm(logits, query[groups, rows], keys, beta=0, alpha=scale, out=logits)
        sight = Sight.first(seen[rows], counts[rows.start], width)
        sum_tile(logits, scratch, sight, seen[rows], room.of(tile))
        context[groups, rows] = torch.bmm(scratch, value[groups, :width])
    return context.masked_fill_(seen[:, None] == 0, 0.0), room


def sum_tile(
    logits: Float[Tensor, "group row key"],
    scratch: Float[Tensor, "group row key"],
    sight: Sight,
    count: Float[Tensor, " row"],
    room: Room,
) -> None:
    """Fill the room from finite scaled logits, which are lost; `scratch` gets the weights."""
    sums, equation = room.named()
    sight.erase(logits)
    torch.sum(logits, -1, out=sums.total)
    centred = torch.sub(logits, (sums.total / count.clamp_min(1))[..., None], out=scratch)
    sight.erase(centred)
    torch.linalg.vector_norm(centred, dim=-1, out=sums.deviation)
    sight.bury(logits)
    _largest(logits, room.largest)
    largest, peak = room.largest[..., None], sums.peak[..., None]
    below = logits.sub_(logits.gather(-1, largest))
    # `exp` alone would be no faster, and takes 70 times as long where its result is denormal.
    weights = torch.softmax(below, -1, out=scratch)
    torch.gather(weights, -1, largest, out=peak)
    weights.scatter_(-1, largest, 0.0)
    torch.sum(weights, -1, out=sums.rest)
    torch.sum(below.mul_(weights), -1, out=sums.tilt)
    lifted = torch.addcmul(logits.new_zeros(()), weights, weights, value=LIFT, out=logits)
    torch.sum(lifted, -1, out=sums.squares)
    torch.sum(lifted.mul_(weights), -1, out=sums.cubes)
    if equation is not None:
        moments = (sums.peak, sums.rest, sums.squares, sums.cubes)
        secular(weights, *moments, logits, equation)
    weights.scatter_(-1, largest, peak)


def _largest(logits: Float[Tensor, "group row key"], out: Int[Tensor, "group row"]) -> None:
    """Index of each row's first largest logit."""
    blocks = logits.view(-1, BLOCK)
    maxima = blocks.amax(-1).view(out.numel(), -1)
    block = maxima.argmax(-1)
    first = torch.arange(0, maxima.numel(), maxima.shape[-1], device=logits.device)
    inside = blocks.index_select(0, first.add_(block)).argmax(-1)
    torch.add(inside.view(out.shape), block.view(out.shape), alpha=BLOCK, out=out)
