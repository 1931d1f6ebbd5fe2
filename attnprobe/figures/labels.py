"""Strings that may be drawn: every label, title and tooltip passes through `safe_label`.

The chart converter aborts the process on a character that XML does not know, and bidirectional
controls let a token rewrite its neighbours, so such characters become a visible name.
"""

import json
import unicodedata
from collections.abc import Iterable, Sequence

import altair as alt

from attnprobe.metrics import Number

LONGEST = 200
_VISIBLE = {"\n": "↵", "\r": "␍", "\t": "⇥"}
# Cc controls, Cf formats (zero width, bidi), Cs surrogates, Cn unassigned and non-characters,
# Zl and Zp line separators. The two joiners below stay: scripts and emoji are written with them.
_HIDDEN = {"Cc", "Cf", "Cs", "Cn", "Zl", "Zp"}
_JOINERS = {"\u200c", "\u200d"}
_STRIDES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


def safe_label(text: object, longest: int = LONGEST) -> str:
    """`text` with all that is invisible or unprintable named (‹U+0000›), cut at `longest`."""
    shown = "".join(map(_visible, str(text)[: longest + 1]))
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def safe_labels(texts: Iterable[object]) -> list[str]:
    """`safe_label` of each."""
    return [safe_label(text) for text in texts]


def isolated(label: str) -> str:
    """A label that keeps its direction to itself when something stands beside it on a screen.

    A right-to-left token would otherwise draw the number after it into its own order. For canvases
    and tables only: the isolates (U+2068, U+2069) have no glyph, and files would show a box.
    """
    return f"\u2068{label}\u2069"


def _visible(char: str) -> str:
    if char in _VISIBLE:
        return _VISIBLE[char]
    if unicodedata.category(char) in _HIDDEN and char not in _JOINERS:
        return f"‹U+{ord(char):04X}›"
    return char


def lookup(labels: Sequence[object], index: str) -> str:
    """A Vega expression that yields the label at the position `index`, itself an expression.

    Vega takes a string such as "if" or "constructor" inside an expression for a name of its own and
    draws nothing, so every label is written with a space before it that the expression takes off.
    """
    return f"slice({json.dumps([' ' + label for label in safe_labels(labels)])}[{index}], 1)"


def thinned(n: int, step: Number, spacing: Number = 11) -> list[int]:
    """Every how-many-th of n positions is labelled when neighbours are `step` px apart.

    Position 0 is always one of them; the stride is a round number, so labels count in 2, 5, 10 …
    """
    need = spacing / step
    every = next(e for e in _STRIDES if e >= need) if need <= _STRIDES[-1] else int(need) + 1
    return list(range(0, n, every))


def token_axis(
    labels: Sequence[object], step: Number, title: str, *, side: str, continuous: bool = False
) -> alt.Axis:
    """An axis over positions 0 … n − 1 that prints tokens.

    The position is what is encoded, so equal tokens keep their own places. Labels are thinned where
    positions are closer than a line of text, and carry their position then. With `continuous` the
    scale is a number line on which position i covers [i, i + 1].
    """
    shown = thinned(len(labels), step)
    index = "floor(datum.value)" if continuous else "datum.value"
    number = f"{index} + ' ' + " if len(shown) < len(labels) else ""
    return alt.Axis(
        title=safe_label(title),
        values=[i + 0.5 for i in shown] if continuous else shown,
        labelExpr=number + lookup(labels, index),
        labelOverlap=False,
        labelLimit=96,
        labelPadding=4,
        ticks=False,
        domain=False,
        grid=False,
        **_slant(side, step, len(shown) < len(labels)),
    )


def _slant(side: str, step: Number, crowded: bool) -> dict:
    """How labels stand: beside a column they lean, above a narrow one they stand upright."""
    if side in ("left", "right"):
        return {"orient": side}
    upright = crowded or step < 16
    return {
        "orient": side,
        "labelAngle": -90 if upright else -50,
        "labelAlign": "left" if side == "top" else "right",
        "labelBaseline": "middle",
    }
