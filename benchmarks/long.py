"""Statistics of all heads of long texts: seconds and memory against the number of tokens.

Two layers of GPT-2 (causal) and of BERT (bidirectional), heads of width 64, seeded random weights,
positions as many as needed. Each length runs in turn with plain SDPA, each in its own process.
"""

import math
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from attnprobe import capture
from benchmarks import geometries
from benchmarks.capture import watched
from benchmarks.turns import MIB, Run, started, tallies

HELP = "4,096 to 32,768 tokens: time with its slope, and memory"
KINDS = ("gpt2", "bert")
ROUNDS = {4096: 3, 8192: 3}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 8192, 16384, 32768])
    parser.add_argument("--heads", type=int, default=4, help="heads of a layer, 64 wide each")


def measure(args: Namespace) -> dict[str, object]:
    found: dict[str, object] = {"layers": 2, "heads": args.heads, "d_model": 64 * args.heads}
    for kind in args.kinds:
        found |= _of_kind(kind, sorted(args.tokens), args.heads)
    return found | {f"one_head_mib_T{tokens}": 4 * tokens**2 / MIB for tokens in args.tokens}


def _of_kind(kind: str, lengths: Sequence[int], heads: int) -> dict[str, object]:
    task = (kind, lengths[-1], heads)
    builds = {"sdpa": (plain, *task), "capture": (with_statistics, *task)}
    found: dict[str, object] = {}
    with ExitStack() as stack:
        there, _ = started(stack, builds)
        for tokens in lengths:
            both = tallies(there, tokens, ROUNDS.get(tokens, 1))
            found[f"{kind}_s_T{tokens}"] = both["capture"].seconds
            found[f"{kind}_sdpa_s_T{tokens}"] = both["sdpa"].seconds
            found[f"{kind}_ratio_to_sdpa_T{tokens}"] = both["capture"].over(both["sdpa"])
            found[f"{kind}_extra_mib_T{tokens}"] = both["capture"].extra_mib
            found[f"{kind}_sdpa_extra_mib_T{tokens}"] = both["sdpa"].extra_mib
    if len(lengths) > 1:
        found[f"{kind}_slope"] = slope(lengths, [found[f"{kind}_s_T{n}"] for n in lengths])
    return found


def slope(lengths: Sequence[int], seconds: Sequence[float]) -> float:
    """The exponent of T in seconds ∝ T^slope, by least squares of the logarithms."""
    return float(np.polyfit([math.log(n) for n in lengths], [math.log(s) for s in seconds], 1)[0])


def plain(kind: str, positions: int, heads: int) -> Run:
    return geometries.forward(geometries.layer_pair(kind, positions, heads, "sdpa"))


def with_statistics(kind: str, positions: int, heads: int) -> Run:
    return watched(geometries.layer_pair(kind, positions, heads, capture.IMPLEMENTATION))
