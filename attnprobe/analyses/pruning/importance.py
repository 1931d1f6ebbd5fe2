"""Importance of heads by the gradient of their gates (Michel, Levy & Neubig 2019, eq. 2).

The gate ξ of a head multiplies its context. One forward and one backward give ∂L/∂ξ for every
head, text and position at once, by `torch.autograd.grad`: no gradient is accumulated anywhere, so
neither the order nor the batching of the texts can enter the result.
"""

from collections.abc import Sequence

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from attnprobe import capture
from attnprobe.analyses import sweeps
from attnprobe.analyses.frames import by_head
from attnprobe.analyses.sweeps import Progress, no_progress
from attnprobe.capture import AttentionCall
from attnprobe.data import LabelledText, TextSet
from attnprobe.readout import Examples, ReadOut, per_text

OWN_CHOICE = "−ln p(the unedited model's own choice)"
TARGET = "−ln p(target)"


def loss_name(readout: ReadOut, texts: TextSet | Sequence[LabelledText]) -> str:
    """The loss whose gradient importance takes.

    Without targets it is that of the model's own choice: KL to the unedited model is at its
    minimum where the gates are 1, so its gradient is 0 for every head.
    """
    items = texts.texts if isinstance(texts, TextSet) else texts
    return OWN_CHOICE if readout.prepare(items[:1]).target is None else TARGET


def gate_gradients(
    readout: ReadOut,
    examples: Examples,
    gates: Float[Tensor, "layer head"] | None = None,
) -> Float[Tensor, "layer head text query"]:
    """∂L(x)/∂ξ of every head, split by the position whose context the gate multiplies.

    L(x) is the mean loss over the spots of text x. `gates` are the values at which the gradient is
    taken (1 everywhere unless given). Summed over positions this is the gradient of the head's
    gate. A text that is read in several runs (masked one token at a time) has their sum.
    """
    loaded = readout.loaded
    rows, width = examples.batch.ids.shape
    shape = (loaded.n_layers, loaded.n_heads, rows, width)
    at = torch.ones(shape[:2]) if gates is None else gates
    at = at.to(loaded.device, loaded.dtype)[:, :, None, None].expand(shape).clone()
    factors = at.requires_grad_()

    def gated(call: AttentionCall) -> Tensor:
        return call.context() * factors[call.layer].transpose(0, 1)[..., None]

    with torch.enable_grad(), capture.watching(gated):
        loss = per_text(_losses(readout, examples), examples).sum()
        (gradient,) = torch.autograd.grad(loss, factors)
    summed = gradient.new_zeros(*shape[:2], examples.texts, width)
    return summed.index_add(2, examples.text_of_row, gradient)


def _losses(readout: ReadOut, examples: Examples) -> Float[Tensor, " spot"]:
    log_probabilities = readout.log_probabilities(examples)
    target = log_probabilities.argmax(-1) if examples.target is None else examples.target
    return -log_probabilities.gather(-1, target[:, None])[:, 0]


def per_example(
    gradients: Float[Tensor, "layer head text query"],
) -> Float[Tensor, "layer head text"]:
    """|∂L(x)/∂ξ| for each text: the absolute value is taken per text, then averaged over texts."""
    return gradients.sum(-1).abs()


def per_token(
    gradients: Float[Tensor, "layer head text query"],
) -> Float[Tensor, "layer head text"]:
    """Σ over positions of |context · ∂L/∂context|: the quantity in the authors' published code.

    It is at least `per_example`, by the triangle inequality.
    """
    return gradients.abs().sum(-1)


def l2_per_layer(values: Float[Tensor, "layer head"]) -> Float[Tensor, "layer head"]:
    """Each layer divided by its ℓ2 norm; a layer of zeros stays zero.

    After this, heads of different layers can be ranked together only in the sense that every layer
    counts the same: what one layer matters more than another is gone.
    """
    norm = values.norm(dim=-1, keepdim=True)
    return values / torch.where(norm == 0, 1.0, norm)


def importance(
    readout: ReadOut,
    texts: TextSet | Sequence[LabelledText],
    *,
    gates: Float[Tensor, "layer head"] | None = None,
    draws: int = 1000,
    seed: int = 0,
    progress: Progress = no_progress,
) -> pd.DataFrame:
    """One row per head: `importance` = E_x |∂L(x)/∂ξ| in nats, with its other definitions.

    `importance_low` and `importance_high` are a 95 % bootstrap interval over texts,
    `importance_l2` is normalised per layer, `per_token` sums absolute values per position (the
    authors' code) over the number of texts, `per_token_l2` likewise normalised; `texts` counts
    texts. `seed` draws the bootstrap.
    """
    examples, tokens = measured(readout, texts, gates=gates, progress=progress)
    mean, mean_tokens = examples.mean(-1), tokens.mean(-1)
    low, high = _interval(examples, draws, seed)
    columns = {
        "importance": mean,
        "importance_low": low,
        "importance_high": high,
        "importance_l2": l2_per_layer(mean),
        "per_token": mean_tokens,
        "per_token_l2": l2_per_layer(mean_tokens),
    }
    return by_head(columns).assign(texts=examples.shape[-1])


def measured(
    readout: ReadOut,
    texts: TextSet | Sequence[LabelledText],
    *,
    gates: Float[Tensor, "layer head"] | None = None,
    progress: Progress = no_progress,
) -> tuple[Float[Tensor, "layer head text"], Float[Tensor, "layer head text"]]:
    """`per_example` and `per_token` of every text, float64, in the order of the texts."""
    batches = sweeps.batches(readout, texts)
    numbers, examples, tokens = [], [], []
    for done, (group, batch) in enumerate(batches, 1):
        gradients = gate_gradients(readout, batch, gates).double()
        numbers += group
        examples.append(per_example(gradients))
        tokens.append(per_token(gradients))
        progress(done, len(batches))
    order = torch.argsort(torch.tensor(numbers, device=gradients.device))
    return torch.cat(examples, -1)[..., order], torch.cat(tokens, -1)[..., order]


def _interval(
    values: Float[Tensor, "layer head text"], draws: int, seed: int
) -> tuple[Float[Tensor, "layer head"], Float[Tensor, "layer head"]]:
    weights = resampled(values.shape[-1], draws, seed).to(values)
    means = values @ weights.T
    low, high = means.quantile(torch.tensor([0.025, 0.975]).to(values), dim=-1)
    return low, high


def resampled(texts: int, draws: int, seed: int) -> Float[Tensor, "draw text"]:
    """Bootstrap weights: how often each text is drawn, over the number of texts. Rows sum to 1."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(texts, (draws, texts), generator=generator)
    counts = torch.zeros(draws, texts, dtype=torch.float64)
    return counts.scatter_add(1, drawn, torch.ones_like(counts)) / texts
