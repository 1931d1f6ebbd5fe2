"""The panels on saturation: atlas, rows and bounds, one row's Jacobian, real gradients, sinks."""

import numpy as np
import pandas as pd
import streamlit as st

from attnprobe import figures, readout
from attnprobe.analyses import gradient, saturation, sinks
from attnprobe.data import bundled
from attnprobe.export import Figure
from attnprobe.metrics import METRICS, Quantity
from attnprobe.trace import Trace, head_table
from attnprobe.ui.cached import computed
from attnprobe.ui.errors import plain
from attnprobe.ui.scaling import of_head
from attnprobe.ui.show import provenance, show
from attnprobe.ui.state import choice
from attnprobe.ui.view import View

ATLAS = ("saturated", "normalised_entropy", *saturation.NORMS)
ENTRY = Quantity("entry", "∂p/∂s", kind="diverging", format=".4f")
QUERY = Quantity("query", "query", format="d")
ON_WEIGHTS = Quantity("on_weights", "‖∂L/∂A‖", "nats per weight", domain=(0, None), scale="log")
ON_LOGITS = Quantity("on_logits", "‖∂L/∂S‖", "nats per logit", domain=(0, None), scale="log")
RATIO = Quantity(
    "ratio", "let through", "‖∂L/∂S‖ / ‖∂L/∂A‖", domain=(0, 0.5),
    definition="Norm of the loss's gradient on scaled logits over that on weights, at most ½.",
)  # fmt: skip
SHARE = Quantity(
    "share", "mean weight", "share of a row", domain=(0, 1),
    definition="Mean over counted rows of the weight on this token.",
)  # fmt: skip
MOST_POINTS = 4000


def _picked(view: View) -> dict[str, int]:
    return {"layer": view.layer, "head": view.head}


def atlas(view: View, trace: Trace) -> dict | None:
    """All heads by one norm, and the share of saturated rows at a chosen threshold."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        name = st.selectbox(
            "Colour by", ATLAS, format_func=lambda n: METRICS[n].title, key="jacobian:metric",
            width=320,
        )  # fmt: skip
        threshold = st.slider(
            "A row is saturated from a peak of", 0.5, 0.999, 0.9, 0.001, key="jacobian:threshold",
            format="%.3f", width=320,
        )  # fmt: skip
    table = computed(
        view, "jacobian:table", {"threshold": threshold},
        lambda tick: head_table(trace, saturated_from=threshold),
    )  # fmt: skip
    q = METRICS[name]
    caption = q.definition
    if name == "saturated":
        caption = f"Share of counted rows whose peak is at least {threshold:.3f}."
    figure = Figure(
        f"jacobian-{name}",
        lambda mode: figures.head_map(
            table, q, mode=mode, selected=(view.layer, view.head), size=380
        ),
        table[["layer", "head", name, "rows"]],
        f"{caption} Click a cell to choose the head.",
        f"Heat map of {q.title} for every head.",
        provenance(view, saturated_from=threshold),
    )
    with st.container(horizontal=True):
        clicked = show(
            view, figure, f"Every head: {q.label}", key=f"jacobian:atlas:{name}", selectable=True,
            selected=_picked(view), width="content",
        )  # fmt: skip
        _profile(view, trace, threshold)
    return clicked


def _profile(view: View, trace: Trace, threshold: float) -> None:
    frame = computed(view, "jacobian:rows", {}, lambda tick: saturation.rows(trace))
    mine = frame[(frame["layer"] == view.layer) & (frame["head"] == view.head)]
    mine = mine.assign(query_token=[view.tokens.display[i] for i in mine["query"]])
    long = mine.melt(["query", "query_token"], ["peak", "normalised_entropy", "jacobian_frobenius"])
    long["variable"] = long["variable"].map(lambda name: METRICS[name].label)
    saturated = int((mine["peak"] >= threshold).sum())
    figure = Figure(
        "jacobian-profile",
        lambda mode: figures.curves(
            long, QUERY, Quantity("value", "value", domain=(0, 1)), by="variable", dots=True,
            mode=mode, width=480, height=290,
        ),
        mine,
        f"{saturated} of {len(mine)} counted rows are saturated (peak ≥ {threshold:.3f}). Rows "
        "that see one key are left out.",
        f"Peak, normalised entropy and Frobenius norm of every row of {of_head(view)}.",
        provenance(view, **_picked(view), saturated_from=threshold),
    )  # fmt: skip
    show(view, figure, f"Rows of {of_head(view)}", key="jacobian:profile")


def against_bounds(view: View, trace: Trace) -> dict | None:
    """Every row of every head: its peak against a norm, with the exact bounds."""
    frame = computed(view, "jacobian:rows", {}, lambda tick: saturation.rows(trace))
    name = choice(
        "Norm", saturation.NORMS, key="jacobian_norm",
        format_func=lambda n: METRICS[n].label.removeprefix("Jacobian, ").capitalize(),
    )  # fmt: skip
    step = max(1, -(-len(frame) // MOST_POINTS))
    shown = frame.iloc[::step]
    limits = saturation.bounds(name)
    figure = Figure(
        f"bounds-{name}",
        lambda mode: figures.scatter(
            shown, METRICS["peak"], METRICS[name], names=("layer", "head", "query"), bounds=limits,
            mode=mode, width=620, height=380,
        ),
        frame[["layer", "head", "query", "peak", name]],
        f"{len(shown):,} of {len(frame):,} counted rows of all heads"
        + (f" (every {step}th)" if step > 1 else "")
        + "; lines are exact bounds, m the peak, ε = 1 − m. Click a row to choose its head.",
        f"Scatter of peak against {METRICS[name].label} with bounds.",
        provenance(view),
    )  # fmt: skip
    return show(
        view, figure, "Saturation closes the softmax", key=f"jacobian:bounds:{name}",
        selectable=True,
    )  # fmt: skip


def one_row(view: View, trace: Trace) -> None:
    """The Jacobian of one row as a signed map."""
    tokens = [f"{i}: {token}" for i, token in enumerate(view.tokens.display)]
    query = st.selectbox(
        "Query", range(len(tokens)), len(tokens) - 1, format_func=tokens.__getitem__,
        key="jacobian:query", width=320,
    )  # fmt: skip
    matrix = saturation.jacobian(trace, view.layer, view.head, query).cpu().numpy()
    keys = np.flatnonzero(trace.valid()[query].cpu().numpy())
    names = [view.tokens.display[k] for k in keys]
    frame = figures.matrix_frame(matrix, names, "entry")
    figure = Figure(
        "jacobian-row",
        lambda mode: figures.token_map(frame, ENTRY, mode=mode),
        frame.rename(
            columns={
                "query": "key_i", "key": "key_j",
                "query_token": "key_i_token", "key_token": "key_j_token",
            }
        ),
        f"Entry (i, j) is ∂p_i/∂s_j = p_i(δ_ij − p_j) of the row of {tokens[query]!r}: how the "
        "weight on key i moves with the scaled logit of key j. "
        f"{figures.pooling_note(len(keys))}".strip(),
        f"Signed heat map of the softmax Jacobian of one row of {of_head(view)}.",
        provenance(view, **_picked(view), query=tokens[query]),
    )  # fmt: skip
    show(view, figure, f"J of query {tokens[query]} in {of_head(view)}", key="jacobian:row")


def real_gradient(view: View) -> dict | None:
    """What of a read-out loss's gradient the softmax of each head lets through."""
    read = readout.default(view.loaded, bundled("topics"))
    examples = read.prepare([view.tokens.text])
    losses = gradient.LOSSES if examples.target is not None else gradient.LOSSES[1:]
    loss = choice("Loss", losses, key="gradient_loss", format_func=LOSS_WORDS.__getitem__)
    st.caption(f"Read-out: {plain(read.statement)}.")
    rows = computed(
        view, "gradient:rows", {"readout": read.statement, "loss": loss},
        lambda tick: gradient.rows(gradient.gradients(read, examples, loss)),
    )  # fmt: skip
    heads = gradient.heads(rows)
    starved = heads[heads["starved"]]
    named = ", ".join(f"{a}.{b}" for a, b in zip(starved["layer"], starved["head"], strict=True))
    st.markdown(
        f"**{len(starved)} of {len(heads)} heads** let less than {gradient.STARVED:.0%} of the "
        f"gradient on their weights through to queries and keys{': ' + named if named else ''}."
    )
    with st.container(horizontal=True):
        clicked = _let_through(view, read, loss, heads)
        _against_norm(view, read, loss, rows)
    return clicked


LOSS_WORDS = {"target": "−ln p of the target", "top answer": "−ln p of the likeliest answer"}


def _let_through(view: View, read, loss: str, heads: pd.DataFrame) -> dict | None:
    q = RATIO
    figure = Figure(
        "gradient-heads",
        lambda mode: figures.head_map(
            heads, q, mode=mode, selected=(view.layer, view.head), size=360
        ),
        heads,
        f"{q.definition} Root sums of squares over rows; hatched where no gradient arrives.",
        "Heat map of the share of the gradient that each head's softmax lets through.",
        provenance(view, read_out=read.statement, loss=LOSS_WORDS[loss]),
    )
    return show(
        view, figure, "What the softmax lets through", key="gradient:heads", selectable=True,
        selected=_picked(view), width="content",
    )  # fmt: skip


def _against_norm(view: View, read, loss: str, rows: pd.DataFrame) -> None:
    known = rows.dropna(subset="ratio")
    shown = known.iloc[:: -(-max(1, len(known)) // MOST_POINTS)]
    most = float(known["jacobian_spectral"].max()) if len(known) else 0.5
    line = pd.DataFrame(
        {"jacobian_spectral": [0, most], "ratio": [0, most], "bound": "spectral norm"}
    )
    figure = Figure(
        "gradient-rows",
        lambda mode: figures.scatter(
            shown, METRICS["jacobian_spectral"], RATIO, names=("layer", "head", "query"),
            bounds=line, mode=mode, width=480, height=320,
        ),
        rows,
        f"{len(shown):,} of {len(rows):,} rows. No row lets through more than its J's spectral "
        "norm; rows that no gradient reaches are left out.",
        "Scatter of the spectral norm against the share of the gradient let through.",
        provenance(view, read_out=read.statement, loss=LOSS_WORDS[loss]),
    )  # fmt: skip
    show(view, figure, "Row by row, against ‖J‖", key="gradient:rows")


def where_weight_goes(view: View, trace: Trace) -> dict | None:
    """Weight on the first and the special tokens, and what is left without the special ones."""
    shares = computed(view, "sinks:shares", {}, lambda tick: sinks.shares(trace))
    places = shares[["position", "token"]].drop_duplicates()
    names = {p: f"{p}: {t}" for p, t in zip(places["position"], places["token"], strict=True)}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        position = st.selectbox(
            "Token", list(names), format_func=names.__getitem__, key="sinks:token", width=260
        )
        renormalised = st.toggle("Renormalise what is left", key="sinks:renormalised")
    with st.container(horizontal=True):
        clicked = _shares(view, shares[shares["position"] == position], names[position])
        if sum(not special for special in view.tokens.special) >= 2:
            _left(view, trace, renormalised)
    return clicked


def _shares(view: View, frame: pd.DataFrame, token: str) -> dict | None:
    figure = Figure(
        "sinks",
        lambda mode: figures.head_map(
            frame, SHARE, mode=mode, selected=(view.layer, view.head), size=360
        ),
        frame,
        f"{SHARE.definition} Token {token!r}.",
        "Heat map of each head's mean weight on one token.",
        provenance(view, token=token),
    )
    return show(
        view, figure, f"Weight on {token}", key="sinks:shares", selectable=True,
        selected=_picked(view), width="content",
    )  # fmt: skip


def _left(view: View, trace: Trace, renormalised: bool) -> None:
    frame = computed(
        view, "sinks:without", {"renormalised": renormalised},
        lambda tick: sinks.without_special(trace, renormalised=renormalised),
    )  # fmt: skip
    how = "renormalised over them" if renormalised else "as they are, not renormalised"
    q = METRICS["entropy"]
    figure = Figure(
        "sinks-without",
        lambda mode: figures.head_map(
            frame, q, mode=mode, selected=(view.layer, view.head), size=360
        ),
        frame,
        f"Mean −Σ p ln p over ordinary keys, weights {how}; rows of special tokens and rows that "
        "see fewer than two ordinary keys are left out.",
        "Heat map of each head's entropy without special tokens.",
        provenance(view, excluded="special tokens", weights=how),
    )  # fmt: skip
    show(view, figure, f"Entropy without special tokens, {how}", key="sinks:without")
