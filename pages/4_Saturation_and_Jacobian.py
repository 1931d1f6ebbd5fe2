"""Whether a gradient can pass through a head: saturation, Jacobian norms, real gradients, sinks."""

import streamlit as st

from attnprobe import ui
from attnprobe.ui import gradient, jacobian, sinks

SECTIONS = {
    "heads": "All heads",
    "bounds": "Rows and bounds",
    "row": "One row's Jacobian",
    "gradient": "The real gradient",
    "sinks": "Sinks",
}

with ui.page("Saturation and Jacobian", question="Can a gradient pass through this head?") as view:
    trace = ui.trace(view)
    section = ui.choice(
        "Section", list(SECTIONS), key="part", default="heads", url=True,
        format_func=SECTIONS.__getitem__, label_visibility="collapsed",
    )  # fmt: skip
    if section == "heads":
        jacobian.atlas(view, trace)
    elif section == "bounds":
        jacobian.against_bounds(view, trace)
    elif section == "row":
        ui.part(jacobian.one_row, view, trace)
    elif section == "gradient":
        gradient.real_gradient(view)
    else:
        sinks.where_weight_goes(view, trace)
    with st.expander("The derivation"):
        st.markdown(
            r"For $p=\mathrm{softmax}(s)$ the Jacobian is $J=\partial p/\partial s="
            r"\mathrm{diag}(p)-pp^\top$, so $\partial L/\partial s=J\,\partial L/\partial p$. "
            r"With the peak $m=1-\varepsilon$, the largest entry is $m(1-m)$; for "
            r"$\varepsilon\le\frac12$, $\|J\|_F\le 2\varepsilon(1-\varepsilon)$; the spectral "
            r"norm is at most $\frac12$. A saturated row passes almost no gradient to its query "
            "and keys."
        )
