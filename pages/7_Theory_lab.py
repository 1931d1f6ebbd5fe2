"""Why √d_k: each claim with its derivation, a figure to play with, and what is measured."""

from attnprobe import ui
from attnprobe.ui import theory

with ui.page(
    "Theory lab",
    question="Why are scores divided by √d_k? Every claim is derived, measured here, and judged.",
    needs_model=False,
) as view:
    theory.experiments(view)
