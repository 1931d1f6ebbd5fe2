"""Weights replaced by simple ones: the baselines that stand beside every perturbation.

Uniform and first-token weights and those of another text keep the head at work with weights that
know nothing of this text (as Kovaleva et al. 2019 and Hassid et al. 2022 do); zero is the head's
ablation (Michel et al. 2019).
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from attnprobe import capture
from attnprobe.analyses.perturbation import edits
from attnprobe.analyses.perturbation.edits import Rows, Rule, Scope, weights_of
from attnprobe.analyses.perturbation.runs import CleanRun, effects
from attnprobe.capture import AttentionCall
from attnprobe.text import Batch

EDITS: Mapping[str, str] = {
    "uniform": "the same weight on every valid key",
    "mean": "mean weights of other texts, position by position, renormalised",
    "zero": "no weight at all: the head's ablation",
    "first token": "all weight on the first token",
    "frozen": "the weights of another text, cut to the same length",
}


def replacements(
    run: CleanRun,
    scope: Scope,
    others: Sequence[CleanRun] = (),
    *,
    seed: int = 0,
    tick: Callable[[], None] = lambda: None,
) -> pd.DataFrame:
    """One row per edit: `edit`, `tvd`, `flips`. All run in one batch.

    `others` are clean runs of other texts: the mean is taken over them and the frozen weights are
    those of one of them, chosen by the seed among those that are long enough. Without such texts
    these edits are undefined (NaN).
    """
    rules = _rules(run, others, seed)

    def all_at_once(part: slice) -> Rule:
        chosen = list(rules.values())[part]
        return lambda rows: torch.stack([rule(rows)[i] for i, rule in enumerate(chosen)])

    found = effects(run, scope, all_at_once, len(rules), tick)
    done = pd.DataFrame(
        {
            "edit": list(rules),
            "tvd": found.tvd.cpu().numpy(),
            "flips": found.flips.cpu().numpy(),
        }
    )
    return done.set_index("edit").reindex(list(EDITS)).rename_axis("edit").reset_index()


def _rules(run: CleanRun, others: Sequence[CleanRun], seed: int) -> dict[str, Rule]:
    rules: dict[str, Rule] = {
        "uniform": edits.uniform,
        "zero": edits.ablated,
        "first token": edits.first_token,
    }
    if others:
        rules["mean"] = lambda rows: _of_heads(mean_weights(run, others, rows.layer), rows)
    frozen = donor(run, others, seed)
    if frozen is not None:
        rules["frozen"] = lambda rows: weights_of(frozen[rows.layer], rows.heads).expand_as(
            rows.weights
        )
    return rules


def _of_heads(weights: Float[Tensor, "head query key"], rows: Rows) -> Tensor:
    return weights[list(rows.heads)].expand_as(rows.weights)


def mean_weights(
    run: CleanRun, others: Sequence[CleanRun], layer: int
) -> Float[Tensor, "head query key"]:
    """Mean weights of other texts at the same query and key position, made to sum to 1.

    A position counts the texts that reach it; a row that no other text reaches is uniform.
    Positions are counted from the start, so closing special tokens of texts of other lengths do
    not meet.
    """
    n = run.length
    total = torch.zeros(run.loaded.n_heads, n, n, dtype=torch.float64, device=run.ids.device)
    count = torch.zeros(n, n, dtype=torch.float64, device=run.ids.device)
    for other in others:
        m = min(n, other.length)
        total[:, :m, :m] += other.weights(layer)[:, :m, :m].double()
        count[:m, :m] += 1
    mean = torch.where(run.valid, total / count.clamp_min(1), 0.0)
    reached = mean.sum(-1, keepdim=True)
    uniform = run.valid.double() / run.valid.sum(-1, keepdim=True)
    mean = torch.where(reached > 0, mean / reached, uniform)
    return mean.to(run.weights(layer).dtype)


def donor(run: CleanRun, others: Sequence[CleanRun], seed: int) -> tuple[AttentionCall, ...] | None:
    """What the layers attend with when another text's tokens stand in this one's places.

    Special tokens stay where they are, the content is the beginning of a text that is at least as
    long, chosen by the seed; None when there is none.
    """
    need = int(run.content.sum())
    fits = [other for other in others if int(other.content.sum()) >= need]
    if not fits:
        return None
    other = fits[int(np.random.default_rng([abs(seed), need]).integers(len(fits)))]
    ids = run.ids.clone()
    ids[run.content] = other.ids[other.content][:need]
    calls: list[AttentionCall] = []
    with torch.no_grad(), capture.watching(calls.append):
        run.loaded.hidden(Batch(ids[None], run.examples.batch.mask))
    return tuple(calls)
