"""100 permutations of heads of a 12 × 12 model: three ways to the same output distributions.

GPT-2-small's geometry with random weights, one text, the next token after it. Heads of one layer
cost the same, so one head a layer stands for its twelve. The ways take turns layer by layer; ratios
are of the sums over layers.

full passes: each permutation is a forward pass of its own, with the head's weights replaced inside.
one batch: a layer's permutations are one batch from the embeddings on.
ours: resumed from the cached input of the layer, its own attention not computed again.
"""

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from attnprobe import capture
from attnprobe.analyses.perturbation.edits import Rows, Scope, permuted
from attnprobe.analyses.perturbation.runs import CleanRun, effects
from attnprobe.analyses.sweeps import unedited
from attnprobe.capture import AttentionCall
from attnprobe.readout import next_token
from benchmarks.pruning import LAYERS, one_text, small_geometry

HELP = "100 permutations of a head: full passes, one batch, and resumed batches"
HEAD = 5

Weights = Float[Tensor, "variant query key"]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--permutations", type=int, default=100)
    parser.add_argument(
        "--layers",
        type=int,
        nargs="+",
        default=list(range(LAYERS)),
        help="permute a head of these layers alone; pairs that add up to 11 keep the ratio fair",
    )


def measure(args: Namespace) -> dict[str, float]:
    loaded = small_geometry()
    reader = next_token(loaded, where="last")
    examples = one_text(args.tokens)
    base = unedited(reader, examples)
    run = CleanRun(
        reader, "random ids", examples, base.hidden, base.calls, base.log_probabilities.exp()
    )
    spent = dict.fromkeys(WAYS, 0.0)
    worst = 0.0
    for layer in args.layers:
        new = _permutations(run, layer, args.permutations)
        results = {}
        for name, way in WAYS.items():
            start = time.perf_counter()
            with torch.no_grad():
                results[name] = way(run, layer, new)
            spent[name] += time.perf_counter() - start
        worst = max(worst, *(_apart(results[name], results["ours"]) for name in WAYS))
    ratios = {f"ratio_{n}_T{args.tokens}": s / spent["ours"] for n, s in spent.items()}
    return {
        "layers": len(args.layers),
        "permutations": args.permutations,
        **{f"seconds_{name}_T{args.tokens}": s for name, s in spent.items()},
        **ratios,
        "max_probability_difference": worst,
    }


def _permutations(run: CleanRun, layer: int, number: int) -> Weights:
    generator = torch.Generator().manual_seed(layer)
    weights = run.weights(layer)[HEAD].expand(number, -1, -1)
    return permuted(weights, run.valid, generator)


def _replacing(layer: int, new: Weights) -> capture.Watcher:
    def watch(call: AttentionCall) -> Tensor | None:
        if call.layer != layer:
            return None
        context = call.context().clone()
        context[:, HEAD] = new @ call.value[:, HEAD]
        return context

    return watch


def _full_passes(run: CleanRun, layer: int, new: Weights) -> Float[Tensor, "variant outcome"]:
    outputs = []
    for one in new.split(1):
        with capture.watching(_replacing(layer, one)):
            outputs.append(run.readout.distribution(run.examples))
    return torch.cat(outputs)


def _one_batch(run: CleanRun, layer: int, new: Weights) -> Float[Tensor, "variant outcome"]:
    with capture.watching(_replacing(layer, new)):
        return run.readout.distribution(run.examples.repeat(len(new)))


def _ours(run: CleanRun, layer: int, new: Weights) -> Float[Tensor, "variant outcome"]:
    def rule_for(part: slice) -> Callable[[Rows], Tensor]:
        return lambda rows: new[part, None]

    return effects(run, Scope(layer, HEAD), rule_for, len(new)).outcome[:, 0]


def _apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


WAYS = {"full_passes": _full_passes, "one_batch": _one_batch, "ours": _ours}
