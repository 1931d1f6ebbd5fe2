"""The panel on what of a loss's gradient the softmax of each head lets through."""

from dataclasses import dataclass, replace

import pandas as pd
import streamlit as st

from attnprobe import figures
from attnprobe.analyses import gradient
from attnprobe.data import LabelledText
from attnprobe.export import Figure, Provenance
from attnprobe.metrics import METRICS, Quantity
from attnprobe.readout import Examples, ReadOut
from attnprobe.ui import experiments
from attnprobe.ui.cached import computed
from attnprobe.ui.errors import plain
from attnprobe.ui.jacobian import chosen_last, picked
from attnprobe.ui.scaling import of_head
from attnprobe.ui.show import NO_ROW, provenance, show
from attnprobe.ui.state import choice, picking_head
from attnprobe.ui.view import View

RATIO = Quantity(
    "ratio", "let through", "‖∂L/∂S‖ / ‖∂L/∂A‖", domain=(0, 0.5),
    definition="Norm of the loss's gradient on a head's scaled logits S over that on its weights "
    "A, at most ½.",
)  # fmt: skip
ON_WEIGHTS = Quantity(
    "row_on_weights", "‖∂L/∂A‖ of a row", "nats per weight", scale="log",
    definition="Mean over rows of the norm of the loss's gradient on a row of weights A.",
)  # fmt: skip
ON_LOGITS = Quantity(
    "row_on_logits", "‖∂L/∂S‖ of a row", "nats per logit", scale="log",
    definition="Mean over rows of the norm of the loss's gradient on a row of scaled logits S.",
)  # fmt: skip
MAPS = {"ratio": RATIO, "row_on_weights": ON_WEIGHTS, "row_on_logits": ON_LOGITS}
LEAST = 1e-6
"""What is smaller has no place among the rows' points, whose axes are logarithmic."""
NORMS = ("jacobian_spectral", "jacobian_frobenius")
NORM = Quantity("norm", "norm of the gradient", "log", scale="log", format=".3g")
QUERY = Quantity("query", "query", format="d")
LOSS_WORDS = {"target": "−ln p of the target", "top answer": "−ln p of the likeliest answer"}
LINES = {"on_weights": "on weights, ‖∂L/∂A‖", "on_logits": "on scaled logits, ‖∂L/∂S‖"}


@dataclass(frozen=True, eq=False)
class Loss:
    """A loss in words, as `gradients` calls it, and the text with what is right, if known."""

    words: str
    kind: str
    examples: Examples


def real_gradient(view: View) -> None:
    """The read-out and the loss as chosen; then all heads, the chosen one's rows, every row."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        read = experiments.of_this_text(view)
        loss = _loss(view, read)
        name = st.selectbox(
            "Colour heads by", list(MAPS), format_func=lambda n: MAPS[n].title, key="gradient:map",
            width=270,
        )  # fmt: skip
    st.caption(f"Read-out: {plain(read.statement)}. Loss: {plain(loss.words)}.")
    of = {"readout": read.statement, "loss": loss.words}
    rows = computed(
        view, "gradient:rows", of,
        lambda tick: gradient.rows(gradient.gradients(read, loss.examples, loss.kind)),
    )  # fmt: skip
    if rows.empty:
        st.caption(NO_ROW)
        return
    heads = computed(view, "gradient:heads", of, lambda tick: gradient.heads(rows))
    st.markdown(_starved(heads))
    facts = {"read_out": read.statement, "loss": loss.words}
    left, right = st.columns(2)
    with left:
        _map(view, heads, name, provenance(view, **facts))
    with right:
        _profile(view, rows, provenance(view, **picked(view), **facts))
    _against_norm(view, rows, provenance(view, **facts))


def _loss(view: View, read: ReadOut) -> Loss:
    """What is wrong about the read-out's distribution: the target's loss, or an answer's."""
    text = view.tokens.text
    plainly = read.prepare([text])
    kinds = gradient.LOSSES if plainly.target is not None else gradient.LOSSES[1:]
    losses = {LOSS_WORDS[kind]: kind for kind in kinds}
    answers = {f"−ln p of {name!r}": name for name in read.classes or ()}
    words = st.selectbox(
        "Loss", [*losses, *answers], key=f"gradient_loss:{read.name}", persist_state="session",
        width=270,
    )  # fmt: skip
    if words in losses:
        return Loss(words, losses[words], plainly)
    return Loss(words, "target", read.prepare([LabelledText(text, answers[words])]))


def _starved(heads: pd.DataFrame) -> str:
    """Which heads' queries and keys get next to nothing, in one sentence."""
    starved = heads[heads["starved"]]
    named = ", ".join(f"L{a}.H{b}" for a, b in zip(starved["layer"], starved["head"], strict=True))
    return (
        f"**{len(starved)} of {len(heads)} heads** let less than {gradient.STARVED:.0%} of the "
        f"gradient on their weights through to queries and keys{': ' + named if named else ''}."
    )


def _map(view: View, heads: pd.DataFrame, name: str, made: Provenance) -> None:
    q = MAPS[name]
    shown = heads if name == "ratio" else heads.assign(**{name: heads[name].where(heads[name] > 0)})
    most = float(heads["ratio"].max())
    limits = (0.0, most) if name == "ratio" and most > 0 else None
    over = " Norms over all rows of a head." if name == "ratio" else " Colours by the logarithm."
    figure = Figure(
        f"gradient-{name}",
        lambda mode: figures.head_map(
            shown, q, mode=mode, selected=(view.layer, view.head), size=340, limits=limits
        ),
        heads,
        f"{q.definition}{over} Hatched where no gradient arrives.",
        f"Heat map of {q.title} for every head.",
        made,
    )
    show(
        view, figure, "What the softmax lets through" if name == "ratio" else q.label,
        key=f"gradient:map:{name}", on_pick=picking_head(view), selected=picked(view),
    )  # fmt: skip


def _profile(view: View, rows: pd.DataFrame, made: Provenance) -> None:
    """Both gradients along the chosen head's rows, apart by what the softmax takes away."""
    mine = rows[(rows["layer"] == view.layer) & (rows["head"] == view.head)]
    long = mine.melt("query", list(LINES), "gradient", "norm")
    long = long[long["norm"] > 0].assign(gradient=lambda t: t["gradient"].map(LINES))
    reached = int((mine["on_weights"] > 0).sum())
    figure = Figure(
        "gradient-profile",
        lambda mode: figures.curves(
            long, QUERY, NORM, by="gradient", dots=len(mine) <= 64, mode=mode, height=240
        ),
        mine,
        f"The gap is what the softmax holds back. {reached} of {len(mine)} rows are reached by a "
        "gradient; the others have no point.",
        f"Norms of the gradient on weights and on logits of every row of {of_head(view)}.",
        made,
    )
    show(view, figure, f"Rows of {of_head(view)}", key="gradient:profile")


def _against_norm(view: View, rows: pd.DataFrame, made: Provenance) -> None:
    name = choice(
        "Norm of J", NORMS, key="gradient_norm",
        format_func=lambda n: METRICS[n].label.removeprefix("Jacobian, "),
    )  # fmt: skip
    across, upward = (replace(q, scale="log") for q in (METRICS[name], RATIO))
    known = rows[(rows["ratio"] > LEAST) & (rows[name] > LEAST)]
    shown = chosen_last(view, known)
    ends = [known[name].min(), known[name].max()] if len(known) else [LEAST, 0.5]
    line = pd.DataFrame({name: ends, "ratio": ends, "bound": "ratio = norm"})
    figure = Figure(
        "gradient-rows",
        lambda mode: figures.scatter(
            shown, across, upward, by="rows", names=("layer", "head", "query"), bounds=line,
            mode=mode, width=620, height=320,
        ),
        rows,
        f"{len(shown):,} of {len(known):,} rows with both above {LEAST:g}, of {len(rows):,} in "
        "all; both axes are logarithmic. No row lets through more than its J's spectral norm, "
        "which is at most its Frobenius norm. Click a row to choose its head.",
        "Scatter of a norm of J against the share of the gradient let through.",
        made,
    )  # fmt: skip
    show(
        view, figure, "Row by row, against ‖J‖", key=f"gradient:rows:{name}",
        on_pick=picking_head(view),
    )  # fmt: skip
