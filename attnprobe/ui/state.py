"""Which model, layer and head are chosen: in the session, and in the link.

The session keeps a plain dict and beside it what was last written to the URL. On each run the URL
leads if it says something else than that (a fresh link, the back button), otherwise the session
does. Text is never in the URL.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import streamlit as st

CHOSEN = "chosen"
WRITTEN = "written"
MODEL, REVISION, LAYER, HEAD = "model", "revision", "layer", "head"
NUMBERS = (LAYER, HEAD)
DEVICE = "device"


def chosen(default_model: str) -> dict[str, Any]:
    """The choice of this session after the URL has had its say; edit it in place."""
    now = st.session_state.setdefault(CHOSEN, {MODEL: default_model, LAYER: 0, HEAD: 0})
    said = parsed(changed(st.query_params.to_dict(), st.session_state.setdefault(WRITTEN, {})))
    if MODEL in said:
        now.pop(REVISION, None)
    now |= said
    return now


def take_model(now: dict[str, Any], name: str, revision: str = "") -> None:
    """Chooses another model; a revision belongs to the model that it was given with."""
    now[MODEL] = name
    now.pop(REVISION, None)
    if revision:
        now[REVISION] = revision


def changed(url: Mapping[str, str], written: Mapping[str, str]) -> dict[str, str]:
    """What the URL says that this session has not written there."""
    return {key: value for key, value in url.items() if written.get(key) != value}


def parsed(url: Mapping[str, str]) -> dict[str, Any]:
    """Model and numbers as their types; what is no number is left out."""
    numbers = {k: int(v) for k, v in url.items() if k in NUMBERS and is_number(v)}
    return {k: v for k, v in url.items() if k not in NUMBERS and v.strip()} | numbers


def is_number(value: str) -> bool:
    """Whether a word is a small whole number."""
    return value.isascii() and value.isdigit() and len(value) < 7


def clamped(value: int, count: int) -> int:
    """The nearest of 0 … count − 1."""
    return max(0, min(value, count - 1))


def write() -> None:
    """The session's choice into the URL, where it differs."""
    now = {key: str(value) for key, value in st.session_state[CHOSEN].items()}
    st.session_state[WRITTEN] = now
    if st.query_params.to_dict() != now:
        st.query_params.from_dict(now)


def choose_head(view, layer: int, head: int) -> None:
    """Chooses a head; for a callback, which comes before the page is made anew."""
    st.session_state[CHOSEN] |= {
        LAYER: clamped(layer, view.loaded.n_layers),
        HEAD: clamped(head, view.loaded.n_heads),
    }


def open_head(view, page: str, layer: int, head: int) -> None:
    """Chooses a head and goes to another page, such as "pages/1_….py"; for a callback."""
    choose_head(view, layer, head)
    write()
    st.switch_page(page)


def picking_head(view, page: str | None = None) -> Callable[[Mapping[str, Any]], None]:
    """A callback that chooses the head that a mark of a chart names, and goes to `page` if given.

    A mark comes from the browser: one without two whole numbers is passed over.
    """
    take = choose_head if page is None else partial(open_head, page=page)

    def picked(mark: Mapping[str, Any]) -> None:
        place = {axis: mark.get(axis) for axis in (LAYER, HEAD)}
        if all(isinstance(number, int) for number in place.values()):
            take(view, **place)

    return picked


def choice(
    label: str,
    options: Sequence[str],
    *,
    key: str,
    default: str | None = None,
    url: bool = False,
    **look,
) -> str:
    """One of a few words side by side, kept over page switches; with `url` also in the link."""
    if not url:
        return st.segmented_control(
            label, options, key=key, default=default or options[0], required=True,
            persist_state="session", **look,
        )  # fmt: skip
    now, widget = st.session_state[CHOSEN], f"{key}:widget"

    def take() -> None:
        now[key] = st.session_state[widget]

    word = now.get(key, default)
    # Before the widget is drawn, for a link to lead; a click has been taken by then.
    st.session_state[widget] = word if word in options else options[0]
    now[key] = st.segmented_control(
        label, options, key=widget, required=True, on_change=take, **look
    )
    write()
    return now[key]
