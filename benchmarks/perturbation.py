"""100 permutations of heads of a 12 × 12 model: three ways to the same output distributions.

GPT-2-small's geometry with random weights, one text, the next token after it. Every way computes
vocabulary logits at that one position, in a process of its own which also makes the permutations.
The ways take turns head by head. Ratios are of the sums over all heads, because the deeper a layer
lies, the less of the model is run again. Memory is above the loaded model and the text's clean run,
from which every way takes the weights to permute.

full passes: each permutation is a forward pass of its own, with the head's weights replaced inside.
one batch: a head's permutations are one batch from the embeddings on.
ours: resumed from the cached input of the layer, its own attention not computed again.

    python -m benchmarks perturbation               a head of each of six layers: under 4 minutes
    python -m benchmarks perturbation --every-head  all 144, 14,400 full passes: over an hour

Heads of one layer cost the same, and the six layers lie as deep as all twelve do on average.
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from itertools import product

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnprobe import capture
from attnprobe.analyses.perturbation.edits import Rows, Scope, permuted
from attnprobe.analyses.perturbation.runs import CleanRun, effects
from attnprobe.analyses.sweeps import unedited
from attnprobe.capture import AttentionCall
from attnprobe.readout import Examples, ReadOut, next_token
from benchmarks.pruning import HEADS, LAYERS, after_text, one_text, small_geometry
from benchmarks.turns import Run, Tally, Turn, gathered, in_turn, largest_difference, started

HELP = "100 permutations of a head: full passes, one batch, and resumed batches"
SIX = ((0, 0), (2, 2), (4, 4), (7, 7), (9, 9), (11, 11))
"""(layer, head) of the short run: layers in pairs that add up to 11, for the ratio's sake."""

WARM = (Scope(LAYERS - 1, 0), 2)
"""(scope, permutations) that a contender runs once before its memory is read."""

Weights = Float[Tensor, "variant query key"]
Way = Callable[[CleanRun, Scope, Weights], Float[Tensor, "variant outcome"]]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--permutations", type=int, default=100)
    parser.add_argument("--every-head", action="store_true", help="all 144 instead of six")
    parser.add_argument("--against", nargs="+", choices=OTHERS, default=OTHERS)


def measure(args: Namespace) -> dict[str, object]:
    builds = {name: (contender, name, args.tokens) for name in (*args.against, "ours")}
    works = [(Scope(*place), args.permutations) for place in _places(args.every_head)]
    rounds: list[dict[str, Turn]] = []
    apart: list[float] = []
    with ExitStack() as stack:
        there, _ = started(stack, builds, warm=WARM)
        for turns in in_turn(there, works):
            rounds.append(turns)
            apart.append(largest_difference(there, "ours"))
            _tell(gathered(rounds), len(rounds), len(works))
    return {
        "heads": len(works),
        "permutations": args.permutations,
        **rows(gathered(rounds), args.tokens),
        f"largest_difference_T{args.tokens}": float(np.max(apart)),
    }


def _places(every_head: bool) -> Iterable[tuple[int, int]]:
    return product(range(LAYERS), range(HEADS)) if every_head else SIX


def _tell(found: Mapping[str, Tally], done: int, number: int) -> None:
    """What has been used so far, on the error output."""
    used = ", ".join(f"{name} {tally.total('processor'):,.1f} s" for name, tally in found.items())
    print(f"{done} of {number} heads: {used} of CPU", file=sys.stderr, flush=True)


def rows(found: Mapping[str, Tally], tokens: int) -> dict[str, float]:
    """Sums over heads, their ratios, and the most memory of any head, as flat keys."""
    flat: dict[str, float] = {}
    for name, tally in found.items():
        flat[f"{name}_s"] = tally.total()
        flat[f"{name}_cpu_s"] = tally.total("processor")
        flat[f"{name}_extra_mib"] = tally.extra_mib
        if name != "ours":
            ours = found["ours"]
            flat[f"speedup_over_{name}"] = tally.total() / ours.total()
            flat[f"cpu_speedup_over_{name}"] = tally.total("processor") / ours.total("processor")
    return {f"{key}_T{tokens}": figure for key, figure in flat.items()}


def contender(way: str, tokens: int) -> Run:
    """One way to the outputs of a scope's permutations; work is the scope and how many."""
    run = _clean(next_token(small_geometry(), where="last"), one_text(tokens))

    def outputs(work: tuple[Scope, int]) -> Float[Tensor, "variant outcome"]:
        scope, number = work
        return WAYS[way](run, scope, _permutations(run, scope, number))

    return outputs


def _clean(reader: ReadOut, examples: Examples) -> CleanRun:
    base = unedited(reader, examples)
    return CleanRun(
        reader, "random ids", examples, base.hidden, base.calls, base.log_probabilities.exp()
    )


def _permutations(run: CleanRun, scope: Scope, number: int) -> Weights:
    generator = torch.Generator().manual_seed(HEADS * scope.layer + scope.head)
    weights = run.weights(scope.layer)[scope.head].expand(number, -1, -1)
    return permuted(weights, run.valid, generator)


def _replacing(scope: Scope, new: Weights) -> capture.Watcher:
    def watch(call: AttentionCall) -> Tensor | None:
        if call.layer != scope.layer:
            return None
        context = call.context().clone()
        context[:, scope.head] = new @ call.value[:, scope.head]
        return context

    return watch


def _full_passes(run: CleanRun, scope: Scope, new: Weights) -> Float[Tensor, "variant outcome"]:
    outputs = []
    for one in new.split(1):
        with capture.watching(_replacing(scope, one)):
            outputs.append(after_text(run.loaded, run.examples.batch))
    return torch.cat(outputs).exp()


def _one_batch(run: CleanRun, scope: Scope, new: Weights) -> Float[Tensor, "variant outcome"]:
    with capture.watching(_replacing(scope, new)):
        return after_text(run.loaded, run.examples.batch.repeat(len(new))).exp()


def _ours(run: CleanRun, scope: Scope, new: Weights) -> Float[Tensor, "variant outcome"]:
    def rule_for(part: slice) -> Callable[[Rows], Tensor]:
        return lambda rows: new[part, None]

    return effects(run, scope, rule_for, len(new)).outcome[:, 0]


WAYS: dict[str, Way] = {"full_passes": _full_passes, "one_batch": _one_batch, "ours": _ours}
OTHERS = ("full_passes", "one_batch")
