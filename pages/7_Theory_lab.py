"""Why √d_k: each claim with its derivation, a figure to play with, and what is measured."""

from attnprobe import ui
from attnprobe.ui import theory

with ui.page(
    "Theory lab",
    question=theory.question(),
    needs_model=False,
) as view:
    theory.experiments(view)
