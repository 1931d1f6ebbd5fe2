"""A progress bar that moves once a second.

Every move makes the browser render the page anew, which takes it a few tenths of a second. More of
them would take the cores from the work that they tell of, and keep a click on "Stop" waiting.
"""

import math
import time

EVERY = 1.0
"""Seconds between two moves."""


class Bar:
    """Moves a place or a bar of Streamlit's; the first and the last move always count."""

    def __init__(self, element) -> None:
        self._element = element
        self._moved = -math.inf

    def __call__(self, share: float, text: str) -> None:
        """`share` of the work is done; above 1 counts as 1."""
        if share >= 1 or time.monotonic() - self._moved >= EVERY:
            self._element.progress(min(1.0, share), text=text)
            self._moved = time.monotonic()
