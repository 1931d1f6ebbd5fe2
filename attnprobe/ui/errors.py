"""The boundary between what went wrong and what a person reads."""

import logging
from contextlib import AbstractContextManager
from types import TracebackType

import streamlit as st

from attnprobe.errors import AttnprobeError, DeviceFull
from attnprobe.ui import state

_LOG = logging.getLogger("attnprobe")
_DEFECT = (
    "This part of the page failed because of a defect in attnprobe. The details are in the log "
    "of the server; another head, text or model may work."
)


class NotHere(AttnprobeError):
    """The chosen model has not been downloaded yet: nothing went wrong, something is to be done."""


class explained(AbstractContextManager):
    """Errors raised in the block become one sentence on the screen, and the block ends.

    An `AttnprobeError` shows its own sentence. Any other error is a defect: it goes to the log with
    its traceback. Streamlit's own signals (rerun, stop) are no errors and pass.
    """

    def __exit__(
        self, kind: type | None, error: BaseException | None, tb: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        if isinstance(error, NotHere):
            st.info(plain(str(error)), icon=":material/download:")
        elif isinstance(error, AttnprobeError):
            st.error(plain(str(error)), icon=":material/error:")
            if isinstance(error, DeviceFull):
                _offer_the_cpu()
        else:
            _LOG.error("a page failed", exc_info=(kind, error, tb))
            st.error(_DEFECT, icon=":material/bug_report:")
        return True


def _offer_the_cpu() -> None:
    st.button(
        "Go on on the CPU",
        key="go on on the cpu",
        icon=":material/memory:",
        on_click=lambda: st.session_state.__setitem__(state.DEVICE, "cpu"),
    )


_MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\`*_{}[]()<>#+-!|~:$"})


def plain(text: str) -> str:
    """`text` such that Streamlit's Markdown shows it letter by letter, on one line."""
    return " ".join(text.split()).translate(_MARKDOWN)
