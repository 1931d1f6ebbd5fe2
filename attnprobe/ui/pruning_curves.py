"""The panels of the pruning page that remove many heads: the curve, its order, cutting out."""

from functools import partial

import pandas as pd
import streamlit as st

from attnprobe import cut_models, figures
from attnprobe.analyses.pruning import cost, curve, ranking, savings
from attnprobe.analyses.pruning.curve import Curve, Order, Point
from attnprobe.export import Figure
from attnprobe.metrics import Quantity
from attnprobe.readout import METRICS
from attnprobe.ui.lock import TORCH
from attnprobe.ui.pruning import Pruning, noted, price, provenance
from attnprobe.ui.run import Progress, run
from attnprobe.ui.show import card, metrics, show

LEVEL = 0.9
TOKENS = 64
SHARE = Quantity("share", "heads removed", "share", domain=(0, 1))
LOSS = Quantity("loss", "loss", "nats", definition="Mean over evaluation texts.")
STEP = Quantity(
    "step", "goes in step", "step", domain=(1, None), format="d", definition="1 goes first."
)


def curves(state: Pruning, heads: pd.DataFrame) -> None:
    """Loss and metric as heads go, in several orders, and when each head goes."""
    one_by_one, rescored, repeats = _settings()
    at = curve.steps(len(heads), one_by_one=one_by_one)
    orders = ranking.orders(heads, state.score, random=repeats)
    settings = {"score": state.score, "at": at, "rescored": rescored, "random": repeats}
    read, view = state.experiment.readout, state.experiment.view
    shape = (view.loaded.n_layers, view.loaded.n_heads)

    def steps(progress: Progress) -> tuple[dict[str, list[Order]], list[Point], Curve]:
        chosen = orders | (_rescored(state, at, progress) if rescored else {})
        points = curve.points_of(chosen, at, shape)

        def report(done: int, total: int, partial: Curve | None = None) -> None:
            progress(done, total, (chosen, points, partial) if partial else None)

        so_far = progress.partial[2] if progress.partial else None
        found = curve.evaluated(
            read, state.evaluation, points, state.instead(progress.tick),
            so_far=so_far, progress=report,
        )  # fmt: skip
        return chosen, points, found

    passes = cost.curve_passes(len(orders) - 1 + repeats, len(at))
    passes += cost.IMPORTANCE * len(at) * rescored
    outcome = run(
        view, "curve", state.parameters | settings, steps,
        cost=price(state, "evaluation", passes), label="Draw the curve",
    )  # fmt: skip
    if outcome is None:
        return
    chosen, points, found = outcome.value
    noted(outcome, len(found.numbers), len(state.evaluation))
    frame = found.frame(points)
    _both(state, frame)
    _falls_and_map(state, frame, chosen, at)


def _settings() -> tuple[bool, bool, int]:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        one_by_one = st.toggle("Head by head", key="curve_one", persist_state="session")
        rescored = st.toggle(
            "Re-score at each step",
            key="curve_rescored",
            persist_state="session",
            help="Importance is taken anew with the heads removed so far switched off.",
        )
        repeats = st.number_input(
            "Random orders", 20, 200, curve.RANDOM_ORDERS, 10, key="curve_random",
            persist_state="session", width=160,
        )  # fmt: skip
    return one_by_one, rescored, int(repeats)


def _rescored(state: Pruning, at: list[int], progress: Progress) -> dict[str, list[Order]]:
    order = curve.rescored_order(
        state.experiment.readout,
        state.scoring,
        at,
        normalised=state.score.endswith("l2"),
        progress=lambda done, total: progress.tick(),
    )
    return {"re-scored": [order]}


def _both(state: Pruning, frame: pd.DataFrame) -> None:
    """Metric and loss, each order a line, random orders a band."""
    bands = curve.bands(frame)
    name = bands["metric"].iloc[0]
    domain = (0, 1) if METRICS[name].higher_is_better else (None, None)
    scale = "linear" if METRICS[name].higher_is_better else "log"
    value = Quantity("value", name, "", domain=domain, scale=scale)
    repeats = int(bands["repeats"].max())
    for column, q in zip(st.columns(2), (value, LOSS), strict=True):
        low, high = f"{q.name}_low", f"{q.name}_high"
        figure = Figure(
            name=f"pruning-curve-{q.label}",
            chart_for=partial(_curve_chart, bands, q, (low, high)),
            frame=bands,
            caption=f"{q.label.capitalize()} on the evaluation part as heads go. Random: median "
            f"and 5–95 % band of {repeats} orders. Effect: by the change of loss of each "
            f"head alone. Reverse: most important first. {state.said}",
            alt=f"Curves of {q.label} against the share of heads removed, one per order.",
            provenance=provenance(state, frame, score=state.score, seed=0),
        )
        with column:
            show(state.experiment.page, figure, f"Pruning curve: {q.label}", key=f"curve:{q.name}")


def _curve_chart(bands: pd.DataFrame, q: Quantity, band: tuple[str, str], mode: figures.Mode):
    return figures.curves(bands, SHARE, q, by="order", band=band, dots=True, mode=mode, width=430)


def _falls_and_map(
    state: Pruning, frame: pd.DataFrame, orders: dict[str, list[Order]], at: list[int]
) -> None:
    left, right = st.columns(2)
    with left:
        level = st.slider(
            "Share of the unpruned metric", 0.5, 1.0, LEVEL, 0.01, key="curve_level",
            persist_state="session",
        )  # fmt: skip
        falls = curve.first_fall(frame, level)
        fallen = falls.groupby("order", sort=False)["share"]
        with card(
            "Where it first falls",
            caption=f"First step with the metric below {level:.0%} of its unpruned value "
            "(perplexity: above its inverse); the median over orders of that name.",
        ):
            st.dataframe(
                fallen.median().rename("share of heads removed").reset_index(),
                hide_index=True,
                placeholder="never",
            )
    with right:
        named = [name for name in orders if name != "random"]
        name = st.selectbox("Order", named, key="curve_order", persist_state="session")
        places = curve.order_map(orders[name][0], state.experiment.page.loaded.n_heads, at)
        figure = Figure(
            name="pruning-order",
            chart_for=lambda mode: figures.head_map(places, STEP, mode=mode, size=300),
            frame=places,
            caption=f"Which heads go when, order: {name}. {state.said}",
            alt="Heat map of the step in which each head is removed.",
            provenance=provenance(state, frame, score=state.score),
        )
        show(state.experiment.page, figure, "Which heads go when", key="curve:map", width="content")


def cutting(state: Pruning, heads: pd.DataFrame) -> None:
    """Heads cut out for good: what it saves, how fast it is, and the model as a file."""
    count = st.slider(
        "Heads to cut out, least first", 1, len(heads), max(1, len(heads) // 2),
        key=f"cut_count:{len(heads)}", persist_state="session",
    )  # fmt: skip
    least = heads.nsmallest(count, state.score)
    gone = sorted(zip(least["layer"].tolist(), least["head"].tolist(), strict=True))
    loaded = state.experiment.page.loaded
    tokens = min(TOKENS, loaded.max_tokens)
    texts = [text.text for text in state.evaluation.texts[:8]]

    def steps(progress: Progress) -> dict[str, object]:
        cut = cut_models.cut(loaded, gone)
        return {
            "equality": savings.equality(loaded, cut, texts),
            "saved": savings.saved(loaded, cut, tokens),
            "latency": savings.latency(
                loaded, cut, tokens, progress=lambda done, total: progress(done, total)
            ),
        }

    outcome = run(
        state.experiment.view, "cut", {"gone": gone, "tokens": tokens}, steps,
        cost=price(state, "scoring", 2.0), label="Cut and measure",
    )  # fmt: skip
    if outcome is None:
        return
    _cut_card(outcome.value, count)
    st.download_button(
        "Download the cut model (.zip)",
        data=partial(_zipped, loaded, gone),
        file_name="cut_model.zip",
        on_click="ignore",
        icon=":material/download:",
        help="Unpack it and give attnprobe the folder. transformers alone cannot read it: its "
        "modules have the same number of heads in every layer.",
    )


def _zipped(loaded, gone: list[tuple[int, int]]) -> bytes:
    with TORCH.taken():
        return cut_models.zipped(cut_models.cut(loaded, gone))


def _cut_card(found: dict[str, object], count: int) -> None:
    saved = found["saved"].set_index("what")
    metrics(
        ("Heads cut out", f"{count}"),
        (
            "Cut against masked",
            f"{found['equality']:.1e}",
            "Largest difference of hidden states between the two; at most 1e-5 in float32.",
        ),
        ("Parameters saved", f"{saved.loc['parameters', 'saved']:.1%}"),
        (
            "Multiply–adds saved",
            f"{saved.loc['multiply–adds', 'saved']:.1%}",
            f"At {saved['tokens'].iloc[0]} tokens.",
        ),
    )
    latency = found["latency"]
    with card(
        "Time before and after",
        caption=f"Medians of {latency['repetitions'].iloc[0]} forward passes of each model, taking "
        f"turns, {latency['tokens'].iloc[0]} tokens; speed-up with its 5–95 % range. The ceiling "
        "is what the saved multiply–adds allow; a figure above it is noise.",
    ):
        st.dataframe(latency.round(3), hide_index=True)
