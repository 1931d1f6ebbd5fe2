"""Home: what is loaded and the head atlas."""

import streamlit as st

st.set_page_config(page_title="attnprobe", layout="wide")
with st.spinner("Starting …"):
    from attnprobe import ui
    from attnprobe.metrics import METRICS
    from attnprobe.sources import BUNDLED
    from attnprobe.ui import overview, pictures, roles

INSPECTOR = "pages/1_Head_inspector.py"
COLOURED_BY = (
    "entropy",
    "normalised_entropy",
    "effective_keys",
    "peak",
    "saturated",
    "jacobian_frobenius",
    "jacobian_max",
    "jacobian_spectral",
    "raw_std",
    "scaled_std",
)

with ui.page("Overview", question="What do the heads of this model do on this text?") as view:
    name = view.loaded.name
    overview.what_is_loaded(view.loaded, BUNDLED[name].title if name in BUNDLED else name)
    metric = st.selectbox(
        "Colour by",
        COLOURED_BY,
        format_func=lambda key: f"Coloured by {METRICS[key].title}",
        key="atlas_metric",
        persist_state="session",
        label_visibility="collapsed",
        width=360,
    )
    table = ui.head_table(view)
    with st.container(horizontal=True):
        overview.atlas(view, table, METRICS[metric], INSPECTOR)
        overview.heads(view, table, METRICS[metric], INSPECTOR)
    pictures.standing_out(view, ui.trace(view), INSPECTOR)
    roles.roles_of_heads(view, INSPECTOR)
