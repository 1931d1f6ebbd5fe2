"""What happens when heads of one layer are switched off: one at a time, or all but one.

(Michel, Levy & Neubig 2019, sections 3.2 and 3.3.) Every number is a difference to the unedited
model on the same texts, with a paired bootstrap interval over texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from attnprobe.analyses import ablation, sweeps
from attnprobe.analyses.ablation import Replacement
from attnprobe.analyses.frames import by_head
from attnprobe.analyses.pruning.importance import resampled
from attnprobe.analyses.sweeps import Base, Progress, no_progress
from attnprobe.data import LabelledText, TextSet
from attnprobe.errors import Stopped
from attnprobe.readout import ReadOut, Scores, score

DRAWS = 1000


@dataclass(frozen=True, eq=False)
class Effects:
    """Per-text losses and hits of the unedited model and under each variant of each layer.

    `loss` and `right` are [layer variant text], `base_loss` and `base_right` are [text]; `spots`
    counts each text's spots. `numbers` says which texts these are: all of them, unless the run was
    stopped.
    """

    metric_name: str
    numbers: tuple[int, ...]
    loss: Float[Tensor, "layer variant text"]
    right: Float[Tensor, "layer variant text"]
    base_loss: Float[Tensor, " text"]
    base_right: Float[Tensor, " text"]
    spots: Float[Tensor, " text"]

    @property
    def loss_change(self) -> Float[Tensor, "layer variant"]:
        """Mean over texts of the loss under the edit minus the unedited loss, in nats."""
        return (self.loss - self.base_loss).mean(-1)

    @property
    def base_metric(self) -> float:
        return float(self._metric(self._once, self.base_loss, self.base_right))

    @property
    def metric_change(self) -> Float[Tensor, "layer variant"]:
        return self._metric(self._once, self.loss, self.right)[..., 0] - self.base_metric

    @property
    def _once(self) -> Float[Tensor, "draw text"]:
        texts = len(self.base_loss)
        return torch.full((1, texts), 1 / texts, dtype=self.loss.dtype)

    def _metric(self, weights: Tensor, loss: Tensor, right: Tensor) -> Tensor:
        """The metric under bootstrap weights [draw text]: [... draw]."""
        if self.metric_name != "perplexity":
            return right @ weights.T
        return ((loss * self.spots) @ weights.T / (self.spots @ weights.T)).exp()

    def intervals(self, draws: int = DRAWS, seed: int = 0) -> dict[str, Tensor]:
        """95 % paired bootstrap limits of both changes: the same texts are drawn on both sides."""
        weights = resampled(len(self.base_loss), draws, seed).to(self.loss)
        loss = (self.loss - self.base_loss) @ weights.T
        metric = self._metric(weights, self.loss, self.right) - self._metric(
            weights, self.base_loss, self.base_right
        )
        limits = torch.tensor([0.025, 0.975]).to(loss)
        (loss_low, loss_high), (low, high) = loss.quantile(limits, -1), metric.quantile(limits, -1)
        return {
            "loss_low": loss_low,
            "loss_high": loss_high,
            "metric_low": low,
            "metric_high": high,
        }

    def frame(self, draws: int = DRAWS, seed: int = 0) -> pd.DataFrame:
        """One row per layer and head: changes of loss and metric, their intervals, N."""
        columns = {"loss_change": self.loss_change, "metric_change": self.metric_change}
        frame = by_head(columns | self.intervals(draws, seed))
        return frame.assign(metric=self.metric_name, texts=len(self.base_loss))


def one_head_off(
    readout: ReadOut,
    texts: TextSet | Sequence[LabelledText],
    instead: Replacement = ablation.zero,
    *,
    so_far: Effects | None = None,
    progress: Progress = no_progress,
) -> Effects:
    """Every head switched off by itself; variant h of layer l is head l.h off.

    See `layer_by_layer` for `so_far` and `progress`.
    """
    gates = 1 - torch.eye(readout.loaded.n_heads)
    return layer_by_layer(readout, texts, gates, instead, so_far=so_far, progress=progress)


def all_but_one(
    readout: ReadOut,
    texts: TextSet | Sequence[LabelledText],
    instead: Replacement = ablation.zero,
    *,
    so_far: Effects | None = None,
    progress: Progress = no_progress,
) -> Effects:
    """In each layer, all heads but one switched off; variant h of layer l keeps head l.h."""
    gates = torch.eye(readout.loaded.n_heads)
    return layer_by_layer(readout, texts, gates, instead, so_far=so_far, progress=progress)


def layer_by_layer(
    readout: ReadOut,
    texts: TextSet | Sequence[LabelledText],
    gates: Float[Tensor, "variant head"],
    instead: Replacement = ablation.zero,
    *,
    so_far: Effects | None = None,
    progress: Progress = no_progress,
) -> Effects:
    """The same gates on the heads of each layer in turn, the other layers as they are.

    After each batch of texts `progress` gets the effects so far; if it raises `Stopped`, they are
    returned. Given back as `so_far`, they are not computed again.
    """
    known = set(so_far.numbers) if so_far else set()
    batches = sweeps.batches(readout, texts, known)
    layers = readout.loaded.n_layers
    parts = [so_far] if so_far else []
    total = len(batches) * layers
    try:
        for done, (numbers, examples) in enumerate(batches):
            base = sweeps.unedited(readout, examples)
            scores = []
            for layer in range(layers):
                progress(done * layers + layer, total)
                scores.append(_one_layer(base, layer, gates, instead))
            parts.append(_effects(numbers, base, scores))
            progress((done + 1) * layers, total, _joined(parts))
    except Stopped:
        if not parts:
            raise
    return _joined(parts)


def _one_layer(base: Base, layer: int, gates: Tensor, instead: Replacement) -> list[Scores]:
    call = base.calls[layer]
    gates = gates.to(call.query)
    replaced = instead(call)

    def contexts(some: Tensor) -> Tensor:
        gate = gates[some][:, None, :, None, None]
        return ablation.blend(gate, call.edited, replaced)

    return [
        score(base.readout, read, base.examples, base.log_probabilities)
        for _, chunk in sweeps.variants(base, layer, contexts, len(gates))
        for read in chunk
    ]


def _effects(numbers: list[int], base: Base, scores: list[list[Scores]]) -> Effects:
    plain = score(base.readout, base.log_probabilities, base.examples, base.log_probabilities)

    def edited(what: str) -> Tensor:
        rows = [torch.stack([getattr(each, what) for each in row]) for row in scores]
        return torch.stack(rows).double().cpu()

    return Effects(
        metric_name=plain.metric_name,
        numbers=tuple(numbers),
        loss=edited("loss"),
        right=edited("right"),
        base_loss=plain.loss.double().cpu(),
        base_right=plain.right.double().cpu(),
        spots=plain.spots.double().cpu(),
    )


def _joined(parts: Sequence[Effects]) -> Effects:
    """Effects on several batches as one, texts in their own order."""
    numbers = [number for part in parts for number in part.numbers]
    order = sorted(range(len(numbers)), key=lambda i: numbers[i])

    def joined(what: str) -> Tensor:
        return torch.cat([getattr(part, what) for part in parts], -1)[..., order]

    per_text = ("loss", "right", "base_loss", "base_right", "spots")
    return Effects(
        metric_name=parts[0].metric_name,
        numbers=tuple(sorted(numbers)),
        **{what: joined(what) for what in per_text},
    )


def best_to_keep(scoring: Effects, evaluation: Effects) -> pd.DataFrame:
    """Per layer, the one head to keep: chosen on the scoring part, reported on the evaluation part.

    `head` has the lowest loss on the scoring part when the layer's other heads are off; the changes
    and their intervals are those of the evaluation part.
    """
    kept = scoring.loss_change.argmin(-1)
    rows = evaluation.frame().set_index(["layer", "head"])
    chosen = rows.loc[[(layer, int(head)) for layer, head in enumerate(kept)]].reset_index()
    own = scoring.loss_change.gather(-1, kept[:, None])[:, 0].numpy()
    return chosen.assign(scoring_loss_change=own)


def significant(frame: pd.DataFrame) -> pd.Series:
    """Heads whose change of loss has an interval without 0."""
    return (frame["loss_low"] > 0) | (frame["loss_high"] < 0)


def transfer(first: Effects, second: Effects) -> tuple[pd.DataFrame, pd.Series]:
    """Single-head effects on two sets of texts, and how they go together (Michel 2019, figure 2).

    The frame has `first` and `second` (changes of loss) per head; the series has Pearson's r and
    Spearman's ρ over heads, missing where one side is constant.
    """
    frame = by_head({"first": first.loss_change, "second": second.loss_change})
    pair = frame[["first", "second"]]
    constant = bool((pair.nunique() < 2).any())
    return frame, pd.Series(
        {
            "pearson": None if constant else pair.corr().iloc[0, 1],
            "spearman": None if constant else pair.rank().corr().iloc[0, 1],
            "heads": len(frame),
        },
        dtype=object,
    )
