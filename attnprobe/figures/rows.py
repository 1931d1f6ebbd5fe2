"""One row of a head as bars, and what every row amounts to, beside the map."""

from collections.abc import Sequence

import altair as alt
import pandas as pd

from attnprobe.figures.axes import by_sign, number_scale, tips
from attnprobe.figures.chart import Chart
from attnprobe.figures.colour import Limits
from attnprobe.figures.labels import lookup, thinned
from attnprobe.figures.matrix import grid, map_layers, token_labels
from attnprobe.figures.raster import cell_size
from attnprobe.figures.theme import Mode, themed
from attnprobe.figures.values import column, inline
from attnprobe.metrics import Number, Quantity, quantity

STRIPS = ("#56B4E9", "#E69F00")
"""Fills of the strips beside a token map, as the map on the screen has them (Okabe & Ito 2008)."""


def fill(place: int) -> str:
    """The colour of the strip at a place."""
    return STRIPS[place % len(STRIPS)]


def row_bars(
    frame: pd.DataFrame,
    value: str | Quantity = "weight",
    *,
    mode: Mode = "light",
    width: int = 640,
    height: int = 180,
) -> alt.Chart:
    """What one query gives each key, keys in text order: columns key, key_token and the value.

    Keys whose value is undefined keep their place and have no bar.
    """
    q = quantity(value)
    n = int(column(frame, "key").max()) + 1
    labels = token_labels(frame, "key")
    step = max(1, min(28, width // n))
    axis = alt.Axis(
        title="key",
        values=thinned(n, step),
        labelExpr=lookup([labels.get(i, "") for i in range(n)], "datum.value"),
        labelAngle=-90 if step < 16 else -50,
        labelAlign="right",
        labelBaseline="middle",
        labelLimit=96,
        labelOverlap=False,
        ticks=False,
    )
    chart = (
        Chart(inline(frame, ["key", "key_token", q.name]), width=n * step, height=height)
        .mark_bar(cursor="default")
        .encode(
            x=alt.X(
                "key:O",
                scale=alt.Scale(domain=list(range(n)), paddingInner=0.12, paddingOuter=0.06),
                axis=axis,
            ),
            y=alt.Y(f"{q.name}:Q", title=q.title, axis=alt.Axis(tickCount=4)),
            color=by_sign(q.name, mode),
            tooltip=tips([q], ["key", "key_token"]),
        )
    )
    return themed(
        chart, mode, alt_text=f"{q.title} of one query for each of {n} keys.", elastic=True
    )


def row_profile(
    frame: pd.DataFrame,
    values: Sequence[str | Quantity] = ("entropy", "peak"),
    *,
    mode: Mode = "light",
    size: int = 520,
    width: int = 110,
) -> alt.HConcatChart:
    """One strip of bars per quantity, a bar per query: columns query, query_token and the values.

    Undefined rows have no bar. The rows are as high as those of a `token_map` of the same `size`.
    """
    n = int(column(frame, "query").max()) + 1
    height = n * cell_size(n, size, largest=28) if n <= size else size
    labels = token_labels(frame, "query")
    words = [labels.get(i, "") for i in range(n)]
    parts = [
        _strip(frame, quantity(value), n, (width, height), fill(i), None if i else words)
        for i, value in enumerate(values)
    ]
    return themed(
        alt.hconcat(*parts, spacing=14),
        mode,
        alt_text=f"Per query: {', '.join(quantity(v).title for v in values)}.",
    )


def head_view(
    frame: pd.DataFrame,
    rows: pd.DataFrame,
    value: str | Quantity = "weight",
    *,
    beside: Sequence[str | Quantity] = ("entropy", "peak"),
    mode: Mode = "light",
    row: int | None = None,
    size: int = 520,
    palette: str = "viridis",
    width: int = 84,
    limits: Limits | None = None,
) -> alt.HConcatChart:
    """`token_map` of `frame` with a strip per quantity of `rows` beside it, row by row aligned."""
    q = quantity(value)
    array, tokens = grid(frame, q.name)
    layers, side = map_layers(
        array, tokens, q, mode, row=row, size=size, palette=palette, limits=limits
    )
    picture = alt.layer(*layers, width=side, height=side)
    parts = [
        _strip(rows, quantity(name), len(tokens), (width, side), fill(i), None)
        for i, name in enumerate(beside)
    ]
    return themed(
        alt.hconcat(picture, *parts, spacing=14),
        mode,
        alt_text=f"Heat map of {q.title} for {len(tokens)} tokens with row statistics beside it.",
        dense=True,
    )


def _strip(
    frame: pd.DataFrame,
    q: Quantity,
    n: int,
    box: tuple[int, int],
    colour: str,
    words: list[str] | None,
) -> alt.Chart:
    width, height = box
    shown = frame.assign(above=frame["query"] + 0.08, below=frame["query"] + 0.92, zero=0)
    labels = [token for token in ("query_token",) if token in frame]
    data = inline(shown, ["query", "above", "below", "zero", q.name, *labels])
    down = alt.Scale(domain=[n, 0], nice=False, zero=False)
    axis = None if words is None else _query_axis(words, height / n)
    ticks = alt.Axis(orient="top", tickCount=2, format="~g", labelFlush=True)
    x = alt.X(f"{q.name}:Q", title=q.title, scale=number_scale(q, zero=True), axis=ticks)
    return (
        Chart(data, width=width, height=height)
        .mark_rect(fill=colour)
        .encode(
            y=alt.Y("above:Q", scale=down, axis=axis),
            y2=alt.Y2("below:Q"),
            x=x,
            x2=alt.X2("zero:Q"),
            tooltip=tips([q], ["query", *labels]),
        )
    )


def _query_axis(words: list[str], step: Number) -> alt.Axis:
    shown = thinned(len(words), step)
    return alt.Axis(
        title="query",
        values=[i + 0.5 for i in shown],
        labelExpr=lookup(words, "floor(datum.value)"),
        labelOverlap=False,
        labelLimit=96,
        ticks=False,
        domain=False,
        grid=False,
    )
