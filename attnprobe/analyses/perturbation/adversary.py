"""Other weights with the same output: a demonstration that weights are not identified.

A head's weights on T keys are many numbers and the output allows for changes in most directions,
so weights that look nothing like the model's and leave its decision alone nearly always exist, for
heads that matter as well as for heads that do not. What is found here says that the output does
not determine the weights. It is no score of a head, and no head should be ranked by it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnprobe import capture
from attnprobe.analyses.perturbation.distances import attainable_jsd, jsd, tvd
from attnprobe.analyses.perturbation.edits import Rows, Scope
from attnprobe.analyses.perturbation.runs import CleanRun, outcomes
from attnprobe.errors import BadInput

LABEL = "demonstration of non-identifiability, not a score of the head"


@dataclass(frozen=True)
class Settings:
    """How hard to search. `epsilon` is the largest TVD that counts as the same output, in the
    penalty and in the filter alike; `penalty` is λ of Jain & Wallace 2019; `init_spread` is the
    standard deviation of the logits that a restart begins with."""

    epsilon: float = 0.01
    restarts: int = 5
    steps: int = 150
    rate: float = 0.05
    penalty: float = 500.0
    init_spread: float = 3.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < 1:
            raise BadInput(f"ε is {self.epsilon:g} and must lie between 0 and 1, as TVD does")
        if min(self.restarts, self.steps) < 1:
            raise BadInput(
                f"{self.restarts} restarts of {self.steps} steps were asked for; "
                "at least 1 of each is needed"
            )

    @property
    def statement(self) -> str:
        """For captions: how hard was searched, under which constraint, with which seed."""
        return self.after(self.steps)

    def after(self, steps: int) -> str:
        """The statement of a search that has made so many steps, stopped if there are fewer."""
        asked = "" if steps == self.steps else f" (stopped, {self.steps:,} were asked for)"
        return (
            f"{self.restarts} restarts of {steps:,} steps{asked}, output TVD ≤ {self.epsilon:g} in "
            f"the search and in the filter, seed {self.seed}"
        )


@dataclass(frozen=True, eq=False)
class Adversary:
    """What the search found in `steps` steps. Mean over `influential` rows: `jsd` of the best
    feasible weights of each restart against the real ones, `bound` the largest that any weights
    can have, `rows` their number. A restart that never met the constraint has `feasible` false and
    stands for the real weights, JSD 0."""

    weights: Float[Tensor, "restart head query key"]
    jsd: Float[Tensor, " restart"]
    tvd: Float[Tensor, " restart"]
    feasible: Bool[Tensor, " restart"]
    bound: float
    rows: int
    steps: int

    @property
    def best(self) -> int:
        return int(self.jsd.argmax())

    @property
    def max_jsd(self) -> float:
        """ε-max JSD: the largest over feasible restarts, the real weights (0) among them."""
        return float(self.jsd.max())

    @property
    def feasible_share(self) -> float:
        return float(self.feasible.double().mean())


Outcome = Callable[
    [Float[Tensor, "restart head query key"]],
    tuple[Float[Tensor, "restart *spot outcome"], Float[Tensor, "*spot outcome"]],
]
"""Weights to the output distributions they lead to, and the unedited run's own."""


def search(
    real: Float[Tensor, "head query key"],
    valid: Bool[Tensor, "query key"],
    influential: Bool[Tensor, "head query"],
    outcome: Outcome,
    settings: Settings,
) -> Iterator[Adversary]:
    """Weights as far from the real ones as can be, with an output within ε of the model's.

    All restarts descend together in one batch: minimise Σ_k [−JSD_k + λ·relu(TVD_k − ε)] less the
    mean JSD between restarts (Jain & Wallace 2019, section 4.2.2), by Adam with AMSGrad over free
    logits, each restart from log-uniform plus noise. JSD is the mean over `influential` rows; only
    these are changed. The best feasible point on the way of each restart is kept.

    Yields what is found so far at the start and after every step, which is what a search of so many
    steps finds. All share one memory: read one before asking for the next.
    """
    bound = float(_mean(attainable_jsd(real, valid), influential))
    rows = int(influential.sum())
    logits = _start(real, valid, settings)
    optimiser = torch.optim.Adam([logits], lr=settings.rate, amsgrad=True)
    best = _Best(real, settings)
    for step in range(settings.steps + 1):
        with torch.enable_grad():
            weights = _weights(logits, real, valid, influential)
            outputs, clean = outcome(weights)
            distance = tvd(outputs, clean).reshape(len(outputs), -1).mean(-1)
            divergence = _mean_jsd(weights, real, influential)
            best.offer(weights.detach(), divergence.detach(), distance.detach())
        yield Adversary(best.weights, best.jsd, best.tvd, best.found, bound, rows, step)
        if step == settings.steps:
            return
        with torch.enable_grad():
            spread = _between(weights, influential)
            excess = (distance - settings.epsilon).clamp_min(0)
            loss = (settings.penalty * excess - divergence).sum() - spread
            optimiser.zero_grad()
            (logits.grad,) = torch.autograd.grad(loss, [logits])
        optimiser.step()


def _start(real: Tensor, valid: Tensor, settings: Settings) -> Tensor:
    generator = torch.Generator().manual_seed(settings.seed)
    noise = torch.randn(settings.restarts, *real.shape, generator=generator)
    logits = (settings.init_spread * noise).to(real.device, real.dtype)
    return logits.requires_grad_(True)


def _weights(logits: Tensor, real: Tensor, valid: Tensor, influential: Tensor) -> Tensor:
    free = logits.masked_fill(~valid, -torch.inf).softmax(-1)
    return torch.where(influential[..., None], free, real)


def _mean_jsd(weights: Tensor, real: Tensor, influential: Tensor) -> Tensor:
    return _mean(jsd(weights, real.expand_as(weights)), influential)


def _mean(values: Float[Tensor, "*restart head query"], influential: Tensor) -> Tensor:
    kept = torch.where(influential, values, 0.0)
    return kept.sum((-2, -1)) / influential.sum()


def _between(weights: Tensor, influential: Tensor) -> Tensor:
    """Mean JSD over pairs of restarts, 0 when there is only one."""
    n = weights.shape[0]
    if n < 2:
        return weights.new_zeros(())
    first, second = torch.triu_indices(n, n, 1, device=weights.device)
    return _mean(jsd(weights[first], weights[second]), influential).mean()


class _Best:
    """The best feasible weights that each restart has passed through."""

    def __init__(self, real: Tensor, settings: Settings) -> None:
        n = settings.restarts
        self.epsilon = settings.epsilon
        self.weights = real.expand(n, *real.shape).clone()
        self.jsd = real.new_zeros(n)
        self.tvd = real.new_zeros(n)
        self.found = torch.zeros(n, dtype=torch.bool, device=real.device)

    def offer(self, weights: Tensor, divergence: Tensor, distance: Tensor) -> None:
        feasible = distance <= self.epsilon
        better = feasible & (divergence > self.jsd)
        self.found |= feasible
        self.weights[better] = weights[better]
        self.jsd[better] = divergence[better]
        self.tvd[better] = distance[better].to(self.tvd.dtype)


def adversarial(
    run: CleanRun,
    scope: Scope,
    settings: Settings,
    tick: Callable[[], None] | None = None,
) -> Iterator[Adversary]:
    """The search for one text and scope, heads of all layers in scope one after another.

    Rows without any influence on the read-out (most of the last layer's, where only the read-out's
    rows are used) and rows with a single key are left alone and left out of the means. Yields
    nothing when no row is left, else as `search` does. `tick` is called before every layer of
    every step and may raise to end the search.
    """
    layers = scope.layers(run.n_layers)
    heads = scope.heads(layers[0], run.loaded.n_heads)
    real = torch.cat([run.weights(layer)[heads] for layer in layers])
    moves = run.rows(scope) & (run.valid.sum(-1) >= 2)
    influential = torch.cat([influence(run)[layer, heads] for layer in layers]) & moves
    if not bool(influential.any()):
        return

    def outcome(weights: Tensor) -> tuple[Tensor, Tensor]:
        def rule(rows: Rows) -> Tensor:
            at = (rows.layer - layers[0]) * len(heads)
            return weights[:, at : at + len(heads)]

        found = outcomes(run, scope, rule, weights.shape[0], tick)
        return found[1:], found[0].detach()

    yield from search(real, run.valid, influential, outcome, settings)


def influence(run: CleanRun) -> Bool[Tensor, "layer head query"]:
    """Whether a row's context can move the read-out at all: whether the gradient there is not 0.

    One pass forward and one back, of a random mixture of log-probabilities, which no two of a
    row's effects cancel in.
    """
    added = [torch.zeros_like(call.edited, requires_grad=True) for call in run.calls]
    generator = torch.Generator().manual_seed(0)
    with torch.enable_grad(), capture.watching(lambda call: call.context() + added[call.layer]):
        logs = run.readout.log_probabilities(run.examples)
        mixture = torch.rand(logs.shape, generator=generator).to(logs) - 0.5
        gradients = torch.autograd.grad((mixture * logs).sum(), added)
    return torch.cat([(gradient != 0).any(-1) for gradient in gradients])


def adversary_row(found: Adversary | None, settings: Settings) -> dict[str, float]:
    """The numbers that a table shows of one search, `steps` those that were made; undefined (NaN)
    when nothing could move."""
    row = {
        "epsilon": settings.epsilon,
        "restarts": settings.restarts,
        "steps": settings.steps if found is None else found.steps,
        "seed": settings.seed,
    }
    if found is None:
        names = ("max_jsd", "attainable_jsd", "relative_jsd", "tvd", "feasible_share")
        return row | dict.fromkeys(names, float("nan")) | {"influential_rows": 0}
    return row | {
        "max_jsd": found.max_jsd,
        "attainable_jsd": found.bound,
        "relative_jsd": found.max_jsd / found.bound,
        "tvd": float(found.tvd[found.best]),
        "feasible_share": found.feasible_share,
        "influential_rows": found.rows,
    }
