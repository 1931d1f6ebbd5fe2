"""Queries × keys: one head's weights, logits or differences as a picture."""

import json
from collections.abc import Sequence

import altair as alt
import numpy as np
import pandas as pd

from attnprobe.errors import BadInput
from attnprobe.figures.atlas import SELECTION
from attnprobe.figures.chart import Chart
from attnprobe.figures.colour import ColourScale, Limits, colour_scale
from attnprobe.figures.labels import lookup, safe_labels, token_axis
from attnprobe.figures.marks import bar_alone, colour_bar, hatching, outline, picture
from attnprobe.figures.raster import cell_size, pooled, stride
from attnprobe.figures.theme import Mode, themed
from attnprobe.figures.values import column, inline
from attnprobe.metrics import Kind, Quantity, quantity

Titles = tuple[str, str]
"""What the rows and what the columns are called."""

CELL_LIMIT = 128 * 128
MOST_PIXELS = 512


def matrix_frame(
    values: np.ndarray, tokens: Sequence[str], name: str, *, valid: np.ndarray | None = None
) -> pd.DataFrame:
    """[query key] as a tidy frame: query, key, query_token, key_token and the column `name`.

    `valid` (boolean, of the shape of `values` or one row for all queries) is false where the query
    may not see the key; such a value becomes undefined (NaN).
    """
    array = np.asarray(values, dtype=float)
    if array.shape != (len(tokens), len(tokens)):
        shape = " × ".join(map(str, array.shape))
        raise BadInput(
            f"a token map of {len(tokens)} tokens needs as many rows and columns, not {shape}"
        )
    if valid is not None:
        array = np.where(valid, array, np.nan)
    return cells_frame(array, tokens, name, *(at.ravel() for at in np.indices(array.shape)))


def cells_frame(
    values: np.ndarray, tokens: Sequence[str], name: str, query: np.ndarray, key: np.ndarray
) -> pd.DataFrame:
    """Some cells of `values` [query key], those at `query` and `key`, as `matrix_frame` has all."""
    labels = pd.array(safe_labels(tokens), dtype="str")
    return pd.DataFrame(
        {
            "query": query,
            "key": key,
            "query_token": labels.take(query),
            "key_token": labels.take(key),
            name: values[query, key],
        }
    )


def token_map(
    frame: pd.DataFrame,
    value: str | Quantity = "weight",
    *,
    mode: Mode = "light",
    row: int | None = None,
    limits: Limits | None = None,
    palette: str = "viridis",
    size: int = 520,
    titles: Titles = ("query", "key"),
) -> alt.LayerChart:
    """The frame of `matrix_frame` as a heat map, queries downwards and keys to the right.

    Up to 128 × 128 cells are vector rectangles with tooltips, and a click selects one: selection
    "cell" with the fields query and key. More cells become one raster under vector axes; more than
    512 a side are pooled first, by their maximum or, where values are signed, by the largest
    magnitude (`pooling_note` is the sentence for the caption).
    Cells that the query may not see are hatched. `row` marks a query. `size` is the longest side
    in px; a raster has at least one pixel per drawn cell. `titles` are of the two axes.
    """
    q = quantity(value)
    array, tokens = grid(frame, q.name)
    layers, side = map_layers(
        array, tokens, q, mode, row=row, limits=limits, palette=palette, size=size, titles=titles
    )
    return themed(
        alt.layer(*layers, width=side, height=side),
        mode,
        alt_text=f"Heat map of {q.title}, {len(tokens)} queries by {len(tokens)} keys.",
        dense=True,
    )


def map_layers(
    array: np.ndarray,
    tokens: list[str],
    q: Quantity,
    mode: Mode,
    *,
    row: int | None = None,
    limits: Limits | None = None,
    palette: str = "viridis",
    size: int = 520,
    titles: Titles = ("query", "key"),
) -> tuple[list[alt.Chart], int]:
    """The layers of a token map and its side in px, for `token_map` and what stands beside one."""
    scale = colour_scale(array, q, mode, palette=palette, limits=limits)
    vector = array.size <= CELL_LIMIT
    drawn = array if vector else pooled(array, MOST_PIXELS, q.kind)
    step = cell_size(len(drawn), size, largest=28)
    side = step * len(drawn)
    hidden = ~np.isfinite(drawn)
    draw = _cells if vector else _raster
    bar = colour_bar(scale, side, hatched=bool(hidden.any()))
    layers = draw(drawn, tokens, scale, step, bar, titles)
    layers += hatching(hidden, step, mode, "not visible to the query")
    if row is not None:
        high = step / stride(len(tokens), len(drawn))
        layers += outline(0, row * high, side, (row + 1) * high, mode)
    return layers, side


def grid(frame: pd.DataFrame, name: str) -> tuple[np.ndarray, list[str]]:
    """A tidy frame back as [query key] and its token labels; absent cells are undefined."""
    query, key = (column(frame, axis).to_numpy(dtype=int) for axis in ("query", "key"))
    n = int(max(query.max(initial=0), key.max(initial=0))) + 1
    array = np.full((n, n), np.nan)
    array[query, key] = column(frame, name).to_numpy(dtype=float, na_value=np.nan)
    labels = token_labels(frame, "query") | token_labels(frame, "key")
    return array, safe_labels(labels.get(i, "") for i in range(n))


def token_labels(frame: pd.DataFrame, axis: str) -> dict[int, str]:
    """Position to label, of the queries or of the keys of a tidy frame."""
    once = frame.drop_duplicates(axis)
    return dict(zip(once[axis].tolist(), column(once, f"{axis}_token"), strict=True))


def pooling_note(n_tokens: int, kind: Kind = "sequential") -> str:
    """The sentence a caption needs when `token_map` pools; empty when every cell is drawn."""
    every = stride(n_tokens, MOST_PIXELS)
    what = "value of largest magnitude" if kind == "diverging" else "maximum"
    return f"Each pixel is the {what} of {every} × {every} cells." if every > 1 else ""


def _cells(
    array: np.ndarray,
    tokens: list[str],
    scale: ColourScale,
    step: int,
    bar: alt.Legend,
    titles: Titles,
) -> list[alt.Chart]:
    q = scale.quantity
    query, key = np.nonzero(np.isfinite(array))
    frame = pd.DataFrame({"query": query, "key": key, q.name: array[query, key]})
    band = alt.Scale(domain=list(range(len(tokens))), paddingInner=0, paddingOuter=0)
    pick = alt.selection_point(
        name=SELECTION, fields=["query", "key"], on="click", clear=False, toggle=False
    )
    return [
        Chart(inline(frame, list(frame)))
        .mark_rect(cursor="pointer", **scale.closing())
        .encode(
            x=alt.X("key:O", scale=band, axis=token_axis(tokens, step, titles[1], side="top")),
            y=alt.Y("query:O", scale=band, axis=token_axis(tokens, step, titles[0], side="left")),
            color=alt.Color(f"{q.name}:Q", scale=scale.scale(), legend=bar),
            tooltip=alt.TooltipValue({"expr": _tooltip(tokens, q, titles)}),
        )
        .add_params(pick)
    ]


def _tooltip(tokens: list[str], q: Quantity, titles: Titles) -> str:
    """A Vega expression: the words are written once, not in every cell."""
    number = f"format(datum[{json.dumps(q.name)}], '.4g')"
    pairs = [
        f"{json.dumps(title)}: {lookup(tokens, 'datum.' + axis)} + ' (' + datum.{axis} + ')'"
        for axis, title in zip(("query", "key"), titles, strict=True)
    ]
    return "{" + ", ".join([*pairs, f"{json.dumps(q.title)}: {number}"]) + "}"


def _raster(
    drawn: np.ndarray,
    tokens: list[str],
    scale: ColourScale,
    step: int,
    bar: alt.Legend,
    titles: Titles,
) -> list[alt.Chart]:
    """The image, its colour bar, and an invisible mark that carries the two axes."""
    side = step * len(drawn)
    end = len(drawn) * stride(len(tokens), len(drawn))
    axes = {
        name: token_axis(tokens, side / end, title, side=place, continuous=True)
        for name, title, place in (("key", titles[1], "top"), ("query", titles[0], "left"))
    }
    across = alt.Scale(domain=[0, end], nice=False, zero=False)
    down = alt.Scale(domain=[end, 0], nice=False, zero=False)
    ruler = (
        Chart({"values": [{"key": 0, "query": 0}]})
        .mark_point(opacity=0, tooltip=None)
        .encode(
            x=alt.X("key:Q", scale=across, axis=axes["key"]),
            y=alt.Y("query:Q", scale=down, axis=axes["query"]),
        )
    )
    return [picture(scale.rgba(drawn), side, side), bar_alone(scale, bar), ruler]
