"""One torch computation at a time, and leaving early when nobody waits for the result.

Streamlit starts a new script thread while the old one still computes. `tick` is a point where an
outdated script leaves: reading the session state raises Streamlit's rerun signal there.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st


def tick() -> None:
    """Leaves the running script if a newer one has been asked for; otherwise nothing."""
    st.session_state.get("tick")


class Turn:
    """A lock that a thread may hold several times over, and lend to others between batches."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._waiting = 0

    @contextmanager
    def taken(self) -> Iterator[None]:
        """The block runs alone; waiting ends early when the waiting script is outdated."""
        self._acquire()
        try:
            yield
        finally:
            self._lock.release()

    def lend(self) -> None:
        """Lets whoever waits go first. Only for a holder, between two batches."""
        if self._waiting:
            self._lock.release()
            time.sleep(0.002)
            self._lock.acquire()

    def _acquire(self) -> None:
        self._waiting += 1
        try:
            while not self._lock.acquire(timeout=0.05):
                tick()
        finally:
            self._waiting -= 1


TORCH = Turn()
"""Held around everything that computes with torch."""
