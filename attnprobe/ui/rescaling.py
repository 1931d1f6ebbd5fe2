"""The panel that gives the running model another scale and computes everything downstream again."""

import pandas as pd
import streamlit as st

from attnprobe import figures
from attnprobe.analyses import rescaling
from attnprobe.export import Figure
from attnprobe.metrics import METRICS, Quantity
from attnprobe.readout import ReadOut
from attnprobe.ui import experiments
from attnprobe.ui.cached import computed
from attnprobe.ui.errors import plain
from attnprobe.ui.run import Progress, run
from attnprobe.ui.show import card, heading, metrics, provenance, show, value
from attnprobe.ui.state import choice, picking_head
from attnprobe.ui.view import View

SCOPES = ("this head", "this layer", "all layers")
FACTOR = Quantity(
    "factor", "factor on the scale", "log", scale="log", format=".3g",
    ticks=tuple(2.0**power for power in range(-3, 6)),
)  # fmt: skip
CHANGE = Quantity(
    "change", "change of entropy", "nats", kind="diverging",
    definition="Mean entropy of each head's rows with the factor, minus as the model is.",
)  # fmt: skip
PROBABILITY = Quantity("probability", "probability", domain=(0, None), format=".4f")
SHOWN = (
    Quantity("loss", "loss", "nats", domain=(0, None)),
    Quantity("tvd", "TVD of the read-out", domain=(0, 1)),
    METRICS["saturated"],
)


def in_the_model(view: View) -> None:
    """Choose where and how much, then the sweep and one factor in detail."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        scope = choice("Where", SCOPES, key="rescaling_scope", default="all layers")
        read = experiments.of_this_text(view)
        factor = st.select_slider(
            "Factor", rescaling.SWEPT, 2.0, format_func="×{:.3g}".format, key="rescaling:factor",
            width=280,
        )  # fmt: skip
    st.caption(f"Read-out: {plain(read.statement)}.")
    layer = None if scope == "all layers" else view.layer
    head = view.head if scope == "this head" else None
    _sweep(view, read, scope, layer, head)
    _detail(view, read, scope, factor, layer, head)


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
        done = outcome is not None and outcome.value is not None
        if done:
            st.caption(
                f"The scale of {scope} times {len(outcome.value)} factors from "
                f"×{rescaling.SWEPT[0]:g} to ×{rescaling.SWEPT[-1]:g}, everything downstream "
                "computed again. The ring is the model as it is."
            )
    if done:
        with st.container(horizontal=True):
            for q in SHOWN:
                _sweep_figure(view, read, scope, outcome.value, q)


def _sweep_figure(view: View, read: ReadOut, scope: str, frame: pd.DataFrame, q: Quantity) -> None:
    marked = frame[frame["factor"] == 1.0]
    figure = Figure(
        f"rescaling-{q.name}",
        lambda mode: figures.curves(
            frame, FACTOR, q, marked=marked, dots=True, mode=mode, width=340, height=230
        ),
        frame,
        MEANINGS[q.name],
        f"{q.label} against the factor on the scale of {scope}.",
        provenance(view, read_out=read.statement, scope=scope),
    )
    show(view, figure, heading(q.label), key=f"rescaling:{q.name}")


MEANINGS = {
    "loss": "−ln p of what is right, or KL from the model as it is where nobody knows.",
    "tvd": "½ Σ|p − q| to the model as it is, mean over the read-out's spots.",
    "saturated": "Share of the rows of all heads whose peak is at least 0.9.",
}


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
        ("TVD", value(one["tvd"]), "½ Σ|p − q| of the read-out, mean over its spots."),
        ("KL (nats)", value(one["kl"]), "KL(as the model ‖ rescaled), mean over spots."),
        ("Loss (nats)", value(one["loss"]), "Against targets, else KL to the unedited model."),
        ("Mean entropy (nats)", value(one["entropy"]), "Over all rows of all heads."),
        ("Saturated rows", value(one["saturated"]), "Share with peak of at least 0.9."),
    )
    extra = {"read_out": read.statement, "scope": scope, "factor": f"{factor:.4g}"}
    left, right = st.columns(2)
    with left:
        _answers(view, answers, factor, extra)
    with right:
        _entropies(view, entropies, extra)


def _answers(view: View, frame: pd.DataFrame, factor: float, extra: dict[str, str]) -> None:
    """Either run's five likeliest answers, each once, with both probabilities."""
    caption = "The five likeliest answers at the read-out's last spot, of either run."
    once = frame.drop_duplicates("answer")[["answer", "before", "after"]]
    long = once.melt("answer", var_name="run", value_name="probability")
    figure = Figure(
        "rescaling-answers",
        lambda mode: figures.bars(
            long.sort_values("answer"), PROBABILITY, "answer", by="run", ordered=False, mode=mode
        ),
        frame, caption, "Bars of the likeliest answers of both runs.", provenance(view, **extra),
    )  # fmt: skip
    shown = once.assign(change=once["after"] - once["before"])
    with card(f"Top answers before and after ×{factor:.3g}", caption=caption, export=figure):
        st.dataframe(
            shown,
            hide_index=True,
            column_config={
                name: st.column_config.NumberColumn(name, format=form)
                for name, form in (("before", "%.4f"), ("after", "%.4f"), ("change", "%+.4f"))
            },
        )


def _entropies(view: View, frame: pd.DataFrame, extra: dict[str, str]) -> None:
    figure = Figure(
        "rescaling-heads",
        lambda mode: figures.head_map(
            frame, CHANGE, mode=mode, selected=(view.layer, view.head), size=330
        ),
        frame,
        CHANGE.definition,
        "Heat map of the change of every head's entropy.",
        provenance(view, **extra),
    )
    show(
        view, figure, "Every head's entropy", key="rescaling:heads", on_pick=picking_head(view),
        selected={"layer": view.layer, "head": view.head},
    )  # fmt: skip
