"""How long a pruning experiment will take, before it is started."""

import time
from collections.abc import Mapping

import pandas as pd

from attnprobe.analyses import sweeps
from attnprobe.data import TextSet
from attnprobe.loaded import LoadedModel
from attnprobe.readout import ReadOut

IMPORTANCE = 3.5
"""Forward passes that one gradient of all gates costs: a forward, and a backward of up to 2.5."""


def one_layer_sweep(loaded: LoadedModel) -> float:
    """Forward passes per text of every head edited by itself, each from its own layer on.

    An edit of layer l computes the layers above l and three quarters of l itself.
    """
    layers = loaded.n_layers
    return 1 + loaded.n_heads * ((layers + 1) / 2 - 0.25)


def curve_passes(orders: int, points: int) -> int:
    """Forward passes per text of a curve: both ends are the same for all orders."""
    return 2 + orders * (points - 2)


def seconds_per_text(readout: ReadOut, texts: TextSet) -> float:
    """Measured time of one unedited forward pass per text, the better of two tries."""
    some = texts.first(min(len(texts), 8))
    times = []
    for _ in range(2):
        begin = time.perf_counter()
        for _, examples in sweeps.batches(readout, some):
            sweeps.unedited(readout, examples)
        times.append(time.perf_counter() - begin)
    return min(times) / len(some)


def estimate(
    readout: ReadOut, parts: Mapping[str, TextSet], passes: Mapping[str, tuple[str, float]]
) -> pd.DataFrame:
    """`analysis`, `texts`, `passes` (forward passes per text), `seconds`, from one measurement.

    `passes` says for each analysis which part of the texts it runs on and how often.
    """
    second = seconds_per_text(readout, next(iter(parts.values())))
    return pd.DataFrame(
        {
            "analysis": analysis,
            "texts": len(parts[part]),
            "passes": times,
            "seconds": second * len(parts[part]) * times,
        }
        for analysis, (part, times) in passes.items()
    )
