"""One text through one model: what every head computed, and the table of all heads."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnprobe import capture, memory
from attnprobe.capture import AttentionCall, Watcher
from attnprobe.errors import BadInput
from attnprobe.models import LoadedModel
from attnprobe.softmax_stats import RowStatistics, attention_rows, attention_weights
from attnprobe.text import Tokens

SATURATED_FROM = 0.9
"""Peak from which a row counts as saturated unless a caller chooses otherwise."""


@dataclass(frozen=True, eq=False)
class Trace:
    """One text through one model, batch of one.

    Queries, keys, values and contexts are [layer head position d_head], `rows` are statistics
    [layer head query]. The query × key matrices of a head are computed when asked for. Everything
    is a copy: the model has no memory of the run.
    """

    model: str
    tokens: Tokens
    queries: Float[Tensor, "layer head query d_head"]
    keys: Float[Tensor, "layer head key d_head"]
    values: Float[Tensor, "layer head key d_head"]
    contexts: Float[Tensor, "layer head query d_head"]
    scales: tuple[float, ...]
    causal: bool
    rows: RowStatistics
    output: Float[Tensor, "*rest"]

    @property
    def n_layers(self) -> int:
        return self.queries.shape[0]

    @property
    def n_heads(self) -> int:
        return self.queries.shape[1]

    @property
    def d_head(self) -> int:
        return self.queries.shape[3]

    @property
    def counted(self) -> Bool[Tensor, "layer head query"]:
        """Rows that enter a statistic: the query sees at least two keys."""
        return self.rows.keys >= 2

    def valid(self) -> Bool[Tensor, "query key"]:
        """Which key a query may see."""
        length = len(self.tokens)
        everything = torch.ones(length, length, dtype=torch.bool, device=self.queries.device)
        return everything.tril() if self.causal else everything

    def raw_logits(self, layer: int, head: int) -> Float[Tensor, "query key"]:
        """S = QKᵀ of one head, before scale and mask, in the precision of the statistics."""
        dtype = self.rows.entropy.dtype
        return self.queries[layer, head].to(dtype) @ self.keys[layer, head].to(dtype).T

    def scaled_logits(self, layer: int, head: int) -> Float[Tensor, "query key"]:
        """S times the factor that the model uses, before the mask."""
        return self.raw_logits(layer, head) * self.scales[layer]

    def weights(self, layer: int, head: int) -> Float[Tensor, "query key"]:
        """A: softmax of the scaled logits over the valid keys of each row, 0 elsewhere."""
        return attention_weights(
            self.queries[layer, head][None, None],
            self.keys[layer, head][None, None],
            scale=self.scales[layer],
            valid=None,
            causal=self.causal,
        )[0, 0]


def trace(
    loaded: LoadedModel,
    text: str | Tokens,
    *,
    edit: Watcher | None = None,
    tick: Callable[[], None] | None = None,
    spectral: bool = True,
) -> Trace:
    """Runs a text through the model and keeps what every head computed.

    `edit` is a watcher that changes attention on the way (the trace shows the edited run); `tick`
    is called before each layer and may raise to stop. Raises `TooLarge` before anything is computed
    when the trace would not fit into memory. Statistics are float32, float64 for a
    float64 model, whatever the weights' dtype.
    """
    tokens = loaded.read(text) if isinstance(text, str) else text
    require_room(loaded, len(tokens))
    dtype = torch.float64 if loaded.dtype == torch.float64 else torch.float32
    calls: list[AttentionCall] = []
    rows: list[RowStatistics] = []

    def record(call: AttentionCall) -> Tensor:
        context, statistics = attention_rows(
            call.query, call.key, call.value,
            scale=call.scale, valid=call.valid, causal=call.causal, dtype=dtype, spectral=spectral,
        )  # fmt: skip
        context = context if call.edited is None else call.edited
        calls.append(replace(call, edited=context))
        rows.append(statistics)
        return context

    with (
        torch.no_grad(),
        capture.watching(edit, tick=tick),
        capture.watching(record),
    ):
        output = loaded.forward(loaded.batch(tokens))
    return Trace(
        model=loaded.key,
        tokens=tokens,
        queries=torch.cat([call.query for call in calls]),
        keys=torch.cat([call.key for call in calls]),
        values=torch.cat([call.value for call in calls]),
        contexts=torch.cat([call.edited for call in calls]),
        scales=tuple(call.scale for call in calls),
        causal=calls[0].causal,
        rows=_without(_joined(rows), loaded.removed),
        output=output[0],
    )


def bytes_for(loaded: LoadedModel, tokens: int) -> int:
    """What the trace of a text of so many tokens keeps in memory."""
    embeddings = loaded.model.get_input_embeddings().weight
    return memory.trace_bytes(
        loaded.n_layers,
        loaded.n_heads,
        loaded.d_model,
        embeddings.shape[0],
        tokens,
        embeddings.element_size(),
    )


def require_room(loaded: LoadedModel, tokens: int) -> None:
    """Refuses a text whose trace does not fit, before any of it is computed."""
    memory.require(
        f"a text of {tokens:,} tokens",
        bytes_for(loaded, tokens),
        loaded.device,
        "shorten it or choose a window of it",
    )


def _without(rows: RowStatistics, removed: frozenset[tuple[int, int]]) -> RowStatistics:
    """Rows of heads that were cut out of the model see no key, so they count nowhere."""
    if not removed:
        return rows
    keys = rows.keys.clone()
    for layer, head in removed:
        keys[layer, head] = 0
    return replace(rows, keys=keys)


def _joined(rows: list[RowStatistics]) -> RowStatistics:
    """Statistics of one text, [1 head query] per layer, as [layer head query]."""
    joined = {}
    for name in (f.name for f in fields(RowStatistics)):
        parts = [getattr(row, name) for row in rows]
        joined[name] = torch.cat(parts) if isinstance(parts[0], Tensor) else None
    scales = [row.scale for row in rows]
    return RowStatistics(**joined | {"scale": rows[0].entropy.new_tensor(scales)[:, None, None]})


def head_table(trace: Trace, *, saturated_from: float = SATURATED_FROM) -> pd.DataFrame:
    """One row per head: means over its counted rows of every row statistic.

    `saturated` is the share of counted rows with peak ≥ `saturated_from`; `raw_mean` and `raw_std`
    are over all valid keys of counted rows; `rows` is how many rows counted. A head without a
    counted row (a text of one token) has undefined (missing) statistics.
    """
    if not 0 <= saturated_from <= 1:
        raise BadInput(f"a row was to be saturated from {saturated_from}; choose a peak in 0 … 1")
    rows, counted = trace.rows, trace.counted
    weight = counted.to(rows.entropy.dtype)
    number = weight.sum(-1)

    def mean(values: Tensor) -> Tensor:
        return torch.where(counted, values, 0).sum(-1) / number

    cells = torch.where(counted, rows.keys, 0).to(weight.dtype)
    raw_mean = (rows.raw_mean.nan_to_num() * cells).sum(-1) / cells.sum(-1)
    spread = rows.raw_std.square() + (rows.raw_mean - raw_mean[..., None]).square()
    raw_std = ((spread.nan_to_num() * cells).sum(-1) / cells.sum(-1)).sqrt()
    scale = weight.new_tensor(trace.scales)[:, None]
    columns = {
        "entropy": mean(rows.entropy),
        "normalised_entropy": mean(rows.normalised_entropy),
        "effective_keys": mean(rows.effective_keys),
        "peak": mean(rows.peak),
        "saturated": mean((rows.peak >= saturated_from).to(weight.dtype)),
        "jacobian_frobenius": mean(rows.jacobian_frobenius),
        "jacobian_max": mean(rows.jacobian_max),
        "jacobian_spectral": mean(rows.jacobian_spectral),
        "jacobian_trace": mean(rows.jacobian_trace),
        "raw_mean": raw_mean,
        "raw_std": raw_std,
        "scaled_mean": raw_mean * scale,
        "scaled_std": raw_std * scale,
        "rows": number.long(),
    }
    layers, heads = torch.meshgrid(
        torch.arange(trace.n_layers), torch.arange(trace.n_heads), indexing="ij"
    )
    frame = {"layer": layers.flatten().numpy(), "head": heads.flatten().numpy()}
    return pd.DataFrame(frame | {n: v.flatten().cpu().numpy() for n, v in columns.items()})
