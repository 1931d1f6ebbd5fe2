"""Pruning curves: heads removed in some order, loss and metric on texts that chose nothing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, eq=False)
class Point:
    """One point of a curve: how many heads of an order are gone, and the gates of that."""

    order: str
    repeat: int
    removed: int
    gates: Float[Tensor, "layer head"]

    @property
    def key(self) -> bytes:
        """The gates as bytes: points of different orders may share them."""
        return self.gates.numpy().tobytes()


def points_of(
    orders: Mapping[str, Sequence[Order]], at: Sequence[int], shape: tuple[int, int]
) -> list[Point]:
    """The points of all orders at these numbers of removed heads, of a model of [layer head]."""
    points = []
    for name, repeats in orders.items():
        for repeat, order in enumerate(repeats):
            if sorted(order.tolist()) != list(range(shape[0] * shape[1])):
                raise BadInput(f"an order must name each of the {shape[0] * shape[1]} heads once")
            for removed in at:
                gates = torch.ones(shape)
                gates.view(-1)[order[:removed]] = 0
                points.append(Point(name, repeat, removed, gates))
    return points


@dataclass(frozen=True, eq=False)
class Curve:
    """Scores of every set of gates on the texts that are done, by the gates' bytes."""

    numbers: tuple[int, ...]
    scores: Mapping[bytes, Scores]

    def frame(self, points: Sequence[Point]) -> pd.DataFrame:
        """One row per order, repeat and step; see `curve`."""
        rows = []
        for point in points:
            scores = self.scores[point.key]
            rows.append(
                {
                    "order": point.order,
                    "repeat": point.repeat,
                    "removed": point.removed,
                    "share": point.removed / point.gates.numel(),
                    "loss": float(scores.loss.mean()),
                    "value": float(scores.metric),
                    "metric": scores.metric_name,
                    "texts": len(scores.loss),
                }
            )
        return pd.DataFrame(rows)


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
    (mean over texts, nats), `value` of the `metric`, `texts`.
    """
    points = points_of(orders, at, (readout.loaded.n_layers, readout.loaded.n_heads))
    return evaluated(readout, texts, points, instead, progress=progress).frame(points)


def evaluated(
    readout: ReadOut,
    texts: TextSet | Sequence[LabelledText],
    points: Sequence[Point],
    instead: Replacement = ablation.zero,
    *,
    so_far: Curve | None = None,
    progress: Progress = no_progress,
) -> Curve:
    """Every different set of gates on every text, each set from its lowest edited layer on.

    After each batch of texts `progress` gets the `Curve` so far; if it raises `Stopped`, that is
    returned. Given back as `so_far`, it is not computed again.
    """
    gates = {point.key: point.gates for point in points}
    batches = sweeps.batches(readout, texts, so_far.numbers if so_far else ())
    total = len(batches) * len(gates)
    done = 0
    try:
        for numbers, examples in batches:
            base = sweeps.unedited(readout, examples)
            scores: dict[bytes, Scores] = {}
            for some in _runs(gates, sweeps.per_batch(examples)):
                progress(done, total)
                scores |= zip(some, _scored(base, [gates[k] for k in some], instead), strict=True)
                done += len(some)
            so_far = _together(so_far, Curve(tuple(numbers), scores))
            progress(done, total, so_far)
    except Stopped:
        if so_far is None:
            raise
    return so_far


def _start(gates: Tensor) -> int:
    """The lowest layer with a gate other than 1, or the number of layers."""
    edited = (gates != 1).any(1).nonzero()
    return int(edited[0]) if len(edited) else len(gates)


def _runs(gates: Mapping[bytes, Tensor], size: int) -> Iterator[list[bytes]]:
    """Keys of gates that run in one batch: neighbours by the layer where they start."""
    order = sorted(gates, key=lambda key: _start(gates[key]))
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


def _together(first: Curve | None, second: Curve) -> Curve:
    if first is None:
        return second
    scores = {key: _joined(first.scores[key], second.scores[key]) for key in second.scores}
    return Curve((*first.numbers, *second.numbers), scores)


def _joined(first: Scores, second: Scores) -> Scores:
    pairs = {
        name: torch.cat([getattr(first, name), getattr(second, name)])
        for name in ("loss", "right", "spots")
    }
    return replace(first, **pairs)


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
