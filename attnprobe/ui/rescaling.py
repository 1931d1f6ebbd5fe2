"""The panel that gives the running model another scale and computes everything downstream again."""

import pandas as pd
import streamlit as st

from attnprobe import figures, readout
from attnprobe.analyses import rescaling
from attnprobe.data import bundled
from attnprobe.export import Figure
from attnprobe.metrics import METRICS, Quantity
from attnprobe.readout import ReadOut
from attnprobe.ui.cached import computed
from attnprobe.ui.errors import plain
from attnprobe.ui.run import Progress, run
from attnprobe.ui.show import card, metrics, provenance, show
from attnprobe.ui.state import choice
from attnprobe.ui.view import View

SCOPES = ("this head", "this layer", "all layers")
FACTOR = Quantity("factor", "factor on the scale", scale="log", format=".3g")
CHANGE = Quantity(
    "change", "change of entropy", "nats", kind="diverging",
    definition="Mean entropy of each head's rows with the factor, minus as the model is.",
)  # fmt: skip
SHOWN = (
    Quantity("loss", "loss", "nats", domain=(0, None)),
    Quantity("tvd", "TVD of the read-out", domain=(0, 1)),
    METRICS["saturated"],
)


def in_the_model(view: View) -> None:
    """Choose where and how much, then the sweep and one factor in detail."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        scope = choice("Where", SCOPES, key="rescaling_scope", default="all layers")
        factor = st.select_slider(
            "Factor", rescaling.SWEPT, 2.0, format_func="×{:.3g}".format, key="rescaling:factor",
            width=420,
        )  # fmt: skip
    read = _readout(view)
    st.caption(f"Read-out: {plain(read.statement)}.")
    layer = None if scope == "all layers" else view.layer
    head = view.head if scope == "this head" else None
    _sweep(view, read, scope, layer, head)
    _detail(view, read, scope, factor, layer, head)


def _readout(view: View) -> ReadOut:
    """The model's own head, or the bundled topics' label sentences for a bare encoder."""
    return readout.default(view.loaded, bundled("topics"))


def _sweep(view: View, read: ReadOut, scope: str, layer, head) -> None:
    examples = read.prepare([view.tokens.text])
    count = len(rescaling.SWEPT) + 1

    def steps(progress: Progress) -> pd.DataFrame:
        return rescaling.sweep(
            read, examples, layer, head, progress=lambda done, total: progress(done, total, None)
        )

    with card(f"A sweep over factors, {scope}"):
        outcome = run(
            view, "rescaling:sweep", {"layer": layer, "head": head, "readout": read.statement},
            steps, cost=f"{count} forward passes of {len(view.tokens)} tokens.", label="Sweep",
        )  # fmt: skip
    if outcome is None or outcome.value is None:
        return
    frame = outcome.value
    with st.container(horizontal=True):
        for q in SHOWN:
            _sweep_figure(view, read, scope, frame, q)


def _sweep_figure(view: View, read: ReadOut, scope: str, frame: pd.DataFrame, q: Quantity) -> None:
    marked = frame[frame["factor"] == 1.0].assign(label="as the model")
    figure = Figure(
        f"rescaling-{q.name}",
        lambda mode: figures.curves(
            frame, FACTOR, q, marked=marked, dots=True, mode=mode, width=340, height=230
        ),
        frame,
        f"{q.label.capitalize()} with the scale of {scope} multiplied by the factor, everything "
        "downstream computed again.",
        f"{q.label} against the factor on the scale.",
        provenance(view, read_out=read.statement, scope=scope),
    )
    show(view, figure, q.label.capitalize(), key=f"rescaling:{q.name}")


def _detail(view: View, read: ReadOut, scope: str, factor: float, layer, head) -> None:
    factors = rescaling.factors_for(view.loaded, factor, layer, head)
    examples = read.prepare([view.tokens.text])
    where = {"layer": layer, "head": head, "factor": factor, "readout": read.statement}
    answers = computed(
        view, "rescaling:top", where, lambda tick: rescaling.top(read, examples, factors)
    )
    one = computed(
        view, "rescaling:one", where,
        lambda tick: rescaling.sweep(read, examples, layer, head, factors=[factor]).iloc[0],
    )  # fmt: skip
    entropies = computed(
        view, "rescaling:heads", where,
        lambda tick: rescaling.heads_after(view.loaded, view.tokens, factors),
    )  # fmt: skip
    metrics(
        ("TVD", f"{one['tvd']:.3g}", "½ Σ|p − q| of the read-out, mean over its spots."),
        ("KL (nats)", f"{one['kl']:.3g}", "KL(as the model ‖ rescaled), mean over spots."),
        ("Loss (nats)", f"{one['loss']:.3g}", "Against targets, else KL to the unedited model."),
        ("Mean entropy (nats)", f"{one['entropy']:.3g}", "Over all rows of all heads."),
        ("Saturated rows", f"{one['saturated']:.3g}", "Share with peak of at least 0.9."),
    )
    with st.container(horizontal=True):
        _answers(answers, factor)
        _entropies(view, read, scope, factor, entropies)


def _answers(frame: pd.DataFrame, factor: float) -> None:
    caption = "The five likeliest answers at the read-out's last spot, by either run."
    with card(f"Top answers before and after ×{factor:.3g}", caption=caption):
        st.dataframe(
            frame.assign(answer=frame["answer"].map(str)),
            hide_index=True,
            column_config={
                name: st.column_config.NumberColumn(name, format="%.4f")
                for name in ("before", "after")
            },
        )


def _entropies(view: View, read: ReadOut, scope: str, factor: float, frame: pd.DataFrame) -> None:
    figure = Figure(
        "rescaling-heads",
        lambda mode: figures.head_map(
            frame, CHANGE, mode=mode, selected=(view.layer, view.head), size=330
        ),
        frame,
        CHANGE.definition,
        "Heat map of the change of every head's entropy.",
        provenance(view, scope=scope, factor=f"{factor:.4g}"),
    )
    show(view, figure, "Every head's entropy", key="rescaling:heads", width="content")
