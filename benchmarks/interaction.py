"""Server time of what a person does on pages 2 to 4 without a forward pass, beside one.

An act is what the page does for it: numbers, and the charts as Vega-Lite. `once` acts are what a
section computes when it is first opened on a text; the others come with every move of a slider,
every switch and every change of head.
"""

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from statistics import median

import pandas as pd
import torch

import attnprobe as ap
from attnprobe import figures
from attnprobe.analyses import saturation, scaling, sinks
from attnprobe.metrics import METRICS, Quantity
from attnprobe.scratch.head import properties, slack

HELP = "server time of slider moves, switches and head changes, as a ratio to one forward pass"
ROUNDS = 3
ONCE = ("once_spread", "once_causes", "once_asymmetry", "once_rows", "once_sinks")
LOGIT = Quantity("logit", "logit")
FACTOR = Quantity("factor", "factor on the scale", scale="log")
QUERY = Quantity("query", "query", format="d")
ENTRY = Quantity("entry", "∂p/∂s", kind="diverging")
SUMMAND = Quantity("summand", "q_c · k_c", kind="diverging")

Act = Callable[[], object]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--model", default="bundled:bert")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 128, 512])


def measure(args: Namespace) -> Mapping[str, object]:
    loaded = ap.load(args.model, device="cpu")
    found: dict[str, object] = {"model": args.model}
    for tokens in args.tokens:
        found |= _at(loaded, tokens)
    return found


def _at(loaded: ap.LoadedModel, tokens: int) -> dict[str, float | str]:
    """Medians in milliseconds, taken in turn, ratios to the forward pass, and the slowest act."""
    length = min(tokens, loaded.max_tokens) - len(loaded.reader.prefix) - len(loaded.reader.suffix)
    trace = ap.trace(loaded, " cat" * length)
    acts = {"forward": lambda: _forward(loaded, trace)} | _acts(loaded, trace)
    times: dict[str, list[float]] = {name: [] for name in acts}
    for _ in range(ROUNDS):
        for name, act in acts.items():
            times[name].append(_milliseconds(act))
    medians = {name: median(values) for name, values in times.items()}
    moves = {n: v for n, v in medians.items() if n != "forward" and n not in ONCE}
    slowest = max(moves, key=moves.__getitem__)
    rows = {f"{name}_ms_T{tokens}": value for name, value in medians.items()}
    ratios = {
        f"{name}_ratio_to_forward_T{tokens}": value / medians["forward"]
        for name, value in medians.items()
        if name != "forward"
    }
    worst = {f"slowest_move_T{tokens}": slowest, f"slowest_move_ms_T{tokens}": moves[slowest]}
    return rows | ratios | worst


def _acts(loaded: ap.LoadedModel, trace: ap.Trace) -> dict[str, Act]:
    return _on_scaling(loaded, trace) | _on_scratch(trace) | _on_jacobian(trace)


def _on_scaling(loaded: ap.LoadedModel, trace: ap.Trace) -> dict[str, Act]:
    curve = scaling.what_if(trace, 1, 1)
    last = len(trace.tokens) - 1

    def slider() -> object:
        frame = scaling.what_if_rows(trace, 1, 1, 4.0).assign(run=lambda t: t["factor"].map(str))
        rows = figures.curves(frame, QUERY, METRICS["peak"], by="run")
        return _drawn(_curve(curve, "peak"), _curve(curve, "entropy"), rows)

    def pair() -> object:
        frame = scaling.summands(loaded, trace, 1, 1, last, 0).assign(
            name=lambda t: t["component"].map("c = {}".format), order=lambda t: range(len(t))
        )
        running = figures.curves(frame, Quantity("order", "taken"), Quantity("cumulative", "sum"))
        return _drawn(figures.bars(frame, SUMMAND, "name"), running)

    return {
        "scale_slider": slider,
        "scale_head_change": lambda: _drawn(_curve(scaling.what_if(trace, 1, 1), "peak")),
        "histogram_head_change": lambda: _histogram(scaling.histogram(trace, 1, 1)),
        "histogram_of_layer": lambda: _histogram(scaling.histogram(trace, 1)),
        "boxes_of_layer": lambda: scaling.spread(trace, 1),
        "pair_change": pair,
        "once_spread": lambda: scaling.spread(trace),
        "once_causes": lambda: scaling.causes(trace),
        "once_asymmetry": lambda: scaling.asymmetry(trace),
    }


def _on_scratch(trace: ap.Trace) -> dict[str, Act]:
    return {
        "facts_head_change": lambda: (properties(trace, 1, 1), slack(trace, 1, 1)),
        "weights_head_change": lambda: _map(trace.weights(1, 1), trace.tokens.display, "weight"),
    }


def _on_jacobian(trace: ap.Trace) -> dict[str, Act]:
    rows = saturation.rows(trace)
    shown = rows.iloc[:: max(1, len(rows) // 2000)]
    limits = saturation.bounds("jacobian_frobenius")
    last = len(trace.tokens) - 1

    def threshold() -> object:
        table = ap.head_table(trace, saturated_from=0.7)
        return _drawn(figures.head_map(table, "saturated"), _profile(rows))

    def one_row() -> object:
        return _map(saturation.jacobian(trace, 1, 1, last), trace.tokens.display, ENTRY)

    def norm() -> object:
        return _drawn(figures.scatter(shown, "peak", "jacobian_frobenius", bounds=limits))

    def renormalise() -> object:
        frame = sinks.without_special(trace, renormalised=True)
        return _drawn(figures.head_map(frame, "entropy"))

    return {
        "threshold_slider": threshold,
        "norm_change": norm,
        "jacobian_row_change": one_row,
        "renormalise_switch": renormalise,
        "once_rows": lambda: saturation.rows(trace),
        "once_sinks": lambda: sinks.shares(trace),
    }


def _profile(rows: pd.DataFrame):
    mine = rows[(rows["layer"] == 1) & (rows["head"] == 1)]
    long = mine.melt("query", ["peak", "normalised_entropy", "jacobian_frobenius"])
    return figures.curves(long, QUERY, Quantity("value", "value"), by="variable")


def _curve(curve: pd.DataFrame, name: str):
    return figures.curves(curve, FACTOR, METRICS[name])


def _histogram(frame: pd.DataFrame) -> object:
    shown = frame.rename(columns={"left": "logit"})
    density = Quantity("density", "density")
    return _drawn(figures.histogram(shown, LOGIT, by="kind", share=density))


def _map(values: torch.Tensor, tokens, quantity: str | Quantity) -> object:
    name = quantity if isinstance(quantity, str) else quantity.name
    frame = figures.matrix_frame(values.double().cpu().numpy(), tokens, name)
    return _drawn(figures.token_map(frame, quantity))


def _drawn(*charts) -> list[dict]:
    return [chart.to_dict(validate=False) for chart in charts]


@torch.no_grad()
def _forward(loaded: ap.LoadedModel, trace: ap.Trace) -> None:
    loaded.forward(loaded.batch(trace.tokens))


def _milliseconds(act: Act) -> float:
    start = time.perf_counter()
    act()
    return 1000 * (time.perf_counter() - start)
