"""What was imported is no garbage, and need not be looked through for it after every run.

Streamlit collects garbage after each run of a page, and a full collection visits every object there
is. Nearly half a million of them belong to imported libraries and live as long as the server; they
made each run a few tenths of a second longer, in which nothing was sent to anybody.
"""

import gc
from functools import cache


@cache
def spare_what_lives() -> None:
    """Once: collections leave out what exists by now; what comes later is collected as ever."""
    gc.freeze()
