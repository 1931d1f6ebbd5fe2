"""What every row of an attention head looks like, from one pass over tiles that stay in cache.

A row is the softmax of one query's scaled logits over the keys that it sees. No [query key] matrix
and no mask of that shape is built: a tile of a few rows is computed, summed and overwritten.

`statistics` says what is measured and with which formulae, `tiles` makes the sums, `spectral` finds
the largest eigenvalue, `rows` is the door. Nothing here is differentiable.
"""

from attnprobe.softmax_stats.rows import (
    attention_rows,
    attention_weights,
    row_statistics,
    statistics_of,
)
from attnprobe.softmax_stats.spectral import spectral_norm
from attnprobe.softmax_stats.statistics import RowStatistics

__all__ = [
    "RowStatistics",
    "attention_rows",
    "attention_weights",
    "row_statistics",
    "spectral_norm",
    "statistics_of",
]
