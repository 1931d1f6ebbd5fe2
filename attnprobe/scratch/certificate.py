"""The certificate: the running model against its twin, stage by stage, on one text.

What is certified is the traced run, whose numbers the screen shows. Each layer of the twin is fed
the *model's own* input of that layer and runs free within it, so a mistake turns its own stage red
and not the whole model above it; the last row, `end to end`, runs free from the token ids.

The reference is the twin in float64, and every error is against it. What an error may be is not
chosen: the same twin is also run in the model's precision, and the model may err `HEADROOM` times
as much as that plain arithmetic does, plus one rounding of the stage's largest entry (the rule by
which flash-attention's kernels are tested). A float64 model has no finer reference: there the twin
errs in float32 instead, and the error is scaled by the ratio of the two precisions.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from attnprobe import capture
from attnprobe.capture import AttentionCall
from attnprobe.errors import CertificateFailed
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

HEADROOM = 4.0
"""How many times the plain arithmetic's own rounding error the model may be away."""

STAGES = (
    "embeddings",
    "query",
    "key",
    "value",
    "raw logits",
    "scaled logits",
    "weights",
    "context",
    "attention output",
    "layer output",
    "final output",
    "end to end",
)
_ENTRIES = 2**22
"""Entries of the output that are compared at a time."""

ATTENTION_STAGES = ("raw logits", "scaled logits", "weights", "context")
"""What is certified in families without a twin: attention from the captured q, k and v."""


def certify(
    loaded: LoadedModel,
    text: str | Tokens,
    *,
    faults: Iterable[str] = (),
    tick: Callable[[], None] | None = None,
) -> pd.DataFrame:
    """One row per layer and stage: layer, stage, max_abs_error, tolerance, ok.

    `layer` is missing for embeddings, final output and end to end. `max_abs_error` is the largest
    absolute difference to the float64 reference, in the stage's own unit. `faults` are names of
    `faults.FAULTS`, put into the reference; the tolerance stays that of the right arithmetic.
    `tick` is called before each layer and may raise to stop. A family without a twin gets
    `ATTENTION_STAGES` only.
    """
    tokens = loaded.read(text) if isinstance(text, str) else text
    faults = tuple(faults)
    with torch.no_grad():
        run = _observe(loaded, tokens, tick)
        scope = _whole_model if loaded.family.model_type in TWINS else _attention_only
        return _frame(loaded, scope(loaded, run, faults, tick))


@dataclass(frozen=True, eq=False)
class _Run:
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


def _observe(loaded: LoadedModel, tokens: Tokens, tick: Callable[[], None] | None) -> _Run:
    hidden: list[Tensor] = []
    sdpa: list[Tensor] = []

    def keep_context(call: AttentionCall) -> None:
        sdpa.append(call.context()[0])

    watcher = None if loaded.family.model_type in TWINS else keep_context
    with capture.watching(watcher, keep=hidden, tick=tick):
        traced = trace(loaded, tokens, spectral=False)
    return _Run(traced, [h[0].to(twin_device(loaded)) for h in hidden], sdpa)


def _plain_precision(loaded: LoadedModel) -> torch.dtype:
    """The precision whose rounding is measured: the model's own, float32 for a float64 model."""
    return torch.float32 if loaded.dtype == torch.float64 else loaded.dtype


Gap = Float[Tensor, "3"]
"""A stage's largest |model − reference|, |rounded − right| and |right|."""

Gaps = dict[str, Gap]


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
    return torch.maximum(-low, high)


def _matrix_gaps(run: _Run, layer: int, heads: slice, twins: Sequence[Attended]) -> Gaps:
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
    run: _Run, layer: int, attend_heads: Sequence[Callable[[slice], Attended]]
) -> tuple[Gaps, list[Float[Tensor, "head query d_head"]]]:
    """The query × key stages, some heads at a time, and each twin's context."""
    parts, contexts = [], [[] for _ in attend_heads]
    for heads in head_slices(run.trace.n_heads, len(run.trace.tokens)):
        attended = [attend_some(heads) for attend_some in attend_heads]
        parts.append(_matrix_gaps(run, layer, heads, attended))
        for mine, twin in zip(contexts, attended, strict=True):
            mine.append(twin.context)
    return _largest(parts), [torch.cat(mine) for mine in contexts]


def _layer_gaps(
    loaded: LoadedModel, run: _Run, layers: Sequence[Layer], free: Sequence[Tensor]
) -> tuple[Gaps, list[Float[Tensor, "position d_model"]]]:
    """Every stage of one layer from the model's own input, and the twins' free runs one layer on.

    The rows of both go through the twin together: all but attention is done row by row.
    """
    index, length = layers[0].index, len(run.trace.tokens)
    hidden, after = run.hidden[index : index + 2]
    fed = [torch.cat([hidden.to(mine.dtype), mine]) for mine in free]
    projected = [layer.query_key_value(rows) for layer, rows in zip(layers, fed, strict=True)]
    own = [[part[:, :length] for part in parts] for parts in projected]
    loose = [[part[:, length:] for part in parts] for parts in projected]
    attend_heads = [partial(_attend, *pair) for pair in zip(layers, own, strict=True)]
    matrices, contexts = _attention_gaps(run, index, attend_heads)
    joint = [
        torch.cat([context, layer.context(*parts)], 1)
        for layer, context, parts in zip(layers, contexts, loose, strict=True)
    ]
    attention = [
        layer.attention_output(context) for layer, context in zip(layers, joint, strict=True)
    ]
    outputs = [layer.output(*pair) for layer, *pair in zip(layers, fed, attention, strict=True)]
    project = loaded.family.output_projection(loaded.model, index)
    context = run.trace.contexts[index]
    gaps = {
        **{
            stage: _gap(model[index], twins)
            for stage, model, twins in zip(
                STAGES[1:4], run.projected, zip(*own, strict=True), strict=True
            )
        },
        **matrices,
        "context": _gap(context, contexts),
        "attention output": _gap(project(merge_heads(context)), [a[:length] for a in attention]),
        "layer output": _gap(after, [output[:length] for output in outputs]),
    }
    return gaps, [output[length:] for output in outputs]


def _attend(layer: Layer, projected: Sequence[Tensor], heads: slice) -> Attended:
    return layer.attend(*(part[heads] for part in projected))


def _twins(loaded: LoadedModel, faults: tuple[str, ...]) -> list[Twin]:
    """The reference with its faults if there are any, the right reference, the plain precision."""
    exact = partial(twin_of, loaded, dtype=torch.float64)
    faulty = [exact(faults=faults)] if faults else []
    return [*faulty, exact(), twin_of(loaded, dtype=_plain_precision(loaded))]


def _whole_model(
    loaded: LoadedModel, run: _Run, faults: tuple[str, ...], tick: Callable[[], None] | None
) -> Iterator[tuple[int | None, str, Gap]]:
    twins = _twins(loaded, faults)
    ids = torch.tensor(run.trace.tokens.ids, device=run.hidden[0].device)
    free = [twin.embeddings(ids) for twin in twins]
    yield None, "embeddings", _gap(run.hidden[0], free)
    for index in range(loaded.n_layers):
        if tick:
            tick()
        layers = [twin.layer(index) for twin in twins]
        gaps, free = _layer_gaps(loaded, run, layers, free)
        for stage, gap in gaps.items():
            yield index, stage, gap
    heads = [twin.output() for twin in twins]
    fed = [head.rows(run.hidden[-1], ids) for head in heads]
    yield None, "final output", _output_gap(run, heads, fed)
    fed = [head.rows(hidden, ids) for head, hidden in zip(heads, free, strict=True)]
    yield None, "end to end", _output_gap(run, heads, fed)


def _output_gap(run: _Run, heads: Sequence[Output], fed: Sequence[Tensor]) -> Gap:
    """The model's output against what the twins' heads make of rows, some rows at a time."""
    model = run.trace.output.reshape(len(fed[0]), -1)
    step = max(1, _ENTRIES // model.shape[1])
    parts = [
        _gap(some[0], [head(rows) for head, rows in zip(heads, some[1:], strict=True)])
        for some in zip(model.split(step), *(rows.split(step) for rows in fed), strict=True)
    ]
    return torch.stack(parts).amax(0)


def _attention_only(
    loaded: LoadedModel, run: _Run, faults: tuple[str, ...], tick: Callable[[], None] | None
) -> Iterator[tuple[int, str, Gap]]:
    """softmax(mask(QKᵀ · scale))·V of the captured tensors against the model's own context."""
    faulty = [(torch.float64, faults)] if faults else []
    forms = [*faulty, (torch.float64, ()), (_plain_precision(loaded), ())]
    for layer in range(loaded.n_layers):
        if tick:
            tick()
        attend_heads = [partial(_attend_captured, run, layer, *form) for form in forms]
        gaps, contexts = _attention_gaps(run, layer, attend_heads)
        for stage, gap in gaps.items():
            yield layer, stage, gap
        yield layer, "context", _gap(run.sdpa[layer], contexts)


def _attend_captured(
    run: _Run, layer: int, dtype: torch.dtype, faults: tuple[str, ...], heads: slice
) -> Attended:
    device = run.hidden[0].device
    query, key, value = (part[layer, heads].to(device).to(dtype) for part in run.projected)
    return attend(
        query, key, value,
        scale=run.trace.scales[layer], causal=run.trace.causal, ops=arithmetic(faults),
    )  # fmt: skip


def _frame(loaded: LoadedModel, rows: Iterable[tuple[int | None, str, Gap]]) -> pd.DataFrame:
    layers, stages, gaps = zip(*rows, strict=True)
    error, rounding, magnitude = torch.stack(gaps).cpu().numpy().T
    unit = torch.finfo(loaded.dtype).eps
    share = unit / torch.finfo(_plain_precision(loaded)).eps
    tolerance = HEADROOM * share * rounding + unit * magnitude
    return pd.DataFrame(
        {
            "layer": pd.array(layers, dtype="Int64"),
            "stage": stages,
            "max_abs_error": error,
            "tolerance": tolerance,
            "ok": error <= tolerance,
        }
    )


@dataclass(frozen=True)
class Certificate:
    """A certificate in short, for a badge or a figure's provenance.

    `worst` is the largest error in units of its tolerance (green means at most 1), found at
    `stage` of `layer` (None outside the layers). `attention_only` says that the family has no
    twin, so that queries, keys and values were taken from the model.
    """

    ok: bool
    stages: int
    failed: int
    worst: float
    stage: str
    layer: int | None
    max_abs_error: float
    tolerance: float
    attention_only: bool

    @property
    def place(self) -> str:
        """Where the worst stage is: `layer 3, weights`, or the stage alone."""
        return self.stage if self.layer is None else f"layer {self.layer}, {self.stage}"

    def __str__(self) -> str:
        scope = "stages of attention" if self.attention_only else "stages"
        count = f"{self.stages} {scope}" if self.ok else f"{self.failed} of {self.stages} {scope}"
        return (
            f"{'green' if self.ok else 'red'}: {count}, worst error {self.max_abs_error:.2g} of "
            f"{self.tolerance:.2g} allowed ({self.place})"
        )


def summary(frame: pd.DataFrame) -> Certificate:
    """The worst stage of a certificate stands for it; the first red one if there is one.

    The order of the rows is the order of computation, so the first red stage is where a mistake
    entered and not where it grew largest.
    """
    ratio = (frame["max_abs_error"] / frame["tolerance"]).mask(frame["max_abs_error"] == 0, 0.0)
    red = frame.index[~frame["ok"]]
    at = red[0] if len(red) else ratio.idxmax()
    row = frame.loc[at]
    return Certificate(
        ok=not len(red),
        stages=len(frame),
        failed=len(red),
        worst=float(ratio[at]),
        stage=str(row["stage"]),
        layer=None if pd.isna(row["layer"]) else int(row["layer"]),
        max_abs_error=float(row["max_abs_error"]),
        tolerance=float(row["tolerance"]),
        attention_only=not (frame["stage"] == "embeddings").any(),
    )


def require(frame: pd.DataFrame) -> Certificate:
    """The summary of a green certificate; raises `CertificateFailed` for a red one."""
    certificate = summary(frame)
    if not certificate.ok:
        raise CertificateFailed(
            f"the model and its re-implementation differ by {certificate.max_abs_error:.3g} at "
            f"{certificate.place}, where rounding explains at most {certificate.tolerance:.3g} "
            f"({certificate.failed} of {certificate.stages} stages are red); nothing can be shown "
            "for certain, so try another dtype or the CPU, or report this model"
        )
    return certificate
