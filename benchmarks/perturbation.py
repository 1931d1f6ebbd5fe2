"""100 permutations of heads of a 12 × 12 model: three ways to the same output distributions.

GPT-2-small's geometry with random weights, one text, the next token after it. Every way computes
vocabulary logits at that one position. The ways take turns head by head; ratios are of the sums
over all heads.

full passes: each permutation is a forward pass of its own, with the head's weights replaced inside.
one batch: a head's permutations are one batch from the embeddings on.
ours: resumed from the cached input of the layer, its own attention not computed again.

    python -m benchmarks perturbation               a head of each of six layers: under 4 minutes
    python -m benchmarks perturbation --every-head  all 144, 14,400 full passes: over an hour

Heads of one layer cost the same, and the six layers lie as deep as all twelve do on average.
"""

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from itertools import product

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

HELP = "100 permutations of a head: full passes, one batch, and resumed batches"
SIX = ((0, 0), (2, 2), (4, 4), (7, 7), (9, 9), (11, 11))
"""(layer, head) of the short run: layers in pairs that add up to 11, for the ratio's sake."""

Weights = Float[Tensor, "variant query key"]
Way = Callable[[CleanRun, Scope, Weights], Float[Tensor, "variant outcome"]]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--permutations", type=int, default=100)
    parser.add_argument("--every-head", action="store_true", help="all 144 instead of six")
    parser.add_argument("--against", nargs="+", choices=OTHERS, default=OTHERS)


def measure(args: Namespace) -> dict[str, float]:
    reader = next_token(small_geometry(), where="last")
    run = _clean(reader, one_text(args.tokens))
    places = list(product(range(LAYERS), range(HEADS))) if args.every_head else SIX
    ways = {name: WAYS[name] for name in (*args.against, "ours")}
    wall, used = dict.fromkeys(ways, 0.0), dict.fromkeys(ways, 0.0)
    worst = 0.0
    for done, (layer, head) in enumerate(places, start=1):
        scope = Scope(layer, head)
        new = _permutations(run, scope, args.permutations)
        results = {}
        for name, way in ways.items():
            begin, processor = time.perf_counter(), time.process_time()
            with torch.no_grad():
                results[name] = way(run, scope, new)
            wall[name] += time.perf_counter() - begin
            used[name] += time.process_time() - processor
        worst = max(worst, *(_apart(results[name], results["ours"]) for name in args.against))
        told = ", ".join(f"{name} {seconds:,.1f} s" for name, seconds in used.items())
        print(f"{done} of {len(places)} heads: {told} of CPU", file=sys.stderr, flush=True)
    end = f"_T{args.tokens}"
    return {
        "heads": len(places),
        "permutations": args.permutations,
        **{f"{name}_s{end}": seconds for name, seconds in wall.items()},
        **{f"{name}_cpu_s{end}": seconds for name, seconds in used.items()},
        **{f"speedup_over_{name}{end}": wall[name] / wall["ours"] for name in args.against},
        **{f"cpu_speedup_over_{name}{end}": used[name] / used["ours"] for name in args.against},
        f"largest_difference{end}": worst,
    }


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


def _apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


WAYS: dict[str, Way] = {"full_passes": _full_passes, "one_batch": _one_batch, "ours": _ours}
OTHERS = ("full_passes", "one_batch")
