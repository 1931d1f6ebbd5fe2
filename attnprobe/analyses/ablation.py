"""What a head gives instead of its context when it is switched off: a choice that figures print."""

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from attnprobe import capture
from attnprobe.analyses import sweeps
from attnprobe.capture import AttentionCall
from attnprobe.data import LabelledText, TextSet
from attnprobe.errors import BadInput
from attnprobe.readout import ReadOut

Replacement = Callable[[AttentionCall], Float[Tensor, "batch head query d_head"]]
"""The context of switched-off heads, for all heads of the call's layer."""


def zero(call: AttentionCall) -> Float[Tensor, "batch head query d_head"]:
    """Nothing at all: the gate ξ = 0 of Michel, Levy & Neubig 2019, eq. 1."""
    return torch.zeros_like(call.value)


def uniform(call: AttentionCall) -> Float[Tensor, "batch head query d_head"]:
    """The plain mean of the values that each query may see: attention without preference."""
    valid = torch.ones_like(call.value[:, :1, :, :1])
    if call.valid is not None:
        valid = call.valid[:, None, :, None].to(call.value.dtype)
    if call.causal:
        return (call.value * valid).cumsum(2) / valid.cumsum(2).clamp_min(1)
    mean = (call.value * valid).sum(2, keepdim=True) / valid.sum(2, keepdim=True)
    return mean.expand_as(call.value)


def mean_context(
    readout: ReadOut,
    texts: TextSet | Sequence[LabelledText],
    tick: Callable[[], None] | None = None,
) -> Replacement:
    """The head's mean context over every real token of the texts: what it gives on average."""
    sums: dict[int, Tensor] = {}
    count = 0
    for _, examples in sweeps.batches(readout, texts):
        mask = examples.batch.mask
        count += int(mask.sum())

        def add(call: AttentionCall, mask: Tensor = mask) -> None:
            total = (call.context() * mask[:, None, :, None]).double().sum((0, 2))
            sums[call.layer] = sums.get(call.layer, 0) + total

        with torch.no_grad(), capture.watching(add, tick=tick):
            readout.loaded.hidden(examples.batch)

    def mean(call: AttentionCall) -> Tensor:
        each = (sums[call.layer] / count).to(call.value.dtype)
        return each[:, None, :].expand_as(call.value)

    return mean


ABLATIONS: Mapping[str, str] = {
    "zero": "context set to zero",
    "mean": "context replaced by its mean over the scoring texts",
    "uniform": "attention replaced by uniform weights over the valid keys",
}


def replacement(
    name: str,
    readout: ReadOut,
    texts: TextSet | Sequence[LabelledText],
    tick: Callable[[], None] | None = None,
) -> Replacement:
    """The replacement of this name; `mean` is measured on the texts."""
    if name not in ABLATIONS:
        raise BadInput(f"ablation {name!r} is not known; choose one of {', '.join(ABLATIONS)}")
    if name == "mean":
        return mean_context(readout, texts, tick)
    return {"zero": zero, "uniform": uniform}[name]


def switched(
    gates: Float[Tensor, "layer variant head"], instead: Replacement, texts: int
) -> capture.Watcher:
    """A watcher that gives `instead` where a gate is 0, for variants of `texts` batch rows each.

    A context is gate · context + (1 − gate) · instead, so gates between 0 and 1 blend.
    """

    def switch(call: AttentionCall) -> Tensor | None:
        gate = gates[call.layer]
        if bool((gate == 1).all()):
            return None
        gate = gate.repeat_interleave(texts, 0)[..., None, None]
        return blend(gate, call.context(), instead(call))

    return switch


def blend(gate: Tensor, context: Tensor, instead: Tensor) -> Tensor:
    """gate · context + (1 − gate) · instead, exactly the context where the gate is 1."""
    return torch.where(gate == 1, context, gate * context + (1 - gate) * instead)
