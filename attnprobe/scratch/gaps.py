"""How far the running model is from its twin at every stage, and how far rounding alone goes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from attnprobe import capture
from attnprobe.capture import AttentionCall
from attnprobe.models import LoadedModel
from attnprobe.scratch.arithmetic import merge_heads
from attnprobe.scratch.faults import arithmetic
from attnprobe.scratch.twin import (
    TWINS,
    Attended,
    Layer,
    Output,
    Twin,
    attend,
    head_slices,
    twin_device,
    twin_of,
)
from attnprobe.text import Tokens
from attnprobe.trace import Trace, trace

Gap = Float[Tensor, "3"]
"""A stage's largest |model − reference|, |rounded − right| and |right|."""

Gaps = dict[str, Gap]
"""Gaps by stage."""

Row = tuple[int | None, str, Gap]
"""Layer (None outside the layers), stage, gap."""

_ENTRIES = 2**22
"""Entries of the output that are compared at a time."""


@dataclass(frozen=True, eq=False)
class Run:
    """The traced forward pass: what the screen shows, and every layer's input and output."""

    trace: Trace
    hidden: list[Float[Tensor, "position d_model"]]
    sdpa: list[Float[Tensor, "head query d_head"]]

    @property
    def projected(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each [layer head position d_head]."""
        return self.trace.queries, self.trace.keys, self.trace.values

    def matrices(self, layer: int, heads: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Raw logits, scaled logits and weights of some heads, as the trace shows them."""
        shown = (self.trace.raw_logits, self.trace.scaled_logits, self.trace.weights)
        numbers = range(self.trace.n_heads)[heads]
        raw, scaled, weights = (torch.stack([f(layer, h) for h in numbers]) for f in shown)
        return raw, scaled, weights


def observe(loaded: LoadedModel, tokens: Tokens, tick: Callable[[], None] | None) -> Run:
    """One traced forward pass, with SDPA's contexts where they are what is certified."""
    hidden: list[Tensor] = []
    sdpa: list[Tensor] = []

    def keep_context(call: AttentionCall) -> None:
        sdpa.append(call.context()[0])

    watcher = None if loaded.family.model_type in TWINS else keep_context
    with capture.watching(watcher, keep=hidden, tick=tick):
        traced = trace(loaded, tokens, spectral=False)
    return Run(traced, [h[0].to(twin_device(loaded)) for h in hidden], sdpa)


def plain_precision(loaded: LoadedModel) -> torch.dtype:
    """The precision whose rounding is measured: the model's own, float32 for a float64 model."""
    return torch.float32 if loaded.dtype == torch.float64 else loaded.dtype


def _gap(model: Tensor, twins: Sequence[Tensor]) -> Gap:
    """`twins` are the reference in float64 and, last, its rounded form in a plain precision.

    With faults the reference is the faulty one, and the right one stands between them.
    """
    reference, right, rounded = twins[0], twins[-2], twins[-1]
    model = model.to(reference.device).to(reference.dtype).reshape(reference.shape)
    return torch.stack(list(map(_size, (model - reference, rounded - right, right))))


def _size(x: Tensor) -> Float[Tensor, ""]:
    """The largest absolute entry, in one pass and without a copy; NaN if there is one."""
    low, high = x.aminmax()
    return torch.maximum(low.abs(), high.abs())


def _matrix_gaps(run: Run, layer: int, heads: slice, twins: Sequence[Attended]) -> Gaps:
    """The three query × key stages of some heads."""
    forms = [(twin.raw_logits, twin.scaled_logits, twin.weights) for twin in twins]
    shown = run.matrices(layer, heads)
    stages = ("raw logits", "scaled logits", "weights")
    return {
        stage: _gap(model, twin)
        for stage, model, twin in zip(stages, shown, zip(*forms, strict=True), strict=True)
    }


def _largest(parts: Sequence[Gaps]) -> Gaps:
    """The gaps of all heads from those of some heads each; NaN stays NaN."""
    return {stage: torch.stack([part[stage] for part in parts]).amax(0) for stage in parts[0]}


def _attention_gaps(
    run: Run, layer: int, attend_heads: Sequence[Callable[[slice], Attended]]
) -> tuple[Gaps, list[Float[Tensor, "head query d_head"]]]:
    """The query × key stages, some heads at a time, and each twin's context."""
    parts, contexts = [], [[] for _ in attend_heads]
    for heads in head_slices(run.trace.n_heads, len(run.trace.tokens)):
        attended = [attend_some(heads) for attend_some in attend_heads]
        parts.append(_matrix_gaps(run, layer, heads, attended))
        for mine, twin in zip(contexts, attended, strict=True):
            mine.append(twin.context)
    return _largest(parts), [torch.cat(mine) for mine in contexts]


def _layer_gaps(loaded: LoadedModel, run: Run, layers: Sequence[Layer]) -> Gaps:
    """Every stage of one layer, from the model's own input of that layer."""
    index = layers[0].index
    hidden, after = run.hidden[index : index + 2]
    projected = [layer.query_key_value(hidden) for layer in layers]
    attend_heads = [partial(_attend, *pair) for pair in zip(layers, projected, strict=True)]
    matrices, contexts = _attention_gaps(run, index, attend_heads)
    attention = [layer.attention_output(c) for layer, c in zip(layers, contexts, strict=True)]
    outputs = [layer.output(hidden, a) for layer, a in zip(layers, attention, strict=True)]
    query, key, value = zip(*projected, strict=True)
    context = run.trace.contexts[index]
    project = loaded.family.output_projection(loaded.model, index)
    return {
        "query": _gap(run.trace.queries[index], query),
        "key": _gap(run.trace.keys[index], key),
        "value": _gap(run.trace.values[index], value),
        **matrices,
        "context": _gap(context, contexts),
        "attention output": _gap(project(merge_heads(context)), attention),
        "layer output": _gap(after, outputs),
    }


def _attend(layer: Layer, projected: Sequence[Tensor], heads: slice) -> Attended:
    return layer.attend(*(part[heads] for part in projected))


def _twins(loaded: LoadedModel, faults: tuple[str, ...]) -> list[Twin]:
    """The reference with its faults if there are any, the right reference, the plain precision."""
    exact = partial(twin_of, loaded, dtype=torch.float64)
    faulty = [exact(faults=faults)] if faults else []
    return [*faulty, exact(), twin_of(loaded, dtype=plain_precision(loaded))]


def whole_model(
    loaded: LoadedModel, run: Run, faults: tuple[str, ...], *, end_to_end: bool
) -> Iterator[Row]:
    """Every stage in the order of computation, as (layer, stage, gap)."""
    twins = _twins(loaded, faults)
    ids = torch.tensor(run.trace.tokens.ids, device=run.hidden[0].device)
    free = [twin.embeddings(ids) for twin in twins]
    yield None, "embeddings", _gap(run.hidden[0], free)
    for index in range(loaded.n_layers):
        layers = [twin.layer(index) for twin in twins]
        for stage, gap in _layer_gaps(loaded, run, layers).items():
            yield index, stage, gap
        if end_to_end:
            free = [layer(rows) for layer, rows in zip(layers, free, strict=True)]
    heads = [twin.output() for twin in twins]
    fed = [head.rows(run.hidden[-1], ids) for head in heads]
    yield None, "final output", _output_gap(run, heads, fed)
    if not end_to_end:
        return
    fed = [head.rows(hidden, ids) for head, hidden in zip(heads, free, strict=True)]
    yield None, "end to end", _output_gap(run, heads, fed)


def _output_gap(run: Run, heads: Sequence[Output], fed: Sequence[Tensor]) -> Gap:
    """The model's output against what the twins' heads make of rows, some rows at a time."""
    model = run.trace.output.reshape(len(fed[0]), -1)
    step = max(1, _ENTRIES // model.shape[1])
    parts = [
        _gap(some[0], [head(rows) for head, rows in zip(heads, some[1:], strict=True)])
        for some in zip(model.split(step), *(rows.split(step) for rows in fed), strict=True)
    ]
    return torch.stack(parts).amax(0)


def attention_only(loaded: LoadedModel, run: Run, faults: tuple[str, ...]) -> Iterator[Row]:
    """softmax(mask(QKᵀ · scale))·V of the captured tensors against the model's own context."""
    faulty = [(torch.float64, faults)] if faults else []
    forms = [*faulty, (torch.float64, ()), (plain_precision(loaded), ())]
    for layer in range(loaded.n_layers):
        attend_heads = [partial(_attend_captured, run, layer, *form) for form in forms]
        gaps, contexts = _attention_gaps(run, layer, attend_heads)
        for stage, gap in gaps.items():
            yield layer, stage, gap
        yield layer, "context", _gap(run.sdpa[layer], contexts)


def _attend_captured(
    run: Run, layer: int, dtype: torch.dtype, faults: tuple[str, ...], heads: slice
) -> Attended:
    device = run.hidden[0].device
    query, key, value = (part[layer, heads].to(device).to(dtype) for part in run.projected)
    return attend(
        query, key, value,
        scale=run.trace.scales[layer], causal=run.trace.causal, ops=arithmetic(faults),
    )  # fmt: skip
