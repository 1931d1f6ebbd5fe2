"""Whether what is shown is what the model computes: certificate, faults, steps, facts."""

import streamlit as st

from attnprobe import ui
from attnprobe.ui import scratch, steps

SECTIONS = {
    "certificate": "Certificate",
    "faults": "Put mistakes in",
    "steps": "Step by step",
    "facts": "Facts about attention",
}

with ui.page("From scratch", question="Is what I see what the model computes?") as view:
    trace = ui.trace(view)
    section = ui.choice(
        "Section", list(SECTIONS), key="part", default="certificate", url=True,
        format_func=SECTIONS.__getitem__, label_visibility="collapsed",
    )  # fmt: skip
    if section == "certificate":
        scratch.certificate(view)
    elif section == "facts":
        scratch.facts(view, trace)
    elif not scratch.has_twin(view):
        st.info(
            f"{view.loaded.family.model_type} has no from-scratch twin yet: its attention is "
            "certified from captured queries, keys and values. bert and gpt2 have one."
        )
    elif section == "faults":
        scratch.faults(view, trace)
    else:
        steps.steps(view)
