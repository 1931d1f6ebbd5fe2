"""Order without positions."""

import numpy as np
import pytest

from attnprobe.errors import BadInput
from attnprobe.theory import equivariance


def test_without_positions_a_permutation_goes_through():
    worst = (
        equivariance.equivariance(tokens=7, d_model=10)
        .groupby("positions")["relative_difference"]
        .max()
    )
    assert worst["none"] < 1e-13
    assert worst["sinusoidal"] > 0.01
    assert worst["causal mask only"] > 0.01


def test_sinusoids_are_those_of_the_paper():
    table = equivariance.sinusoids(5, 6)
    assert table[0].tolist() == [0, 1, 0, 1, 0, 1]
    assert table[3, 2] == pytest.approx(np.sin(3 / 10_000 ** (2 / 6)))
    assert table[3, 5] == pytest.approx(np.cos(3 / 10_000 ** (4 / 6)))


def test_one_token_has_no_order():
    with pytest.raises(BadInput, match="tokens is 1"):
        equivariance.equivariance(tokens=1)
