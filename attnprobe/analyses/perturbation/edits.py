"""Weights edited after the softmax, inside the forward pass: which ones, and by what.

A batch here is one text in several variants. Variant 0 is never edited: it is the baseline that
the others are compared with, computed in the same batch by the same arithmetic.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnprobe.capture import AttentionCall, Watcher
from attnprobe.errors import BadInput
from attnprobe.loaded import LoadedModel
from attnprobe.softmax_stats import attention_weights

ALL_ROWS, READOUT_ROW = "all valid rows", "read-out row"
ROWS = (ALL_ROWS, READOUT_ROW)


@dataclass(frozen=True)
class Scope:
    """Which weights an edit touches: one head, all heads of a layer, or all layers.

    `layer` None means all layers, `head` None all heads. `rows` is "all valid rows" or "read-out
    row", the one query position whose output the read-out watches.
    """

    layer: int | None = None
    head: int | None = None
    rows: str = ALL_ROWS

    @property
    def first_layer(self) -> int:
        """The lowest edited layer: everything below it is as in the clean run."""
        return 0 if self.layer is None else self.layer

    @property
    def label(self) -> str:
        """How a figure names the scope: L2.H5, layer 2, or all layers."""
        if self.layer is None:
            return "all layers"
        return f"layer {self.layer}" if self.head is None else f"L{self.layer}.H{self.head}"

    def heads(self, layer: int, n_heads: int) -> list[int]:
        """The edited heads of a layer."""
        if self.layer is not None and layer != self.layer:
            return []
        return list(range(n_heads)) if self.head is None else [self.head]

    def layers(self, n_layers: int) -> list[int]:
        return list(range(n_layers)) if self.layer is None else [self.layer]

    def checked(self, loaded: LoadedModel) -> "Scope":
        """The scope itself; raises `BadInput` if this model has no such head."""
        if self.rows not in ROWS:
            raise BadInput(f"rows {self.rows!r} are not known; choose one of {', '.join(ROWS)}")
        if self.layer is None and self.head is not None:
            raise BadInput(f"head {self.head} came without a layer; name the layer too")
        for name, index, n in (
            ("layer", self.layer, loaded.n_layers),
            ("head", self.head, loaded.n_heads),
        ):
            if index is not None and not 0 <= index < n:
                raise BadInput(
                    f"{name} {index} came and {loaded.name} has {name}s 0 to {n - 1}; "
                    "choose one of them"
                )
        return self


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows that a rule may rewrite, of every edited variant of one layer.

    `weights` sum to 1 over the `valid` keys of each row and are 0 elsewhere. `value` are the
    heads' values, `heads` says which heads these are.
    """

    layer: int
    heads: tuple[int, ...]
    weights: Float[Tensor, "variant head query key"]
    valid: Bool[Tensor, "query key"]
    value: Float[Tensor, "variant head key d_head"]


Rule = Callable[[Rows], Float[Tensor, "variant head query key"]]
"""New weights for old: rows that sum to 1 over valid keys, or all-zero rows, which ablate."""


def valid_keys(length: int, causal: bool, device=None) -> Bool[Tensor, "query key"]:
    """Which key each query of an unpadded text may see."""
    everything = torch.ones(length, length, dtype=torch.bool, device=device)
    return everything.tril() if causal else everything


def weights_of(call: AttentionCall, heads: Iterable[int]) -> Tensor:
    """A of the chosen heads, [variant head query key], in at least float32."""
    chosen = list(heads)
    return attention_weights(
        call.query[:, chosen], call.key[:, chosen],
        scale=call.scale, valid=None, causal=call.causal,
    )  # fmt: skip


def contexts(
    call: AttentionCall, scope: Scope, rule: Rule, chosen: Bool[Tensor, " query"], variants: int
) -> Float[Tensor, "clean_and_variant position d_model"]:
    """The first edited layer's contexts, heads side by side: the clean run's, then each variant's.

    `call` is that layer's in the clean run, so nothing of it is computed again. Only `chosen` query
    rows are edited; see `rewritten` for how.
    """
    heads = scope.heads(call.layer, call.query.shape[1])
    context = call.context().expand(variants + 1, -1, -1, -1).clone()
    weights = weights_of(call, heads).expand(variants, -1, -1, -1)
    value = call.value[:, heads].expand(variants, -1, -1, -1)
    rows = Rows(call.layer, tuple(heads), weights, _valid(call), value)
    context[1:, heads] = _moved(rows, rule(rows), context[1:, heads], chosen)
    return context.transpose(1, 2).flatten(2)


def rewritten(
    scope: Scope, rule: Rule, chosen: Bool[Tensor, " query"], changed: Bool[Tensor, " variant"]
) -> Watcher:
    """A watcher that lets `rule` rewrite the weights in scope of every variant but the first.

    It notes in `changed` which variants' contexts an edit has moved at all.

    Only `chosen` query rows are edited. Rows with fewer than two valid keys have nothing to
    rearrange and are left alone, unless the rule ablates them. The change is added as
    (A′ − A)(V − v₀), which is the same as computing A′V because rows of A′ − A sum to 0, and is
    exactly nothing for an identity edit, for uniform rows permuted and for values that do not
    differ between keys.
    """

    def watch(call: AttentionCall) -> Tensor | None:
        heads = scope.heads(call.layer, call.query.shape[1])
        if not heads or call.query.shape[0] < 2:
            return None
        rows = _later_rows(call, heads)
        old = call.context()
        context = old.clone()
        context[1:, heads] = _moved(rows, rule(rows), old[1:, heads], chosen)
        changed.logical_or_(differing(context, old)[1:])
        return context

    return watch


def _later_rows(call: AttentionCall, heads: list[int]) -> Rows:
    """The rows of every variant but the first, whose weights an edit below may have changed."""
    parts = (call.query[1:], call.key[1:], call.value[1:])
    edited = AttentionCall(call.layer, *parts, call.scale, None, call.causal)
    return Rows(
        call.layer, tuple(heads), weights_of(edited, heads), _valid(call), edited.value[:, heads]
    )


def differing(
    a: Float[Tensor, " variant *rest"], b: Float[Tensor, " one *rest"]
) -> Bool[Tensor, " variant"]:
    """Which variants differ in any number."""
    return (a != b).flatten(1).any(1)


def _valid(call: AttentionCall) -> Bool[Tensor, "query key"]:
    return valid_keys(call.query.shape[2], call.causal, call.query.device)


def _moved(rows: Rows, new: Tensor, old: Tensor, chosen: Tensor) -> Tensor:
    """Contexts under new weights, where the rows are chosen and leave a choice."""
    centred = rows.value - rows.value[:, :, :1]
    moved = old + (new - rows.weights).to(old.dtype) @ centred
    movable = (rows.valid.sum(-1) >= 2)[:, None]
    ablated = (new == 0).all(-1, keepdim=True)
    moved = torch.where(movable, moved, old).masked_fill(ablated, 0.0)
    return torch.where(chosen[:, None], moved, old)


def permuted(
    weights: Float[Tensor, "*batch query key"],
    movable: Bool[Tensor, "query key"],
    generator: torch.Generator,
) -> Float[Tensor, "*batch query key"]:
    """Each row's weights on its movable keys in a random order, every other weight in its place."""
    return weights.gather(-1, shuffle(weights.shape[:-2], movable, generator).to(weights.device))


def shuffle(
    shape: torch.Size | tuple[int, ...],
    movable: Bool[Tensor, "query key"],
    generator: torch.Generator,
) -> Int[Tensor, "*batch query key"]:
    """For each row the key that each key takes its weight from, uniform over permutations of the
    movable keys; drawn on the CPU, so that a seed means the same on every device."""
    movable = movable.cpu()
    position = torch.arange(movable.shape[-1])
    noise = torch.rand(*shape, *movable.shape, generator=generator)
    fixed_last = (2 + position).to(noise.dtype)
    source = torch.where(movable, noise, fixed_last).argsort(-1)
    target = torch.where(movable, position, len(position) + position).argsort(-1)
    return torch.empty_like(source).scatter_(-1, target.expand_as(source), source)


def uniform(rows: Rows) -> Tensor:
    """The same weight on every valid key."""
    share = rows.valid.to(rows.weights.dtype) / rows.valid.sum(-1, keepdim=True)
    return share.expand_as(rows.weights)


def ablated(rows: Rows) -> Tensor:
    """No weight at all: the head adds nothing at these rows."""
    return torch.zeros_like(rows.weights)


def first_token(rows: Rows) -> Tensor:
    """All weight on the first token, which every row may see."""
    only = torch.zeros_like(rows.weights)
    only[..., 0] = 1.0
    return only


def erased(rows: Rows, rank: Int[Tensor, "variant key"], count: Int[Tensor, " variant"]) -> Tensor:
    """Weights without the `count` first keys of an order, renormalised (Serrano & Smith 2019).

    `rank` is a key's place in the order of removal; keys that are never removed have a rank of at
    least the number of keys. A row always keeps the last of its valid keys.
    """
    rank = torch.where(rows.valid, rank[:, None, None, :], -1)
    last = rank == rank.amax(-1, keepdim=True)
    gone = (rank < count[:, None, None, None]) & ~last
    kept = rows.weights.masked_fill(gone, 0.0)
    total = kept.sum(-1, keepdim=True)
    left = (rows.valid & ~gone).to(kept.dtype)
    return torch.where(total > 0, kept / total, left / left.sum(-1, keepdim=True))
