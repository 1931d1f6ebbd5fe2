"""Small pictures of heads: all of a layer, and those that stand out on a text."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from attnprobe import figures
from attnprobe.analyses.standouts import HABITS, LEAST_QUERIES, standouts
from attnprobe.export import Figure
from attnprobe.metrics import METRICS, Quantity
from attnprobe.trace import Trace
from attnprobe.ui import components
from attnprobe.ui.cached import computed, head_table
from attnprobe.ui.show import card, provenance, value
from attnprobe.ui.state import choose_head, open_head
from attnprobe.ui.view import View

PICTURE = 64
SQRT_FROM = 48


def colours_for(view: View) -> Quantity:
    """How weights of the view's text are coloured in small pictures."""
    return coloured(METRICS["weight"], len(view.tokens))


def coloured(q: Quantity, n_tokens: int) -> Quantity:
    """Weights of a long text are small, and so is what changes them: colours by the square root."""
    if q.name not in ("weight", "difference") or n_tokens <= SQRT_FROM:
        return q
    return replace(q, scale="sqrt", label=f"{q.label}, colours by square root")


def limits_of(pictures: Mapping[int, np.ndarray], q: Quantity) -> figures.Limits | None:
    """Where the colours of a long text's pictures end; None for the quantity's own limits."""
    if q.scale != "sqrt":
        return None
    return figures.fitted(np.concatenate([each.ravel() for each in pictures.values()]), q)


def small_pictures(view: View, trace: Trace) -> None:
    """All heads of the layer side by side; a click chooses the head."""
    weight = colours_for(view)
    pictures = computed(
        view, "pictures", {"layer": view.layer}, lambda tick: pooled_weights(trace, view.layer)
    )
    limits = limits_of(pictures, weight)

    def chart(mode: figures.Mode):
        return figures.thumbnails(
            pictures, weight, mode=mode, selected=view.head, per_row=6, limits=limits
        )

    figure = Figure(
        name="layer",
        chart_for=chart,
        frame=layer_frame(view, trace),
        caption=f"Weights, queries downwards and keys to the right, at most {PICTURE} pixels a "
        "side (the largest weight of what a pixel covers). Click a picture to open the head.",
        alt=f"Small token maps of the {trace.n_heads} heads of layer {view.layer}.",
        provenance=provenance(view, layer=view.layer),
    )
    table = head_table(view)
    line = table[table["layer"] == view.layer].set_index("head")
    titles = {head: f"head {head} · {value(line['entropy'][head])} nats" for head in pictures}
    with card(f"All heads of layer {view.layer}", caption=figure.caption, export=figure):
        components.gallery(
            pictures,
            weight,
            key="pictures",
            mode=view.mode,
            chosen=view.head,
            limits=limits,
            titles=titles,
            on_pick=partial(choose_head, view, view.layer),
        )


def pooled_weights(trace: Trace, layer: int) -> dict[int, np.ndarray]:
    """The weights of every head of a layer, small enough for small pictures."""
    return {head: small_picture(trace, layer, head) for head in range(trace.n_heads)}


def small_picture(trace: Trace, layer: int, head: int) -> np.ndarray:
    """A head's weights [query key], pooled by their maximum to at most `PICTURE` a side."""
    weights = trace.weights(layer, head).double().cpu().numpy()
    return figures.pool_max(np.where(trace.valid().cpu().numpy(), weights, np.nan), PICTURE)


def layer_frame(view: View, trace: Trace) -> pd.DataFrame:
    """The largest weight and where it is, for every row of every head of the layer."""
    rows = trace.rows
    n_heads, n = rows.peak[view.layer].shape
    return pd.DataFrame(
        {
            "layer": view.layer,
            "head": np.repeat(np.arange(n_heads), n),
            "query": np.tile(np.arange(n), n_heads),
            "query_token": np.tile(np.array(view.tokens.display, dtype=object), n_heads),
            "peak": rows.peak[view.layer].cpu().numpy().ravel(),
            "peak_key": rows.peak_key[view.layer].cpu().numpy().ravel(),
            "entropy": rows.entropy[view.layer].cpu().numpy().ravel(),
        }
    )


def standing_out(view: View, trace: Trace, page: str) -> None:
    """The head that does each simple thing most on this text; a click opens it on `page`."""
    found = computed(view, "standouts", {}, lambda tick: standouts(trace, tick=tick))
    if found.empty:
        return
    pictures = computed(view, "standing out", {}, lambda tick: _pictures(trace, found))
    weight = colours_for(view)
    limits = limits_of(pictures, weight)
    places = {row.Index: (int(row.layer), int(row.head)) for row in found.itertuples()}
    titles = {
        row.Index: f"{HABITS[row.habit].title} · L{row.layer}.H{row.head} · {row.score:.2f}"
        for row in found.itertuples()
    }

    def chart(mode: figures.Mode):
        named = {titles[i]: picture for i, picture in pictures.items()}
        return figures.thumbnails(
            named, weight, mode=mode, per_row=3, name="habit", size=190, limits=limits
        )

    figure = Figure(
        name="standouts",
        chart_for=chart,
        frame=found,
        caption="For each habit the head that does it most on this text: its layer, its head, and "
        "its mean weight on the token in question over the queries that have one, at least "
        f"{LEAST_QUERIES}. The same token is its last earlier occurrence; a repeat is continued by "
        "looking at the token after that. Click a picture to open the head.",
        alt="Small token maps of the heads that stand out.",
        provenance=provenance(view),
    )
    with card("Heads that stand out on this text", caption=figure.caption, export=figure):
        components.gallery(
            pictures, weight, key="standouts", mode=view.mode, limits=limits, titles=titles,
            on_pick=lambda i: open_head(view, page, *places[i]),
        )  # fmt: skip


def _pictures(trace: Trace, found: pd.DataFrame) -> dict[int, np.ndarray]:
    return {
        row.Index: small_picture(trace, int(row.layer), int(row.head)) for row in found.itertuples()
    }
