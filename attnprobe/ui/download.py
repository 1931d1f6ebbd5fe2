"""Fetching a model that is not on this machine: asked for, with its bytes in sight and a stop.

The files are fetched by a thread of their own, which never touches Streamlit; the script only looks
at how far it is. When the script leaves, for whatever reason, the thread stops at its next chunk
and the next start goes on from there.
"""

import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait

import streamlit as st

from attnprobe import memory, sources
from attnprobe.errors import Stopped
from attnprobe.ui.bar import Bar
from attnprobe.ui.errors import plain

WANTED = "download wanted"
EVERY = 0.25


class Fetch:
    """One download: how far it is, and whether it shall stop."""

    def __init__(self) -> None:
        self.done = 0
        self.total = 0
        self.stop = threading.Event()

    def __call__(self, done: int, total: int) -> None:
        self.done, self.total = done, total
        if self.stop.is_set():
            raise Stopped("the download was stopped; it goes on from here next time")


def ready(name: str, revision: str | None) -> bool:
    """Whether the model's files are on this machine now; draws the offer or the download if not."""
    if not sources.needs_download(name, revision):
        return True
    if st.session_state.get(WANTED) != [name, revision]:
        _offer(name, revision)
        return False
    _fetch(name, revision)
    st.session_state[WANTED] = None
    return True


def _offer(name: str, revision: str | None) -> None:
    st.caption(
        f"**{plain(name)}** is not on this machine. Only its config, tokenizer and safetensors "
        "are fetched from the Hugging Face Hub; a stopped download goes on where it was."
    )
    st.button(
        "Download",
        type="primary",
        icon=":material/download:",
        width="stretch",
        on_click=lambda: st.session_state.__setitem__(WANTED, [name, revision]),
    )


def _fetch(name: str, revision: str | None) -> None:
    fetch = Fetch()
    pool = ThreadPoolExecutor(1, thread_name_prefix="download")
    place = st.empty()
    with place.container():
        bar = Bar(st.progress(0.0, text="Asking the Hub …"))
        st.button(
            "Stop",
            icon=":material/stop:",
            width="stretch",
            on_click=lambda: st.session_state.__setitem__(WANTED, None),
        )
    try:
        future = pool.submit(sources.find, name, revision, fetch)
        _watch(fetch, future, bar)
    finally:
        fetch.stop.set()
        pool.shutdown(wait=False)
    place.empty()


def _watch(fetch: Fetch, future: Future, bar: Bar) -> None:
    while not future.done():
        if fetch.total:
            text = f"{memory.size(fetch.done)} of {memory.size(fetch.total)}"
            bar(fetch.done / fetch.total, text)
        wait([future], timeout=EVERY)
    if future.exception() is not None:
        st.session_state[WANTED] = None
    future.result()
