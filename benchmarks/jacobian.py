"""Norms of the softmax Jacobian by closed forms and by autograd: errors and time.

The Jacobian diag(p) − ppᵀ of each row is taken by autograd in float64 for the errors, in float32
for the time, with its norms by torch.linalg. Rows of Gaussian logits, at a standard deviation where
weights are spread and at one where rows are saturated. An error is relative, the largest over rows.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from jaxtyping import Float
from torch import Tensor

from attnprobe.softmax_stats import statistics_of

HELP = "closed forms of the softmax Jacobian's norms against autograd's Jacobian"
NAMES = {
    "jacobian_frobenius": torch.linalg.matrix_norm,
    "jacobian_max": lambda j: j.abs().amax((-1, -2)),
    "jacobian_trace": lambda j: j.diagonal(dim1=-2, dim2=-1).sum(-1),
    "jacobian_spectral": lambda j: torch.linalg.eigvalsh(j)[..., -1],
}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--deviations", type=float, nargs="+", default=[1.0, 8.0])


def measure(args: Namespace) -> dict[str, object]:
    found: dict[str, object] = {"rows": args.rows}
    for tokens in args.tokens:
        for deviation in args.deviations:
            logits = deviation * _normal(args.rows, tokens)
            for name, error in errors(logits).items():
                found[f"{name}_error_std{deviation:g}_T{tokens}"] = error
        closed, autograd = _seconds(_normal(args.rows, tokens), args.rounds)
        found[f"closed_ms_T{tokens}"] = 1e3 * closed
        found[f"autograd_ms_T{tokens}"] = 1e3 * autograd
        found[f"speedup_over_autograd_T{tokens}"] = autograd / closed
    return found


def _normal(rows: int, tokens: int) -> Float[Tensor, "row key"]:
    return torch.randn(rows, tokens, generator=torch.Generator().manual_seed(tokens))


def by_autograd(logits: Float[Tensor, "row key"]) -> dict[str, Float[Tensor, " row"]]:
    """The norms of each row's Jacobian, which is built whole."""
    jacobian = torch.vmap(torch.func.jacrev(lambda s: s.softmax(-1)))(logits)
    return {name: norm(jacobian) for name, norm in NAMES.items()}


def errors(logits: Float[Tensor, "row key"]) -> dict[str, float]:
    """Of the closed forms in float32, relative to autograd in float64."""
    rows, exact = statistics_of(logits, None), by_autograd(logits.double())
    return {
        name: float(((getattr(rows, name) - exact[name]) / exact[name]).abs().max())
        for name in NAMES
    }


def _seconds(logits: Float[Tensor, "row key"], rounds: int) -> tuple[float, float]:
    """Medians of both ways, taking turns."""
    ways: tuple[Callable, Callable] = (lambda x: statistics_of(x, None), by_autograd)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for way, spent in zip(ways, times, strict=True):
            begin = perf_counter()
            way(logits)
            spent.append(perf_counter() - begin)
    return median(times[0]), median(times[1])
