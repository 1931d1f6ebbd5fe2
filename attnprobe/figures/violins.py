"""Distributions side by side as violins: as wide as the share of values that lie there."""

import altair as alt
import pandas as pd

from attnprobe.figures.axes import tips, upward
from attnprobe.figures.chart import Chart
from attnprobe.figures.labels import lookup, safe_label
from attnprobe.figures.theme import COLOURS, Mode, themed
from attnprobe.figures.values import column, inline
from attnprobe.metrics import Quantity, quantity

_HALF = 0.42
_SHARE = Quantity("share", "share of values", "per bin")


def violins(
    frame: pd.DataFrame,
    value: str | Quantity,
    by: str,
    *,
    mode: Mode = "light",
    width: int = 460,
    height: int = 260,
) -> alt.LayerChart:
    """One violin per group of the column `by`, in the order of the frame.

    The frame holds bins: the value's column is the lower edge, `right` the upper, `share` the share
    of the group's `n` values in the bin. All groups have one width at their fullest bin.
    """
    q, c = quantity(value), COLOURS[mode]
    names = list(dict.fromkeys(column(frame, by).tolist()))
    place = frame[by].map({name: i for i, name in enumerate(names)}).astype(float)
    reach = _HALF * frame["share"] / frame.groupby(by)["share"].transform("max")
    drawn = frame.assign(left=place - reach, rim=place + reach)[frame["share"] > 0]
    counts = frame.groupby(by, sort=False)["n"].first()
    labels = [safe_label(f"{name} (n = {counts[name]:,})") for name in names]
    axis = alt.Axis(
        title=by.replace("_", " "),
        values=list(range(len(names))),
        labelExpr=lookup(labels, "datum.value"),
        labelAngle=0,
        ticks=False,
        grid=False,
    )
    scale = alt.Scale(domain=[-0.5, max(len(names), 1) - 0.5], nice=False, zero=False)
    data = inline(drawn, [by, q.name, "right", "share", "left", "rim"])
    shapes = (
        Chart(data)
        .mark_rect(fill=c.accent, stroke=None, opacity=0.85)
        .encode(
            x=alt.X("left:Q", scale=scale, axis=axis),
            x2=alt.X2("rim:Q"),
            y=upward(q),
            y2=alt.Y2("right:Q"),
            tooltip=tips([q, _SHARE], [by]),
        )
    )
    return themed(
        alt.layer(shapes, width=width, height=height),
        mode,
        alt_text=f"{q.title} by {by.replace('_', ' ')}: one violin for each of {len(names)}.",
        elastic=True,
    )
