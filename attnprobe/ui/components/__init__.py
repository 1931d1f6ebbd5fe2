"""Canvases for what is dense and has to answer at once: token map, token-to-token lines, small
pictures of a layer.

They are views only. What is exported is drawn by `attnprobe.figures` from the same arrays. Token
text goes to the browser as data and is never part of HTML, CSS or JavaScript.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from attnprobe.figures.colour import ColourScale, Limits, colour_scale
from attnprobe.figures.labels import isolated, safe_labels
from attnprobe.figures.raster import pooled, stride
from attnprobe.figures.theme import Mode
from attnprobe.metrics import Quantity

MOST_CELLS = 192
"""Cells a side that a token map draws; more are pooled, see `figures.raster.pooled`."""

_HERE = Path(__file__).parent


def _component(name: str):
    read = {kind: (_HERE / f"{name}.{kind}").read_text("utf-8") for kind in ("html", "css", "js")}
    return st.components.v2.component(f"attnprobe_{name}", **read)


_HEATMAP = _component("heatmap")
_LINES = _component("lines")
_GALLERY = _component("gallery")

Span = tuple[int, int]


@dataclass(frozen=True)
class Zoom:
    """Which queries and keys a token map shows: from, up to but not including."""

    queries: Span
    keys: Span

    def pooled(self) -> int:
        """How many cells a side share one drawn cell."""
        return max(stride(end - start, MOST_CELLS) for start, end in (self.queries, self.keys))


@dataclass(frozen=True)
class Strip:
    """A number per query, drawn as bars beside the map; undefined as NaN."""

    title: str
    values: pd.Series
    most: float


@dataclass(frozen=True)
class Event:
    """What the person did to a token map: a cell clicked, or a part dragged out."""

    pick: tuple[int, int] | None = None
    zoom: Zoom | None = None


def heatmap(
    values: np.ndarray,
    tokens: Sequence[str],
    quantity: Quantity,
    *,
    key: str,
    mode: Mode,
    zoom: Zoom | None = None,
    row: int | None = None,
    limits: Limits | None = None,
    strips: Sequence[Strip] = (),
    on_event: Callable[[Event], None],
) -> None:
    """The token map of `values` [query key], NaN where the query may not see the key.

    `on_event` is told what the person did before the page is made anew. `row` is the pinned query.
    The colours are those of the whole map, also when zoomed; `limits`
    are theirs if the quantity's own do not suit.
    """
    zoom = zoom or Zoom((0, len(tokens)), (0, len(tokens)))
    scale = colour_scale(values[np.isfinite(values)], quantity, mode, limits=limits)
    part = np.asarray(values, dtype=float)[slice(*zoom.queries), slice(*zoom.keys)]
    drawn = pooled(part, MOST_CELLS, quantity.kind)

    def tell() -> None:
        said = st.session_state[key]
        on_event(event_from(said.get("pick"), said.get("zoom"), len(tokens)))

    _HEATMAP(
        key=key,
        data={
            "cells": _cells(drawn, scale),
            "meta": _meta(drawn, scale, tokens, zoom, row)
            | {"strips": [_strip(strip, zoom.queries) for strip in strips]}
            | {"masked": bool(np.isnan(part).any())},
        },
        on_pick_change=tell,
        on_zoom_change=tell,
    )


def event_from(pick: Any, zoom: Any, n: int) -> Event:
    """What the browser sent, if it is a cell or a part of an n × n map."""
    cell = _numbers(pick, ("query", "key"), n - 1)
    spans = [_span((zoom or {}).get(name), n) for name in ("rows", "columns")]
    return Event(cell, Zoom(*spans) if all(spans) else None)


def _numbers(value: Any, names: tuple[str, str], most: int) -> tuple[int, int] | None:
    found = [value.get(name) if isinstance(value, dict) else None for name in names]
    if all(isinstance(number, int) and 0 <= number <= most for number in found):
        return tuple(found)
    return None


def _span(value: Any, n: int) -> Span | None:
    if not isinstance(value, list) or len(value) != 2:
        return None
    if not all(isinstance(number, int) for number in value):
        return None
    start, end = value
    return (start, end) if 0 <= start < end <= n else None


def _cells(pooled: np.ndarray, scale: ColourScale) -> pd.DataFrame:
    colours = np.ascontiguousarray(scale.rgba(pooled)).view("<u4").ravel()
    return pd.DataFrame({"value": pooled.ravel().astype(np.float32), "colour": colours})


def _meta(
    pooled: np.ndarray, scale: ColourScale, tokens: Sequence[str], zoom: Zoom, row: int | None
) -> dict[str, Any]:
    rows, columns = pooled.shape
    q = scale.quantity
    return {
        "rows": rows,
        "columns": columns,
        "name": q.label,
        "title": q.title,
        "label": f"Token map of {q.title}, {len(tokens)} tokens; arrow keys move, Enter pins.",
        "ticks": scale.ticks(),
        "ramp": list(scale.colours),
        "pooled": zoom.pooled() > 1,
        "zoomable": len(tokens) > 12,
        "row": _position(row, zoom.queries),
        **_axis("query", tokens, zoom.queries),
        **_axis("key", tokens, zoom.keys),
    }


def _axis(name: str, tokens: Sequence[str], span: Span) -> dict[str, Any]:
    """Labels of the drawn cells; a pooled one is called after its first token."""
    start, end = span
    every = stride(end - start, MOST_CELLS)
    starts = list(range(start, end, every))
    words = [isolated(word) for word in safe_labels(tokens[i] for i in starts)]
    return {
        name: words
        if len(tokens) < 24
        else [f"{w} {i}" for w, i in zip(words, starts, strict=True)],
        f"{name}Start": starts,
        f"{name}End": end,
        f"{name}Tip": [
            f"{w} ({i})" if every == 1 else f"{w} … ({i}–{min(i + every, end) - 1})"
            for w, i in zip(words, starts, strict=True)
        ],
    }


def _position(row: int | None, span: Span) -> int | None:
    start, end = span
    if row is None or not start <= row < end:
        return None
    return (row - start) // stride(end - start, MOST_CELLS)


def _strip(strip: Strip, span: Span) -> dict[str, Any]:
    """The strip beside the drawn rows; rows that share a cell are averaged."""
    start, end = span
    values = np.asarray(strip.values, dtype=float)[start:end]
    every = stride(end - start, MOST_CELLS)
    parts = [values[i : i + every] for i in range(0, len(values), every)]
    means = [float(p[np.isfinite(p)].mean()) if np.isfinite(p).any() else None for p in parts]
    return {"title": strip.title, "values": means, "most": strip.most or 1.0}


def gallery(
    pictures: Mapping[int, np.ndarray],
    quantity: Quantity,
    *,
    key: str,
    mode: Mode,
    chosen: int | None = None,
    limits: Limits | None = None,
    titles: Mapping[int, str],
    on_pick: Callable[[int], None],
) -> None:
    """Small pictures [query key] of one size, NaN where a query may not see, in a grid that fits.

    `on_pick` is told the key of the picture that was clicked, before the page is made anew.
    """
    stack = np.stack([np.asarray(picture, dtype=float) for picture in pictures.values()])
    scale = colour_scale(stack[np.isfinite(stack)], quantity, mode, limits=limits)
    colours = np.ascontiguousarray(scale.rgba(stack)).view("<u4").ravel()
    names = list(pictures)
    meta = {
        "side": stack.shape[1],
        "titles": safe_labels(titles[name] for name in names),
        "chosen": names.index(chosen) if chosen in names else None,
        "ticks": scale.ticks(),
        "ramp": list(scale.colours),
        "title": quantity.title,
        "label": f"{len(names)} small pictures of {quantity.title}.",
    }

    def picked(place: Any) -> int | None:
        return names[place] if isinstance(place, int) and 0 <= place < len(names) else None

    _GALLERY(
        key=key,
        data={"pixels": pd.DataFrame({"colour": colours}), "meta": meta},
        on_pick_change=_telling(key, picked, on_pick),
    )


def _telling(
    key: str, picked: Callable[[Any], int | None], on_pick: Callable[[int], None]
) -> Callable[[], None]:
    """Tells `on_pick` what the browser said was picked, if it can be."""

    def tell() -> None:
        found = picked(st.session_state[key].get("pick"))
        if found is not None:
            on_pick(found)

    return tell


def lines(
    frame: pd.DataFrame,
    tokens: Sequence[str],
    quantity: Quantity,
    *,
    key: str,
    mode: Mode,
    row: int | None = None,
    on_pick: Callable[[int], None],
) -> None:
    """Lines from queries to keys for each row of `frame` (query, key and the quantity's column).

    `on_pick` is told the query that was clicked before the page is made anew. `row` is the pinned
    query.
    """
    value = frame[quantity.name].to_numpy(dtype=np.float32)
    most = float(value.max()) if len(value) else 1.0
    data = pd.DataFrame(
        {
            "query": frame["query"].to_numpy(dtype=np.int32),
            "key": frame["key"].to_numpy(dtype=np.int32),
            "value": value,
            "ink": value / (most or 1.0),
        }
    )
    label = f"Lines of {quantity.title} from query tokens on the left to key tokens on the right."
    meta = {
        "tokens": safe_labels(tokens),
        "row": row,
        "dark": mode == "dark",
        "label": label,
    }

    def picked(said: Any) -> int | None:
        cell = _numbers(
            {"query": (said or {}).get("query"), "key": 0}, ("query", "key"), len(tokens) - 1
        )
        return cell[0] if cell else None

    _LINES(
        key=key,
        data={"lines": data, "meta": meta},
        on_pick_change=_telling(key, picked, on_pick),
    )
