"""One head: its token map, its rows, its neighbours in the layer."""

import streamlit as st

from attnprobe import ui
from attnprobe.ui import inspector

with ui.page("Head inspector", question="Which token looks at which, and how firmly?") as view:
    trace = ui.trace(view)
    kind = ui.choice(
        "Show", list(inspector.KINDS), key="view", default="weights", url=True,
        label_visibility="collapsed",
    )  # fmt: skip
    inspector.numbers(view, trace, ui.head_table(view))
    head = inspector.head_of(view, trace, kind)
    left, right = st.columns([3, 2])
    with left:
        inspector.token_map(head)
    with right:
        inspector.pinned_row(head)
    left, right = st.columns(2)
    with left:
        inspector.lines(view, trace)
    with right:
        clicked = inspector.small_pictures(view, trace)
    if clicked is not None:
        ui.select_head(view, view.layer, clicked)
