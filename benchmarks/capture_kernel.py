"""The attention function with statistics against SDPA and the textbook, one layer at a time.

`--elements` runs it with tiles of so many logits a thread, which shows what the size is worth. What
skipping tiles above the diagonal saves stands between the causal and the bidirectional case, and
what the spectral norm's passes cost between `rows` and `rows_spectral`.

Accuracy is not asked here (see tests/test_softmax_stats.py): the textbook contender sums over whole
matrices and has no digits left in saturated rows.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from attnprobe.softmax_stats import attention_rows, tiles

HELP = "context and row statistics of one layer against F.scaled_dot_product_attention"
HEADS, D_HEAD = 12, 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 512, 1024])
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--elements", type=int, nargs="+", default=[], help="sizes of tiles")


@torch.no_grad()
def measure(args: argparse.Namespace) -> Iterator[tuple[str, float]]:
    """Medians in milliseconds and ratios to SDPA; contenders take turns."""
    for tokens in args.tokens:
        for causal in (True, False):
            generator = torch.Generator().manual_seed(tokens)
            inputs = torch.randn(3, 1, HEADS, tokens, D_HEAD, generator=generator)
            contenders = _contenders(*inputs.to(args.device), causal)
            times = _times(contenders | _sized(contenders, args.elements), args.repetitions)
            case = f"{'causal' if causal else 'bidirectional'}_T{tokens}"
            yield f"sdpa_ms_{case}", times["sdpa"] * 1e3
            for name in [name for name in times if name != "sdpa"]:
                yield f"ratio_{name}_{case}", times[name] / times["sdpa"]


def _contenders(
    query: Tensor, key: Tensor, value: Tensor, causal: bool
) -> dict[str, Callable[[], object]]:
    scale = D_HEAD**-0.5
    options = {"scale": scale, "valid": None, "causal": causal}

    def textbook() -> list[Tensor]:
        logits = query @ key.mT
        future = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
        weights = logits.mul(scale).masked_fill(future, -torch.inf) if causal else logits * scale
        weights = weights.softmax(-1)
        squares = weights.square().sum(-1)
        frobenius = squares - 2 * weights.pow(3).sum(-1) + squares**2
        entropy = torch.special.entr(weights).sum(-1)
        return [weights @ value, entropy, weights.amax(-1), frobenius, logits.mean(-1)]

    return {
        "sdpa": lambda: F.scaled_dot_product_attention(query, key, value, is_causal=causal),
        "rows": lambda: attention_rows(query, key, value, **options, spectral=False),
        "rows_spectral": lambda: attention_rows(query, key, value, **options),
        "textbook": textbook,
    }


def _sized(
    contenders: dict[str, Callable[[], object]], sizes: Sequence[int]
) -> dict[str, Callable[[], object]]:
    """All statistics with tiles of other sizes."""

    def run(elements: int) -> object:
        with mock.patch.object(tiles, "_ELEMENTS_PER_THREAD", elements):
            return contenders["rows_spectral"]()

    return {f"rows_spectral_elements{size}": partial(run, size) for size in sizes}


def _times(contenders: dict[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    seconds = {name: [] for name in contenders}
    for turn in range(repetitions + 2):
        for name, run in contenders.items():
            _wait()
            start = time.perf_counter()
            run()
            _wait()
            if turn >= 2:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(some) for name, some in seconds.items()}


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
