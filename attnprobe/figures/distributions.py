"""How numbers are spread: histograms, five-number boxes, clouds of points under a bound."""

import altair as alt
import numpy as np
import pandas as pd

from attnprobe.figures.axes import across, either, fills, series, tips, upward
from attnprobe.figures.chart import Chart
from attnprobe.figures.curves import points_out
from attnprobe.figures.labels import safe_label
from attnprobe.figures.theme import COLOURS, Mode, themed
from attnprobe.figures.values import column, finite, inline
from attnprobe.metrics import Quantity, quantity

_SHARE = Quantity("share", "share of values", "per bin", domain=(0, None))
QUANTILES = {"low": 0.05, "q1": 0.25, "median": 0.5, "q3": 0.75, "high": 0.95}


def bin_shares(
    frame: pd.DataFrame, value: str, *, by: str | None = None, bins: int = 40
) -> pd.DataFrame:
    """The share of the defined values of each group that falls into each of `bins` equal bins.

    Columns: `by`, `value` (left edge), `right`, `share`. Shares of a group sum to one.
    """
    everything = finite(frame, value)
    edges = np.histogram_bin_edges(everything if everything.size else np.zeros(1), bins=bins)
    groups = frame.groupby(by, sort=False) if by else [(None, frame)]
    parts = [
        _shares(part, value, edges).assign(**({by: key} if by else {})) for key, part in groups
    ]
    return pd.concat(parts, ignore_index=True)


def _shares(part: pd.DataFrame, value: str, edges: np.ndarray) -> pd.DataFrame:
    counts, _ = np.histogram(finite(part, value), bins=edges)
    share = counts / max(1, counts.sum())
    return pd.DataFrame({value: edges[:-1], "right": edges[1:], "share": share})


def histogram(
    frame: pd.DataFrame,
    value: str | Quantity,
    *,
    by: str | None = None,
    share: Quantity = _SHARE,
    mode: Mode = "light",
    width: int = 460,
    height: int = 220,
) -> alt.Chart:
    """The frame of `bin_shares`: bars for one group, outlines laid over each other for several.

    `share` is the column that the heights come from, for example a density in its place.
    """
    q = quantity(value)
    shown = _closed(frame, q.name, by) if by else frame
    base = Chart(
        inline(shown, [q.name, "right", share.name, *([by] if by else [])]),
        width=width,
        height=height,
    ).encode(x=across(q), tooltip=tips([q, share], [by or ""]))
    if by:
        line = base.mark_line(interpolate="step-after", strokeWidth=2)
        chart = line.encode(y=upward(share), **series(frame, by, mode))
    else:
        bars = base.mark_rect(fill=COLOURS[mode].accent, stroke=COLOURS[mode].page, strokeWidth=0.5)
        chart = bars.encode(x2=alt.X2("right:Q"), y=upward(share), y2=alt.Y2Datum(0))
    return themed(chart, mode, alt_text=f"Histogram of {q.title}.", elastic=True)


def _closed(frame: pd.DataFrame, value: str, by: str) -> pd.DataFrame:
    """Each group once more at its last right edge, so that an outline covers the last bin."""
    ends = frame.groupby(by, sort=False).tail(1)
    return pd.concat([frame, ends.assign(**{value: ends["right"]})], ignore_index=True)


def five_numbers(frame: pd.DataFrame, value: str, by: str) -> pd.DataFrame:
    """The 5, 25, 50, 75 and 95 % quantiles of the defined values of each group.

    Columns: `by`, low, q1, median, q3, high, n. A group with no defined value has undefined
    quantiles and n = 0.
    """
    defined = column(frame, value).where(np.isfinite(column(frame, value).astype(float)))
    grouped = defined.astype(float).groupby(frame[by], sort=False)
    table = grouped.quantile(list(QUANTILES.values())).unstack()
    table.columns = list(QUANTILES)
    return table.assign(n=grouped.count()).rename_axis(by).reset_index()


def boxes(
    frame: pd.DataFrame,
    value: str | Quantity,
    by: str,
    *,
    mode: Mode = "light",
    selected: object = None,
    width: int = 460,
    height: int = 260,
) -> alt.LayerChart:
    """The frame of `five_numbers`: middle half as a box, 5 to 95 % as a whisker, median as a line.

    `selected` is the group to set off. A click selects a group: the selection is named "cell" and
    has the field `by`.
    """
    q, c = quantity(value), COLOURS[mode]
    shown = frame.assign(chosen=column(frame, by) == selected)
    data = inline(shown, [by, *QUANTILES, "n", "chosen"])
    order = [v if isinstance(v, int) else safe_label(v) for v in column(frame, by).tolist()]
    x = alt.X(f"{by}:O", sort=None, scale=alt.Scale(domain=order), axis=alt.Axis(labelAngle=0))
    base = Chart(data).encode(x=x, tooltip=[alt.Tooltip(f"{by}:O"), *_five_tips(q)])
    thick = max(2, min(26, int(0.6 * width / max(1, len(order)))))
    pick = alt.selection_point(name="cell", fields=[by], on="click", clear=False, toggle=False)
    y = {name: upward(q, other=name) for name in QUANTILES}
    layers = [
        base.mark_rule(strokeWidth=1.5).encode(y=y["low"], y2=alt.Y2("high:Q")),
        base.mark_bar(size=thick, cursor="pointer", stroke=c.page, strokeWidth=1)
        .encode(
            y=y["q1"],
            y2=alt.Y2("q3:Q"),
            color=either("datum.chosen", c.categories[1], c.accent),
        )
        .add_params(pick),
        base.mark_tick(size=thick, thickness=2.5, color=c.page).encode(y=y["median"]),
    ]
    return themed(
        alt.layer(*layers, width=width, height=height),
        mode,
        alt_text=f"{q.title} by {by}: median, middle half and 5 to 95 % range.",
        elastic=True,
    )


def _five_tips(q: Quantity) -> list[alt.Tooltip]:
    words = {"low": "5 %", "q1": "25 %", "median": "median", "q3": "75 %", "high": "95 %"}
    numbers = [alt.Tooltip(f"{k}:Q", title=words[k], format=q.format) for k in words]
    return [*numbers, alt.Tooltip("n:Q", title="values", format="d")]


def scatter(
    frame: pd.DataFrame,
    x: str | Quantity,
    y: str | Quantity,
    *,
    by: str | None = None,
    names: tuple[str, ...] = ("layer", "head"),
    interval: tuple[str, str] | None = None,
    bounds: pd.DataFrame | None = None,
    marked: pd.DataFrame | None = None,
    mode: Mode = "light",
    width: int = 460,
    height: int = 300,
) -> alt.LayerChart:
    """One point per row of the frame; `names` are the columns that the tooltip tells it by.

    `interval` names the columns of a lower and an upper end of y: a thin rule behind each point.
    `bounds` is a frame with the columns of x and y and `bound` (its name): a dashed line each, for
    a theoretical limit or an identity. `marked` as in `curves`. A click selects a point: the
    selection is named "cell" and has the fields `names`.
    """
    qx, qy = quantity(x), quantity(y)
    known = [name for name in names if name in frame]
    data = inline(frame, [qx.name, qy.name, *known, *([by] if by else [])])
    points = Chart(data).mark_point(opacity=0.75, size=34, cursor="pointer")
    points = points.encode(x=across(qx), y=upward(qy), tooltip=tips([qx, qy], known))
    if by:
        points = points.encode(color=fills(frame, by, mode))
    if known:
        pick = alt.selection_point(name="cell", fields=known, on="click", clear=False, toggle=False)
        points = points.add_params(pick)
    layers = [_spreads(frame, qx, qy, interval, by, mode), points] if interval else [points]
    if bounds is not None:
        layers.append(_bounds(bounds, qx, qy, mode))
    if marked is not None:
        layers += points_out(marked, qx, qy, mode)
    return themed(
        alt.layer(*layers, width=width, height=height, resolve={"scale": {"color": "independent"}}),
        mode,
        alt_text=f"{len(frame)} points: {qy.title} against {qx.title}.",
        dense=len(frame) > 2000,
        elastic=True,
    )


def _spreads(
    frame: pd.DataFrame,
    x: Quantity,
    y: Quantity,
    interval: tuple[str, str],
    by: str | None,
    mode: Mode,
) -> alt.Chart:
    """Rows of their own: a point whose interval is undefined is still drawn."""
    low, high = interval
    data = inline(frame, [x.name, low, high, *([by] if by else [])])
    rules = Chart(data).mark_rule(strokeWidth=1, opacity=0.5, tooltip=None)
    rules = rules.encode(x=across(x), y=upward(y, other=low), y2=alt.Y2(f"{high}:Q"))
    return rules.encode(color=fills(frame, by, mode).legend(None)) if by else rules


def _bounds(frame: pd.DataFrame, x: Quantity, y: Quantity, mode: Mode) -> alt.Chart:
    data = inline(frame, [x.name, y.name, "bound"])
    look = series(frame, "bound", mode)
    return (
        Chart(data)
        .mark_line(strokeWidth=1.5, color=COLOURS[mode].text, clip=True)
        .encode(x=across(x), y=upward(y), strokeDash=look["strokeDash"])
    )
