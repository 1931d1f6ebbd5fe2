"""The panel that asks every head for its role, with random tokens that come twice."""

import pandas as pd
import streamlit as st

from attnprobe import figures
from attnprobe.analyses import roles
from attnprobe.export import Figure
from attnprobe.metrics import Quantity
from attnprobe.ui.run import Progress, run
from attnprobe.ui.show import card, provenance, show
from attnprobe.ui.state import picking_head
from attnprobe.ui.view import View

SEED = 0
MAP = 300
SCORES = (
    Quantity(
        "previous_token", "previous-token score", "mean weight", domain=(0, 1),
        definition="Mean weight on the token just before.",
    ),
    Quantity(
        "duplicate_token", "duplicate-token score", "mean weight", domain=(0, 1),
        definition="Mean weight on the last earlier occurrence of the query's own token.",
    ),
    Quantity(
        "induction", "induction score", "mean weight", domain=(0, 1),
        definition="Mean weight on the token after the last earlier occurrence of the query's own "
        "(Olsson et al. 2022).",
    ),
)  # fmt: skip


def roles_of_heads(view: View, page: str) -> None:
    """Three maps of all heads by role, when asked for; a click opens the head on `page`."""
    loaded = view.loaded
    period = min(roles.PERIOD, roles.longest_period(loaded))

    def steps(progress: Progress) -> pd.DataFrame:
        asked = roles.questions(loaded, period=period, seed=SEED)
        return roles.role_table(loaded, asked, progress=progress)

    told = (
        f"{roles.SEQUENCES} sequences of {period} random tokens, each twice in a row "
        f"(seed {SEED}): no knowledge of a language helps in the second half, only looking back."
    )
    with card("What heads do with random repeats, whatever the text", caption=told):
        outcome = run(
            view, "roles", {"period": period, "seed": SEED}, steps, label="Ask the heads",
            cost=f"{roles.SEQUENCES} forward passes of {2 * period} tokens.",
        )  # fmt: skip
    if outcome is None or outcome.value is None:
        return
    with st.container(horizontal=True):
        for q in SCORES:
            _map(view, outcome.value, q, period, page)


def _map(view: View, table: pd.DataFrame, q: Quantity, period: int, page: str) -> None:
    figure = Figure(
        f"roles-{q.name}",
        lambda mode: figures.head_map(table, q, mode=mode, limits=(0, 1), size=MAP),
        table[["layer", "head", q.name]],
        f"{q.definition} Over the queries that have one. Click a cell to open the head.",
        f"Heat map of the score of the {q.label} for every head.",
        provenance(view, seed=SEED, period=period, sequences=roles.SEQUENCES),
    )
    show(
        view, figure, q.label.capitalize(), key=f"roles:{q.name}",
        on_pick=picking_head(view, page),
    )  # fmt: skip
