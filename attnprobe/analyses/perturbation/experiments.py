"""The five experiments over a set of texts: small units of work, done in turn, kept as they come.

A unit is one text in one scope and gives tidy frames by name. Whoever runs them may stop and go on
later from the finished units; a long unit also gives what it has so far. Page and command line join
the same parts.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pandas as pd
import torch

from attnprobe.analyses.perturbation.adversary import (
    Adversary,
    Settings,
    adversarial,
    adversary_row,
)
from attnprobe.analyses.perturbation.edits import Scope, uniform
from attnprobe.analyses.perturbation.erasure import ORDERS, Erasing, erasure
from attnprobe.analyses.perturbation.importance import (
    IMPORTANCES,
    agreements,
    attentions,
    importances,
)
from attnprobe.analyses.perturbation.permutation import Draws, permutation_tvd, row_peak
from attnprobe.analyses.perturbation.replacement import EDITS, replacements
from attnprobe.analyses.perturbation.runs import CleanRun, clean_run, effects, outcomes, passes
from attnprobe.data import LabelledText
from attnprobe.errors import TextTooLong
from attnprobe.readout import ReadOut

Part = Mapping[str, pd.DataFrame]
Tick = Callable[[], None]
SoFar = tuple[float, Part]
"""The share of a unit that is done, and its frames as they stand; the last share is 1."""
Unit = Callable[[Tick], Iterator[SoFar]]
Report = Callable[[int | float, int, tuple[Part, ...]], None]
"""Told (done, total, parts so far) after each unit, and within long ones, where `done` is no whole
number and the last part is unfinished; may raise to end the run."""

EARLY = 2.0
"""Seconds between two looks at a unit that is under way."""


def no_tick() -> None:
    """For callers that cannot be stopped within a unit."""


def in_turn(
    units: Sequence[Unit], report: Report, tick: Tick = no_tick, kept: tuple[Part, ...] = ()
) -> tuple[Part, ...]:
    """Runs the units that `kept`, finished ones, does not hold yet, in order, and reports."""
    parts = kept
    for unit in units[len(kept) :]:
        for share, part in unit(tick):
            if share < 1:
                report(len(parts) + round(share, 2), len(units), (*parts, part))
        parts = (*parts, part)
        report(len(parts), len(units), parts)
    return parts


def joined(parts: Sequence[Part]) -> dict[str, pd.DataFrame]:
    """The parts' frames of one name as one frame."""
    names = dict.fromkeys(name for part in parts for name in part)
    found = {name: [part[name] for part in parts if len(part.get(name, ()))] for name in names}
    return {
        name: pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
        for name, frames in found.items()
    }


def clean_runs(
    readout: ReadOut, texts: Sequence[LabelledText | str], tick: Tick = no_tick
) -> list[CleanRun]:
    """Each text once through the unedited model; texts beyond the model's length are left out.

    Raises `TextTooLong` when none is left.
    """
    runs = []
    for text in texts:
        tick()
        words = text if isinstance(text, str) else text.text
        if readout.loaded.reader.count(words) <= readout.loaded.max_tokens:
            runs.append(clean_run(readout, text))
    if not runs:
        raise TextTooLong(
            f"all {len(texts)} texts are longer than the {readout.loaded.max_tokens:,} tokens that "
            f"{readout.loaded.name} reads; shorten them"
        )
    return runs


def _named(frame: pd.DataFrame, number: int, run: CleanRun, scope: Scope) -> pd.DataFrame:
    """A unit's frame with what it belongs to in front."""
    first = {
        "text": number,
        "tokens": run.length,
        "layer": pd.array([scope.layer] * len(frame), dtype="Int64"),
        "head": pd.array([scope.head] * len(frame), dtype="Int64"),
        "rows": scope.rows,
    }
    return pd.DataFrame(first, index=frame.index).join(frame)


def permutation_units(
    runs: Sequence[CleanRun], scopes: Sequence[Scope], draws: Draws
) -> list[Unit]:
    """Frames `draws` (a permutation each) and `replaced` (an edit each), text by text."""

    def unit(number: int, run: CleanRun, scope: Scope, tick: Tick) -> Iterator[SoFar]:
        drawn = permutation_tvd(run, scope, draws, number=number, tick=tick)
        drawn = drawn.assign(peak=row_peak(run, scope))
        yield (
            1.0,
            {
                "draws": _named(drawn, number, run, scope),
                "replaced": baselines(runs, number, scope, draws.seed, tick),
            },
        )

    return [partial(unit, n, run, scope) for n, run in enumerate(runs) for scope in scopes]


def baselines(
    runs: Sequence[CleanRun], number: int, scope: Scope, seed: int, tick: Tick
) -> pd.DataFrame:
    """Frame `replaced`, which every experiment carries: what plain replacements do to the text.

    A text that is alone takes mean and frozen weights from bundled texts (`CleanRun.strangers`).
    """
    run = runs[number]
    others = [other for other in runs if other is not run] or run.strangers
    edited = replacements(run, scope, others, seed=seed, tick=tick)
    return _named(edited, number, run, scope)


def adversary_units(runs: Sequence[CleanRun], scope: Scope, settings: Settings) -> list[Unit]:
    """Frames `adversaries` (a text each), `weights` and `outputs` of the best, if there is one.

    A search under way gives what it has found so far, every `EARLY` seconds.
    """

    def unit(number: int, run: CleanRun, tick: Tick) -> Iterator[SoFar]:
        own = replace(settings, seed=settings.seed + number)
        replaced = baselines(runs, number, scope, settings.seed, tick)
        told, found = time.monotonic(), None
        for found in adversarial(run, scope, own, tick):
            if found.steps < own.steps and time.monotonic() - told >= EARLY:
                yield found.steps / own.steps, frames_of(number, run, own, found, replaced)
                told = time.monotonic()
        yield 1.0, frames_of(number, run, own, found, replaced)

    def frames_of(
        number: int, run: CleanRun, own: Settings, found: Adversary | None, replaced: pd.DataFrame
    ) -> Part:
        frames = {"adversaries": pd.DataFrame([adversary_row(found, own)])}
        if found is not None:
            frames |= {
                "weights": adversarial_weights(run, scope, found),
                "outputs": adversarial_outputs(run, scope, found),
            }
        named = {name: _named(frame, number, run, scope) for name, frame in frames.items()}
        return named | {"replaced": replaced}

    return [partial(unit, n, run) for n, run in enumerate(runs)]


def adversarial_weights(run: CleanRun, scope: Scope, found: Adversary) -> pd.DataFrame:
    """`query`, `key`, their tokens, and the weight `real` and `adversarial`, mean over the heads
    in scope, of every row that may be edited and every key that it sees."""
    layers = scope.layers(run.n_layers)
    heads = scope.heads(layers[0], run.loaded.n_heads)
    real = torch.cat([run.weights(layer)[heads] for layer in layers]).mean(0)
    query, key = (run.valid & run.rows(scope)[:, None]).nonzero(as_tuple=True)
    return pd.DataFrame(
        {
            "query": query.cpu().numpy(),
            "key": key.cpu().numpy(),
            "query_token": [run.tokens[i] for i in query.tolist()],
            "key_token": [run.tokens[i] for i in key.tolist()],
            "real": real[query, key].cpu().numpy(),
            "adversarial": found.weights[found.best].mean(0)[query, key].cpu().numpy(),
        }
    )


def adversarial_outputs(
    run: CleanRun, scope: Scope, found: Adversary, most: int = 8
) -> pd.DataFrame:
    """`outcome` and its probability `real` and `adversarial`, the most probable ones, mean over
    the text's spots."""
    layers = scope.layers(run.n_layers)
    width = len(scope.heads(layers[0], run.loaded.n_heads))

    def rule(rows):
        at = (rows.layer - layers[0]) * width
        return found.weights[[found.best], at : at + width]

    with torch.no_grad():
        real, changed = outcomes(run, scope, rule, 1).mean(1)
    top = torch.maximum(real, changed).topk(min(most, len(real))).indices
    return pd.DataFrame(
        {
            "outcome": [outcome_name(run, i) for i in top.tolist()],
            "real": real[top].cpu().numpy(),
            "adversarial": changed[top].cpu().numpy(),
        }
    )


def outcome_name(run: CleanRun, index: int) -> str:
    """A class by its name, a vocabulary entry as a person reads it."""
    if run.readout.classes is not None:
        return run.readout.classes[index]
    return run.loaded.reader.label(index)


def agreement_units(
    runs: Sequence[CleanRun], scope: Scope, *, specials: bool = False
) -> list[Unit]:
    """Frames `agreement` (every pair of importances of each text) and `importances` themselves.

    Under way it gives the pairs of the importances that are known.
    """

    def unit(number: int, run: CleanRun, tick: Tick) -> Iterator[SoFar]:
        replaced = baselines(runs, number, scope, 0, tick)
        for others in importances(run, tick):
            frames = {
                "agreement": agreements(run, scope, others, specials=specials),
                "importances": token_frame(run, attentions(run, scope) | others),
            }
            named = {name: _named(frame, number, run, scope) for name, frame in frames.items()}
            yield len(others) / len(IMPORTANCES), named | {"replaced": replaced}

    return [partial(unit, n, run) for n, run in enumerate(runs)]


def token_frame(run: CleanRun, values: Mapping[str, torch.Tensor]) -> pd.DataFrame:
    """`position`, `token`, `special` and a column for each importance."""
    columns = {name: value.detach().cpu().numpy() for name, value in values.items()}
    first = {
        "position": range(run.length),
        "token": run.tokens,
        "special": (~run.content).cpu().numpy(),
    }
    return pd.DataFrame(first | columns)


def erasure_units(runs: Sequence[CleanRun], scope: Scope, erasing: Erasing) -> list[Unit]:
    """Frame `erasure`: every order and number of erased keys of each text, order by order."""

    def unit(number: int, run: CleanRun, tick: Tick) -> Iterator[SoFar]:
        replaced = baselines(runs, number, scope, erasing.seed, tick)
        for share, frame in erasure(run, scope, erasing, number=number, tick=tick):
            yield share, {"erasure": _named(frame, number, run, scope), "replaced": replaced}

    return [partial(unit, n, run) for n, run in enumerate(runs)]


@dataclass(frozen=True)
class Cost:
    """What an experiment will take: runs of a text, and tokens × layers in them."""

    runs: int
    token_layers: int

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.runs + other.runs, self.token_layers + other.token_layers)

    def statement(self, seconds_each: float) -> str:
        """The sentence beside the start button, at a measured pace (see `pace`)."""
        seconds = self.token_layers * seconds_each
        time_needed = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
        return f"About {self.runs:,} runs of a text from the edited layer on, about {time_needed}."


def _cost(lengths: Sequence[int], layers: int, runs: Callable[[int], int]) -> Cost:
    """Of texts of these lengths in tokens, each run `runs(length)` times through so many layers."""
    counts = [runs(n) for n in lengths]
    tokens = sum(count * n for count, n in zip(counts, lengths, strict=True))
    return Cost(sum(counts), tokens * layers)


def permutation_cost(
    lengths: Sequence[int], n_layers: int, scopes: Sequence[Scope], draws: Draws
) -> Cost:
    """Of `permutation_units` for texts of these lengths in tokens."""
    variants = draws.number + len(EDITS)
    costs = [
        _cost(lengths, n_layers - s.first_layer, lambda n: passes(variants, n)) for s in scopes
    ]
    return sum(costs, Cost(0, 0))


def adversary_cost(lengths: Sequence[int], n_layers: int, scope: Scope, settings: Settings) -> Cost:
    """Of `adversary_units`: a step costs about three runs, one forward and the way back."""
    each = 3 * settings.steps * (settings.restarts + 1)
    return _cost(lengths, n_layers - scope.first_layer, lambda n: each)


def agreement_cost(lengths: Sequence[int], n_layers: int) -> Cost:
    """Of `agreement_units`: each token left out twice, two gradients, about three runs each, and
    the plain replacements. Leaving out needs no clean run beside it."""
    return _cost(lengths, n_layers, lambda n: 2 * n + 6 + passes(len(EDITS), n))


def erasure_cost(lengths: Sequence[int], n_layers: int, scope: Scope, erasing: Erasing) -> Cost:
    """Of `erasure_units`: every order at every number of keys."""
    orders = len(ORDERS) - 1 + erasing.random_orders
    return _cost(lengths, n_layers - scope.first_layer, lambda n: passes(orders * n, n))


def pace(run: CleanRun) -> float:
    """Seconds per token and layer on this machine, measured on one batch of edited runs."""
    variants = max(1, 400 // run.length)
    start = time.perf_counter()
    effects(run, Scope(), lambda part: uniform, variants)
    spent = time.perf_counter() - start
    return spent / (passes(variants, run.length) * run.length * run.n_layers)
