"""What √d_k does in one head: spread of the logits, its causes, and other scales."""

import streamlit as st

from attnprobe import ui
from attnprobe.ui import pairs, rescaling, scaling, what_if

SECTIONS = {
    "spread": "Spread",
    "captured": "What if: captured logits",
    "model": "What if: in the model",
    "pairs": "Symmetry and pairs",
}

with ui.page("Logits and scaling", question="What does √d_k do in this head?") as view:
    trace = ui.trace(view)
    section = ui.choice(
        "Section", list(SECTIONS), key="part", default="spread", url=True,
        format_func=SECTIONS.__getitem__, label_visibility="collapsed",
    )  # fmt: skip
    if section == "spread":
        scaling.spread(view, trace)
        scaling.causes(view, trace)
    elif section == "captured":
        ui.part(what_if.what_if, view, trace)
    elif section == "model":
        rescaling.in_the_model(view)
    else:
        pairs.pair(view, trace)
    with st.expander("The derivation"):
        st.markdown(
            "With independent components of mean 0 and variance 1, "
            r"$\mathrm{Var}(q\cdot k)=\sum_{c=1}^{d_k}\mathrm{Var}(q_c k_c)=d_k$, so dividing by "
            r"$\sqrt{d_k}$ gives unit variance (Vaswani et al. 2017, section 3.2.1). In general, "
            r"for an independent query and key, $\mathrm{Var}(q\cdot k)="
            r"\mathrm{tr}(\Sigma_q\Sigma_k)+\mu_q^\top\Sigma_k\mu_q+\mu_k^\top\Sigma_q\mu_k$."
        )
