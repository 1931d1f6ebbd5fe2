"""What each token is worth to the output: by attention, by gradient, by leaving it out.

Every importance is one number per token of a clean run, larger for more important ones.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnprobe import capture
from attnprobe.analyses.perturbation.agreement import agreement, rollout
from attnprobe.analyses.perturbation.distances import tvd
from attnprobe.analyses.perturbation.edits import Scope, weights_of
from attnprobe.analyses.perturbation.runs import CleanRun, batches
from attnprobe.capture import AttentionCall
from attnprobe.errors import BadInput
from attnprobe.readout import Examples
from attnprobe.text import Batch


def column_mean(run: CleanRun, weights: Float[Tensor, "*head query key"]) -> Tensor:
    """Mean weight on each key over the queries that may see it and have a choice."""
    counted = run.valid & (run.valid.sum(-1, keepdim=True) >= 2)
    return (weights * counted).sum(-2) / counted.sum(-2).clamp_min(1)


def received(run: CleanRun, weights: Float[Tensor, "*head query key"]) -> Tensor:
    """The read-out's row of the weights, or, where the read-out pools over rows, column means."""
    return column_mean(run, weights) if run.spots is None else run.watched_row(weights)


def attentions(run: CleanRun, scope: Scope) -> dict[str, Float[Tensor, " key"]]:
    """Attention's ways of ranking tokens: the scope's heads at the read-out row and on average,
    all heads of its layer(s), and rollout through all layers."""
    layers = scope.layers(run.n_layers)
    whole = torch.stack([run.weights(layer) for layer in layers])
    mine = whole[:, scope.heads(layers[0], run.loaded.n_heads)]
    means = torch.stack([run.weights(layer).mean(0) for layer in range(run.n_layers)])
    found = {} if run.spots is None else {"read-out row": run.watched_row(mine).mean((0, 1))}
    return found | {
        "column mean": column_mean(run, mine).mean((0, 1)),
        "mean over heads": received(run, whole).mean((0, 1)),
        "rollout": received(run, rollout(means)[-1]),
    }


def gradient_times_input(run: CleanRun, *, detached: bool) -> Float[Tensor, " token"]:
    """|Σ_d x·∂ ln p/∂x| at the input of the first layer, p the model's own decision.

    `detached` holds the weights of all heads fixed, so that no gradient passes through queries and
    keys: Jain & Wallace's choice, which changes the answer.
    """
    hidden = run.hidden[0].clone().requires_grad_(True)
    watcher = _detached if detached else None
    with torch.enable_grad(), capture.watching(watcher, start=0, hidden=hidden):
        (gradient,) = torch.autograd.grad(decision(run), [hidden])
    return (gradient * hidden.detach()).sum(-1)[0].abs()


def _detached(call: AttentionCall) -> Tensor:
    heads = range(call.query.shape[1])
    return weights_of(call, heads).detach().to(call.value.dtype) @ call.value


def decision(run: CleanRun, times: int = 1) -> Tensor:
    """Σ ln p of what the unedited model decides at its spots, under the watchers in force."""
    chosen = run.outcome.argmax(-1, keepdim=True).repeat(times, 1)
    return run.readout.log_probabilities(run.examples.repeat(times)).gather(-1, chosen).sum()


def leave_one_out(
    run: CleanRun, *, deleted: bool, tick: Callable[[], None] | None = None
) -> Float[Tensor, " token"]:
    """TVD of the output when one content token is hidden; undefined (NaN) for other tokens.

    Hidden by the token of `stand_in`, so that positions stay, or `deleted`, so that all later
    tokens move up one position.
    """
    effect = torch.full((run.length,), torch.nan, dtype=run.outcome.dtype, device=run.ids.device)
    tokens = run.content.nonzero()[:, 0]
    if deleted and len(tokens) < 2:
        return effect
    for part in batches(len(tokens), run.length):
        examples = _without(run, tokens[part], deleted)
        with torch.no_grad(), capture.watching(tick=tick):
            found = run.readout.distribution(examples).unflatten(0, (len(tokens[part]), -1))
        effect[tokens[part]] = tvd(found, run.outcome).mean(-1)
    return effect


def stand_in(run: CleanRun) -> tuple[str, int]:
    """The token that hides another: the tokenizer's mask, pad, unknown or end token, the first
    that it has."""
    tokenizer = run.loaded.reader.tokenizer
    for role in ("mask", "pad", "unk", "eos"):
        index = getattr(tokenizer, f"{role}_token_id", None)
        if index is not None:
            return tokenizer.convert_ids_to_tokens(index), index
    raise BadInput(
        f"the tokenizer of {run.loaded.name} has no mask, pad, unknown or end token to hide a "
        "token with; use deletion"
    )


def _without(run: CleanRun, tokens: Int[Tensor, " variant"], deleted: bool) -> Examples:
    n = len(tokens)
    examples = run.examples.repeat(n)
    if not deleted:
        ids = examples.batch.ids.clone()
        ids[torch.arange(n, device=ids.device), tokens] = stand_in(run)[1]
        return replace(examples, batch=Batch(ids, examples.batch.mask))
    kept = torch.arange(run.length, device=tokens.device) != tokens[:, None]
    ids = examples.batch.ids[kept].reshape(n, -1)
    moved = tokens[examples.row] <= examples.column
    column = (examples.column - moved.long()).clamp_min(0)
    return replace(
        examples, batch=Batch(ids, torch.ones_like(ids, dtype=torch.bool)), column=column
    )


GRADIENT_DETACHED = "gradient × input, attention detached"
GRADIENT = "gradient × input"
HIDDEN = "leave one out, token hidden"
DELETED = "leave one out, token deleted"

IMPORTANCES: Mapping[str, Callable[[CleanRun], Float[Tensor, " token"]]] = {
    GRADIENT_DETACHED: lambda run: gradient_times_input(run, detached=True),
    GRADIENT: lambda run: gradient_times_input(run, detached=False),
    HIDDEN: lambda run: leave_one_out(run, deleted=False),
    DELETED: lambda run: leave_one_out(run, deleted=True),
}


def importances(
    run: CleanRun, tick: Callable[[], None] | None = None
) -> Iterator[dict[str, Float[Tensor, " token"]]]:
    """The importances of `IMPORTANCES`, one more at a time; they belong to the text, not to a head.

    `tick` is called before every layer of every run and may raise to end it.
    """
    found = {}
    for name, importance in IMPORTANCES.items():
        with capture.watching(tick=tick):
            found = found | {name: importance(run)}
        yield found


def agreements(
    run: CleanRun,
    scope: Scope,
    others: Mapping[str, Float[Tensor, " token"]],
    *,
    specials: bool = False,
) -> pd.DataFrame:
    """One row per pair: attention against every importance, and gradient against leaving out.

    Columns: `attention` (or the gradient, for the yardstick, where `yardstick` is true),
    `importance`, and those of `agreement.Agreement`. Special tokens are left out unless `specials`:
    they take most of the weight whatever the text is. Leaving out is never defined for them.
    """
    pairs = [
        (name, values, other, others[other], False)
        for name, values in attentions(run, scope).items()
        for other in others
    ]
    pairs += [
        (first, others[first], second, others[second], True)
        for first in (GRADIENT_DETACHED, GRADIENT)
        for second in (HIDDEN, DELETED)
        if first in others and second in others
    ]
    base = run.content if not specials else torch.ones_like(run.content)
    return pd.DataFrame(
        [
            {"attention": a, "importance": b, "yardstick": own}
            | agreement(*_common(base, x, y)).row()
            for a, x, b, y, own in pairs
        ]
    )


def _common(
    base: Bool[Tensor, " token"], a: Tensor, b: Tensor
) -> tuple[Float[np.ndarray, " kept"], Float[np.ndarray, " kept"]]:
    """Both importances of the tokens in `base` at which both are defined."""
    kept = base & a.isfinite() & b.isfinite()
    return tuple(values[kept].double().cpu().numpy() for values in (a, b))
