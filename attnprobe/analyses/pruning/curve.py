"""Pruning curves: heads removed in some order, loss and metric on texts that chose nothing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnprobe.analyses import ablation, sweeps
from attnprobe.analyses.ablation import Replacement
from attnprobe.analyses.pruning import importance
from attnprobe.analyses.sweeps import Base, Progress, no_progress
from attnprobe.data import LabelledText, TextSet
from attnprobe.errors import BadInput, Stopped
from attnprobe.readout import METRICS, ReadOut, Scores, score

RANDOM_ORDERS = 20
BAND = (0.05, 0.95)

Order = Int[Tensor, "place"]
"""All heads as layer · heads + head, the first to go first."""


def order_by(values: Float[Tensor, "layer head"]) -> Order:
    """Least first; equal values by layer and head."""
    return torch.argsort(values.flatten(), stable=True)


def random_orders(heads: int, count: int = RANDOM_ORDERS, seed: int = 0) -> list[Order]:
    """`count` permutations of all heads."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randperm(heads, generator=generator) for _ in range(count)]


def steps(heads: int, *, one_by_one: bool = False) -> list[int]:
    """How many heads are gone at each step: by tenths, rounded up, from none to all; or by ones."""
    if one_by_one:
        return list(range(heads + 1))
    return sorted({-(-heads * tenth // 10) for tenth in range(11)})


def rescored_order(
    readout: ReadOut,
    texts: TextSet | Sequence[LabelledText],
    at: Sequence[int],
    *,
    normalised: bool = False,
    progress: Progress = no_progress,
) -> Order:
    """Importance taken anew after each step, with the heads removed so far switched off."""
    shape = readout.loaded.n_layers, readout.loaded.n_heads
    gates = torch.ones(shape)
    gone: list[int] = []
    for step, (now, following) in enumerate(pairwise(at)):
        progress(step, len(at) - 1)
        values = importance.measured(readout, texts, gates=gates)[0].mean(-1).cpu()
        values = importance.l2_per_layer(values * gates) if normalised else values
        values = values.flatten().masked_fill(gates.flatten() == 0, torch.inf)
        gone += torch.argsort(values, stable=True)[: following - now].tolist()
        gates.view(-1)[gone] = 0
    progress(len(at) - 1, len(at) - 1)
    return torch.tensor(gone)


@dataclass(frozen=True)
class _Point:
    order: str
    repeat: int
    removed: int
    gates: Tensor


def _points(
    orders: Mapping[str, Sequence[Order]], at: Sequence[int], shape: tuple[int, int]
) -> Iterator[_Point]:
    for name, repeats in orders.items():
        for repeat, order in enumerate(repeats):
            for removed in at:
                gates = torch.ones(shape)
                gates.view(-1)[order[:removed]] = 0
                yield _Point(name, repeat, removed, gates)


def curve(
    readout: ReadOut,
    texts: TextSet | Sequence[LabelledText],
    orders: Mapping[str, Sequence[Order]],
    at: Sequence[int],
    instead: Replacement = ablation.zero,
    *,
    progress: Progress = no_progress,
) -> pd.DataFrame:
    """Loss and metric with the first heads of each order gone, one row per order and step.

    Columns: `order`, `repeat` (which of several orders of that name), `removed`, `share`, `loss`
    (mean over texts, nats), `value` of the `metric`, `texts`. A `progress` that raises `Stopped`
    ends the run: the texts finished by then are counted.
    """
    shape = readout.loaded.n_layers, readout.loaded.n_heads
    heads = shape[0] * shape[1]
    for order in (order for repeats in orders.values() for order in repeats):
        if sorted(order.tolist()) != list(range(heads)):
            raise BadInput(f"an order must name each of the {heads} heads once")
    points = list(_points(orders, at, shape))
    different = {point.gates.numpy().tobytes(): point.gates for point in points}
    scores = _evaluated(readout, texts, list(different.values()), instead, progress)
    found = dict(zip(different, scores, strict=True))
    return pd.DataFrame(
        {
            "order": point.order,
            "repeat": point.repeat,
            "removed": point.removed,
            "share": point.removed / heads,
            "loss": float(each.loss.mean()),
            "value": float(each.metric),
            "metric": each.metric_name,
            "texts": len(each.loss),
        }
        for point in points
        for each in [found[point.gates.numpy().tobytes()]]
    )


def _evaluated(
    readout: ReadOut,
    texts: TextSet | Sequence[LabelledText],
    gates: list[Tensor],
    instead: Replacement,
    progress: Progress,
) -> list[Scores]:
    """Scores over all texts for each set of gates, each set from its lowest edited layer on."""
    batches = sweeps.batches(readout, texts)
    parts: list[list[Scores]] = []
    try:
        for done, (_, examples) in enumerate(batches):
            base = sweeps.unedited(readout, examples)
            scores: dict[int, Scores] = {}
            for some in _runs(gates, sweeps.per_batch(examples)):
                progress(done * len(gates) + len(scores), len(batches) * len(gates))
                scores |= zip(some, _scored(base, [gates[i] for i in some], instead), strict=True)
            parts.append([scores[i] for i in range(len(gates))])
        progress(len(batches) * len(gates), len(batches) * len(gates))
    except Stopped:
        if not parts:
            raise
    return [_together(part) for part in zip(*parts, strict=True)]


def _start(gates: Tensor) -> int:
    """The lowest layer with a gate other than 1, or the number of layers."""
    edited = (gates != 1).any(1).nonzero()
    return int(edited[0]) if len(edited) else len(gates)


def _runs(gates: list[Tensor], size: int) -> Iterator[list[int]]:
    """Numbers of gates that run in one batch: neighbours by the layer where they start."""
    order = sorted(range(len(gates)), key=lambda i: _start(gates[i]))
    yield from (order[i : i + size] for i in range(0, len(order), size))


def _scored(base: Base, gates: list[Tensor], instead: Replacement) -> list[Scores]:
    start = min(_start(each) for each in gates)
    if start == len(gates[0]):
        read = [base.log_probabilities] * len(gates)
    else:
        stacked = torch.stack(gates, 1).to(base.hidden[0])
        watcher = ablation.switched(stacked, instead, len(base.examples.batch.ids))
        read = sweeps.edited(base, watcher, len(gates), start=start)
    return [score(base.readout, each, base.examples, base.log_probabilities) for each in read]


def _together(parts: Sequence[Scores]) -> Scores:
    return Scores(
        torch.cat([part.loss for part in parts]),
        torch.cat([part.right for part in parts]),
        torch.cat([part.spots for part in parts]),
        parts[0].metric_name,
    )


def first_fall(frame: pd.DataFrame, share: float = 0.9) -> pd.DataFrame:
    """Where the metric first falls below `share` of its unpruned value (perplexity: rises above).

    One row per order and repeat: `removed` and `share` of heads at that step, missing when it never
    happens.
    """
    rows = []
    for (order, repeat), part in frame.groupby(["order", "repeat"], sort=False):
        part = part.sort_values("removed")
        whole = part["value"].iloc[0]
        higher = METRICS[part["metric"].iloc[0]].higher_is_better
        fallen = part["value"] < share * whole if higher else part["value"] > whole / share
        first = part[fallen].head(1)
        rows.append(
            {
                "order": order,
                "repeat": repeat,
                "removed": first["removed"].iloc[0] if len(first) else pd.NA,
                "share": first["share"].iloc[0] if len(first) else np.nan,
            }
        )
    return pd.DataFrame(rows).astype({"removed": "Int64"})


def bands(frame: pd.DataFrame) -> pd.DataFrame:
    """Over the repeats of each order: median and 5–95 % band of loss and metric at each step."""
    rows = []
    for (order, removed), part in frame.groupby(["order", "removed"], sort=False):
        row = {"order": order, "removed": removed, "share": part["share"].iloc[0]}
        for name in ("loss", "value"):
            row[name] = part[name].median()
            row[f"{name}_low"], row[f"{name}_high"] = part[name].quantile(BAND)
        rows.append(row | {"repeats": len(part), "metric": part["metric"].iloc[0]})
    return pd.DataFrame(rows)


def order_map(order: Order, n_heads: int, at: Sequence[int]) -> pd.DataFrame:
    """When each head goes: `place` (1 goes first) and `step`, the step of the curve it goes in."""
    places = np.arange(1, len(order) + 1)
    heads = order.numpy()
    return (
        pd.DataFrame(
            {
                "layer": heads // n_heads,
                "head": heads % n_heads,
                "place": places,
                "step": np.searchsorted(np.asarray(at), places),
            }
        )
        .sort_values(["layer", "head"])
        .reset_index(drop=True)
    )
