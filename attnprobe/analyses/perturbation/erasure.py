"""Keys erased one after another until the decision flips (Serrano & Smith 2019).

Erased means: no weight in the scope's rows, the rest of the row renormalised, everything above
computed again. The sooner an order flips the decision, the better it finds what the decision
hangs on. One key always stays.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnprobe import capture
from attnprobe.analyses.perturbation.edits import Rule, Scope, erased
from attnprobe.analyses.perturbation.importance import decision, received
from attnprobe.analyses.perturbation.runs import CleanRun, Effects, effects_in_turn, joined
from attnprobe.capture import AttentionCall
from attnprobe.errors import BadInput

ORDERS = ("attention", "norm", "gradient", "chance")


@dataclass(frozen=True)
class Erasing:
    """How many random orders, and whether special tokens are erased too."""

    random_orders: int = 20
    specials: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.random_orders < 1:
            raise BadInput(f"{self.random_orders} random orders came; at least 1 is needed")


def value_norms(run: CleanRun, layer: int) -> Float[Tensor, "head key"]:
    """‖f(x)‖: the length of each key's value vector as the head's part of W_O maps it, without
    the output bias (Kobayashi et al. 2020, eq. 5). Zero for a key that the head reads nothing from.
    """
    call = run.calls[layer]
    _, heads, length, d_head = call.value.shape
    alone = call.value.new_zeros(heads, length, heads, d_head)
    index = torch.arange(heads, device=alone.device)
    alone[index, :, index] = call.value[0]
    project = run.loaded.family.output_projection(run.loaded.model, layer)
    with torch.no_grad():
        nothing = project(alone.new_zeros(1, heads * d_head))
        mapped = project(alone.flatten(2)) - nothing
    return mapped.to(run.outcome.dtype).norm(dim=-1)


def scores(run: CleanRun, scope: Scope) -> dict[str, Float[Tensor, " key"]]:
    """What decides the orders: attention α, norm ‖αf(x)‖ and gradient ∂ ln p/∂α of the decision
    (summed over the scope's rows and heads), each averaged over the scope's heads."""
    layers = scope.layers(run.n_layers)
    heads = scope.heads(layers[0], run.loaded.n_heads)
    alpha = torch.stack([received(run, run.weights(layer)[heads]) for layer in layers])
    norms = torch.stack([value_norms(run, layer)[heads] for layer in layers])
    return {
        "attention": alpha.mean((0, 1)),
        "norm": (alpha * norms).mean((0, 1)),
        "gradient": weight_gradient(run, scope),
    }


def weight_gradient(run: CleanRun, scope: Scope) -> Float[Tensor, " key"]:
    """∂ ln p/∂α of the model's decision, summed over the rows and heads in scope."""
    layers = scope.layers(run.n_layers)
    heads = scope.heads(layers[0], run.loaded.n_heads)
    shape = (len(heads), run.length, run.length)
    zero = run.outcome.new_zeros(shape)
    added = {layer: zero.clone().requires_grad_(True) for layer in layers}

    def watch(call: AttentionCall) -> Tensor | None:
        if call.layer not in added:
            return None
        context = call.context().clone()
        change = added[call.layer].to(call.value.dtype) @ call.value[:, heads]
        context[:, heads] = context[:, heads] + change
        return context

    with torch.enable_grad(), capture.watching(watch):
        gradients = torch.autograd.grad(decision(run), list(added.values()))
    counted = run.valid & run.rows(scope)[:, None]
    return torch.stack([(g * counted).sum((0, 1)) for g in gradients]).sum(0)


def erasure(
    run: CleanRun,
    scope: Scope,
    erasing: Erasing,
    *,
    number: int = 0,
    tick: Callable[[], None] | None = None,
) -> Iterator[tuple[float, pd.DataFrame]]:
    """One row per order and number of erased keys: `order`, `draw` (of the random ones), `removed`,
    `share` of the erasable keys, `tvd`, `flips`.

    Yields the share of the work that is done and the rows of all orders that are finished, each
    time that one is; the last are all. Empty when there is at most one key to erase. `number` is
    the text's in its set.
    """
    keys = (run.content if not erasing.specials else torch.ones_like(run.content)).nonzero()[:, 0]
    most = len(keys) - 1
    if most < 1:
        yield 1.0, pd.DataFrame(columns=["order", "draw", "removed", "share", "tvd", "flips"])
        return
    orders = _orders(run, scope, keys, erasing, number)
    rank = torch.stack([_rank(run, order) for _, _, order in orders]).repeat_interleave(most, 0)
    count = torch.arange(1, most + 1, device=rank.device).repeat(len(orders))

    def rule_for(part: slice) -> Rule:
        return lambda rows: erased(rows, rank[part], count[part])

    found: list[Effects] = []
    finished = 0
    for part, effect in effects_in_turn(run, scope, rule_for, len(count), tick):
        found.append(effect)
        if part.stop // most > finished:
            finished = part.stop // most
            yield finished / len(orders), _frame(orders[:finished], most, joined(found))


def _frame(orders: Sequence[tuple[str, int, Tensor]], most: int, found: Effects) -> pd.DataFrame:
    """The rows of these orders; effects of the next one are left out."""
    rows = len(orders) * most
    removed = np.tile(np.arange(1, most + 1), len(orders))
    return pd.DataFrame(
        {
            "order": np.repeat([name for name, _, _ in orders], most),
            "draw": np.repeat([draw for _, draw, _ in orders], most),
            "removed": removed,
            "share": removed / (most + 1),
            "tvd": found.tvd[:rows].cpu().numpy(),
            "flips": found.flips[:rows].cpu().numpy(),
        }
    )


def _orders(
    run: CleanRun, scope: Scope, keys: Int[Tensor, " key"], erasing: Erasing, number: int
) -> list[tuple[str, int, Int[Tensor, " key"]]]:
    """Named orders of the erasable keys, first to be erased first; equal scores in text order."""
    named = [
        (name, 0, keys[values[keys].argsort(descending=True, stable=True)])
        for name, values in scores(run, scope).items()
    ]
    random = np.random.default_rng([abs(erasing.seed), number])
    chance = [
        ("chance", draw, keys[torch.from_numpy(random.permutation(len(keys))).to(keys.device)])
        for draw in range(erasing.random_orders)
    ]
    return named + chance


def _rank(run: CleanRun, order: Int[Tensor, " erasable"]) -> Int[Tensor, " key"]:
    rank = torch.full((run.length,), run.length, device=order.device)
    rank[order] = torch.arange(len(order), device=order.device)
    return rank


def flip_points(frame: pd.DataFrame) -> pd.DataFrame:
    """The share of keys erased when the decision first flips, per text, order and draw.

    `share` is undefined (NaN) where it never does, and `flipped` says so.
    """
    keys = [name for name in ("text", "layer", "head", "order", "draw") if name in frame]
    flipped = frame[frame["flips"] > 0].groupby(keys, dropna=False, sort=False)["share"].min()
    every = frame.groupby(keys, dropna=False, sort=False).size()
    share = flipped.reindex(every.index)
    return share.to_frame("share").assign(flipped=share.notna()).reset_index()


def movement(frame: pd.DataFrame, steps: int = 20) -> pd.DataFrame:
    """Mean TVD over texts (and random orders) against the share erased: `order`, `share`, `tvd`.

    Every order starts at nothing erased and TVD 0. The shares are the measured ones where all texts
    have as many keys to erase; else the nearest of `steps` equal steps, but neither none nor all.
    """
    if frame.groupby("text")["share"].min().nunique() > 1:
        nearest = (frame["share"] * steps).round().clip(1, steps - 1) / steps
        frame = frame.assign(share=nearest)
    start = pd.DataFrame({"order": frame["order"].unique(), "share": 0.0, "tvd": 0.0})
    means = frame.groupby(["order", "share"])["tvd"].mean().reset_index()
    place = {order: i for i, order in enumerate(start["order"])}
    return pd.concat([start, means], ignore_index=True).sort_values(
        ["order", "share"], key=lambda s: s.map(place) if s.name == "order" else s,
        ignore_index=True,
    )  # fmt: skip


def survival(frame: pd.DataFrame, points: int = 20) -> pd.DataFrame:
    """The erasure curve: `order`, `share` erased, and the share of texts (and random orders) whose
    decision has flipped by then."""
    first = flip_points(frame)
    grid = np.linspace(0, 1, points + 1)
    rows = [
        {"order": order, "share": share, "flipped": float((group["share"] <= share).mean())}
        for order, group in first.groupby("order", sort=False)
        for share in grid
    ]
    return pd.DataFrame(rows, columns=["order", "share", "flipped"])
