"""One head of the twin, step by step, and properties of attention checked on the captured head."""

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from attnprobe import capture
from attnprobe.loaded import LoadedModel
from attnprobe.scratch.twin import twin_of
from attnprobe.text import Tokens
from attnprobe.trace import Trace


@dataclass(frozen=True, eq=False)
class HeadSteps:
    """What the twin computes for one head from the model's own input of the layer.

    Rows are positions. `output` is this head's part of W_O's product, without the bias.
    """

    query: Float[Tensor, "position d_head"]
    key: Float[Tensor, "position d_head"]
    value: Float[Tensor, "position d_head"]
    raw_logits: Float[Tensor, "query key"]
    scaled_logits: Float[Tensor, "query key"]
    masked_logits: Float[Tensor, "query key"]
    weights: Float[Tensor, "query key"]
    context: Float[Tensor, "position d_head"]
    output: Float[Tensor, "position d_model"]


def head_steps(
    loaded: LoadedModel, tokens: Tokens, layer: int, head: int, faults: Iterable[str] = ()
) -> HeadSteps:
    """One head of the from-scratch twin on a text, with faults if asked for."""
    kept: list[Tensor] = []
    with torch.no_grad(), capture.watching(keep=kept):
        loaded.hidden(loaded.batch(tokens))
        twin = twin_of(loaded, faults=faults).layer(layer)
        query, key, value = twin.query_key_value(kept[layer][0])
        one = slice(head, head + 1)
        found = twin.attend(query[one], key[one], value[one])
        alone = torch.zeros_like(value)
        alone[one] = found.context
        nothing = twin.attention_output(torch.zeros_like(value))
        output = twin.attention_output(alone) - nothing
    return HeadSteps(
        query[head], key[head], value[head], found.raw_logits[0], found.scaled_logits[0],
        found.masked_logits[0], found.weights[0], found.context[0], output,
    )  # fmt: skip


def difference(trace: Trace, steps: HeadSteps, layer: int, head: int) -> Float[Tensor, "query key"]:
    """The twin's weights minus the model's."""
    return steps.weights.to(trace.rows.entropy.dtype) - trace.weights(layer, head)


def properties(trace: Trace, layer: int, head: int) -> pd.DataFrame:
    """Facts about attention, checked on one captured head: property, measured, bound, holds.

    - rows sum to 1: the largest |Σp − 1|, at most 8 ε √T of rounding.
    - convex combination: by how much a context component leaves the range of its valid values,
      over the largest |value|; at most 16 ε.
    - Nadaraya–Watson: the largest difference, over the largest |value|, between the context and the
      kernel estimate Σ_j K(q, k_j) v_j / Σ_j K(q, k_j), K(q, k) = exp(scale · q·k), in float64.
    """
    weights = trace.weights(layer, head)
    value, context = trace.values[layer, head].double(), trace.contexts[layer, head].double()
    largest = value.abs().max().clamp_min(1e-300)
    epsilon = torch.finfo(trace.contexts.dtype).eps
    sums = (weights.double().sum(-1) - 1).abs().max().item()
    rows = [
        ("rows sum to 1", sums, 8 * torch.finfo(weights.dtype).eps * len(weights) ** 0.5),
        ("convex combination", (_outside(trace, value, context) / largest).item(), 16 * epsilon),
        (
            "Nadaraya–Watson",
            ((_kernel_estimate(trace, layer, head) - context).abs().max() / largest).item(),
            256 * epsilon,
        ),
    ]
    frame = pd.DataFrame(rows, columns=["property", "measured", "bound"])
    return frame.assign(holds=frame["measured"] <= frame["bound"])


def slack(trace: Trace, layer: int, head: int) -> pd.DataFrame:
    """How much of the values' range each context uses: query, used (0 … 1 of the range, mean)."""
    value, context = trace.values[layer, head].double(), trace.contexts[layer, head].double()
    low, high = _range(trace, value)
    width = (high - low).clamp_min(1e-300)
    used = 1 - 2 * torch.minimum((context - low) / width, (high - context) / width)
    counted = trace.counted[layer, head]
    return pd.DataFrame(
        {
            "query": counted.nonzero()[:, 0].cpu().numpy(),
            "used": used.mean(-1)[counted].cpu().numpy(),
        }
    )


def _range(trace: Trace, value: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and largest valid value of every component, per query."""
    if trace.causal:
        return value.cummin(0).values, value.cummax(0).values
    return value.amin(0).expand_as(value), value.amax(0).expand_as(value)


def _outside(trace: Trace, value: Tensor, context: Tensor) -> Tensor:
    low, high = _range(trace, value)
    return torch.maximum(low - context, context - high).clamp_min(0).max()


def _kernel_estimate(trace: Trace, layer: int, head: int) -> Float[Tensor, "query d_head"]:
    query, key = trace.queries[layer, head].double(), trace.keys[layer, head].double()
    exponent = query @ key.T * trace.scales[layer]
    exponent = exponent.masked_fill(~trace.valid(), -torch.inf)
    kernel = (exponent - exponent.amax(-1, keepdim=True)).exp()
    return kernel @ trace.values[layer, head].double() / kernel.sum(-1, keepdim=True)
