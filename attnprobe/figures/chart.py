"""The chart class of all figures."""

from collections.abc import Iterable
from typing import Any

import altair as alt


class Chart(alt.Chart):
    """An altair chart whose copies share their parts, as all parts here are made once and left.

    altair copies a layer from top to bottom whenever it is laid over another one or written, which
    takes half the time of a figure. The top is still copied: altair edits that.
    """

    def copy(self, deep: bool | Iterable[Any] = True, ignore: list[str] | None = None) -> "Chart":
        """A copy of the chart itself, and of those parts that `deep` names."""
        return super().copy(False if deep is True else deep, ignore)
