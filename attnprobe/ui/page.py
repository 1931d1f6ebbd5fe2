"""How every page begins: title, sidebar, model, text, certificate, and the net under all of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import streamlit as st

from attnprobe.ui import sidebar
from attnprobe.ui.collector import spare_what_lives
from attnprobe.ui.errors import explained
from attnprobe.ui.offline import stay_offline
from attnprobe.ui.view import View

stay_offline()
ICON = Path(__file__).parent / "icon.png"


@contextmanager
def page(title: str, *, question: str = "", needs_model: bool = True) -> Iterator[View]:
    """The frame of a page; see the package's description.

    `question` is the one sentence under the title that the page answers. The script ends here when
    there is nothing right to show: no model, no text, or a certificate that failed.
    """
    spare_what_lives()
    st.set_page_config(page_title=f"{title} · attnprobe", page_icon=str(ICON), layout="wide")
    st.title(title, anchor=False)
    if question:
        st.caption(question)
    with explained():
        yield sidebar.view(title, needs_model=needs_model)
        return
    st.stop()


def part(draw: Callable[..., None], *given: Any) -> None:
    """`draw(*given)` as a part of the page that its own widgets make anew without the rest.

    For what changes nothing outside itself: no chart in it may choose a head.
    """

    @st.fragment
    def alone() -> None:
        with explained():
            draw(*given)

    alone()
