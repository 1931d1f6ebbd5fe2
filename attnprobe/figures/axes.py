"""Axes, series and tooltips of the figures that plot one column against another."""

import json
from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from attnprobe.figures.theme import COLOURS, DASHES, Mode
from attnprobe.figures.values import column, native
from attnprobe.metrics import Quantity

SHORT_NAME = 14
"""Letters of a name up to which four stand in one line of a legend."""
# Vega leaves the labels of minor ticks empty.
_POWERS = (
    "datum.label == '' ? '' : datum.value >= 1e5 || datum.value < 1e-3 ? "
    "format(datum.value, '~e') : format(datum.value, '~g')"
)


def across(q: Quantity, *, other: str = "", zero: bool = False, padding: int = 0) -> alt.X:
    """The horizontal axis of a quantity: its title with unit, its scale, its limits.

    `other` is another column in the same unit, for example the end of an interval. `padding` keeps
    that many px free on both sides, so that no dot is cut in half.
    """
    scale = number_scale(q, zero=zero)
    if padding:
        scale.padding, scale.nice = padding, False
    return alt.X(f"{other or q.name}:Q", title=q.title, scale=scale, axis=_ticks(q))


def upward(q: Quantity, *, other: str = "", zero: bool = False, padding: int = 0) -> alt.Y:
    """The vertical axis of a quantity, as `across`; `padding` is for logarithmic ones alone."""
    scale = number_scale(q, zero=zero)
    if padding and q.scale == "log":
        scale.padding = padding
    return alt.Y(f"{other or q.name}:Q", title=q.title, scale=scale, axis=_ticks(q))


def number_scale(q: Quantity, *, zero: bool = False) -> alt.Scale:
    """Linear or logarithmic, over the limits of the definition where there are any.

    `zero` keeps 0 in sight: bars without it lie about their length.
    """
    low, high = q.domain
    options: dict[str, Any] = {"type": q.scale, "nice": q.scale != "log"}
    if q.scale != "log":
        options["zero"] = zero or low == 0
    if low is not None and not (q.scale == "log" and low <= 0):
        options["domainMin"] = low
    if high is not None:
        options["domainMax"] = high
    return alt.Scale(**options)


def _ticks(q: Quantity) -> alt.Axis:
    where = {"values": list(q.ticks)} if q.ticks else {"tickCount": 5}
    if q.scale == "log":
        return alt.Axis(**where, labelExpr=_POWERS, labelOverlap="greedy", labelFlush=True)
    form = "d" if q.format == "d" else "~f"
    return alt.Axis(**where, format=form, labelOverlap="greedy", labelFlush=True)


def series(frame: pd.DataFrame, by: str, mode: Mode) -> dict[str, Any]:
    """Colour and dash of each group of the column `by`, in order of appearance.

    After eight groups the colours repeat with another dash.
    """
    names, n = _groups(frame, by), len(DASHES)
    legend = _legend(by, names, symbolType="stroke", symbolOpacity=1, symbolSize=500)
    dash = [list(DASHES[(i + i // n) % n]) for i in range(len(names))]
    scale = alt.Scale(domain=names, range=dash)
    return {
        "color": _hue(by, names, mode, legend),
        "strokeDash": alt.StrokeDash(f"{by}:N", scale=scale, legend=legend),
    }


def fills(frame: pd.DataFrame, by: str, mode: Mode) -> alt.Color:
    """The colours of `series` for bars and dots, whose legend shows areas instead of lines."""
    names = _groups(frame, by)
    legend = _legend(by, names, symbolType="square", symbolSize=110, symbolStrokeWidth=0)
    return _hue(by, names, mode, legend)


def by_sign(name: str, mode: Mode) -> alt.ColorValue:
    """One colour for numbers below zero and another for the rest."""
    below, above = COLOURS[mode].categories[1], COLOURS[mode].categories[0]
    return either(f"datum[{json.dumps(name)}] < 0", below, above)


def either(test: str, yes: str, no: str) -> alt.ColorValue:
    """One of two colours, by a Vega expression.

    Written out: altair's shorthands for conditions, constants and second ends of a mark search all
    of its classes for the right one each time, which takes longer than all the rest of a figure.
    """
    return alt.ColorValue(no, condition={"test": test, "value": yes})


def _groups(frame: pd.DataFrame, by: str) -> list:
    return list(dict.fromkeys(native(column(frame, by).drop_duplicates()).tolist()))


def _hue(by: str, names: list, mode: Mode, legend: alt.Legend) -> alt.Color:
    colours = COLOURS[mode].categories
    hue = [colours[i % len(colours)] for i in range(len(names))]
    return alt.Color(f"{by}:N", scale=alt.Scale(domain=names, range=hue), legend=legend)


def _legend(by: str, names: list, **symbols: Any) -> alt.Legend:
    """A legend below: four names in a line, or two where one of them is long."""
    columns = 4 if all(len(str(name)) <= SHORT_NAME for name in names) else 2
    return alt.Legend(title=by.replace("_", " "), orient="bottom", columns=columns, **symbols)


def tips(quantities: Sequence[Quantity], names: Sequence[str] = ()) -> list[alt.Tooltip]:
    """Tooltip lines: names as they are, numbers with their label, unit and format."""
    words = [alt.Tooltip(f"{name}:N", title=name.replace("_", " ")) for name in names if name]
    numbers = [alt.Tooltip(f"{q.name}:Q", title=q.title, format=q.format) for q in quantities]
    return words + numbers
