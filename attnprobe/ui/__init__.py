"""What every page is furnished with: the sidebar, the caches, long runs, figures with exports.

A page is a plain script that opens one `ui.page` and stays inside it::

    from attnprobe import export, figures, ui

    with ui.page("Logits and scaling") as view:
        table = ui.head_table(view)
        figure = export.Figure("spread", chart_for, frame, caption, alt, ui.provenance(view))
        ui.show(view, figure, "Spread of the logits", key="spread")

`ui.page(title)` draws the title and the shared sidebar, loads the model, reads the text, checks the
certificate and hands over a frozen `View`: `loaded`, `tokens`, `layer`, `head`, `certificate`,
`mode` ("light" or "dark"). An `AttnprobeError` raised anywhere inside becomes one sentence on the
screen; anything else one sentence on the screen and a traceback in the server's log. A failed
certificate, an empty text or an unusable model end the page there. `ui.page(title, needs_model=
False)` is for pages that can do without: the view's `loaded` and the rest may then be None.

Numbers
    `ui.trace(view)`, `ui.head_table(view)`: the trace of the view's text and its table of heads.
    `ui.computed(view, name, parameters, function)`: `function(tick)` once for each model, text,
    `name` and JSON-like `parameters`; kept in a bounded cache under one digest. Call `tick()`
    between batches, or pass it on (`trace(…, tick=tick)`): it leaves at once when the person has
    moved on. What comes back is shared between runs: read it, never edit it.
    `ui.run(view, name, parameters, steps, cost=…)`: for work that takes seconds. Draws the start
    button with `cost` (a sentence) beside it, a progress bar and a stop button, and calls
    `steps(progress)`; `progress(done, total, partial)` after each batch reports, keeps `partial`
    and leaves when stopped. Returns None (not run yet) or an `Outcome` with `value`, `done`,
    `total` and `complete`. `progress.partial` is what a former, interrupted run had kept, or None.

Pictures
    `ui.show(view, figure, title, key=…)`: a card with title, chart, caption and export menu, where
    `figure` is an `export.Figure` whose `chart_for` is a function of the mode. `on_pick` is told
    the fields of a mark that was clicked before the page is made anew; `selected=` says what is
    chosen now. `width="content"` makes a card as wide as its chart, for rows of cards inside
    `st.container(horizontal=True)`.
    `ui.card(title, export=figure)`: the same frame for other content, with `formats=("csv",)` for a
    table; in it, `ui.draw(view, figure, key=…)` is the chart alone.
    `ui.metrics(…)`: a row of numbers.
    `ui.part(draw, …)`: a part of a page that its own widgets make anew without the rest.
    `ui.provenance(view, layer=…, head=…, excluded=…, seed=…)`: for `export.Figure`.

State
    `ui.picking_head(view, page=None)`: an `on_pick` that chooses a head, here or on another page.
    `ui.choice(label, options, key=…, url=True)`: one of a few, kept over page switches and, with
    `url`, in the link.
"""

from attnprobe.ui.cached import computed, head_table, trace
from attnprobe.ui.errors import explained
from attnprobe.ui.page import page, part
from attnprobe.ui.run import Outcome, Progress, run
from attnprobe.ui.show import card, draw, metrics, provenance, show
from attnprobe.ui.state import choice, picking_head
from attnprobe.ui.view import View

__all__ = [
    "Outcome",
    "Progress",
    "View",
    "card",
    "choice",
    "computed",
    "draw",
    "explained",
    "head_table",
    "metrics",
    "page",
    "part",
    "picking_head",
    "provenance",
    "run",
    "show",
    "trace",
]
