"""Server time of what a person does on a page without a forward pass, beside one forward pass."""

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from statistics import median

import torch

import attnprobe as ap
from attnprobe.analyses import saturation, scaling
from attnprobe.figures import head_map, matrix_frame, scatter, token_map

HELP = "server time of slider moves and head changes, as a ratio to one forward pass"
ROUNDS = 5


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--model", default="bundled:bert")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 128, 512])


def measure(args: Namespace) -> Mapping[str, object]:
    loaded = ap.load(args.model, device="cpu")
    found: dict[str, object] = {"model": args.model}
    for tokens in args.tokens:
        found |= _at(loaded, tokens)
    return found


def _at(loaded: ap.LoadedModel, tokens: int) -> dict[str, float]:
    """Medians in milliseconds, taken in turn, and ratios to the forward pass."""
    length = min(tokens, loaded.max_tokens) - len(loaded.reader.prefix) - len(loaded.reader.suffix)
    trace = ap.trace(loaded, " cat" * length)
    acts = {"forward": lambda: _forward(loaded, trace)} | _acts(trace)
    times: dict[str, list[float]] = {name: [] for name in acts}
    for _ in range(ROUNDS):
        for name, act in acts.items():
            times[name].append(_milliseconds(act))
    medians = {name: median(values) for name, values in times.items()}
    rows = {f"{name}_ms_T{tokens}": value for name, value in medians.items()}
    ratios = {
        f"{name}_ratio_to_forward_T{tokens}": value / medians["forward"]
        for name, value in medians.items()
        if name != "forward"
    }
    return rows | ratios


def _acts(trace: ap.Trace) -> dict[str, Callable[[], object]]:
    """What the pages do for one move: numbers and picture."""
    table = ap.head_table(trace)
    rows = saturation.rows(trace)
    shown = rows.iloc[:: max(1, len(rows) // 4000)]
    limits = saturation.bounds("jacobian_frobenius")
    tokens = trace.tokens.display

    def head_change() -> object:
        frame = matrix_frame(trace.weights(1, 1).double().numpy(), tokens, "weight")
        return token_map(frame).to_dict(validate=False)

    return {
        "scale_slider": lambda: scaling.what_if_rows(trace, 1, 1, 4.0),
        "scale_curve": lambda: scaling.what_if(trace, 1, 1),
        "head_change": head_change,
        "atlas": lambda: head_map(table, "entropy").to_dict(validate=False),
        "bounds": lambda: scatter(
            shown, "peak", "jacobian_frobenius", bounds=limits
        ).to_dict(validate=False),
    }  # fmt: skip


@torch.no_grad()
def _forward(loaded: ap.LoadedModel, trace: ap.Trace) -> None:
    loaded.forward(loaded.batch(trace.tokens))


def _milliseconds(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return 1000 * (time.perf_counter() - start)
