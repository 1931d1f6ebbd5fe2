"""The reply of Wiegreffe & Pinter (2019): what a perturbation at test time cannot show.

Attention is computed by the model, so weights that fit one text need not be weights that any
training would lead to. Three of their four tests train models. Here: the uniform baseline without
training, and how far several trainings of one model differ from each other, as a measure of what
"different weights" is worth.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnprobe.analyses.perturbation.distances import attainable_jsd, jsd, tvd
from attnprobe.analyses.perturbation.runs import CleanRun
from attnprobe.errors import BadInput
from attnprobe.loaded import LoadedModel

TESTS: Mapping[str, str] = {
    "uniform attention": "run here without training; in the reply the model is trained anew with "
    "uniform weights, so theirs asks whether attention is needed and ours whether it is used",
    "variation over seeds": "run here when several checkpoints of the same model are given",
    "weights as a guide": "not run here: trains a network without context on frozen weights",
    "adversary that a model could have learned": "not run here: trains a second model to agree in "
    "output and differ in weights over a whole data set",
}
"""Each test of the reply and what of it is done here."""


def same_kind(models: Sequence[LoadedModel]) -> None:
    """Raises `BadInput` unless at least two models of one architecture and vocabulary came."""
    if len(models) < 2:
        raise BadInput("one checkpoint came and variation over seeds needs at least two; add one")
    shapes = {(m.family.model_type, m.n_layers, m.n_heads, m.d_model) for m in models}
    vocabularies = {len(m.reader.tokenizer) for m in models}
    if len(shapes) > 1 or len(vocabularies) > 1:
        names = ", ".join(m.name for m in models)
        raise BadInput(
            f"the checkpoints {names} differ in architecture or vocabulary; "
            "choose several trainings of the same model"
        )


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What one checkpoint computes on one text, without the checkpoint itself."""

    ids: Int[Tensor, " position"]
    valid: Bool[Tensor, "query key"]
    weights: Float[Tensor, "layer head query key"]
    outcome: Float[Tensor, "spot outcome"]


def snapshot(run: CleanRun) -> Snapshot:
    """A clean run's weights and output, so that several checkpoints can take turns in memory."""
    weights = torch.stack([run.weights(layer) for layer in range(run.n_layers)])
    return Snapshot(run.ids.cpu(), run.valid.cpu(), weights.cpu(), run.outcome.cpu())


def seed_variation(snapshots: Sequence[Snapshot]) -> pd.DataFrame:
    """How far the weights on one text differ between checkpoints, one row per pair and head.

    `jsd` is the mean over rows with at least two keys of the JSD between the same head's weights,
    `relative_jsd` its share of what weights could differ from the first checkpoint's at most, `tvd`
    the distance of the outputs. `head` is missing in the rows of a layer's mean weights, which do
    not depend on how heads are numbered: heads of separately trained models share no numbering,
    those of fine-tunings of one model do.
    """
    if len({tuple(taken.ids.tolist()) for taken in snapshots}) != 1:
        raise BadInput("the checkpoints read the text as different tokens; use one tokenizer")
    rows = [
        row
        for a, b in combinations(range(len(snapshots)), 2)
        for row in _pair(snapshots[a], snapshots[b], {"first": a, "second": b})
    ]
    frame = pd.DataFrame(rows)
    return frame.astype({"head": "Int64"})


def _pair(one: Snapshot, other: Snapshot, names: dict[str, int]) -> list[dict[str, object]]:
    outputs = float(tvd(one.outcome, other.outcome).mean())
    rows = []
    for layer, (mine, theirs) in enumerate(zip(one.weights, other.weights, strict=True)):
        for head in range(len(mine)):
            rows.append({"layer": layer, "head": head} | _distance(one, mine[head], theirs[head]))
        rows.append({"layer": layer, "head": None} | _distance(one, mine.mean(0), theirs.mean(0)))
    return [names | row | {"tvd": outputs} for row in rows]


def _distance(taken: Snapshot, mine: Tensor, theirs: Tensor) -> dict[str, float]:
    counted = taken.valid.sum(-1) >= 2
    if not bool(counted.any()):
        return {"jsd": float("nan"), "relative_jsd": float("nan")}
    divergence = jsd(mine, theirs)[counted].mean()
    bound = attainable_jsd(mine, taken.valid)[counted].mean()
    return {"jsd": float(divergence), "relative_jsd": float(divergence / bound)}
