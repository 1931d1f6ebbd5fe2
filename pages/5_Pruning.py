"""Head pruning: which heads does this model need for these texts?"""

import streamlit as st

from attnprobe import ui
from attnprobe.ui import pruning, pruning_curves, pruning_layers
from attnprobe.ui.experiments import experiment

INSPECTOR = "pages/1_Head_inspector.py"

with ui.page("Pruning", question="Which heads does this model need for these texts?") as view:
    with ui.card("Texts and read-out"):
        state = pruning.pruning(experiment(view))
    heads = pruning.scored(state)
    if heads is not None:
        pruning.numbers(state, heads)
        pruning.atlases(state, heads, INSPECTOR)
        left, right = st.columns([3, 2])
        with left:
            pruning.table(state, heads)
        with right:
            pruning.largest(state, heads)
        curve, keep, carry, cut = st.tabs(
            ["Pruning curve", "All heads but one", "Do effects carry over?", "Cut for real"]
        )
        with curve:
            pruning_curves.curves(state, heads)
        with keep:
            pruning_layers.one_a_layer(state)
        with carry:
            pruning_layers.transfer(state)
        with cut:
            pruning_curves.cutting(state, heads)
    else:
        st.caption(
            "Importance is the slope of the loss in a head's gate, the effect is what happens when "
            "the head is switched off. Both follow Michel, Levy & Neubig 2019, "
            "“Are Sixteen Heads Really Better than One?”."
        )
