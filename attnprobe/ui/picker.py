"""Which model: a bundled one, one of this machine's cache, one used before, or any other."""

from collections.abc import MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import streamlit as st
import torch

from attnprobe import hub
from attnprobe.models import DTYPES
from attnprobe.sources import BUNDLED
from attnprobe.ui import state

RECENT = "recent"
MOST_RECENT = 8


@dataclass(frozen=True)
class Asked:
    """The model that the sidebar names, and how to load it."""

    name: str
    revision: str | None
    device: str
    precision: str


def model(page: str, now: MutableMapping[str, Any]) -> Asked:
    """The widgets of the sidebar that choose a model."""
    place = f"{state.MODEL}:{page}"
    if st.session_state.get(place) != now[state.MODEL]:
        st.session_state[place] = now[state.MODEL]
    st.selectbox(
        "Model",
        known(now[state.MODEL]),
        key=place,
        on_change=lambda: state.take_model(now, st.session_state[place]),
        format_func=title,
        help="Bundled models, what is in the local Hugging Face cache, and what was used before.",
    )
    with st.container(horizontal=True, gap="small"):
        with st.popover("Another model", type="tertiary", icon=":material/add:"):
            _another(page, now)
        with st.popover("Device", type="tertiary", icon=":material/memory:"):
            device = st.selectbox(
                "Device",
                devices(),
                key=state.DEVICE,
                persist_state="session",
                help="auto: CUDA if there is one, else the CPU.",
            )
            precision = st.selectbox(
                "Precision", list(DTYPES), key="precision", persist_state="session"
            )
    return Asked(now[state.MODEL].strip(), now.get(state.REVISION), device, precision)


def known(current: str) -> list[str]:
    """All names to choose from, each once; the current one is always among them."""
    recent = st.session_state.get(RECENT, [])
    return list(dict.fromkeys([*BUNDLED, *_in_cache(), *recent, current]))


@st.cache_data(ttl=30, max_entries=1, show_spinner=False)
def _in_cache() -> tuple[str, ...]:
    return hub.cached_models()


def title(name: str) -> str:
    return BUNDLED[name].title if name in BUNDLED else name


def devices() -> list[str]:
    extra = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return ["auto", "cpu", *(device for device, there in extra.items() if there)]


def remember(name: str) -> None:
    """Keeps a model that could be loaded among the names to choose from."""
    recent = st.session_state.setdefault(RECENT, [])
    if name not in BUNDLED and name not in recent:
        recent.insert(0, name)
        del recent[MOST_RECENT:]


def _another(page: str, now: MutableMapping[str, Any]) -> None:
    keys = {part: f"{part}:{page}" for part in ("hub id", "hub revision", "folder")}
    with st.form("hub form", border=False):
        st.text_input("Hugging Face id", key=keys["hub id"], placeholder="owner/name")
        st.text_input(
            "Revision",
            key=keys["hub revision"],
            placeholder="newest",
            help="Branch, tag or commit.",
        )
        st.form_submit_button(
            "Load from the Hub",
            width="stretch",
            on_click=partial(_take, now, keys["hub id"], keys["hub revision"]),
        )
    with st.form("folder form", border=False):
        st.text_input(
            "Folder on this machine",
            key=keys["folder"],
            placeholder="~/models/my-bert",
            help="A folder that `save_pretrained` wrote: config, safetensors, tokenizer.",
        )
        st.form_submit_button(
            "Open the folder", width="stretch", on_click=partial(_take, now, keys["folder"])
        )


def _take(now: dict[str, Any], name: str, revision: str | None = None) -> None:
    typed = st.session_state[name].strip()
    if typed:
        state.take_model(now, typed, st.session_state[revision].strip() if revision else "")
