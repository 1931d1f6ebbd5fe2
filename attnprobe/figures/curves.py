"""Lines over a number: sweeps, learning curves, theory against measurement."""

import altair as alt
import pandas as pd

from attnprobe.figures.axes import across, series, tips, upward
from attnprobe.figures.chart import Chart
from attnprobe.figures.theme import COLOURS, Mode, themed
from attnprobe.figures.values import inline
from attnprobe.metrics import Quantity, quantity


def curves(
    frame: pd.DataFrame,
    x: str | Quantity,
    y: str | Quantity,
    *,
    by: str | None = None,
    band: tuple[str, str] | None = None,
    marked: pd.DataFrame | None = None,
    dots: bool = False,
    mode: Mode = "light",
    width: int = 460,
    height: int = 260,
) -> alt.LayerChart:
    """One line per group of the column `by`, or one line; log axes where the quantity says so.

    `band` names two columns, the lower and the upper edge of an interval about the line. `marked`
    is a small frame with the columns of x and y and, where wanted, `label`: points to point out.
    `dots` shows where the line was measured.
    """
    qx, qy = quantity(x), quantity(y)
    names = [by] if by else []
    data = inline(frame, [qx.name, qy.name, *names, *(band or ())])
    look = series(frame, by, mode) if by else {}
    padding = 6 if dots else 0
    base = Chart(data).encode(x=across(qx, padding=padding), **look)
    layers = [_band(base, qy, band)] if band else []
    line = base.mark_line(point=dots, clip=True)
    layers.append(line.encode(y=upward(qy, padding=padding), tooltip=tips([qx, qy], names)))
    if marked is not None:
        layers += points_out(marked, qx, qy, mode, padding)
    return themed(
        alt.layer(*layers, width=width, height=height),
        mode,
        alt_text=f"{qy.title} against {qx.title}" + (f", one line per {by}." if by else "."),
        elastic=True,
    )


def _band(base: alt.Chart, q: Quantity, band: tuple[str, str]) -> alt.Chart:
    low, high = band
    area = base.mark_area(opacity=0.18, strokeWidth=0, clip=True, tooltip=None)
    return area.encode(y=upward(q, other=low), y2=alt.Y2(f"{high}:Q"))


def points_out(
    frame: pd.DataFrame, x: Quantity, y: Quantity, mode: Mode, padding: int = 0
) -> list[alt.Chart]:
    """Ringed points with their labels beside them, to lay over a figure of x and y."""
    c = COLOURS[mode]
    named = [name for name in ("label",) if name in frame]
    data = inline(frame, [x.name, y.name, *named])
    base = Chart(data).encode(x=across(x, padding=padding), y=upward(y, padding=padding))
    ring = base.mark_point(size=90, fill=c.page, stroke=c.text, strokeWidth=2, opacity=1)
    marks = [ring.encode(tooltip=tips([x, y], named))]
    if named:
        words = {"align": "left", "dx": 9, "dy": -9, "fontWeight": 600}
        halo = base.mark_text(**words, color=c.page, stroke=c.page, strokeWidth=4, tooltip=None)
        marks += [mark.encode(text=alt.Text("label:N")) for mark in (halo, base.mark_text(**words))]
    return marks
