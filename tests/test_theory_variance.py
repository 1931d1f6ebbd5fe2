"""Var(q·k): Python's random as the oracle of the stream, closed forms as that of the variance."""

import math
import random

import numpy as np
import pytest

from attnprobe.errors import BadInput
from attnprobe.theory import variance
from attnprobe.theory.draws import Stream


def test_the_stream_is_that_of_pythons_random():
    ours, theirs = Stream(7), random.Random(7)
    for count in (3, 1, 0, 8, 5):  # odd counts leave half a pair over
        expected = [theirs.gauss(0, 1) for _ in range(count)]
        np.testing.assert_allclose(ours.normal(count), expected, rtol=1e-14)
    fresh, theirs = Stream(11), random.Random(11)
    assert fresh.uniform(5).tolist() == [theirs.random() for _ in range(5)]


def test_a_block_is_filled_in_reading_order():
    assert Stream(3).normal(2, 3, 5).ravel().tolist() == Stream(3).normal(30).tolist()


def test_the_table_is_that_of_python_code_run_number_by_number():
    source = random.Random(5)

    def vector(width):
        return [source.gauss(0, 1) for _ in range(width)]

    rows = variance.variance((3, 7), draws=41, seed=5)
    for width, row in zip((3, 7), rows.to_dict("records"), strict=True):
        products = [
            sum(a * b for a, b in zip(vector(width), vector(width), strict=True)) for _ in range(41)
        ]
        mean = sum(products) / 41
        assert row["mean"] == pytest.approx(mean, rel=1e-10)
        spread = math.sqrt(sum((x - mean) ** 2 for x in products) / 41)
        assert row["std"] == pytest.approx(spread, rel=1e-12)


def test_blocks_do_not_change_the_numbers(monkeypatch):
    whole = variance.variance((5,), draws=103)
    monkeypatch.setattr(variance, "BLOCK", 64)
    assert whole.equals(variance.variance((5,), draws=103))


@pytest.mark.parametrize("components", variance.COMPONENTS)
@pytest.mark.parametrize("d_k", [2, 13])
def test_measured_spread_is_the_closed_form_within_five_standard_errors(components, d_k):
    row = variance.variance((d_k,), components, draws=40_000, seed=1, correlation=0.4).iloc[0]
    slack = 5 * row["std_error"] + 1e-12
    assert abs(row["std"] - row["predicted_std"]) <= slack


def test_layer_normed_pairs_of_width_two_give_plus_or_minus_two():
    found = variance.variance((2,), "layer-normed", draws=501)
    assert found["std"][0] == pytest.approx(2.0, abs=0.01)


def test_fully_correlated_components_give_d_times_one_product():
    found = variance.variance((9,), "correlated", draws=4_000, correlation=1.0).iloc[0]
    assert found["predicted_std"] == 9.0
    assert abs(found["std"] - 9.0) < 5 * found["std_error"]


def test_densities_integrate_to_one():
    frame = variance.histogram(13, draws=3_000, bins=37)
    width = frame["value"].diff()[1]
    assert (frame.groupby("score")["density"].sum() * width).tolist() == pytest.approx([1.0, 1.0])


def test_only_the_division_removes_the_width():
    rows = variance.devices(d_k=49, d_model=100, draws=3_000)
    keys = ["layer_norm", "initialisation", "division"]
    spread = rows.set_index(keys)["std"]
    assert spread[True, True, False] / spread[True, True, True] == pytest.approx(7.0)
    np.testing.assert_allclose(rows["std"], rows["predicted_std"], rtol=0.15)


def test_grown_weights_multiply_every_row_by_their_square():
    plain, grown = variance.devices(draws=50), variance.devices(draws=50, growth=3.0)
    np.testing.assert_allclose(grown["std"] / plain["std"], 9.0)


def test_the_quarter_root_belongs_on_the_weights_not_on_their_variance():
    rows = variance.quarter_root(d_k=16, draws=20_000).set_index("factor_on")
    assert rows["predicted_variance"].tolist() == pytest.approx([16.0, 4.0, 1.0])
    np.testing.assert_allclose(rows["variance"], rows["predicted_variance"], rtol=0.05)


def test_impossible_settings_are_refused_in_words():
    with pytest.raises(BadInput, match="components is 'cauchy'; choose one of normal"):
        variance.variance(components="cauchy")
    with pytest.raises(BadInput, match="d_k is 1; it must be at least 2"):
        variance.variance((1,))
