"""Statistics of all heads of long texts: seconds and memory against the number of tokens.

Two layers of GPT-2 (causal) and of BERT (bidirectional), heads of width 64, seeded random weights,
positions as many as needed. Each length runs in turn with plain SDPA, each in its own process.
"""

import math
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import numpy as np

from attnprobe import capture
from benchmarks import geometries
from benchmarks.capture import watched
from benchmarks.turns import MIB, Noted, Run, Tally, started, tallies

HELP = "4,096 to 32,768 tokens: time with its slope, and memory"
KINDS = ("gpt2", "bert")
ROUNDS = {4096: 3}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 8192, 16384, 32768])
    parser.add_argument("--heads", type=int, default=4, help="heads of a layer, 64 wide each")


def measure(args: Namespace) -> dict[str, object]:
    found = Noted({"layers": 2, "heads": args.heads, "d_model": 64 * args.heads})
    for kind in args.kinds:
        _of_kind(kind, sorted(args.tokens), args.heads, found)
    return found | {f"one_head_mib_T{tokens}": 4 * tokens**2 / MIB for tokens in args.tokens}


def _of_kind(kind: str, lengths: Sequence[int], heads: int, found: Noted) -> None:
    task = (kind, lengths[-1], heads)
    builds = {"sdpa": (plain, *task), "capture": (with_statistics, *task)}
    with ExitStack() as stack:
        there, _ = started(stack, builds)
        for tokens in lengths:
            found.add(rows(kind, tokens, tallies(there, tokens, ROUNDS.get(tokens, 1))))
    if len(lengths) > 1:
        seconds = [found[f"{kind}_s_T{tokens}"] for tokens in lengths]
        found.add({f"{kind}_slope": slope(lengths, seconds)})


def rows(kind: str, tokens: int, found: Mapping[str, Tally]) -> dict[str, object]:
    """What one length took, beside the plain pass of the same round."""
    sdpa, ours = found["sdpa"], found["capture"]
    flat = {
        "s": ours.seconds,
        "cpu_s": ours.processor,
        "sdpa_s": sdpa.seconds,
        "sdpa_cpu_s": sdpa.processor,
        "ratio_to_sdpa": ours.over(sdpa),
        "cpu_ratio_to_sdpa": ours.over(sdpa, "processor"),
        "extra_mib": ours.extra_mib,
        "sdpa_extra_mib": sdpa.extra_mib,
        "rounds": len(ours.turns),
    }
    return {f"{kind}_{name}_T{tokens}": figure for name, figure in flat.items()}


def slope(lengths: Sequence[int], seconds: Sequence[float]) -> float:
    """The exponent of T in seconds ∝ T^slope, by least squares of the logarithms."""
    return float(np.polyfit([math.log(n) for n in lengths], [math.log(s) for s in seconds], 1)[0])


def plain(kind: str, positions: int, heads: int) -> Run:
    return geometries.forward(geometries.layer_pair(kind, positions, heads, "sdpa"))


def with_statistics(kind: str, positions: int, heads: int) -> Run:
    return watched(geometries.layer_pair(kind, positions, heads, capture.IMPLEMENTATION))
