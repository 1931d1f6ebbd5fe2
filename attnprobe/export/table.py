"""Frames as CSV that pandas, R and a spreadsheet read alike.

A block of lines that begin with "#" holds caption and provenance. All text is quoted, so a token
such as ##ing is data and not a comment. UTF-8 with a byte-order mark, which spreadsheets need and
pandas skips.
"""

import csv
import re

import pandas as pd

from attnprobe.export.figure import Figure, prose

READ = 'pandas.read_csv(FILE, comment="#", keep_default_na=False, na_values=[""])'
GUARD = "Text that begins with = + - @ tab or return has an apostrophe put before it."
# An apostrophe more for what already has some: so the rule can be undone.
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
# What no CSV reader takes: NUL and other controls, halves of surrogate pairs.
_UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def to_csv(figure: Figure) -> bytes:
    """The figure's frame at full precision under its caption and provenance."""
    lines = [figure.caption, *figure.provenance.lines(), f"Read with {READ}", GUARD]
    head = "".join(f"# {prose(line)}\n" for line in lines)
    body = plain(figure.table()).to_csv(
        index=False, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n"
    )
    return ("\ufeff" + head + body).encode()


def plain(frame: pd.DataFrame) -> pd.DataFrame:
    """`frame` with text that is no formula and can be written; numbers are left alone."""
    texts = [name for name in frame if not pd.api.types.is_numeric_dtype(frame[name])]
    guarded = {name: frame[name].map(_guard, na_action="ignore") for name in texts}
    return frame.assign(**guarded).rename(columns=lambda name: _guard(str(name)))


def _guard(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = _UNWRITABLE.sub(lambda match: f"‹U+{ord(match[0]):04X}›", value)
    return f"'{text}" if _FORMULA.match(text) else text
