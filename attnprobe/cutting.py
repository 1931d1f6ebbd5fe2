"""Heads removed for good: smaller projections instead of gates.

`cut_layers` slices W_Q, W_K, W_V and W_O of a model in place, layer by layer; a layer may lose all
its heads and then gives the bias of W_O alone. Attention still goes through the door: a watched
run sees every head under its old number, a removed one with queries, keys and values of zero, so
traces, gates and sweeps work as before. An unwatched run computes the kept heads only.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnprobe import capture
from attnprobe.families import Family

Kept = Sequence[Sequence[int]]
"""For every layer, the numbers of the heads that stay, ascending."""


@dataclass(frozen=True)
class _Slice:
    """A parameter that has one block of d_head per head along `dim`, `groups` times over."""

    path: str
    parameter: str
    dim: int
    groups: int = 1

    @property
    def name(self) -> str:
        return f"{self.path}.{self.parameter}"


def _slices(family: Family) -> tuple[_Slice, ...]:
    """The parameters of one layer that hold heads. Fused projections are stored input × output."""
    if family.fused:
        (fused,) = family.projection_paths
        return (
            _Slice(fused, "weight", 1, 3),
            _Slice(fused, "bias", 0, 3),
            _Slice(family.output, "weight", 0),
        )
    each = (_Slice(p, name, 0) for p in family.projection_paths for name in ("weight", "bias"))
    return (*each, _Slice(family.output, "weight", 1))


def _columns(heads: Sequence[int], d_head: int, d_model: int, groups: int) -> Int[Tensor, " kept"]:
    """Where the blocks of these heads lie along a sliced dimension."""
    block = torch.arange(d_head)
    one = torch.cat([block.new_zeros(0), *(head * d_head + block for head in heads)])
    return torch.cat([one + group * d_model for group in range(groups)])


class Projection(nn.Module):
    """x·Wᵀ + b, with a weight that may have no row or no column.

    With `columns`, x may hold all heads (those columns are taken) or the kept ones alone.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor, *, fused: bool, columns: Tensor | None, width: int
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = nn.Parameter(bias, requires_grad=False)
        self.fused = fused
        self.width = width
        self.register_buffer("columns", columns, persistent=False)

    def forward(self, x: Float[Tensor, "*rest input"]) -> Float[Tensor, "*rest output"]:
        if self.columns is not None and x.shape[-1] == self.width:
            x = x[..., self.columns]
        return F.linear(x, self.weight.T if self.fused else self.weight, self.bias)


class CutAttention(nn.Module):
    """Self-attention with some of its heads; its projections keep the names they had."""

    def __init__(
        self, attention: nn.Module, family: Family, heads: Sequence[int], n_heads: int
    ) -> None:
        super().__init__()
        self.scaling = attention.scaling
        self.is_causal = attention.is_causal
        self.n_heads = n_heads
        self.kept = tuple(heads)
        self.projections = family.projections
        self.projected_by = family.output.split(".")[-1] if family.projects else None
        for name in (*self.projections, *filter(None, [self.projected_by])):
            self.add_module(name, getattr(attention, name))

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **_
    ) -> tuple[Tensor, None]:
        parts = [getattr(self, name)(hidden_states) for name in self.projections]
        query, key, value = parts if len(parts) == 3 else parts[0].chunk(3, -1)
        watched = capture.is_watched()
        if not self.kept and not watched:
            context = query
        else:
            heads = [self._heads(part, every=watched) for part in (query, key, value)]
            attended, _ = capture.attend(self, *heads, attention_mask, scaling=self.scaling)
            context = attended.flatten(2)
        return self._projected(context), None

    def _heads(self, x: Tensor, *, every: bool) -> Float[Tensor, "batch head position d_head"]:
        """Split into heads: the kept ones, or all of them, the removed ones zero."""
        batch, position, width = x.shape
        d_head = width // len(self.kept) if self.kept else 1
        split = x.reshape(batch, position, len(self.kept), d_head).transpose(1, 2)
        if not every:
            return split
        all_heads = split.new_zeros(batch, self.n_heads, position, self._d_head)
        all_heads[:, list(self.kept)] = split
        return all_heads

    @property
    def _d_head(self) -> int:
        """The width of a head, from a projection's input, which is d_model."""
        first = getattr(self, self.projections[0])
        return first.weight.shape[0 if first.fused else 1] // self.n_heads

    def _projected(self, context: Tensor) -> Tensor:
        return context if self.projected_by is None else getattr(self, self.projected_by)(context)


def cut_layers(model: nn.Module, family: Family, kept: Kept) -> None:
    """Slice every layer to its kept heads, in place. Before `capture.wrap_layers`."""
    _, n_heads, d_model = family.sizes(model.config)
    for layer, heads in zip(family.layer_list(model), kept, strict=True):
        _cut_layer(layer, family, sorted(heads), n_heads, d_model)


def _cut_layer(
    layer: nn.Module, family: Family, heads: list[int], n_heads: int, d_model: int
) -> None:
    columns = _columns(heads, d_model // n_heads, d_model, 1)
    for path in family.projection_paths:
        _replace(layer, path, _projection(layer, path, family, heads, n_heads, None, d_model))
    output = _projection(layer, family.output, family, heads, n_heads, columns, d_model)
    _replace(layer, family.output, output)
    attention = layer.get_submodule(family.attention)
    _replace(layer, family.attention, CutAttention(attention, family, heads, n_heads))


def _projection(
    layer: nn.Module,
    path: str,
    family: Family,
    heads: list[int],
    n_heads: int,
    columns: Tensor | None,
    d_model: int,
) -> Projection:
    module = layer.get_submodule(path)
    found = {"weight": module.weight.data, "bias": module.bias.data}
    for part in (part for part in _slices(family) if part.path == path):
        taken = _columns(heads, d_model // n_heads, d_model, part.groups)
        data = found[part.parameter]
        found[part.parameter] = data.index_select(part.dim, taken.to(data.device)).clone()
    return Projection(**found, fused=family.fused, columns=columns, width=d_model)


def _replace(layer: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(layer.get_submodule(parent), name, module)


def cut_modules(model: nn.Module) -> Iterator[tuple[str, CutAttention]]:
    """The cut attention modules of a model, by their names, bottom layer first."""
    for name, module in model.named_modules():
        if isinstance(module, CutAttention):
            yield name, module


def removed_heads(model: nn.Module) -> frozenset[tuple[int, int]]:
    """(layer, head) of every head that was cut out."""
    return frozenset(
        (layer, head)
        for layer, (_, module) in enumerate(cut_modules(model))
        for head in set(range(module.n_heads)) - set(module.kept)
    )


def full_weights(model: nn.Module, family: Family) -> Mapping[str, Tensor]:
    """All weights under their names; where heads were cut out, zeros in their old places.

    A model with these weights computes what the cut one computes.
    """
    weights = dict(model.state_dict())
    _, n_heads, d_model = family.sizes(model.config)
    for name, module in cut_modules(model):
        prefix = name.removesuffix(family.attention)
        for part in _slices(family):
            taken = _columns(module.kept, d_model // n_heads, d_model, part.groups)
            small = weights[prefix + part.name]
            shape = list(small.shape)
            shape[part.dim] = part.groups * d_model
            full = small.new_zeros(shape)
            weights[prefix + part.name] = full.index_copy(part.dim, taken.to(small.device), small)
    return weights
