"""All heads at once: a number per head as a heat map, and a small picture of every head."""

from collections.abc import Mapping, Sequence

import altair as alt
import numpy as np
import pandas as pd

from attnprobe.errors import BadInput
from attnprobe.figures.chart import Chart
from attnprobe.figures.colour import ColourScale, Limits, colour_scale
from attnprobe.figures.labels import safe_label
from attnprobe.figures.marks import bar_alone, colour_bar, dots, hatching, outline
from attnprobe.figures.raster import cell_size, png_url, pool_max
from attnprobe.figures.theme import Mode, themed
from attnprobe.figures.values import column, finite, inline
from attnprobe.metrics import Quantity, quantity

SELECTION = "cell"
_GAP, _NAME = 12, 18
# Of a head on the map: one of few heads would leave its card empty, or fill it with a few blocks.
_LARGEST = 60


def head_map(
    frame: pd.DataFrame,
    value: str | Quantity,
    *,
    mode: Mode = "light",
    selected: tuple[int, int] | None = None,
    marked: Sequence[tuple[int, int]] = (),
    limits: Limits | None = None,
    palette: str = "cividis",
    size: int = 360,
    axes: tuple[str, str] = ("layer", "head"),
) -> alt.LayerChart:
    """A number per head as a heat map; one row of `frame` per (layer, head).

    A click selects a cell: the selection is named "cell" and has the fields of `axes`, two columns
    of whole numbers from 0 (downwards, to the right). `selected` gets a double stroke, each cell of
    `marked` a dot, for example where a head is pruned. Cells that are missing or undefined are
    hatched, never coloured as zero. `size` is the longest side in px.
    """
    q = quantity(value)
    scale = colour_scale(finite(frame, q.name), q, mode, palette=palette, limits=limits)
    holes = _holes(frame, q.name, axes)
    tall, wide = holes.shape
    step = cell_size(max(holes.shape), size, _LARGEST)
    bar = colour_bar(scale, wide * step, hatched=bool(holes.any()))
    layers = [
        cells(frame, scale, axes, holes.shape, bar),
        *hatching(holes, step, mode, "undefined", below=46),
        *dots([((b + 0.5) * step, (a + 0.5) * step) for a, b in marked], mode),
        *(_around(selected, step, mode) if selected else []),
    ]
    return themed(
        alt.layer(*layers, width=wide * step, height=tall * step),
        mode,
        alt_text=f"Heat map of {q.title} for {tall} {axes[0]}s by {wide} {axes[1]}s.",
    )


def thumbnails(
    pictures: Mapping[int, np.ndarray] | Mapping[str, np.ndarray],
    value: str | Quantity = "weight",
    *,
    mode: Mode = "light",
    selected: int | None = None,
    limits: Limits | None = None,
    palette: str = "viridis",
    per_row: int = 6,
    size: int = 96,
    name: str = "head",
) -> alt.LayerChart:
    """Small pictures in a grid, one per head: arrays [query key], undefined as NaN.

    Keys are the heads' numbers, or names that are printed as they are.

    All share one colour scale. A click selects a head: the selection is named "cell" and has the
    field `name`. Pictures of more than `size` cells a side are pooled by their maximum.
    """
    if not pictures:
        raise BadInput("there is no head to draw; give at least one")
    q = quantity(value)
    small = {key: pool_max(np.asarray(array, dtype=float), size) for key, array in pictures.items()}
    everything = np.concatenate([array.ravel() for array in small.values()])
    scale = colour_scale(everything, q, mode, palette=palette, limits=limits)
    width = min(per_row, len(small)) * (size + _GAP) - _GAP
    tiles = _tiles(small, scale, name, per_row, size)
    layers = [
        *_tile_layers(tiles, name, size),
        bar_alone(scale, colour_bar(scale, width)),
    ]
    for left, top in tiles.loc[tiles[name] == selected, ["left", "top"]].to_numpy().tolist():
        layers += outline(left, top, left + size, top + size, mode)
    return themed(
        alt.layer(*layers, width=width, height=int(tiles["top"].max()) + size),
        mode,
        alt_text=f"{len(small)} small heat maps of {q.title}, one per {name}.",
        dense=True,
    )


def cells(
    frame: pd.DataFrame,
    scale: ColourScale,
    axes: tuple[str, str],
    shape: tuple[int, ...],
    bar: alt.Legend,
) -> alt.Chart:
    """Rectangles of two whole-numbered `axes`, downwards and to the right; a click selects one."""
    rows, columns = axes
    tall, wide = shape
    q = scale.quantity
    pick = alt.selection_point(
        name=SELECTION, fields=list(axes), on="click", clear=False, toggle=False
    )
    return (
        Chart(inline(frame, [rows, columns, q.name]))
        .mark_rect(cursor="pointer", **scale.closing())
        .encode(
            x=alt.X(f"{columns}:O", scale=_band(wide), axis=_index_axis(columns, "bottom")),
            y=alt.Y(f"{rows}:O", scale=_band(tall), axis=_index_axis(rows, "left")),
            color=alt.Color(f"{q.name}:Q", scale=scale.scale(), legend=bar),
            tooltip=[
                alt.Tooltip(f"{rows}:O"),
                alt.Tooltip(f"{columns}:O"),
                alt.Tooltip(f"{q.name}:Q", title=q.title, format=q.format),
            ],
        )
        .add_params(pick)
    )


def _band(n: int) -> alt.Scale:
    return alt.Scale(domain=list(range(n)), paddingInner=0, paddingOuter=0)


def _index_axis(title: str, side: str) -> alt.Axis:
    return alt.Axis(
        title=title, orient=side, labelAngle=0, ticks=False, domain=False, labelOverlap="parity"
    )


def _around(cell: tuple[int, int], step: int, mode: Mode) -> list[alt.Chart]:
    top, left = cell[0] * step, cell[1] * step
    return outline(left, top, left + step, top + step, mode)


def _holes(frame: pd.DataFrame, name: str, axes: tuple[str, str]) -> np.ndarray:
    """Which cells of the grid have no defined number."""
    where = [column(frame, axis).to_numpy(dtype=int) for axis in axes]
    holes = np.ones([int(index.max(initial=0)) + 1 for index in where], dtype=bool)
    known = np.isfinite(frame[name].to_numpy(dtype=float, na_value=np.nan))
    holes[where[0][known], where[1][known]] = False
    return holes


def _tiles(
    small: Mapping[int | str, np.ndarray], scale: ColourScale, name: str, per_row: int, size: int
) -> pd.DataFrame:
    """Each picture, its name and where it stands, in px."""
    place = np.arange(len(small))
    return pd.DataFrame(
        {
            name: list(small),
            "left": (place % per_row) * (size + _GAP),
            "top": (place // per_row) * (size + _GAP + _NAME) + _NAME,
            "label": [
                safe_label(key if isinstance(key, str) else f"{name} {key}") for key in small
            ],
            "url": [png_url(scale.rgba(array)) for array in small.values()],
        }
    )


def _tile_layers(tiles: pd.DataFrame, name: str, size: int) -> list[alt.Chart]:
    """The pictures, their names above, and a clear sheet on each that takes the click."""
    pixels = alt.Scale(domain=[0, 1], range=[0, 1], nice=False, zero=False)
    x = alt.X("left:Q", scale=pixels, axis=None)
    y = alt.Y("top:Q", scale=pixels, axis=None)
    base = Chart({"values": tuple(tiles.to_dict("records"))}).encode(x=x, y=y)
    corner = {"align": "left", "baseline": "top", "width": size, "height": size}
    pick = alt.selection_point(name=SELECTION, fields=[name], on="click", clear=False, toggle=False)
    return [
        base.mark_image(**corner, aspect=False, smooth=False, tooltip=None).encode(
            url=alt.Url("url:N")
        ),
        base.mark_text(align="left", baseline="bottom", dy=-3, tooltip=None).encode(
            text=alt.Text("label:N")
        ),
        base.mark_rect(**corner, fillOpacity=0, cursor="pointer")
        .encode(tooltip=[alt.Tooltip(f"{name}:O")])
        .add_params(pick),
    ]
