"""Norms of the softmax Jacobian by closed forms and by autograd: errors and time.

The Jacobian diag(p) − ppᵀ of each row is taken by autograd in float64 for the errors, in float32
for time and memory, with its norms by torch.linalg. Rows of Gaussian logits, at a standard
deviation where weights are spread and at one where rows are saturated. An error is relative, the
largest over rows. For time and memory either way has a process of its own and the rows ready; they
take turns.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import torch
from jaxtyping import Float
from torch import Tensor

from attnprobe.softmax_stats import RowStatistics, statistics_of
from benchmarks.turns import Run, Tally, started, tallies

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
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--deviations", type=float, nargs="+", default=[1.0, 8.0])


def measure(args: Namespace) -> dict[str, object]:
    found: dict[str, object] = {"rows": args.rows, "rounds": args.rounds}
    builds = {way: (contender, way, args.rows, args.tokens) for way in WAYS}
    with ExitStack() as stack:
        there, _ = started(stack, builds, warm=args.tokens[0])
        for tokens in args.tokens:
            for deviation in args.deviations:
                logits = deviation * _normal(args.rows, tokens)
                for name, error in errors(logits).items():
                    found[f"{name}_error_std{deviation:g}_T{tokens}"] = error
            found |= rows(tallies(there, tokens, args.rounds), tokens)
    return found


def rows(found: Mapping[str, Tally], tokens: int) -> dict[str, float]:
    """Medians, their ratio by turns of the same round, and memory, as flat keys."""
    flat: dict[str, float] = {}
    for name, tally in found.items():
        flat[f"{name}_ms_T{tokens}"] = 1e3 * tally.seconds
        flat[f"{name}_extra_mib_T{tokens}"] = tally.extra_mib
    autograd, ours = found["autograd"], found["closed"]
    flat[f"speedup_over_autograd_T{tokens}"] = autograd.over(ours)
    flat[f"cpu_speedup_over_autograd_T{tokens}"] = autograd.over(ours, "processor")
    return flat


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


def contender(way: str, rows: int, lengths: Sequence[int]) -> Run:
    """One way to the norms of so many rows; work is how long they are."""
    logits = {tokens: _normal(rows, tokens) for tokens in lengths}
    return lambda tokens: WAYS[way](logits[tokens])


def closed(logits: Float[Tensor, "row key"]) -> RowStatistics:
    return statistics_of(logits, None)


WAYS: dict[str, Callable[[Tensor], object]] = {"closed": closed, "autograd": by_autograd}
