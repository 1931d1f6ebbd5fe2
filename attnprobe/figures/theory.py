"""Pictures of the theory lab: labelled grids, groups of bars, a convex hull in the plane."""

from functools import partial

import altair as alt
import pandas as pd

from attnprobe.figures.axes import across, series, tips, upward
from attnprobe.figures.chart import Chart
from attnprobe.figures.colour import Limits, colour_scale
from attnprobe.figures.theme import COLOURS, Mode, themed
from attnprobe.figures.values import column, finite, inline, native
from attnprobe.metrics import Number, Quantity, quantity

_ROOM = 6  # px about the data, so that no dot is cut in half
_LETTER = 6.5  # px of a letter of an axis


def labelled_grid(
    frame: pd.DataFrame,
    row: str | Quantity,
    across_: str | Quantity,
    value: str | Quantity,
    *,
    mode: Mode = "light",
    limits: Limits | None = None,
    palette: str = "viridis",
    cell: tuple[int, int] = (40, 28),
) -> alt.LayerChart:
    """A value for each pair of `row` (downwards) and `across_`, both in the order of the frame.

    For axes whose steps are names or unevenly spaced numbers. Undefined cells are left blank.
    `cell` is the width and height of one in px.
    """
    q, down, right = quantity(value), quantity(row), quantity(across_)
    scale = colour_scale(finite(frame, q.name), q, mode, palette=palette, limits=limits)
    rows, columns = (native(column(frame, axis.name)).unique().tolist() for axis in (down, right))
    width, height = cell[0] * len(columns), cell[1] * len(rows)
    cells = (
        Chart(inline(frame, [down.name, right.name, q.name]))
        .mark_rect()
        .encode(
            x=_steps(alt.X, right, columns, _angle(columns, cell[0])),
            y=_steps(alt.Y, down, rows),
            color=alt.Color(
                f"{q.name}:Q", scale=scale.scale(), legend=scale.legend(max(140, min(280, width)))
            ),
            tooltip=tips([down, right, q]),
        )
    )
    return themed(
        alt.layer(cells, width=width, height=height),
        mode,
        alt_text=f"Heat map of {q.title} for {down.title} by {right.title}.",
    )


def _angle(labels: list, room: Number) -> int:
    """Labels below an axis stand level, or lean where the longest does not fit."""
    return 0 if max(len(str(label)) for label in labels) * _LETTER <= room else -45


def _steps(channel, q: Quantity, values: list, angle: int = 0) -> alt.X | alt.Y:
    axis = alt.Axis(
        labelAngle=angle, ticks=False, domain=False, labelOverlap="greedy", labelLimit=96
    )
    return channel(f"{q.name}:O", title=q.title, sort=values, axis=axis)


def grouped_bars(
    frame: pd.DataFrame,
    x: str,
    value: str | Quantity,
    by: str,
    *,
    mode: Mode = "light",
    width: int = 320,
    height: int = 200,
) -> alt.Chart:
    """Upright bars side by side: for each `x` one bar per group of `by`."""
    q = quantity(value)
    order = list(dict.fromkeys(column(frame, x)))
    groups = list(dict.fromkeys(column(frame, by)))
    colours = COLOURS[mode].categories
    legend = alt.Legend(title=None, orient="bottom")
    axis = alt.Axis(labelAngle=_angle(order, width / len(order)), labelLimit=96)
    chart = (
        Chart(inline(frame, [x, by, q.name]), width=width, height=height)
        .mark_bar()
        .encode(
            x=alt.X(f"{x}:N", title=x, sort=order, axis=axis),
            xOffset=alt.XOffset(f"{by}:N", sort=groups),
            y=upward(q, zero=True),
            color=alt.Color(
                f"{by}:N",
                scale=alt.Scale(domain=groups, range=list(colours[: len(groups)])),
                legend=legend,
            ),
            tooltip=tips([q], [x, by]),
        )
    )
    return themed(chart, mode, alt_text=f"Bars of {q.title} for each {x}, by {by}.", elastic=True)


def convex_hull(
    frame: pd.DataFrame, corners: list[int], *, mode: Mode = "light", side: int = 300
) -> alt.LayerChart:
    """Value vectors in the plane, their hull, and the output inside it.

    `frame` has point ("value" or "output"), key, x, y and weight; `corners` are row numbers of the
    hull's corners in order. The area of a point grows with its weight.
    """
    c = COLOURS[mode]
    weight = Quantity("weight", "weight", domain=(0, 1))
    values = frame[frame["point"] == "value"].assign(
        label=lambda t: [f"v{key}: {w:.2f}" for key, w in zip(t["key"], t["weight"], strict=True)]
    )
    x = Quantity("x", "first component x", domain=_margins(values["x"], 0.2))
    y = Quantity("y", "second component y", domain=_margins(values["y"]))
    outline = values.iloc[[*corners, *corners[:1]]].assign(order=range(len(corners) + 1))
    hull = (
        Chart(inline(outline, ["x", "y", "order"]))
        .mark_line(color=c.muted, strokeDash=[5, 3], fill=c.accent, fillOpacity=0.1, tooltip=None)
        .encode(x=across(x), y=upward(y), order=alt.Order("order:Q"))
    )
    base = Chart(inline(values, ["label", "x", "y", "weight"])).encode(x=across(x), y=upward(y))
    size = alt.Size("weight:Q", scale=alt.Scale(domain=[0, 1], range=[30, 900]), legend=None)
    output = frame[frame["point"] == "output"].assign(label="output")
    cross = (
        Chart(inline(output, ["label", "x", "y"]))
        .mark_point(shape="cross", size=160, fill=c.categories[1], stroke=c.page, opacity=1)
        .encode(x=across(x), y=upward(y), tooltip=tips([x, y], ["label"]))
    )
    named = (
        Chart(inline(output, ["label", "x", "y"]))
        .mark_text(align="left", dx=11, dy=10, fontWeight=600, tooltip=None)
        .encode(x=across(x), y=upward(y), text=alt.Text("label:N"))
    )
    layers = [
        hull,
        base.mark_circle(color=c.accent, opacity=0.75).encode(
            size=size, tooltip=tips([x, y, weight], ["label"])
        ),
        base.mark_text(align="left", dx=10, dy=-8).encode(text=alt.Text("label:N")),
        cross,
        named,
    ]
    return themed(
        alt.layer(*layers, width=side, height=side),
        mode,
        alt_text=f"{len(values)} value vectors in the plane, their convex hull, and the output.",
    )


def _margins(numbers: pd.Series, after: float = 0.1) -> tuple[float, float]:
    """Limits with room for a dot before the smallest and for its label after the largest."""
    low, high = float(numbers.min()), float(numbers.max())
    span = high - low or 1.0
    return low - 0.1 * span, high + after * span


def against_prediction(
    frame: pd.DataFrame,
    x: str | Quantity,
    measured: str,
    predicted: str,
    y: Quantity,
    *,
    by: str | None = None,
    error: str | None = None,
    bound: str | None = None,
    marked: pd.DataFrame | None = None,
    mode: Mode = "light",
    width: int = 320,
    height: int = 220,
) -> alt.LayerChart:
    """Measured points over a predicted line, per group of `by`; `y` names both.

    `bound` is a column of limits: a thin dashed line, the predicted ones are then all solid.
    `error` is a column of standard errors: bars of two of them either way. `marked` has the columns
    of x and y, and `label`: points to point out, for example what somebody claimed.
    """
    qx, names = quantity(x), [by] if by else []
    tidy = frame.assign(**{y.name: frame[measured]})
    if error:
        tidy = tidy.assign(
            low=tidy[measured] - 2 * tidy[error], high=tidy[measured] + 2 * tidy[error]
        )
    limits = [*(["low", "high"] if error else []), *([bound] if bound else [])]
    data = inline(tidy, [qx.name, y.name, predicted, *names, *limits])
    look = series(frame, by, mode) if by else {}
    hue = {"color": look["color"]} if by else {}
    look = hue if bound else look
    base = Chart(data).encode(x=across(qx, padding=_ROOM))
    up = partial(upward, y, padding=_ROOM)
    point = base.mark_point(filled=True, size=45, opacity=1, clip=True)
    layers = [
        base.mark_line(strokeWidth=1.5, clip=True).encode(y=up(other=predicted), **look),
        point.encode(y=up(), tooltip=tips([qx, y], names), **hue),
    ]
    if bound:
        limit = base.mark_line(strokeWidth=1, strokeDash=[2, 3], clip=True, tooltip=None)
        layers.insert(0, limit.encode(y=up(other=bound), **hue))
    if error:
        whisker = base.mark_rule(strokeWidth=1.5)
        layers.append(whisker.encode(y=up(other="low"), y2=alt.Y2("high:Q"), **hue))
    if marked is not None:
        layers += _claimed(marked, qx, y, mode)
    return themed(
        alt.layer(*layers, width=width, height=height),
        mode,
        alt_text=f"{y.title} against {qx.title}: measured points, predicted lines.",
        elastic=True,
    )


def _claimed(frame: pd.DataFrame, x: Quantity, y: Quantity, mode: Mode) -> list[alt.Chart]:
    c = COLOURS[mode]
    base = Chart(inline(frame, [x.name, y.name, "label"])).encode(
        x=across(x, padding=_ROOM), y=upward(y, padding=_ROOM)
    )
    cross = base.mark_point(
        shape="cross", angle=45, size=130, fill=c.text, stroke=c.page, opacity=1
    )
    return [
        cross.encode(tooltip=tips([x, y], ["label"])),
        base.mark_text(align="left", dx=9, dy=-8, fontWeight=600, tooltip=None).encode(
            text=alt.Text("label:N")
        ),
    ]
