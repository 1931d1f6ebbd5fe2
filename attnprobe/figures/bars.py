"""A number per named thing: rankings, shares, effects with their intervals."""

import altair as alt
import pandas as pd

from attnprobe.figures.axes import across, by_sign, fills, tips
from attnprobe.figures.chart import Chart
from attnprobe.figures.labels import lookup
from attnprobe.figures.theme import COLOURS, Mode, themed
from attnprobe.figures.values import column, inline
from attnprobe.metrics import Quantity, quantity

_ROW = 18


def bars(
    frame: pd.DataFrame,
    value: str | Quantity,
    label: str,
    *,
    interval: tuple[str, str] | None = None,
    by: str | None = None,
    ordered: bool = True,
    most: int = 30,
    row: int = _ROW,
    mode: Mode = "light",
    width: int = 360,
) -> alt.LayerChart:
    """Horizontal bars, one per row, labelled by the column `label`; equal labels stay apart.

    `ordered` puts the largest on top (by absolute value for signed quantities), else the rows keep
    their order. Only the first `most` are drawn; the caption has to say so when there are more.
    `row` is the height of one in px.
    `interval` names the columns of a lower and an upper end. Negative bars have another colour;
    `by` names a column whose groups are coloured instead.
    """
    q, c = quantity(value), COLOURS[mode]
    shown = _first(frame, q.name, ordered, most).assign(position=lambda t: range(len(t)))
    labels = column(shown, label).tolist()
    groups = [by] if by else []
    data = inline(shown, ["position", label, q.name, *groups, *(interval or ())])
    y = alt.Y(
        "position:O",
        scale=alt.Scale(domain=list(range(len(labels))), paddingInner=0.25, paddingOuter=0.1),
        axis=alt.Axis(
            title=None,
            labelExpr=lookup(labels, "datum.value"),
            labelOverlap=False,
            labelLimit=280,
            ticks=False,
            domain=False,
        ),
    )
    base = Chart(data).encode(y=y, tooltip=tips([q], [label, *groups]))
    sign = by_sign(q.name, mode)
    hue = fills(frame, by, mode) if by else sign
    layers = [base.mark_bar().encode(x=across(q, zero=True), color=hue)]
    if interval:
        low, high = interval
        whisker = base.mark_rule(color=c.text, strokeWidth=1.5)
        layers.append(whisker.encode(x=across(q, other=low, zero=True), x2=alt.X2(f"{high}:Q")))
    return themed(
        alt.layer(*layers, width=width, height=max(1, len(labels)) * row),
        mode,
        alt_text=f"Bars of {q.title} for {len(labels)} of {len(frame)} rows.",
        elastic=True,
    )


def _first(frame: pd.DataFrame, name: str, ordered: bool, most: int) -> pd.DataFrame:
    defined = frame[column(frame, name).notna()]
    if ordered:
        signed = (defined[name] < 0).any()
        key = abs if signed else None
        defined = defined.sort_values(name, key=key, ascending=False, kind="stable")
    return defined.head(most)
