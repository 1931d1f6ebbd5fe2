"""Loss and metric of what was read, text by text."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnprobe.errors import BadInput
from attnprobe.readout.watched import Examples, ReadOut


@dataclass(frozen=True, eq=False)
class Scores:
    """What a read-out says of each text: mean loss over its spots, and how many spots are right.

    Right means equal to the target or, without targets, equal to the unedited model's choice.
    """

    loss: Float[Tensor, " text"]
    right: Float[Tensor, " text"]
    spots: Int[Tensor, " text"]
    metric_name: str

    @property
    def metric(self) -> Float[Tensor, ""]:
        """Accuracy or agreement (mean over texts), or perplexity (exp of the mean over spots)."""
        return METRICS[self.metric_name].over(self.loss, self.right, self.spots)


@dataclass(frozen=True)
class Metric:
    """How per-text numbers become the metric of a set, and whether more of it is better."""

    over: Callable[[Tensor, Tensor, Tensor], Tensor]
    higher_is_better: bool


def _mean_right(loss: Tensor, right: Tensor, spots: Tensor) -> Tensor:
    return right.mean(-1)


def _perplexity(loss: Tensor, right: Tensor, spots: Tensor) -> Tensor:
    return ((loss * spots).sum(-1) / spots.sum(-1)).exp()


METRICS: Mapping[str, Metric] = {
    "accuracy": Metric(_mean_right, higher_is_better=True),
    "agreement": Metric(_mean_right, higher_is_better=True),
    "perplexity": Metric(_perplexity, higher_is_better=False),
}


def metric_name(readout: ReadOut, examples: Examples) -> str:
    """Perplexity of a language model with targets, accuracy of a classifier, else agreement."""
    if examples.target is None:
        return "agreement"
    return "perplexity" if readout.classes is None else "accuracy"


def score(
    readout: ReadOut,
    log_probabilities: Float[Tensor, "spot class"],
    examples: Examples,
    unedited: Float[Tensor, "spot class"] | None = None,
) -> Scores:
    """Loss and hits per text.

    With targets the loss is −ln p(target); without, KL(unedited ‖ edited) against the unedited
    model's log-probabilities, which are then needed.
    """
    if examples.target is None and unedited is None:
        raise BadInput("without targets a loss needs the unedited model's distribution")
    if examples.target is None:
        loss = divergence(unedited, log_probabilities)
        goal = unedited.argmax(-1)
    else:
        loss = -log_probabilities.gather(-1, examples.target[:, None])[:, 0]
        goal = examples.target
    right = (log_probabilities.argmax(-1) == goal).to(loss.dtype)
    spots = torch.bincount(examples.text, minlength=examples.texts)
    return Scores(
        per_text(loss, examples), per_text(right, examples), spots, metric_name(readout, examples)
    )


def per_text(values: Float[Tensor, " spot"], examples: Examples) -> Float[Tensor, " text"]:
    """The mean of spot values over each text's spots."""
    spots = torch.bincount(examples.text, minlength=examples.texts)
    return values.new_zeros(examples.texts).index_add(0, examples.text, values) / spots


def divergence(
    reference: Float[Tensor, "*rest class"], other: Float[Tensor, "*rest class"]
) -> Float[Tensor, "*rest"]:
    """KL(reference ‖ other) in nats from log-probabilities; 0 when equal."""
    return torch.where(reference.isneginf(), 0.0, reference.exp() * (reference - other)).sum(-1)
