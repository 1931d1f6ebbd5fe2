"""The claims as a table: which hold to the digit, which are right, which are wrong as written."""

import functools
import math

import pytest

from attnprobe import theory
from attnprobe.errors import BadInput
from attnprobe.theory.claims import REPRODUCED, RIGHT, WRONG, Check, Claim, measured, printed

EXPECTED = {
    "variance": {"C1": REPRODUCED, "C6": RIGHT, "C7": WRONG},
    "softmax": {"C2": REPRODUCED, "C3": REPRODUCED, "C8": RIGHT, "C9": RIGHT},
    "exponent": {"C10": RIGHT, "C11": WRONG, "C12": WRONG},
    "freezing": {"C4": REPRODUCED, "C5": RIGHT},
    "meaning": {"C13": RIGHT, "C14": RIGHT, "C15": RIGHT, "C16": RIGHT},
    "linear": {"C17": RIGHT},
    "cost": {"C18": RIGHT, "C19": RIGHT},
    "equivariance": {"C20": RIGHT},
}


verdicts = functools.cache(theory.verdicts)


def test_the_table_holds_every_experiment():
    assert list(theory.EXPERIMENTS) == list(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_each_claim_gets_the_verdict_that_its_measurement_gives(name):
    rows = verdicts(name)
    assert rows.groupby("claim")["verdict"].first().to_dict() == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_claim_that_is_wrong_says_why_and_what_is_right(name):
    wrong = {claim for claim, verdict in EXPECTED[name].items() if verdict == WRONG}
    rows = verdicts(name) if wrong else None
    for claim in theory.EXPERIMENTS[name].claims:
        assert bool(claim.reason) == (claim.id in wrong)
        if claim.id in wrong:
            failed = rows[(rows["claim"] == claim.id) & ~rows["holds"]]
            assert failed["right"].notna().all()


def test_the_wrong_claims_have_the_right_values():
    rows = {name: verdicts(name).set_index("claim") for name in ("variance", "exponent")}
    on_variance, on_weight = rows["variance"].loc["C7", "measured"]
    assert on_variance == pytest.approx(math.sqrt(64), rel=0.02)
    assert on_weight == pytest.approx(1, rel=0.02)
    (largest, peak, middle), (small, low) = (
        rows["exponent"].loc[claim, "measured"] for claim in ("C11", "C12")
    )
    assert [round(largest, 1), round(peak, 2), round(middle, 2)] == [20.1, 0.78, 0.84]
    assert [round(small, 2), round(low, 3)] == [2.51, 0.081]


def test_a_printed_number_holds_within_half_a_unit_of_its_last_digit():
    assert printed("x", "2.829", 2.8294).holds
    assert printed("x", "2.829", 2.8295).holds
    assert not printed("x", "2.829", 2.8296).holds
    assert printed("x", "4.17e-09", 4.169e-9).holds
    assert not printed("x", "4.17e-09", 4.164e-9).holds


def test_bounds_hold_on_their_own_side_only():
    assert Check("x", 1.0, 0.5, relation="≤").holds
    assert not Check("x", 1.0, 1.5, relation="≤").holds
    assert Check("x", 1.0, 1.5, relation="≥").holds
    assert not Check("x", 1.0, 0.5, relation="≥").holds


def test_one_failing_check_makes_the_claim_wrong():
    def claim(value):
        checks = (Check("a", 1.0, 1.0), Check("b", 1.0, value))
        return Claim("C0", "s", ("x",), "m", lambda: checks)

    assert measured([claim(1.0)])["verdict"].tolist() == [RIGHT, RIGHT]
    assert measured([claim(2.0)])["verdict"].tolist() == [WRONG, WRONG]


def test_an_unknown_experiment_is_named_with_the_choices():
    with pytest.raises(BadInput, match="'wariance'; choose one of variance, softmax"):
        theory.experiment("wariance")


@pytest.mark.parametrize("name", ["softmax", "freezing", "meaning", "cost", "equivariance"])
def test_an_experiment_repeats_exactly(name):
    run = theory.EXPERIMENTS[name].run
    assert run().equals(run())
