"""Another scale inside the running model: everything downstream is computed again.

A factor on a head's scale multiplies its scaled logits; it is applied to the head's queries on
their way into attention, so that one head, one layer or all layers can have it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from attnprobe import capture
from attnprobe.analyses.scaling import require_factor
from attnprobe.capture import AttentionCall, Watcher
from attnprobe.loaded import LoadedModel
from attnprobe.readout import Examples, ReadOut, divergence, score
from attnprobe.softmax_stats import row_statistics
from attnprobe.text import Tokens
from attnprobe.trace import SATURATED_FROM, head_table, trace

Progress = Callable[[int, int], None]
SWEPT = (0.125, 0.25, 0.5, 0.7071, 1.0, 1.4142, 2.0, 4.0, 8.0, 16.0, 32.0)


def factors_for(
    loaded: LoadedModel, factor: float, layer: int | None, head: int | None
) -> Float[Tensor, "layer head"]:
    """A table of factors: one head, one layer (`head` None) or all layers (both None)."""
    require_factor(factor)
    factors = torch.ones(loaded.n_layers, loaded.n_heads)
    rows = slice(None) if layer is None else layer
    factors[rows, slice(None) if head is None else head] = factor
    return factors


def scaled_by(factors: Float[Tensor, "layer head"]) -> Watcher:
    """A watcher that multiplies each head's scaled logits by its factor."""

    def rescale(call: AttentionCall) -> AttentionCall:
        mine = factors[call.layer].to(call.query)
        return replace(call, query=call.query * mine[:, None, None])

    return rescale


def sweep(
    readout: ReadOut,
    examples: Examples,
    layer: int | None = None,
    head: int | None = None,
    *,
    factors: Sequence[float] = SWEPT,
    progress: Progress = lambda done, total: None,
) -> pd.DataFrame:
    """The read-out and the heads under every factor.

    Columns: factor, loss (mean over texts; against targets, else KL to the unedited model), tvd and
    kl (mean over spots, to the unedited distribution), metric, entropy and saturated (means over
    counted rows of all heads; saturated: peak ≥ 0.9).
    """
    loaded = readout.loaded
    base = _run(readout, examples, torch.ones(loaded.n_layers, loaded.n_heads))[0]
    rows = []
    for done, factor in enumerate(factors):
        progress(done, len(factors))
        logs, heads = _run(readout, examples, factors_for(loaded, factor, layer, head))
        scores = score(readout, logs, examples, base)
        rows.append(
            {
                "factor": factor,
                "loss": scores.loss.mean().item(),
                "tvd": ((logs.exp() - base.exp()).abs().sum(-1) / 2).mean().item(),
                "kl": divergence(base, logs).mean().item(),
                "metric": scores.metric.item(),
                **heads,
            }
        )
    progress(len(factors), len(factors))
    return pd.DataFrame(rows)


@torch.no_grad()
def _run(
    readout: ReadOut, examples: Examples, factors: Tensor
) -> tuple[Float[Tensor, "spot class"], dict[str, float]]:
    """Log-probabilities, and entropy and saturation over all counted rows, under factors."""
    seen: list[tuple[float, float, int]] = []
    padding = ~examples.batch.mask[:, None, :]

    def observe(call: AttentionCall) -> None:
        rows = row_statistics(
            call.query, call.key, scale=call.scale, valid=call.valid, causal=call.causal,
            spectral=False,
        )  # fmt: skip
        counted = (rows.keys >= 2) & ~padding
        saturated = (rows.peak >= SATURATED_FROM) & counted
        seen.append(
            (rows.entropy[counted].sum().item(), saturated.sum().item(), counted.sum().item())
        )

    with capture.watching(scaled_by(factors)), capture.watching(observe):
        logs = readout.log_probabilities(examples)
    entropy, saturated, counted = (sum(column) for column in zip(*seen, strict=True))
    if not counted:
        return logs, {"entropy": float("nan"), "saturated": float("nan")}
    return logs, {"entropy": entropy / counted, "saturated": saturated / counted}


def heads_after(loaded: LoadedModel, tokens: Tokens, factors: Tensor) -> pd.DataFrame:
    """Every head's entropy with and without the factors: layer, head, before, after, change."""
    before = head_table(trace(loaded, tokens))
    after = head_table(trace(loaded, tokens, edit=scaled_by(factors)))
    frame = before[["layer", "head"]].assign(before=before["entropy"], after=after["entropy"])
    return frame.assign(change=frame["after"] - frame["before"])


def top(
    readout: ReadOut, examples: Examples, factors: Tensor, *, spot: int = -1, k: int = 5
) -> pd.DataFrame:
    """The k likeliest classes at one spot before and after, with both probabilities.

    Columns: run (as the model, rescaled), rank, answer, before, after.
    """
    plain = torch.ones_like(factors)
    before, after = (
        _run(readout, examples, f)[0][spot].exp().double().cpu() for f in (plain, factors)
    )
    rows = []
    for run, distribution in (("as the model", before), ("rescaled", after)):
        best = distribution.topk(min(k, len(distribution))).indices.tolist()
        for rank, index in enumerate(best, start=1):
            answer = readout.answer(index)
            probabilities = {"before": before[index].item(), "after": after[index].item()}
            rows.append({"run": run, "rank": rank, "answer": answer, **probabilities})
    return pd.DataFrame(rows)
