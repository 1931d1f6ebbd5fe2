"""Token-to-token lines: who looks at whom, the strongest only."""

import altair as alt
import numpy as np
import pandas as pd

from attnprobe.figures.chart import Chart
from attnprobe.figures.labels import safe_labels
from attnprobe.figures.theme import COLOURS, Mode, themed
from attnprobe.figures.values import column, inline
from attnprobe.metrics import Number, Quantity, quantity

MOST_LINES = 2000
_ROW = 18


def strongest(
    frame: pd.DataFrame, value: str = "weight", *, per_query: int = 3, least: Number = 0
) -> pd.DataFrame:
    """The `per_query` largest values of each query that are at least `least`; undefined left out.

    At most 2,000 rows in all, the largest first: more lines than that are a smudge.
    """
    kept = frame[column(frame, value).ge(least)]
    kept = kept.sort_values(value, ascending=False, kind="stable")
    return kept.groupby("query", sort=False).head(per_query).head(MOST_LINES)


def token_lines(
    frame: pd.DataFrame,
    tokens: list[str],
    value: str | Quantity = "weight",
    *,
    mode: Mode = "light",
    query: int | None = None,
    width: int = 240,
) -> alt.LayerChart:
    """Lines from queries on the left to keys on the right; opacity and width grow with the value.

    `frame` has query, key and the value (see `strongest`); `tokens` are all labels in order. With
    `query`, the lines of the other queries fade. The caption has to say what was left out.
    """
    q = quantity(value)
    top = max(float(np.nanmax(frame[q.name])) if len(frame) else 0.0, 1e-12)
    faint = 1.0 if query is None else np.where(frame["query"] == query, 1.0, 0.08)
    shown = frame.assign(from_=0, to=1, ink=0.1 + 0.9 * frame[q.name] / top * 1.0)
    shown["ink"] = shown["ink"] * faint
    shown["query_token"] = [tokens[i] for i in shown["query"]]
    shown["key_token"] = [tokens[i] for i in shown["key"]]
    columns = ["query", "key", "query_token", "key_token", "from_", "to", "ink", q.name]
    down = alt.Scale(
        domain=[-0.5, max(0.5, len(tokens) - 0.5)], reverse=True, nice=False, zero=False
    )
    side = alt.Scale(domain=[0, 1], nice=False)
    lines = (
        Chart(inline(shown, columns))
        .mark_rule(color=COLOURS[mode].accent, strokeCap="round")
        .encode(
            x=alt.X("from_:Q", scale=side, axis=None),
            x2=alt.X2("to:Q"),
            y=alt.Y("query:Q", scale=down, axis=None),
            y2=alt.Y2("key:Q"),
            opacity=alt.Opacity("ink:Q", scale=alt.Scale(domain=[0, 1], range=[0, 1]), legend=None),
            strokeWidth=alt.StrokeWidth(
                "ink:Q", scale=alt.Scale(domain=[0, 1], range=[0.5, 4]), legend=None
            ),
            tooltip=[
                alt.Tooltip("query_token:N", title="query"),
                alt.Tooltip("query:Q", title="query position"),
                alt.Tooltip("key_token:N", title="key"),
                alt.Tooltip("key:Q", title="key position"),
                alt.Tooltip(f"{q.name}:Q", title=q.title, format=".4g"),
            ],
        )
    )
    words = pd.DataFrame({"position": range(len(tokens)), "token": safe_labels(tokens)})
    base = Chart(inline(words, ["position", "token"])).encode(
        y=alt.Y("position:Q", scale=down, axis=None), text=alt.Text("token:N")
    )
    ends = [
        base.mark_text(align="right", dx=-8, limit=160, tooltip=None).encode(x=alt.XValue(0)),
        base.mark_text(align="left", dx=8, limit=160, tooltip=None).encode(x=alt.XValue(width)),
    ]
    return themed(
        alt.layer(lines, *ends, width=width, height=max(1, len(tokens)) * _ROW),
        mode,
        alt_text=f"{len(frame)} lines from query tokens (left) to key tokens (right).",
        dense=True,
    )
