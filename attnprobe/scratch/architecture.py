"""What BERT and GPT-2 have in common as twins: their settings, their steps, their heads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Weights:
    """Tensors of a state dict by name, handed out in the twin's precision."""

    tensors: Mapping[str, Tensor]
    dtype: torch.dtype

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name].to(self.dtype)

    def rows(self, name: str, index: Tensor | slice | int) -> Tensor:
        """Some rows of a table, so that a whole vocabulary is not converted for a few words."""
        return self.tensors[name][index].to(self.dtype)

    def under(self, *beginnings: str) -> "Weights":
        """Those whose name begins so, converted once."""
        chosen = {n: t.to(self.dtype) for n, t in self.tensors.items() if n.startswith(beginnings)}
        return Weights(chosen, self.dtype)

    def within(self, path: str) -> "Weights":
        """Those of one module by their names inside it, converted once."""
        chosen = self.under(path + ".").tensors
        return Weights({n.removeprefix(path + "."): t for n, t in chosen.items()}, self.dtype)


@dataclass(frozen=True)
class Settings:
    """The numbers of a config that the forward pass depends on.

    `scales` is the factor on QKᵀ for each layer. `upcast` asks for logits and softmax in float32
    whatever the working precision. `pad_id` is the token that a GPT-2 classifier skips, or None.
    """

    n_heads: int
    epsilon: float
    activation: Callable[[Tensor], Tensor]
    causal: bool
    scales: tuple[float, ...]
    upcast: bool = False
    pad_id: int | None = None


@dataclass(frozen=True)
class Head:
    """A model's head: the rows of hidden states it reads and what it makes of them.

    `parts` are the beginnings of the names of its tensors; `rows` picks [position d_model] out of
    the last hidden states, and `output` works on every picked row alone.
    """

    parts: tuple[str, ...]
    rows: Callable[..., Tensor]
    output: Callable[..., Tensor]


@dataclass(frozen=True)
class Architecture:
    """The steps of one family's forward pass, each a plain function of weights and inputs."""

    base: str
    layer: str
    settings: Callable[..., Settings]
    embeddings: Callable[..., Tensor]
    query_key_value: Callable[..., tuple[Tensor, Tensor, Tensor]]
    attention_output: Callable[..., Tensor]
    layer_output: Callable[..., Tensor]
    heads: Mapping[str, Head]


def every_row(hidden: Tensor, ids: Tensor, settings: Settings) -> Tensor:
    """All positions, for heads that speak at each token."""
    return hidden
