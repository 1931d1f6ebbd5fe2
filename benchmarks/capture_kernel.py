"""The attention function with statistics against SDPA and the textbook, one layer at a time.

Contenders run in processes of their own, inputs ready, and take turns; a ratio is the median over
rounds. `--elements` adds contenders with tiles of so many logits a thread, which shows what the
size is worth. What skipping tiles above the diagonal saves stands between the causal and the
bidirectional case, and what the spectral norm's passes cost between `rows` and `rows_spectral`.

Accuracy is not asked here (see tests/test_softmax_stats.py): the textbook contender sums over whole
matrices and has no digits left in saturated rows.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from attnprobe.softmax_stats import attention_rows, tiles
from benchmarks.turns import GAUGES, Run, Tally, started, tallies

HELP = "context and row statistics of one layer against F.scaled_dot_product_attention"
HEADS, D_HEAD = 12, 64
SCALE = D_HEAD**-0.5
Case = tuple[int, bool]
"""Tokens, and whether a query sees earlier keys alone."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 512, 1024])
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--elements", type=int, nargs="+", default=[], help="sizes of tiles")


def measure(args: Namespace) -> dict[str, object]:
    """Medians in milliseconds, ratios to SDPA, and memory, for every case."""
    given = (args.tokens, args.device)
    builds = {name: (contender, name, *given) for name in WAYS}
    for size in args.elements:
        builds[f"rows_spectral_elements{size}"] = (sized, size, *given)
    cases = list(product(args.tokens, (True, False)))
    gauge = GAUGES[torch.device(args.device).type]
    found: dict[str, object] = {"repetitions": args.repetitions}
    with ExitStack() as stack:
        there, _ = started(stack, builds, warm=cases[0], gauge=gauge)
        for case in cases:
            found |= rows(tallies(there, case, args.repetitions), case)
    return found


def rows(found: Mapping[str, Tally], case: Case) -> dict[str, float]:
    """Flat keys of one case."""
    tokens, causal = case
    end = f"{'causal' if causal else 'bidirectional'}_T{tokens}"
    flat = {f"sdpa_ms_{end}": 1e3 * found["sdpa"].seconds}
    for name, tally in found.items():
        flat[f"{name}_extra_mib_{end}"] = tally.extra_mib
        if name != "sdpa":
            flat[f"ratio_{name}_{end}"] = tally.over(found["sdpa"])
    return flat


def contender(way: str, lengths: Sequence[int], device: str) -> Run:
    """One way through one layer's attention; work is a case."""
    inputs = {tokens: _inputs(tokens).to(device) for tokens in lengths}

    def run(case: Case) -> object:
        tokens, causal = case
        return WAYS[way](*inputs[tokens], causal)

    return run


def sized(elements: int, lengths: Sequence[int], device: str) -> Run:
    """All statistics with tiles of another size, for as long as the process lives."""
    tiles._ELEMENTS_PER_THREAD = elements
    return contender("rows_spectral", lengths, device)


def _inputs(tokens: int) -> Tensor:
    """Query, key and value of one text."""
    generator = torch.Generator().manual_seed(tokens)
    return torch.randn(3, 1, HEADS, tokens, D_HEAD, generator=generator)


def plain(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=causal)


def without_spectral(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> object:
    options = {"scale": SCALE, "valid": None, "causal": causal}
    return attention_rows(query, key, value, **options, spectral=False)


def with_spectral(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> object:
    return attention_rows(query, key, value, scale=SCALE, valid=None, causal=causal)


def textbook(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> list[Tensor]:
    """Context and statistics of whole matrices, without the spectral norm."""
    logits = query @ key.mT
    future = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
    weights = logits.mul(SCALE).masked_fill(future, -torch.inf) if causal else logits * SCALE
    weights = weights.softmax(-1)
    squares = weights.square().sum(-1)
    frobenius = squares - 2 * weights.pow(3).sum(-1) + squares**2
    entropy = torch.special.entr(weights).sum(-1)
    return [weights @ value, entropy, weights.amax(-1), frobenius, logits.mean(-1)]


WAYS: dict[str, Callable[[Tensor, Tensor, Tensor, bool], object]] = {
    "sdpa": plain,
    "rows": without_spectral,
    "rows_spectral": with_spectral,
    "textbook": textbook,
}
