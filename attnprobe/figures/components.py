"""Positions × components: one head's queries, keys, values, context or output as a picture."""

import altair as alt
import numpy as np
import pandas as pd

from attnprobe.figures.atlas import cells
from attnprobe.figures.chart import Chart
from attnprobe.figures.colour import colour_scale
from attnprobe.figures.marks import bar_alone, colour_bar, picture
from attnprobe.figures.matrix import CELL_LIMIT, MOST_PIXELS
from attnprobe.figures.raster import pooled, stride
from attnprobe.figures.theme import Mode, themed
from attnprobe.metrics import Quantity, quantity

AXES = ("position", "component")


def component_frame(values: np.ndarray, name: str) -> pd.DataFrame:
    """[position component] as a tidy frame: position, component and the column `name`."""
    position, component = (index.ravel() for index in np.indices(values.shape))
    return pd.DataFrame({"position": position, "component": component, name: values.ravel()})


def component_map(
    values: np.ndarray, value: str | Quantity, *, mode: Mode = "light", size: int = 340
) -> alt.LayerChart:
    """An array [position component], all of it defined, positions downwards.

    Cells are as high and as wide as the sides of about `size` px allow, so a long text is no thin
    strip. Up to 128 × 128 of them are rectangles with tooltips, more are one raster; more than 512
    a side are pooled (`component_note` is the sentence for the caption).
    """
    q = quantity(value)
    scale = colour_scale(values.ravel(), q, mode)
    vector = values.size <= CELL_LIMIT
    drawn = values if vector else pooled(values, MOST_PIXELS, q.kind)
    high, wide = (max(1, min(44, size // n)) * n for n in drawn.shape)
    bar = colour_bar(scale, wide)
    if vector:
        layers = [cells(component_frame(values, q.name), scale, AXES, values.shape, bar)]
    else:
        layers = [picture(scale.rgba(drawn), wide, high), bar_alone(scale, bar), _ruler(values)]
    return themed(
        alt.layer(*layers, width=wide, height=high),
        mode,
        alt_text=f"Heat map of {q.title}, {len(values)} positions by {values.shape[1]} components.",
        dense=True,
    )


def component_note(shape: tuple[int, int]) -> str:
    """The sentence a caption needs when `component_map` pools; empty when every cell is drawn."""
    down, across = (stride(n, MOST_PIXELS) for n in shape)
    if down * across == 1:
        return ""
    return f"Each pixel is the value of largest magnitude of {down} × {across} cells."


def _ruler(values: np.ndarray) -> alt.Chart:
    """An invisible mark that carries the two axes."""
    tall, wide = values.shape
    down = alt.Scale(domain=[tall, 0], nice=False, zero=False)
    across = alt.Scale(domain=[0, wide], nice=False, zero=False)
    look = {"tickCount": 8, "format": "d", "grid": False, "domain": False}
    return (
        Chart({"values": [{"component": 0, "position": 0}]})
        .mark_point(opacity=0, tooltip=None)
        .encode(
            x=alt.X("component:Q", scale=across, axis=alt.Axis(**look)),
            y=alt.Y("position:Q", scale=down, axis=alt.Axis(**look)),
        )
    )
