"""The real gradient through each head's softmax, from one backward pass through the door.

The softmax maps scaled logits s to weights p with the Jacobian J = diag(p) − ppᵀ, so a loss's
gradient on the logits of a row is ∂L/∂s = J ∂L/∂p. The ratio ‖∂L/∂s‖ / ‖∂L/∂p‖ says what the
softmax lets through; it is at most J's spectral norm, which is at most ½.
"""

from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from attnprobe import capture, memory
from attnprobe.capture import AttentionCall
from attnprobe.errors import BadInput
from attnprobe.readout import Examples, ReadOut, score
from attnprobe.softmax_stats import RowStatistics, statistics_of

LOSSES = ("target", "top answer")
"""−ln p(target), and −ln p of what the model itself finds likeliest."""

STARVED = 0.01
"""A head whose ratio is below this lets next to nothing through to its queries and keys."""


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients of one scalar loss, per layer: [batch head query key], 0 where nothing is seen."""

    loss: float
    weights: tuple[Float[Tensor, "batch head query key"], ...]
    logits: tuple[Float[Tensor, "batch head query key"], ...]
    statistics: tuple[RowStatistics, ...]
    counted: Tensor


def gradients(readout: ReadOut, examples: Examples, loss: str | None = None) -> Gradients:
    """∂L/∂A and ∂L/∂S (S: scaled logits) of every head, from one forward and one backward pass.

    Both are over the keys that a row may see: the weight of any other is 0 whatever the logits.

    L is the mean over texts of each text's mean loss over its spots; without a choice, that of the
    targets where there are any, else of the likeliest answers. Holds every head's matrices
    at once: refuses what would not fit into memory.
    """
    loaded, loss = readout.loaded, _chosen(examples, loss)
    texts, length = examples.batch.ids.shape
    needed = 8 * loaded.n_layers * loaded.n_heads * texts * length**2 * 4
    memory.require(
        f"the gradient of all weights of {texts} × {length} tokens",
        needed, loaded.device, "choose a shorter text",
    )  # fmt: skip
    taps: list[tuple[Tensor, Tensor, RowStatistics]] = []
    with torch.enable_grad(), capture.watching(_tap(taps)):
        logs = readout.log_probabilities(examples)
        value = _loss(readout, examples, logs, loss)
        inputs = [t for logits, weights, _ in taps for t in (weights, logits)]
        found = torch.autograd.grad(value, inputs, materialize_grads=True)
    found = [gradient.nan_to_num() for gradient in found]
    statistics = tuple(rows for _, _, rows in taps)
    real = examples.batch.mask[:, None, :]
    counted = torch.stack([(rows.keys >= 2) & real for rows in statistics])
    return Gradients(value.item(), tuple(found[::2]), tuple(found[1::2]), statistics, counted)


def _chosen(examples: Examples, loss: str | None) -> str:
    if loss is None:
        return LOSSES[0] if examples.target is not None else LOSSES[1]
    if loss not in LOSSES:
        raise BadInput(f"loss {loss!r} is not known; choose {' or '.join(map(repr, LOSSES))}")
    if loss == "target" and examples.target is None:
        raise BadInput(
            "the loss of the target was asked for and this read-out of this text has none; "
            "choose 'top answer', or name the answer"
        )
    return loss


def _tap(taps: list[tuple[Tensor, Tensor, RowStatistics]]):
    """A watcher that attends by plain differentiable matrix products and keeps S and A."""

    def attend(call: AttentionCall) -> Tensor:
        logits = call.query @ call.key.mT * call.scale
        if not logits.requires_grad:
            logits.requires_grad_()
        seen = _seen(call)
        weights = logits.masked_fill(~seen, -torch.inf).softmax(-1)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        mask = seen.expand(logits.shape)
        taps.append((logits, weights, statistics_of(logits.detach().to(dtype), mask, dtype=dtype)))
        # Filled after the tap, so that no gradient comes back from keys that a row may not see.
        return weights.masked_fill(~seen, 0.0) @ call.value

    return attend


def _seen(call: AttentionCall) -> Tensor:
    length = call.query.shape[2]
    seen = torch.ones(1, 1, length, length, dtype=torch.bool, device=call.query.device)
    if call.causal:
        seen = seen.tril()
    return seen if call.valid is None else seen & call.valid[:, None, None, :]


def _loss(readout: ReadOut, examples: Examples, logs: Tensor, kind: str) -> Tensor:
    if kind == "target":
        return score(readout, logs, examples).loss.mean()
    return -logs.max(-1).values.mean()


def rows(gradients: Gradients) -> pd.DataFrame:
    """One line per counted row of every head.

    Columns: layer, head, text, query, peak, jacobian_frobenius, jacobian_spectral, on_weights
    ‖∂L/∂A‖ and on_logits ‖∂L/∂S‖ (norms over the row's valid keys), ratio (undefined where
    ‖∂L/∂A‖ is 0).
    """
    frames = []
    for layer, (on_a, on_s, statistics) in enumerate(
        zip(gradients.weights, gradients.logits, gradients.statistics, strict=True)
    ):
        text, head, query = gradients.counted[layer].nonzero(as_tuple=True)
        at = (text, head, query)
        on_weights = on_a.norm(dim=-1)[at].double()
        on_logits = on_s.norm(dim=-1)[at].double()
        columns = {
            "layer": torch.full_like(head, layer),
            "head": head,
            "text": text,
            "query": query,
            "peak": statistics.peak[at].double(),
            "jacobian_frobenius": statistics.jacobian_frobenius[at].double(),
            "jacobian_spectral": statistics.jacobian_spectral[at].double(),
            "on_weights": on_weights,
            "on_logits": on_logits,
            "ratio": torch.where(on_weights > 0, on_logits / on_weights, torch.nan),
        }
        frames.append(pd.DataFrame({n: v.cpu().numpy() for n, v in columns.items()}))
    return pd.concat(frames, ignore_index=True)


def heads(rows: pd.DataFrame) -> pd.DataFrame:
    """Per head: both gradients over its rows, their ratio, and mean norms of J.

    Columns: layer, head, on_weights and on_logits (root sums of squares over rows, so norms over
    the whole matrix), ratio of these two, row_on_weights and row_on_logits (means of the rows'
    norms), jacobian_frobenius, jacobian_spectral, rows, starved (ratio below `STARVED`, or no
    gradient on the logits at all).
    """
    grouped = rows.assign(a2=rows["on_weights"] ** 2, s2=rows["on_logits"] ** 2).groupby(
        ["layer", "head"]
    )
    frame = grouped.agg(
        on_weights=("a2", "sum"),
        on_logits=("s2", "sum"),
        row_on_weights=("on_weights", "mean"),
        row_on_logits=("on_logits", "mean"),
        jacobian_frobenius=("jacobian_frobenius", "mean"),
        jacobian_spectral=("jacobian_spectral", "mean"),
        rows=("query", "size"),
    ).reset_index()
    frame["on_weights"] **= 0.5
    frame["on_logits"] **= 0.5
    frame["ratio"] = (frame["on_logits"] / frame["on_weights"]).where(frame["on_weights"] > 0)
    return frame.assign(starved=~(frame["ratio"] >= STARVED))
