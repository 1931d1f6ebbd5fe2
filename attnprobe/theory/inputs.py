"""What an experiment can be asked to do, checked once at its door."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from attnprobe.errors import BadInput


def at_least(smallest: int, **settings: int) -> None:
    """Raise `BadInput` for the first setting that is below `smallest`."""
    for name, value in settings.items():
        if value < smallest:
            raise BadInput(f"{name} is {value}; it must be at least {smallest}")


def listed(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise `BadInput` unless `value` is one of `choices`."""
    if value not in choices:
        raise BadInput(f"{name} is {value!r}; choose one of {', '.join(choices)}")


def score_row(scores: Sequence[float | int]) -> Float[np.ndarray, " key"]:
    """The scores of one query as an array; at least two of them, all finite."""
    row = np.asarray(scores, dtype=float)
    if row.ndim != 1 or len(row) < 2:
        raise BadInput(f"{row.size} score given; a softmax over keys needs at least two")
    if not np.isfinite(row).all():
        raise BadInput("a score is not a finite number; give plain numbers such as 4.287")
    return row
