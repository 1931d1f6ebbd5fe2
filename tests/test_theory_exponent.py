"""The exponent and the largest logit, against order statistics known in closed form."""

import math

import numpy as np
import pytest

from attnprobe.errors import BadInput
from attnprobe.theory import exponent


@pytest.mark.parametrize(
    ("keys", "exact"),
    [
        (2, 1 / math.sqrt(math.pi)),
        (3, 1.5 / math.sqrt(math.pi)),
        (5, 1.16296447364052),  # Harter 1961
        (100, 2.50759363644),
    ],
)
def test_the_expected_maximum_is_the_known_order_statistic(keys, exact):
    assert exponent.expected_largest(keys) == pytest.approx(exact, abs=1e-7)


def test_the_measured_maximum_is_the_exact_mean_within_five_errors():
    rows = exponent.extremes((1.0, 3.0), (7, 50), draws=3_000)
    gap = (rows["largest"] - rows["expected_largest"]).abs()
    assert (gap <= 5 * rows["largest_error"]).all()


def test_the_asymptote_bounds_the_mean_from_above():
    rows = exponent.extremes((2,), (2, 30, 400), draws=500)
    assert (rows["expected_largest"] < rows["asymptote"]).all()


def test_the_peak_of_two_keys_is_a_mean_of_logistics():
    row = exponent.extremes((1.5,), (2,), draws=8_000).iloc[0]
    gaps = np.linspace(-12, 12, 20_001)  # difference of the logits over its standard deviation
    density = np.exp(-(gaps**2) / 2) / math.sqrt(2 * math.pi)
    peak = 1 / (1 + np.exp(-np.abs(gaps) * 1.5 * math.sqrt(2)))
    exact = float((density * peak).sum() * (gaps[1] - gaps[0]))
    assert abs(row["peak"] - exact) < 5 * row["peak_error"]


def test_the_exact_mean_peak_of_two_keys_is_a_mean_of_logistics():
    gaps = np.linspace(-14, 14, 40_001)
    density = np.exp(-(gaps**2) / 2) / math.sqrt(2 * math.pi)
    for std in (0.5, 1, 8):
        peak = 1 / (1 + np.exp(-np.abs(gaps) * std * math.sqrt(2)))
        exact = float((density * peak).sum() * (gaps[1] - gaps[0]))
        assert exponent.expected_peak(std, 2) == pytest.approx(exact, abs=5e-6)


def test_equal_logits_share_evenly_and_far_ones_do_not():
    assert exponent.expected_peak(1e-9, 7) == pytest.approx(1 / 7, abs=5e-6)
    assert exponent.expected_peak(400.0, 3) > 0.99


def test_the_measured_peak_is_the_exact_mean_within_five_errors():
    rows = exponent.extremes((1, 3, 8), (5, 100), draws=3_000)
    assert ((rows["peak"] - rows["expected_peak"]).abs() <= 5 * rows["peak_error"]).all()


def test_the_spread_is_a_power_of_the_width():
    rows = exponent.exponent(49, (0, 0.5, 1), keys=31, draws=300)
    assert rows["predicted_std"].tolist() == pytest.approx([7.0, 1.0, 1 / 7])
    np.testing.assert_allclose(rows["std"], rows["predicted_std"], rtol=0.05)


def test_a_larger_exponent_flattens():
    rows = exponent.exponent(draws=50)
    assert rows["peak"].is_monotonic_decreasing
    assert rows["normalised_entropy"].is_monotonic_increasing


def test_one_key_is_refused():
    with pytest.raises(BadInput, match="keys is 1"):
        exponent.extremes(keys=(1,))
