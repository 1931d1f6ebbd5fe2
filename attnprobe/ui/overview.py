"""The panels of the home page: what is loaded, the head atlas, the table of heads."""

import pandas as pd
import streamlit as st

from attnprobe import figures
from attnprobe.export import Figure
from attnprobe.metrics import METRICS, Quantity
from attnprobe.models import LoadedModel
from attnprobe.ui.errors import plain
from attnprobe.ui.show import card, metrics, provenance, show
from attnprobe.ui.state import open_head, picking_head
from attnprobe.ui.view import View

SHOWN = ("entropy", "peak", "saturated", "jacobian_frobenius")
SHORT = {
    "jacobian_frobenius": "‖J‖",
    "jacobian_max": "max |J|",
    "jacobian_spectral": "‖J‖₂",
    "normalised_entropy": "entropy, normed",
}
"""Column heads where the whole name has no room."""
COLUMN = 59


def what_is_loaded(loaded: LoadedModel, title: str) -> None:
    """The size of the model as numbers, and a line on what it is and where it came from."""
    metrics(
        ("Layers", f"{loaded.n_layers}"),
        ("Heads per layer", f"{loaded.n_heads}"),
        ("d_k", f"{loaded.d_head}", "Width of one head's queries and keys."),
        ("d_model", f"{loaded.d_model}", "Width of a token's hidden state."),
        ("Parameters", short(loaded.parameters)),
        (
            "Positions",
            f"{loaded.max_tokens:,}",
            "The longest text that the model reads, in tokens.",
        ),
    )
    sees = "each token sees itself and earlier ones" if loaded.causal else "every token sees all"
    facts = (
        f"**{plain(title)}**: {loaded.family.model_type}, {sees}",
        f"{plain(loaded.origin)}, weights {plain(loaded.revision[:19])}",
        f"licence {plain(loaded.licence or 'not stated')}",
        f"{loaded.precision} on {loaded.device}",
    )
    st.caption(" · ".join(facts) + f"  \n{READS_OUT[loaded.head_kind]}")
    for note in loaded.notes:
        st.caption(f":material/info: {plain(note)}")


READS_OUT = {
    "bare encoder": "A bare encoder: it gives a vector per token, and experiments read out how "
    "close the text's mean vector is to labels of your own.",
    "masked LM": "A masked language model: experiments read out what it puts in a masked token's "
    "place.",
    "causal LM": "A causal language model: experiments read out its next token.",
    "sequence classification": "A classifier of texts: experiments read out its class.",
    "token classification": "A tagger of tokens: it names a class for each token; experiments read "
    "out the encoder beneath it, by labels of your own.",
}


def short(count: int) -> str:
    """22713216 as 22.7 M."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return str(count)


def atlas(view: View, table: pd.DataFrame, q: Quantity, page: str) -> None:
    """Layers × heads coloured by one number; a click opens the head on `page`."""
    here = {"layer": view.layer, "head": view.head}

    def chart(mode: figures.Mode):
        return figures.head_map(table, q, mode=mode, selected=(view.layer, view.head), size=400)

    figure = Figure(
        name=f"atlas-{q.name}",
        chart_for=chart,
        frame=table[["layer", "head", q.name]],
        caption=f"{q.definition} Click a cell to open the head.",
        alt=f"Heat map of {q.title} for every layer and head.",
        provenance=provenance(view),
    )
    show(
        view, figure, f"Head atlas: {q.label}", key=f"atlas:{q.name}",
        on_pick=picking_head(view, page), selected=here, width="content",
    )  # fmt: skip


def heads(view: View, table: pd.DataFrame, q: Quantity, page: str) -> None:
    """The table of heads, highest first; a tick opens the head on `page`."""
    key = f"heads:{q.name}"
    names = list(dict.fromkeys([q.name, *SHOWN]))
    frame = table[["layer", "head", *names]].sort_values(q.name, ascending=False)
    narrow = {axis: st.column_config.NumberColumn(axis, width=42) for axis in ("layer", "head")}
    figure = Figure(
        name="heads",
        chart_for=lambda mode: figures.head_map(table, q, mode=mode),
        frame=table,
        caption="One row per head.",
        alt="Table of heads.",
        provenance=provenance(view),
    )
    caption = "Click a column to sort, tick a row to open the head."

    def ticked() -> None:
        for row in st.session_state[key].selection.rows:
            open_head(view, page, *(int(frame[axis].iloc[row]) for axis in ("layer", "head")))

    with card("All heads", caption=caption, export=figure, formats=("csv",)):
        st.dataframe(
            frame,
            hide_index=True,
            height="stretch",
            column_config=narrow | {name: number_column(METRICS[name]) for name in names},
            on_select=ticked,
            selection_mode="single-row",
            key=key,
        )


def number_column(q: Quantity):
    """A table column as its line in the table of metrics says: unit, definition, format."""
    form = "%d" if q.format == "d" else "%.4g"
    return st.column_config.NumberColumn(
        SHORT.get(q.name, q.label), format=form, help=f"{q.title}. {q.definition}", width=COLUMN
    )
