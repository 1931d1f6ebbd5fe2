"""Cards: a figure with its caption and its export menu, or anything else in the same frame."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib.metadata import version
from numbers import Real
from typing import Any, Literal

import pandas as pd
import streamlit as st

import attnprobe
from attnprobe.export import FORMATS, Figure, Format, Provenance, file_name, render
from attnprobe.loaded import LoadedModel
from attnprobe.text import Tokens
from attnprobe.ui.errors import plain
from attnprobe.ui.view import View

Picked = dict[str, Any]
NO_ROW = "No row of this text sees two keys, so there is no row to draw; type a longer text."
HALF = 288
"""The side of a square map that fits half a page 1,280 px wide, with its labels, px."""
Width = int | Literal["stretch", "content"]


@contextmanager
def card(
    title: str,
    *,
    caption: str = "",
    export: Figure | None = None,
    formats: Sequence[Format] = FORMATS,
    key: str = "",
    width: Width = "stretch",
    menu: str = "Export",
) -> Iterator[None]:
    """A bordered frame with a title, the block's content, a caption and, with `export`, a menu.

    The menu stands beside the caption: what is above a chart Streamlit's own tools may cover.

    `key` tells the menus of one page apart; needed with `export` when two figures share a name.
    `formats` are what the menu offers: ("csv",) for a table without a picture; `menu` is its name.
    """
    with st.container(border=True, height="stretch", width=width):
        st.markdown(f"**{plain(title)}**")
        yield
        if caption or export is not None:
            _foot(caption, export, key, formats, menu)


def _foot(
    caption: str, export: Figure | None, key: str, formats: Sequence[Format], menu: str
) -> None:
    with st.container(
        horizontal=True, wrap=False, vertical_alignment="center", horizontal_alignment="right"
    ):
        if caption:
            st.caption(plain(caption), width="stretch")
        if export is not None:
            _export_menu(export, key or export.name, formats, menu)


def show(
    view: View,
    figure: Figure,
    title: str,
    *,
    key: str,
    on_pick: Callable[[Picked], None] | None = None,
    selected: Mapping[str, Any] | None = None,
    width: Width = "stretch",
) -> None:
    """A card with the figure's chart, caption and export menu.

    `on_pick` is told the fields of a mark that was clicked, before the page is made anew.
    `selected` is what is chosen now: it lets a mark be clicked again after the choice has moved on
    by another control.
    """
    with card(title, caption=figure.caption, export=figure, key=key, width=width):
        draw(view, figure, key=key, on_pick=on_pick, selected=selected)


def draw(
    view: View,
    figure: Figure,
    *,
    key: str,
    on_pick: Callable[[Picked], None] | None = None,
    selected: Mapping[str, Any] | None = None,
    width: Width | None = None,
) -> None:
    """The chart alone, for inside a `card`; otherwise as `show`.

    A chart without square cells fills its card unless `width="content"`.
    """
    spec = figure.spec(view.mode)
    elastic = spec["autosize"]["type"] == "fit-x"
    if width == "stretch" and not elastic:
        spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    look = {"theme": None, "width": width or ("stretch" if elastic else "content")}
    if on_pick is None:
        st.vega_lite_chart(spec, key=key, **look)
        return
    place = f"{key}:{_generation(key, selected)}"
    st.vega_lite_chart(spec, key=place, on_select=partial(_note, key, place, on_pick), **look)


def _note(key: str, place: str, on_pick: Callable[[Picked], None]) -> None:
    st.session_state[f"{key}:last"] = picked = picked_from(st.session_state.get(place))
    if picked is not None:
        on_pick(picked)


def picked_from(event: Mapping[str, Any] | None) -> Picked | None:
    """The fields of the one mark that a chart's selection event names."""
    for points in ((event or {}).get("selection") or {}).values():
        if isinstance(points, Sequence) and points:
            return dict(points[0])
    return None


def _generation(key: str, selected: Mapping[str, Any] | None) -> int:
    """Counts up when the choice has left the last click, because a chart reports no second one."""
    count = st.session_state.setdefault(f"{key}:generation", 0)
    last = st.session_state.get(f"{key}:last")
    if last is not None and selected is not None and last != dict(selected):
        st.session_state[f"{key}:last"] = None
        st.session_state[f"{key}:generation"] = count = count + 1
    return count


def _export_menu(figure: Figure, key: str, formats: Sequence[Format], menu: str) -> None:
    with st.popover(menu, icon=":material/download:", type="tertiary"):
        for form in formats:
            st.download_button(
                form.upper(),
                data=partial(render, figure, form),
                file_name=file_name(figure, form),
                key=f"export:{key}:{form}",
                on_click="ignore",
                width="stretch",
            )


def two_cards(view: View, widths: int | Sequence[int] = 2, *, most: int = HALF) -> Sequence[Any]:
    """Places for two cards side by side, or one below the other for a text longer than `most`.

    A map has at least a pixel for each token, and half a narrow page has no room for more.
    """
    return st.columns(widths) if len(view.tokens) <= most else [st.container(), st.container()]


def heading(label: str) -> str:
    """A label as the beginning of a title: "TVD" and "Frobenius" keep their capitals."""
    return label[:1].upper() + label[1:]


def value(number: Real) -> str:
    """Three digits, or a dash where the number is undefined."""
    return "–" if pd.isna(number) else f"{number:.3g}".replace("-", "−")


def metrics(*numbers: tuple[str, str] | tuple[str, str, str]) -> None:
    """A row of numbers that fills the page: (label, value) or (label, value, what it means)."""
    columns = st.columns(len(numbers), gap="small")
    for column, (label, value, *meaning) in zip(columns, numbers, strict=True):
        column.metric(label, value, border=True, help=meaning[0] if meaning else None)


def provenance(
    view: View,
    *,
    layer: int | None = None,
    head: int | None = None,
    excluded: str = "",
    **extra: Any,
) -> Provenance:
    """What a figure of this view prints and its files carry.

    `layer` and `head` name what the figure shows, if it shows one; `excluded` says what it leaves
    out; `extra` is anything else that a reader needs (N, seed, threshold).
    """
    loaded, tokens = view.loaded, view.tokens
    if loaded is None:
        return Provenance("none", versions=versions(), excluded=excluded, extra=extra)
    return Provenance(
        model=loaded.name,
        revision=loaded.revision,
        dtype=loaded.precision,
        device=str(loaded.device),
        head=None if layer is None else f"L{layer}" + ("" if head is None else f".H{head}"),
        text_digest=tokens.digest,
        n_tokens=len(tokens),
        certificate=summary(view.certificate),
        versions=versions(),
        excluded=excluded,
        extra=_part_of_text(loaded, tokens) | extra,
    )


def _part_of_text(loaded: LoadedModel, tokens: Tokens) -> dict[str, str]:
    """What a reader has to know of the text beside its tokens."""
    facts = {}
    if tokens.window is not None:
        facts["window"] = "from token {}, {} long".format(*tokens.window)
    if not loaded.reader.prefix and tokens.special[0]:
        facts["begins with"] = tokens.display[0]
    return facts


def summary(certificate: pd.DataFrame) -> str:
    """The certificate as one line."""
    worst = float((certificate["max_abs_error"] / certificate["tolerance"]).max())
    verdict = "holds" if bool(certificate["ok"].all()) else "failed"
    return f"{verdict} in {len(certificate)} stages, largest error {worst:.2g} of its tolerance"


@cache
def versions() -> dict[str, str]:
    """The programs that made the numbers and the files."""
    made_with = ("torch", "transformers", "altair", "vl-convert-python")
    return {"attnprobe": attnprobe.__version__} | {name: version(name) for name in made_with}
