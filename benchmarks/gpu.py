"""`capture` and `pruning` on CUDA: the same geometry, the same keys, memory of the device.

Every contender has a process and a CUDA context of its own, and a turn ends when the device has
done its work. Memory is the peak of what PyTorch's allocator gave out, above what was allocated
with the model loaded and warm.
"""

import sys
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack

import torch

from benchmarks import capture, pruning
from benchmarks.geometries import SMALL, Geometry
from benchmarks.turns import GAUGES, started, tallies

HELP = "capture and pruning on CUDA, where there is a GPU"
NO_GPU = 2
DEVICE = "cuda"
CONTENDERS = ("sdpa", "capture", "eager")
SWEEP_TOKENS = (16, 64, 256)
SWEEP_ROUNDS = 3


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 512, 1024])
    parser.add_argument("--rounds", type=int, default=9)


def measure(args: Namespace) -> dict[str, object]:
    if not torch.cuda.is_available():
        print("no CUDA device was found here, so nothing was measured", file=sys.stderr)
        raise SystemExit(NO_GPU)
    found: dict[str, object] = {"device": torch.cuda.get_device_name()}
    return found | _captured(args.tokens, args.rounds) | _pruned(min(args.rounds, SWEEP_ROUNDS))


def _captured(lengths: list[int], rounds: int) -> dict[str, object]:
    geometry = Geometry(SMALL, longest=max(lengths), device=DEVICE)
    builds = {name: (capture.BUILDS[name], geometry) for name in CONTENDERS}
    found: dict[str, object] = {}
    with ExitStack() as stack:
        there, _ = started(stack, builds, gauge=GAUGES[DEVICE])
        for tokens in lengths:
            found |= capture.rows(tallies(there, tokens, rounds), "", tokens)
    return found


def _pruned(rounds: int) -> dict[str, object]:
    builds = {name: (pruning.contender, name, DEVICE) for name in pruning.SWEEPS}
    found: dict[str, object] = {}
    with ExitStack() as stack:
        there, _ = started(stack, builds, warm=pruning.WARM, gauge=GAUGES[DEVICE])
        for tokens in SWEEP_TOKENS:
            work = (tokens, range(pruning.LAYERS))
            found |= pruning.rows(tallies(there, work, rounds), tokens)
    return {f"pruning_{key}": figure for key, figure in found.items()}
