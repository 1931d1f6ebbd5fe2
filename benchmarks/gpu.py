"""`capture` and `pruning` on CUDA: the same geometry, the same ratios, memory of the device.

Contenders take turns in one process, because one CUDA context is enough; memory is the allocator's
peak above what the model takes.
"""

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from statistics import median

import torch

from attnprobe import capture
from attnprobe.readout import next_token
from benchmarks import geometries, pruning
from benchmarks.capture import textbook, watched
from benchmarks.turns import MIB

HELP = "capture and pruning on CUDA, where there is a GPU"
NO_GPU = 2


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 512, 1024])
    parser.add_argument("--rounds", type=int, default=9)


@torch.no_grad()
def measure(args: Namespace) -> dict[str, object]:
    if not torch.cuda.is_available():
        print("no CUDA device was found here, so nothing was measured", file=sys.stderr)
        raise SystemExit(NO_GPU)
    found: dict[str, object] = {"device": torch.cuda.get_device_name()}
    ways = _ways()
    for tokens in args.tokens:
        found |= _captured(ways, tokens, args.rounds)
    return found | _pruned(args.rounds)


def _ways() -> dict[str, Callable[[int], object]]:
    plain = geometries.model(geometries.SMALL, "sdpa").cuda()
    ours = geometries.model(geometries.SMALL, capture.IMPLEMENTATION).cuda()
    eager = geometries.model(geometries.SMALL, "eager").cuda()

    def textbook_statistics(tokens: int) -> list:
        weights = geometries.forward(eager, output_attentions=True)(tokens).attentions
        return [textbook(layer) for layer in weights]

    return {
        "sdpa": geometries.forward(plain),
        "capture": watched(ours),
        "eager": textbook_statistics,
    }


def _captured(
    ways: dict[str, Callable[[int], object]], tokens: int, rounds: int
) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    memory = {}
    for turn in range(rounds + 2):
        for name, way in ways.items():
            spent, memory[name] = _timed(way, tokens)
            if turn >= 2:
                seconds[name].append(spent)
    medians = {name: median(some) for name, some in seconds.items()}
    return {
        **{f"{name}_s_T{tokens}": value for name, value in medians.items()},
        f"ratio_to_sdpa_T{tokens}": medians["capture"] / medians["sdpa"],
        f"speedup_over_eager_T{tokens}": medians["eager"] / medians["capture"],
        f"extra_mib_T{tokens}": memory["capture"],
        f"sdpa_extra_mib_T{tokens}": memory["sdpa"],
        f"eager_extra_mib_T{tokens}": memory["eager"],
    }


def _timed(way: Callable[[int], object], tokens: int) -> tuple[float, float]:
    """Seconds, and MiB of the device's peak above what was allocated before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before, begin = torch.cuda.memory_allocated(), time.perf_counter()
    way(tokens)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    return seconds, (torch.cuda.max_memory_allocated() - before) / MIB


def _pruned(rounds: int) -> dict[str, float]:
    loaded = pruning.small_geometry()
    loaded.model.cuda()
    read = next_token(loaded, where="last")
    found = {}
    for tokens in (16, 64, 256):
        examples = pruning.one_text(tokens, loaded.device)
        seconds: dict[str, list[float]] = {name: [] for name in pruning.WAYS}
        for _ in range(min(rounds, 3)):
            for name, way in pruning.WAYS.items():
                spent, _ = _timed(lambda _, way=way, e=examples: way(read, e, range(12)), tokens)
                seconds[name].append(spent)
        medians = {name: median(some) for name, some in seconds.items()}
        for name in ("masked", "batch"):
            ratio = medians[name] / medians["resumed"]
            found[f"pruning_speedup_over_{name}_T{tokens}"] = ratio
    return found
