"""Softmax rows and their Jacobian against autograd, explicit matrices and 50-digit arithmetic."""

from decimal import Decimal, getcontext

import numpy as np
import pytest
import torch

from attnprobe.errors import BadInput
from attnprobe.theory import softmax

ROWS = np.random.RandomState(0).standard_normal((7, 5)) * np.array([[0.1, 1, 2, 4, 8, 16, 30]]).T


def test_the_jacobian_is_autograds():
    for row in ROWS:
        x = torch.tensor(row)
        expected = torch.autograd.functional.jacobian(lambda s: torch.softmax(s, 0), x)
        found = softmax.jacobian(softmax.weights(row))
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-9, atol=1e-16)


def test_closed_forms_are_the_norms_of_the_explicit_jacobian():
    found = softmax.statistics(ROWS, spectral=True)
    j = softmax.jacobian(softmax.weights(ROWS))
    np.testing.assert_allclose(
        found["jacobian_frobenius"], np.linalg.norm(j, axis=(1, 2)), rtol=1e-12
    )
    np.testing.assert_allclose(found["jacobian_max"], np.abs(j).max((1, 2)), rtol=1e-12)
    np.testing.assert_allclose(found["jacobian_trace"], np.trace(j, axis1=1, axis2=2), rtol=1e-12)
    np.testing.assert_allclose(
        found["jacobian_spectral"], np.linalg.norm(j, 2, axis=(1, 2)), rtol=1e-10
    )


def test_a_saturated_row_keeps_its_digits():
    getcontext().prec = 50
    scores = [33.0, 1.0, 0.5, -2.0]
    raised = [Decimal(x).exp() for x in scores]
    p = [x / sum(raised) for x in raised]
    square = sum(x * x for x in p)
    frobenius = (square - 2 * sum(x**3 for x in p) + square * square).sqrt()
    entropy = -sum(x * x.ln() for x in p)
    found = softmax.statistics(np.array(scores))
    assert found["jacobian_frobenius"] == pytest.approx(float(frobenius), rel=1e-12)
    assert found["entropy"] == pytest.approx(float(entropy), rel=1e-12)
    assert found["jacobian_max"] == pytest.approx(float(p[0] * (1 - p[0])), rel=1e-12)


def test_equal_scores_are_uniform():
    found = softmax.statistics(np.zeros(7), spectral=True)
    assert found["normalised_entropy"] == pytest.approx(1.0)
    assert found["jacobian_spectral"] == pytest.approx(1 / 7)
    assert found["jacobian_trace"] == pytest.approx(6 / 7)


def test_bounds_of_the_jacobian():
    curve = softmax.multiplier_curve()
    assert curve["jacobian_max"].max() <= 0.25
    assert curve["jacobian_spectral"].max() <= 0.5
    assert curve["multiplier"].iloc[[0, -1]].tolist() == pytest.approx([1 / 8, 32.0])


def test_two_equal_leaders_reach_the_spectral_bound():
    assert softmax.statistics(np.array([50.0, 50.0, 0.0]), spectral=True)["jacobian_spectral"] == (
        pytest.approx(0.5)
    )


def test_the_width_undoes_its_own_division():
    undivided = softmax.softmax(d_k=1, multipliers=(1,))["peak"][0]
    assert softmax.softmax(d_k=64, multipliers=(8,))["peak"][0] == pytest.approx(undivided)


def test_forty_over_the_root_of_sixty_four_is_five():
    rows = softmax.row_weights(softmax.TOM_SCORES, 64)
    assert rows["scaled_logit"].tolist() == [5.0, 1.5, 1.0]
    assert rows["divided"].round(4).tolist() == [0.9537, 0.0288, 0.0175]
    assert 1 - rows["undivided"][0] == pytest.approx(7e-13, rel=0.1)


def test_the_map_sums_to_zero_along_both_axes():
    frame = softmax.jacobian_map().pivot(index="weight", columns="score", values="derivative")
    assert frame.shape == (6, 6)
    assert np.abs(frame.sum(0)).max() < 1e-15
    assert np.abs(frame.sum(1)).max() < 1e-15


def test_scores_that_are_none_are_refused_in_words():
    with pytest.raises(BadInput, match="at least two"):
        softmax.softmax([3.0])
    with pytest.raises(BadInput, match="not a finite number"):
        softmax.softmax([1.0, float("nan")])
    with pytest.raises(BadInput, match="d_k is 0"):
        softmax.softmax(d_k=0)
