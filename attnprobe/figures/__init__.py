"""Frames to charts. Every function here is pure: a tidy frame in, an Altair chart out.

All take `mode` ("light" or "dark"), print titles with units from `attnprobe.metrics.Quantity`,
carry a text alternative, and hold the numbers of the frame: nothing is computed in the browser.

What there is, by what you have:

- a number per layer and head (or any two indices): `head_map`
- a small picture per head: `thumbnails`
- queries × keys of one head: `matrix_frame` then `token_map`; with row statistics: `head_view`;
  only some of its cells: `cells_frame`
- positions × components of one head: `component_map`
- one query's row: `row_bars`; a number per query: `row_profile`
- who looks at whom: `strongest` then `token_lines`
- many values of a number: `bin_shares` then `histogram`; per group: `five_numbers` then `boxes`
- two numbers per thing: `scatter`, with `bounds` for a theoretical limit
- a number over a number: `curves`, with bands, log axes and marked points
- a number per named thing: `bars`
- a certificate: `stage_frame` then `stage_map`

Clicks come back as a selection named "cell". Labels are cleaned by `safe_label` on the way in.
"""

from attnprobe.figures.atlas import head_map, thumbnails
from attnprobe.figures.bars import bars
from attnprobe.figures.colour import Limits, bend_note, fitted
from attnprobe.figures.components import component_frame, component_map, component_note
from attnprobe.figures.curves import curves
from attnprobe.figures.distributions import (
    bin_shares,
    boxes,
    five_numbers,
    histogram,
    scatter,
)
from attnprobe.figures.labels import isolated, safe_label, safe_labels
from attnprobe.figures.lines import strongest, token_lines
from attnprobe.figures.matrix import cells_frame, matrix_frame, pooling_note, token_map
from attnprobe.figures.raster import pool_max
from attnprobe.figures.rows import head_view, row_bars, row_profile
from attnprobe.figures.stages import beyond_note, stage_frame, stage_map
from attnprobe.figures.theme import COLOURS, Mode, fig_config, themed

__all__ = [
    "COLOURS",
    "Limits",
    "Mode",
    "bars",
    "bend_note",
    "beyond_note",
    "bin_shares",
    "boxes",
    "cells_frame",
    "component_frame",
    "component_map",
    "component_note",
    "curves",
    "fig_config",
    "fitted",
    "five_numbers",
    "head_map",
    "head_view",
    "histogram",
    "isolated",
    "matrix_frame",
    "pool_max",
    "pooling_note",
    "row_bars",
    "row_profile",
    "safe_label",
    "safe_labels",
    "scatter",
    "stage_frame",
    "stage_map",
    "strongest",
    "themed",
    "thumbnails",
    "token_lines",
    "token_map",
]
