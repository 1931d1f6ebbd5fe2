"""What every table is made of: results by name, lines of cells, numbers as a reader wants them."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

RESULTS = Path(__file__).parent / "results"

Found = Mapping[str, object]
Cell = Callable[[Found], str]
Lines = Sequence[tuple[str, Cell]]


def result(name: str) -> Found | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def short(value: float) -> str:
    """Three significant digits, no exponent, a true minus; what has no number never happened."""
    if math.isnan(value):
        return "never"
    text = f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return text.replace("-", "−")


def percent(share: float) -> str:
    return "never" if math.isnan(share) else f"{100 * share:.1f} %"


def signed(value: float, digits: int = 2) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")
