"""The panels of the head inspector: numbers, token map, pinned row, small pictures, lines."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import streamlit as st

from attnprobe import figures
from attnprobe.export import Figure
from attnprobe.metrics import METRICS, Quantity
from attnprobe.trace import SATURATED_FROM as SATURATED
from attnprobe.trace import Trace
from attnprobe.ui import components
from attnprobe.ui.cached import Store, digest_of, kept
from attnprobe.ui.components import Event, Strip, Zoom
from attnprobe.ui.pictures import SQRT_FROM, coloured
from attnprobe.ui.show import card, draw, metrics, provenance, value
from attnprobe.ui.view import View

KINDS = {"raw logits": "raw_logit", "scaled logits": "scaled_logit", "weights": "weight"}
ROW = "row"
ZOOM = "zoom"
WIDE_FROM = 24
PER_QUERY = 3
TABLE = 318
HEADS = Store(8)


@dataclass(frozen=True, eq=False)
class Numbers:
    """One head's numbers [query key], undefined where a query may not see; kept between runs."""

    values: np.ndarray
    rows: pd.DataFrame


@dataclass(frozen=True, eq=False)
class Head:
    """One head on the screen of one person."""

    view: View
    trace: Trace
    quantity: Quantity
    numbers: Numbers
    limits: figures.Limits | None = None

    @property
    def tokens(self) -> tuple[str, ...]:
        return self.view.tokens.display

    @property
    def number(self) -> Quantity:
        """What is shown, where no colours are meant."""
        return METRICS[self.quantity.name]

    @property
    def values(self) -> np.ndarray:
        return self.numbers.values

    @property
    def rows(self) -> pd.DataFrame:
        """One line per query; see `row_frame`."""
        return self.numbers.rows

    @property
    def frame(self) -> pd.DataFrame:
        """The numbers as a table, one line per cell: large, so only for a file, and not kept."""
        return figures.matrix_frame(self.values, self.tokens, self.quantity.name)

    def cells(self, query: np.ndarray, key: np.ndarray) -> pd.DataFrame:
        """Some lines of `frame`."""
        return figures.cells_frame(self.values, self.tokens, self.quantity.name, query, key)


def is_wide(view: View) -> bool:
    """Whether the text is so long that its token map needs the whole width of the page."""
    return len(view.tokens) >= WIDE_FROM


def fitting(view: View) -> bool:
    """Whether the colours of the map end where the data do; so from the start on a long text."""
    long = len(view.tokens) > SQRT_FROM
    return st.toggle(
        "Fit colours to the data", long, key=f"fit:{long}", persist_state="session",
        help="The colour bar ends at the values that 99 % of the cells lie between, and says so. "
        "Off: weights from 0 to 1, logits over their whole range.",
    )  # fmt: skip


def head_of(view: View, trace: Trace, kind: str, *, fit: bool = False) -> Head:
    """The chosen head as raw logits, scaled logits or weights, with its row statistics."""
    quantity = METRICS[KINDS[kind]]
    digest = digest_of(view.digest, view.layer, view.head, kind)
    numbers = kept(HEADS, digest, lambda tick: numbers_of(view, trace, kind))
    limits = figures.fitted(numbers.values, quantity) if fit else None
    return Head(view, trace, coloured(quantity, len(view.tokens)), numbers, limits)


def numbers_of(view: View, trace: Trace, kind: str) -> Numbers:
    read = {
        "raw logits": trace.raw_logits,
        "scaled logits": trace.scaled_logits,
        "weights": trace.weights,
    }[kind]
    values = read(view.layer, view.head).double().cpu().numpy()
    values = np.where(trace.valid().cpu().numpy(), values, np.nan)
    return Numbers(values, row_frame(view, trace))


def row_frame(view: View, trace: Trace) -> pd.DataFrame:
    """What each row of the chosen head amounts to."""
    rows, at = trace.rows, (view.layer, view.head)
    columns = {
        "keys": rows.keys,
        "entropy": rows.entropy,
        "normalised_entropy": rows.normalised_entropy,
        "effective_keys": rows.effective_keys,
        "peak": rows.peak,
        "peak_key": rows.peak_key,
        "jacobian_frobenius": rows.jacobian_frobenius,
    }
    frame = pd.DataFrame({name: values[at].cpu().numpy() for name, values in columns.items()})
    frame.insert(0, "query", range(len(frame)))
    frame.insert(1, "query_token", view.tokens.display)
    return frame


def numbers(view: View, trace: Trace, table: pd.DataFrame) -> None:
    """The head's line of the table of heads."""
    line = table[(table["layer"] == view.layer) & (table["head"] == view.head)].iloc[0]
    rows = int(line["rows"])
    metrics(
        *((label, value(line[name]), described(METRICS[name])) for label, name in NUMBERS.items()),
        (
            "Saturated rows",
            "–" if not rows else f"{round(line['saturated'] * rows)} of {rows}",
            described(METRICS["saturated"]),
        ),
        ("Scale", f"{trace.scales[view.layer]:.4g}", "The factor that the model puts on q·k."),
    )
    st.caption(f"{counted(rows, len(view.tokens))} A row is saturated from a peak of {SATURATED}.")


def counted(rows: int, tokens: int) -> str:
    """Which rows enter the numbers, and why not all."""
    if not rows:
        return "No row counts: none sees two keys."
    if rows == tokens:
        return f"Means over the rows of all {tokens} tokens."
    return (
        f"Means over {rows} rows of {tokens}: the first token sees only itself, and a row counts "
        "from two keys."
    )


NUMBERS = {
    "Entropy (nats)": "entropy",
    "Effective keys": "effective_keys",
    "Peak": "peak",
    "Jacobian ‖J‖": "jacobian_frobenius",
}


def described(q: Quantity) -> str:
    return f"{q.title}. {q.definition}"


def token_map(head: Head) -> None:
    """The map with its row statistics; a click pins a row, a drag zooms."""
    n, row, zoom = len(head.tokens), pinned(head), zoomed(head)
    figure = map_figure(head, row)
    title = f"Layer {head.view.layer}, head {head.view.head}: {head.number.label}"
    with card(title, caption=map_caption(head, zoom), export=figure):
        components.heatmap(
            head.values,
            head.tokens,
            head.quantity,
            key="token_map",
            mode=head.view.mode,
            zoom=zoom,
            row=row,
            limits=head.limits,
            strips=[
                Strip("entropy (nats)", head.rows["entropy"], float(np.log(max(2, n)))),
                Strip("peak", head.rows["peak"], 1.0),
            ],
            on_event=partial(take, head.view),
        )
        if zoom:
            st.button(
                "Whole map", icon=":material/zoom_out_map:", type="tertiary",
                on_click=st.session_state.__setitem__, args=(ZOOM, None),
            )  # fmt: skip


def take(view: View, event: Event) -> None:
    """Pins the row of the cell that was clicked, or shows the part that was dragged out."""
    if event.pick:
        pin(view, event.pick[0])
    if event.zoom:
        st.session_state[ZOOM] = (view.digest, event.zoom)


def map_figure(head: Head, row: int) -> Figure:
    """The whole map for the files, where a canvas cannot go."""
    note = figures.pooling_note(len(head.tokens), head.quantity.kind)

    def chart(mode: figures.Mode):
        return figures.head_view(
            head.frame, head.rows, head.quantity, mode=mode, row=row, limits=head.limits
        )

    return Figure(
        name=f"map-{head.quantity.name}",
        chart_for=chart,
        frame=lambda: head.frame,
        caption=f"{head.quantity.definition} {note}".strip(),
        alt=f"Token map of {head.quantity.title} with entropy and peak of every row.",
        provenance=provenance(head.view, layer=head.view.layer, head=head.view.head),
    )


def map_caption(head: Head, zoom: Zoom | None) -> str:
    n = len(head.tokens)
    every = (zoom or Zoom((0, n), (0, n))).pooled()
    pooled = (
        f" Each cell is the largest of {every} × {every}; the bars beside it are their means."
        if every > 1
        else ""
    )
    drag = " Drag to zoom." if n > 12 else ""
    return f"{head.quantity.definition}{pooled} Click a cell to pin its row.{drag}"


def zoomed(head: Head) -> Zoom | None:
    """The part that was dragged out of this text's map, if any."""
    digest, zoom = st.session_state.get(ZOOM) or (None, None)
    return zoom if digest == head.view.digest else None


def pinned(head: Head) -> int:
    """The query whose numbers are shown: what was clicked, else one with something to see."""
    n = len(head.tokens)
    digest, row = st.session_state.get(ROW) or (None, 0)
    if digest == head.view.digest and row < n:
        return row
    return n - 1 if head.trace.causal else min(1, n - 1)


def pin(view: View, row: int) -> None:
    st.session_state[ROW] = (view.digest, row)


def pinned_row(head: Head) -> None:
    """The pinned query's numbers for every key, as bars."""
    row = pinned(head)
    keys = np.arange(len(head.tokens))
    frame = head.cells(np.full_like(keys, row), keys)

    def chart(mode: figures.Mode):
        return figures.row_bars(frame, head.number, mode=mode, width=420, height=150)

    figure = Figure(
        name=f"row-{row}-{head.quantity.name}",
        chart_for=chart,
        frame=frame,
        caption=row_caption(head, row),
        alt=f"Bars of {head.quantity.title} from query {row} to every key.",
        provenance=provenance(head.view, layer=head.view.layer, head=head.view.head),
    )
    title = f"Row of query {row}: {head.tokens[row]}"
    with card(title, caption=figure.caption, export=figure, key="row"):
        draw(head.view, figure, key="row_bars", width="stretch")
        st.dataframe(
            row_table(head, row),
            hide_index=True,
            height=TABLE,
            column_config=ROW_COLUMNS,
        )


ROW_COLUMNS = {
    "token": st.column_config.TextColumn("key", width=70),
    "weight": st.column_config.ProgressColumn("weight", format="%.4f", max_value=1.0, width=110),
    "scaled logit": st.column_config.NumberColumn("scaled", format="%.3f", width=58),
    "raw logit": st.column_config.NumberColumn("raw", format="%.3f", width=58),
}


def row_table(head: Head, row: int) -> pd.DataFrame:
    """The pinned row's keys with all three numbers, the heaviest first."""
    at = (head.view.layer, head.view.head)
    seen = head.trace.valid()[row].cpu()
    columns = {
        "weight": head.trace.weights(*at)[row],
        "scaled logit": head.trace.scaled_logits(*at)[row],
        "raw logit": head.trace.raw_logits(*at)[row],
    }
    frame = pd.DataFrame({name: v.double().cpu()[seen].numpy() for name, v in columns.items()})
    keys = seen.nonzero()[:, 0].tolist()
    frame.insert(0, "token", [f"{figures.isolated(head.tokens[key])} ({key})" for key in keys])
    return frame.sort_values("weight", ascending=False, kind="stable")


def row_caption(head: Head, row: int) -> str:
    line = head.rows.iloc[row]
    key = head.tokens[int(line["peak_key"])]
    return (
        f"Looks most at {key} ({int(line['peak_key'])}) with weight {value(line['peak'])}; entropy "
        f"{value(line['entropy'])} nats over {int(line['keys'])} keys, as if over "
        f"{value(line['effective_keys'])} keys of equal weight."
    )


def lines(view: View, trace: Trace) -> None:
    """Who looks at whom: the strongest weights of each query as lines."""
    head = head_of(view, trace, "weights")
    least = st.session_state.get("least", 0.05)
    row = pinned(head)
    enough = head.cells(*np.nonzero(head.values >= least))
    strongest = figures.strongest(enough, "weight", per_query=PER_QUERY, least=least)

    def chart(mode: figures.Mode):
        return figures.token_lines(strongest, list(head.tokens), "weight", mode=mode)

    figure = Figure(
        name="lines",
        chart_for=chart,
        frame=strongest,
        caption=f"The {PER_QUERY} largest weights of each query, if at least {least:.2f}. "
        "Hover a token to see its lines alone.",
        alt="Lines from query tokens to the key tokens that they look at.",
        provenance=provenance(view, layer=view.layer, head=view.head, threshold=least),
    )
    with card("Who looks at whom", caption=figure.caption, export=figure):
        st.slider("Least weight", 0.0, 0.5, 0.05, 0.01, key="least", persist_state="session")
        components.lines(
            strongest, head.tokens, METRICS["weight"], key="lines", mode=view.mode, row=row,
            on_pick=partial(pin, view),
        )  # fmt: skip
