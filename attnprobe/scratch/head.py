"""One head of the twin, step by step, and properties of attention checked on the captured head."""

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
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


def layer_input(
    loaded: LoadedModel, tokens: Tokens, layer: int
) -> Float[Tensor, "position d_model"]:
    """What the model itself hands to a layer; one forward pass."""
    kept: list[Tensor] = []
    with torch.no_grad(), capture.watching(keep=kept):
        loaded.hidden(loaded.batch(tokens))
    return kept[layer][0]


def head_steps(
    loaded: LoadedModel, tokens: Tokens, layer: int, head: int, faults: Iterable[str] = ()
) -> HeadSteps:
    """One head of the from-scratch twin on a text, with faults if asked for."""
    return steps_from(loaded, layer_input(loaded, tokens, layer), layer, head, faults)


def steps_from(
    loaded: LoadedModel,
    hidden: Float[Tensor, "position d_model"],
    layer: int,
    head: int,
    faults: Iterable[str] = (),
) -> HeadSteps:
    """`head_steps` where the layer's input is known already."""
    with torch.no_grad():
        twin = twin_of(loaded, faults=faults).layer(layer)
        query, key, value = twin.query_key_value(hidden)
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


def difference_frame(trace: Trace, steps: HeadSteps, layer: int, head: int) -> pd.DataFrame:
    """Both weights and their difference: query, key, their tokens, twin, model, difference."""
    tokens = np.array(trace.tokens.display, dtype=object)
    query, key = (index.ravel() for index in np.indices((len(tokens), len(tokens))))
    twin, model = (
        x.double().cpu().numpy().ravel() for x in (steps.weights, trace.weights(layer, head))
    )
    names = {"query_token": tokens[query], "key_token": tokens[key]}
    return pd.DataFrame({"query": query, "key": key, **names, "twin": twin, "model": model}).assign(
        difference=twin - model
    )


STEPS = tuple(field.name for field in fields(HeadSteps))
_SQUARE = {"raw_logits", "scaled_logits", "masked_logits", "weights"}


def step_frame(steps: HeadSteps, name: str) -> pd.DataFrame:
    """One tensor as a tidy frame: query and key, or position and component; and its entry.

    A logit that the mask takes away is undefined.
    """
    values = getattr(steps, name).double().cpu().numpy()
    axes = ("query", "key") if name in _SQUARE else ("position", "component")
    rows, columns = (index.ravel() for index in np.indices(values.shape))
    entry = np.where(np.isfinite(values), values, np.nan).ravel()
    return pd.DataFrame({axes[0]: rows, axes[1]: columns, "entry": entry})


def properties(trace: Trace, layer: int, head: int) -> pd.DataFrame:
    """Facts about attention, checked on one captured head: property, measured, bound, holds.

    - rows sum to 1: the largest |Σp − 1|, at most 8 ε √T of rounding.
    - convex combination: by how much a context component leaves the range of its valid values,
      over the largest |value|; at most 16 ε.
    - Nadaraya–Watson: the largest difference, over the largest |value|, between the context and the
      kernel estimate Σ_j K(q, k_j) v_j / Σ_j K(q, k_j), K(q, k) = exp(scale · q·k), in float64.
    - permutation: the same difference between the permuted context and what queries, keys and
      values in another order give when the mask moves with them; a head has no other sense of
      order than its mask and what the positions did to its input.
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
        ("permutation", (_moved(trace, layer, head) / largest).item(), 256 * epsilon),
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


def _kernel_estimate(
    trace: Trace, layer: int, head: int, order: Int[Tensor, " position"] | None = None
) -> Float[Tensor, "query d_head"]:
    """Of the tokens in another order if one is given; the mask moves with the tokens."""
    order = torch.arange(len(trace.tokens)) if order is None else order
    query, key, value = (
        x[layer, head][order].double() for x in (trace.queries, trace.keys, trace.values)
    )
    exponent = query @ key.T * trace.scales[layer]
    exponent = exponent.masked_fill(~trace.valid()[order][:, order], -torch.inf)
    kernel = (exponent - exponent.amax(-1, keepdim=True)).exp()
    return kernel @ value / kernel.sum(-1, keepdim=True)


def _moved(trace: Trace, layer: int, head: int, seed: int = 0) -> Float[Tensor, ""]:
    """The largest difference between attention over tokens in another order and the reordered."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(trace.tokens), generator=generator)
    context = trace.contexts[layer, head].double()
    return (_kernel_estimate(trace, layer, head, order) - context[order]).abs().max()
