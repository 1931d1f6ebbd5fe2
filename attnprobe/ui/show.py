"""Cards: a figure with its caption and its export menu, or anything else in the same frame."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import streamlit as st

from attnprobe.export import FORMATS, Figure, Provenance, render
from attnprobe.ui.errors import plain
from attnprobe.ui.view import View

Picked = dict[str, Any]


@contextmanager
def card(title: str, *, caption: str = "", export: Figure | None = None) -> Iterator[None]:
    """A bordered frame with a title, the block's content, a caption and, with `export`, a menu."""
    with st.container(border=True, height="stretch"):
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.markdown(f"**{plain(title)}**", width="stretch")
            if export is not None:
                _export_menu(export)
        yield
        if caption:
            st.caption(plain(caption))


def show(
    figure: Figure,
    *,
    key: str,
    selected: Mapping[str, Any] | None = None,
    selectable: bool = False,
) -> Picked | None:
    """A card with the figure's chart, caption and export menu.

    With `selectable`, returns the fields of the mark that was clicked in this run, else None.
    `selected` is what is chosen now: it lets a mark be clicked again after the choice has moved on
    by another control.
    """
    with card(figure.title, caption=figure.caption, export=figure):
        return draw(figure, key=key, selected=selected, selectable=selectable)


def draw(
    figure: Figure,
    *,
    key: str,
    selected: Mapping[str, Any] | None = None,
    selectable: bool = False,
) -> Picked | None:
    """The chart alone, for inside a `card`; otherwise as `show`."""
    if not selectable:
        st.altair_chart(figure.chart, theme=None, width="content", key=key)
        return None
    place = f"{key}:{_generation(key, selected)}"
    st.altair_chart(
        figure.chart, theme=None, width="content", key=place, on_select=partial(_note, key, place)
    )
    return st.session_state.pop(f"{key}:new", None)


def _note(key: str, place: str) -> None:
    picked = picked_from(st.session_state.get(place))
    st.session_state[f"{key}:new"] = st.session_state[f"{key}:last"] = picked


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


def _export_menu(figure: Figure) -> None:
    with st.popover("Export", icon=":material/download:", type="tertiary"):
        for form in FORMATS:
            st.download_button(
                form.upper(),
                data=partial(render, figure, form),
                file_name=figure.file_name(form),
                key=f"{figure.file_name(form)}:{figure.title}",
                on_click="ignore",
                width="stretch",
            )


def metrics(*numbers: tuple[str, str] | tuple[str, str, str]) -> None:
    """A row of numbers: (label, value) or (label, value, what it means)."""
    with st.container(horizontal=True, gap="small"):
        for label, value, *meaning in numbers:
            st.metric(label, value, border=True, width=168, help=meaning[0] if meaning else None)


def provenance(view: View) -> Provenance:
    """What every figure of this view prints and every file carries."""
    raise NotImplementedError
