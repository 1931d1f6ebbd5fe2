"""A claim beside its measurement: the claimed number, the measured one, and what follows.

A verdict is never written down; it is computed from the checks each time.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal

import pandas as pd

REPRODUCED = "reproduced"
RIGHT = "right"
WRONG = "wrong as written"

_HOLDS = {
    "=": lambda measured, claimed, slack: abs(measured - claimed) <= slack,
    "≤": lambda measured, claimed, slack: measured <= claimed + slack,
    "≥": lambda measured, claimed, slack: measured >= claimed - slack,
}


@dataclass(frozen=True)
class Check:
    """One number of a claim.

    `right` is the value that should have been claimed, if it differs; `digits` the claimed number
    as it was printed, if it was.
    """

    quantity: str
    claimed: float
    measured: float
    tolerance: float = 0.0
    relation: str = "="
    right: float | None = None
    digits: str = ""

    @property
    def holds(self) -> bool:
        return bool(_HOLDS[self.relation](self.measured, self.claimed, self.tolerance))


@dataclass(frozen=True)
class Claim:
    """A statement, the mathematics behind it, how it is measured, and why it fails if it does.

    `derivation` holds lines of LaTeX. `digits` marks a claim that prints digits to reproduce;
    if they hold the verdict is "reproduced", else a claim that holds is "right".
    """

    id: str
    statement: str
    derivation: tuple[str, ...]
    measurement: str
    checks: Callable[[], tuple[Check, ...]]
    digits: bool = False
    reason: str = ""


def printed(quantity: str, digits: str, measured: float, right: float | None = None) -> Check:
    """A check of a number as it was printed: it holds within half a unit of the last digit.

    A millionth of that unit is added for the rounding of the printed number itself.
    """
    unit = 10.0 ** Decimal(digits).as_tuple().exponent
    slack = unit * (0.5 + 1e-6)
    return Check(quantity, float(digits), float(measured), slack, right=right, digits=digits)


def verdict(claim: Claim, checks: Iterable[Check]) -> str:
    """ "reproduced" or "right" when every check holds, else "wrong as written"."""
    if not all(check.holds for check in checks):
        return WRONG
    return REPRODUCED if claim.digits else RIGHT


def measured(claims: Iterable[Claim]) -> pd.DataFrame:
    """Every check of every claim, measured now.

    Columns: claim, quantity, relation, claimed, printed (the claimed digits, if they were),
    measured, tolerance, holds, right, verdict.
    """
    return pd.DataFrame([row for claim in claims for row in _rows(claim)])


def _rows(claim: Claim) -> list[dict]:
    checks = claim.checks()
    outcome = verdict(claim, checks)
    return [
        {
            "claim": claim.id,
            "quantity": check.quantity,
            "relation": check.relation,
            "claimed": check.claimed,
            "printed": check.digits,
            "measured": check.measured,
            "tolerance": check.tolerance,
            "holds": check.holds,
            "right": check.right,
            "verdict": outcome,
        }
        for check in checks
    ]
