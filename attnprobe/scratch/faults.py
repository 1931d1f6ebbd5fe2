"""Mistakes that re-implementations of attention really make, one function each.

A fault is injected into the twin, never into the model, to see that the certificate notices it and
names the right stage.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnprobe.errors import BadInput
from attnprobe.scratch.architecture import Settings
from attnprobe.scratch.arithmetic import Arithmetic


@dataclass(frozen=True)
class Fault:
    """A mistake: what it is called, what it does, where it shows first, and the mistake itself.

    It makes no difference where there is nothing to get wrong; `idle` says so in a sentence for
    such a model, else it is empty.
    """

    name: str
    title: str
    meaning: str
    first_stage: Mapping[str, str]
    inject: Callable[[Arithmetic], Arithmetic]
    idle: Callable[[Settings], str] = lambda settings: ""


def _no_scale(ops: Arithmetic) -> Arithmetic:
    return replace(ops, scale=lambda logits, scale: logits)


def _no_mask(ops: Arithmetic) -> Arithmetic:
    return replace(ops, mask=lambda logits, causal: logits)


def _head_layout(ops: Arithmetic) -> Arithmetic:
    def interleaved(x: Tensor, n_heads: int) -> Tensor:
        return x.unflatten(-1, (-1, n_heads)).movedim(-1, 0)

    return replace(ops, split_heads=interleaved)


def _softmax_over_queries(ops: Arithmetic) -> Arithmetic:
    def over_queries(logits: Tensor) -> Tensor:
        return ops.softmax(logits.transpose(-1, -2)).transpose(-1, -2)

    return replace(ops, softmax=over_queries)


def _double_softmax(ops: Arithmetic) -> Arithmetic:
    return replace(ops, softmax=lambda logits: ops.softmax(ops.softmax(logits)))


def _layer_norm_epsilon(ops: Arithmetic) -> Arithmetic:
    def with_another_epsilon(x, gain, bias, epsilon: float) -> Tensor:
        return ops.layer_norm(x, gain, bias, epsilon + 1e-3)

    return replace(ops, layer_norm=with_another_epsilon)


def _no_bias(ops: Arithmetic) -> Arithmetic:
    def without_bias(x, weight, bias) -> Tensor:
        return ops.affine(x, weight, torch.zeros_like(bias))

    return replace(ops, affine=without_bias)


def _unscaled(settings: Settings) -> str:
    if any(scale != 1 for scale in settings.scales):
        return ""
    return "this model multiplies its logits by 1, so there is no scale to leave out"


def _sees_all(settings: Settings) -> str:
    if settings.causal:
        return ""
    return (
        "every token of this model sees every other one, and one text alone has no padding, so "
        "there is no mask to leave out"
    )


def _one_head(settings: Settings) -> str:
    return "" if settings.n_heads > 1 else "this model has one head, which owns all columns"


def _everywhere(stage: str) -> dict[str, str]:
    return {"bert": stage, "gpt2": stage}


FAULTS: Mapping[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(
            "no_scale",
            "no 1/√d_k",
            "the raw logits go into the softmax as they are",
            _everywhere("scaled logits"),
            _no_scale,
            _unscaled,
        ),
        Fault(
            "no_mask",
            "no causal mask",
            "queries see the keys that come after them",
            _everywhere("weights"),
            _no_mask,
            _sees_all,
        ),
        Fault(
            "head_layout",
            "wrong head layout",
            "head h takes every n-th column from h on instead of its own block of columns",
            _everywhere("query"),
            _head_layout,
            _one_head,
        ),
        Fault(
            "softmax_over_queries",
            "softmax over queries",
            "weights sum to 1 over the queries of a key instead of over the keys of a query",
            _everywhere("weights"),
            _softmax_over_queries,
        ),
        Fault(
            "double_softmax",
            "double softmax",
            "the weights go through a second softmax",
            _everywhere("weights"),
            _double_softmax,
        ),
        Fault(
            "layer_norm_epsilon",
            "wrong layer norm epsilon",
            "1e-3 is added to the model's own epsilon",
            {"bert": "embeddings", "gpt2": "query"},
            _layer_norm_epsilon,
        ),
        Fault(
            "no_bias",
            "no bias",
            "dense layers leave out their bias",
            _everywhere("query"),
            _no_bias,
        ),
    )
}


def arithmetic(faults: Iterable[str] = ()) -> Arithmetic:
    """The right operations, with the named faults put in."""
    ops = Arithmetic()
    for name in faults:
        if name not in FAULTS:
            raise BadInput(f"fault {name!r} is not known; choose from {', '.join(FAULTS)}")
        ops = FAULTS[name].inject(ops)
    return ops
