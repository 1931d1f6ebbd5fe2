"""One head: its token map, its rows, its neighbours in the layer."""

import streamlit as st

from attnprobe import ui
from attnprobe.ui import inspector, pictures

with ui.page("Head inspector", question="Which token looks at which, and how firmly?") as view:
    trace = ui.trace(view)
    with st.container(horizontal=True, vertical_alignment="center"):
        kind = ui.choice(
            "Show", list(inspector.KINDS), key="view", default="weights", url=True,
            label_visibility="collapsed",
        )  # fmt: skip
        fit = inspector.fitting(view)
    inspector.numbers(view, trace, ui.head_table(view))
    head = inspector.head_of(view, trace, kind, fit=fit)
    wide = inspector.is_wide(view)
    above, beside = (st.container(), None) if wide else st.columns([3, 2])
    left, right = st.columns(2)
    with above:
        inspector.token_map(head)
    with left if wide else beside:
        inspector.pinned_row(head)
    with right if wide else left:
        inspector.lines(view, trace)
    with st.container() if wide else right:
        pictures.small_pictures(view, trace)
