"""The arithmetic of a transformer layer, each operation a small function of its own.

`Arithmetic` holds the operations that a twin uses. An injected fault is an `Arithmetic` in which
one of them is another function; the twin itself has no switch.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnprobe.errors import UnsupportedModel


def affine(
    x: Float[Tensor, "position n_in"],
    weight: Float[Tensor, "n_in n_out"],
    bias: Float[Tensor, " n_out"],
) -> Float[Tensor, "position n_out"]:
    """xW + b, row by row."""
    return x @ weight + bias


def layer_norm(
    x: Float[Tensor, "position d_model"],
    gain: Float[Tensor, " d_model"],
    bias: Float[Tensor, " d_model"],
    epsilon: float,
) -> Float[Tensor, "position d_model"]:
    """Each row shifted to mean 0 and scaled to variance 1, then gain and bias.

    The variance divides by d_model (Ba, Kiros & Hinton 2016, eq. 3); epsilon is added to it.
    """
    centred = x - x.mean(-1, keepdim=True)
    variance = (centred * centred).mean(-1, keepdim=True)
    return centred / (variance + epsilon).sqrt() * gain + bias


def split_heads(
    x: Float[Tensor, "position d_model"], n_heads: int
) -> Float[Tensor, "head position d_head"]:
    """Columns h·d_head … (h + 1)·d_head − 1 belong to head h."""
    return x.unflatten(-1, (n_heads, -1)).transpose(0, 1)


def merge_heads(x: Float[Tensor, "head position d_head"]) -> Float[Tensor, "position d_model"]:
    """The inverse of `split_heads`: contexts side by side, head 0 first."""
    return x.transpose(0, 1).flatten(1)


def raw_logits(
    query: Float[Tensor, "head query d_head"], key: Float[Tensor, "head key d_head"]
) -> Float[Tensor, "head query key"]:
    """S = QKᵀ: the dot product of every query with every key, before scale and mask."""
    return query @ key.transpose(-1, -2)


def scale_logits(
    logits: Float[Tensor, "head query key"], scale: float
) -> Float[Tensor, "head query key"]:
    """S · scale, with scale = 1/√d_k in the paper (Vaswani et al. 2017, eq. 1)."""
    return logits * scale


def mask_future(
    logits: Float[Tensor, "head query key"], causal: bool
) -> Float[Tensor, "head query key"]:
    """In a causal model a query sees itself and earlier keys; later ones get the logit −∞."""
    if not causal:
        return logits
    position = torch.arange(logits.shape[-1], device=logits.device)
    return logits.masked_fill(position > position[:, None], -math.inf)


def softmax(logits: Float[Tensor, "head query key"]) -> Float[Tensor, "head query key"]:
    """exp(s) over the row's sum of exp(s), after the row's maximum is taken off both."""
    powers = (logits - logits.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


def weighted_values(
    weights: Float[Tensor, "head query key"], value: Float[Tensor, "head key d_head"]
) -> Float[Tensor, "head query d_head"]:
    """The context A·V: each query's mean of the values under its weights."""
    return weights.to(value.dtype) @ value


@dataclass(frozen=True)
class Arithmetic:
    """The operations of a twin that a fault may replace."""

    affine: Callable[..., Tensor] = affine
    layer_norm: Callable[..., Tensor] = layer_norm
    split_heads: Callable[..., Tensor] = split_heads
    scale: Callable[..., Tensor] = scale_logits
    mask: Callable[..., Tensor] = mask_future
    softmax: Callable[..., Tensor] = softmax


def gelu(x: Tensor) -> Tensor:
    """x·Φ(x) with Φ the normal distribution function (Hendrycks & Gimpel 2016)."""
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def gelu_tanh(x: Tensor) -> Tensor:
    """The same paper's approximation of x·Φ(x) by tanh, as GPT-2 was trained with."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def sigmoid_gated(slope: float) -> Callable[[Tensor], Tensor]:
    """x / (1 + exp(−slope·x)): SiLU at slope 1, the quick GELU at slope 1.702."""
    return lambda x: x / (1 + torch.exp(-slope * x))


def relu(x: Tensor) -> Tensor:
    """x where it is positive, else 0."""
    return x.clamp_min(0)


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_python": gelu,
    "gelu_new": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "gelu_accurate": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "gelu_python_tanh": gelu_tanh,
    "quick_gelu": sigmoid_gated(1.702),
    "silu": sigmoid_gated(1.0),
    "swish": sigmoid_gated(1.0),
    "relu": relu,
    "tanh": torch.tanh,
    "linear": lambda x: x,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The function between the two products of the MLP, by its name in config.json."""
    if name not in ACTIVATIONS:
        raise UnsupportedModel(
            f"the model's activation {name!r} has no from-scratch form, so it cannot be certified; "
            f"supported: {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]
