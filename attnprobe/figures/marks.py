"""Marks that several figures lay over their cells: hatching, outlines, dots, rasters, colour bars.

They are placed in pixels from the upper left corner of the plot, so they fit any scale.
"""

from collections.abc import Iterable

import altair as alt
import numpy as np

from attnprobe.figures.chart import Chart
from attnprobe.figures.colour import ColourScale
from attnprobe.figures.raster import hatch, png_url
from attnprobe.figures.theme import COLOURS, Mode
from attnprobe.metrics import Number

_SWATCH = "M-1,-1H1V1H-1ZM-1,0L0,-1M-1,1L1,-1M0,1L1,0"
_HATCH_ROW = 22
_ONE = {"values": [{"one": 1}]}


def hatching(
    holes: np.ndarray, step: int, mode: Mode, meaning: str, *, below: int = 6
) -> list[alt.Chart]:
    """Diagonal lines where `holes` [row column] is true, and a legend entry with their `meaning`.

    One raster however many cells there are; nothing when there is no hole. The entry stands `below`
    px under the plot; the colour bar of a `hatched` figure keeps clear of it.
    """
    if not holes.any():
        return []
    colour = COLOURS[mode].masked
    tall, wide = holes.shape
    lines = picture(hatch(holes, step, colour), wide * step, tall * step)
    legend = alt.Legend(
        title=None,
        orient="none",
        legendX=0,
        legendY=tall * step + below,
        symbolFillColor="transparent",
        symbolStrokeColor=colour,
        symbolStrokeWidth=1.2,
        symbolOpacity=1,
        symbolSize=130,
    )
    entry = (
        Chart({"values": [{"meaning": meaning}]})
        .mark_point(opacity=0, filled=False, tooltip=None)
        .encode(
            x=alt.XValue(0),
            y=alt.YValue(0),
            shape=alt.Shape(
                "meaning:N", scale=alt.Scale(domain=[meaning], range=[_SWATCH]), legend=legend
            ),
        )
    )
    return [lines, entry]


def picture(rgba: np.ndarray, width: int, height: int) -> alt.Chart:
    """Pixels [row column 4] stretched over `width` × `height` px, without smoothing."""
    return (
        Chart({"values": [{"url": png_url(rgba)}]})
        .mark_image(
            width=width,
            height=height,
            align="left",
            baseline="top",
            aspect=False,
            smooth=False,
            tooltip=None,
        )
        .encode(x=alt.XValue(0), y=alt.YValue(0), url=alt.Url("url:N"))
    )


def colour_bar(scale: ColourScale, width: int, *, hatched: bool = False) -> alt.Legend:
    """The colour bar under a plot `width` px wide, clear of what explains its hatching."""
    return scale.legend(max(140, min(320, width)), 14 + _HATCH_ROW * hatched)


def bar_alone(scale: ColourScale, bar: alt.Legend) -> alt.Chart:
    """Nothing but the colour bar, for figures whose colours are already in a raster."""
    name = scale.quantity.name
    return (
        Chart({"values": [{name: scale.limits[0]}]})
        .mark_point(opacity=0, tooltip=None)
        .encode(
            x=alt.XValue(0),
            y=alt.YValue(0),
            color=alt.Color(f"{name}:Q", scale=scale.scale(), legend=bar),
        )
    )


def outline(
    left: Number, top: Number, right: Number, bottom: Number, mode: Mode
) -> list[alt.Chart]:
    """A double stroke, light outside and dark inside: visible on every colour of every palette."""
    c = COLOURS[mode]
    return [
        Chart(_ONE)
        .mark_rect(filled=False, stroke=stroke, strokeWidth=width, tooltip=None)
        .encode(
            x=alt.XValue(left), x2=alt.X2Value(right), y=alt.YValue(top), y2=alt.Y2Value(bottom)
        )
        for stroke, width in ((c.halo, 5), (c.outline, 2))
    ]


def dots(centres: Iterable[tuple[Number, Number]], mode: Mode) -> list[alt.Chart]:
    """Small ringed dots at the given pixels (x, y)."""
    c = COLOURS[mode]
    return [
        Chart(_ONE)
        .mark_point(
            size=40, fill=c.halo, stroke=c.outline, strokeWidth=1.2, opacity=1, tooltip=None
        )
        .encode(x=alt.XValue(x), y=alt.YValue(y))
        for x, y in centres
    ]
