"""Frames as chart data: native numbers of six digits, no value that JSON does not know."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import pandas as pd

from attnprobe.errors import BadInput
from attnprobe.figures.labels import safe_label


def inline(frame: pd.DataFrame, columns: Sequence[str]) -> dict[str, Any]:
    """The named columns as inline data; rows with an undefined number are left out.

    A plain dict, because altair checks every cell of anything else against its schema, which takes
    seconds, and refuses frames of more than 5,000 rows; of a tuple, because altair copies lists row
    by row each time that a chart is changed.

    Infinite counts as undefined. Numbers are rounded to six significant digits, which no figure can
    show; the exported table keeps them all.
    """
    wanted = list(dict.fromkeys(columns))
    kept = pd.DataFrame({name: native(column(frame, name)) for name in wanted})
    numeric = kept.select_dtypes("number").columns
    defined = np.isfinite(kept[numeric].to_numpy(dtype=float)).all(axis=1)
    rows, apart = kept[defined], _APART.get()
    if apart is None:
        return {"values": tuple(rows.to_dict("records"))}
    name = _name_of(rows)
    apart[name] = rows.reset_index(drop=True)
    return {"name": name}


_APART: ContextVar[dict[str, pd.DataFrame] | None] = ContextVar("apart", default=None)


@contextmanager
def rows_apart() -> Iterator[dict[str, pd.DataFrame]]:
    """Within, `inline` lays rows into the yielded dict, and a chart only names them.

    For a screen, to which whole columns go faster than written rows. The name is a digest of the
    rows, so that other rows are another figure to the browser.
    """
    frames: dict[str, pd.DataFrame] = {}
    token = _APART.set(frames)
    try:
        yield frames
    finally:
        _APART.reset(token)


def _name_of(rows: pd.DataFrame) -> str:
    seen = hashlib.sha256(repr(list(rows.columns)).encode("utf-8", "surrogatepass"))
    seen.update(pd.util.hash_pandas_object(rows, index=False).to_numpy().tobytes())
    return f"rows-{seen.hexdigest()}"


def column(frame: pd.DataFrame, name: str) -> pd.Series:
    """One column, or a sentence that names those there are."""
    if name not in frame:
        have = ", ".join(map(str, frame.columns))
        raise BadInput(f"the figure needs a column {name!r} and the table has: {have}")
    return frame[name]


def finite(frame: pd.DataFrame, name: str) -> np.ndarray:
    """The defined numbers of a column, float64."""
    values = column(frame, name).to_numpy(dtype=float, na_value=np.nan)
    return values[np.isfinite(values)]


def native(values: pd.Series) -> pd.Series:
    """A column as it is drawn: whole numbers, six-digit numbers, or cleaned labels."""
    if pd.api.types.is_bool_dtype(values):
        return values.astype(bool)
    if pd.api.types.is_integer_dtype(values) and not values.isna().any():
        return values.astype("int64")
    if pd.api.types.is_numeric_dtype(values):
        return pd.Series(six_digits(values.to_numpy(dtype=float, na_value=np.nan)), values.index)
    return values.map({each: safe_label(each) for each in values.unique()})


def six_digits(values: np.ndarray) -> np.ndarray:
    """`values` rounded to six significant digits; what is not finite stays as it is."""
    usable = np.isfinite(values) & (values != 0)
    size = np.where(usable, np.abs(values), 1.0)
    places = 5 - np.floor(np.log10(size)).astype(int)
    small = places > 0
    # Two factors, for the whole one is no double beyond 1e±308. `rest` is 1 but for very small and
    # very large numbers, and a whole number over `power` is the double that prints as its digits.
    power = _POWERS[np.minimum(np.abs(places), len(_POWERS) - 1)]
    beyond = 10.0 ** np.maximum(np.abs(places) - (len(_POWERS) - 1), 0)
    rest = np.where(small, beyond, 1 / beyond)
    up = np.rint(np.where(usable, values, 0.0) * np.where(small, power, 1 / power) * rest)
    return np.where(usable, np.where(small, up / power, up * power) / rest, values)


# Powers of ten that a double holds exactly.
_POWERS = np.array([float(10**power) for power in range(23)])
