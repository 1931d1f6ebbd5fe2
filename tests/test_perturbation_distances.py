"""TVD, JSD and what JSD can be at most, against hand-computed cases and random search."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnprobe.analyses.perturbation.distances import attainable_jsd, decision_flips, jsd, tvd

LN2 = math.log(2)


def row(*weights):
    return torch.tensor(weights, dtype=torch.float64)


def everything(weights):
    return torch.ones(weights.shape, dtype=torch.bool)


def pairs(n, count, seed=0):
    """Random pairs of distributions, from flat to nearly one-hot."""
    generator = torch.Generator().manual_seed(seed)
    spread = 10 ** (3 * torch.rand(count, 1, generator=generator, dtype=torch.float64) - 1)
    logits = torch.randn(2, count, n, generator=generator, dtype=torch.float64)
    return (spread * logits).softmax(-1)


def test_tvd_of_a_hand_computed_pair():
    assert tvd(row(0.9, 0.1), row(0.2, 0.8)) == pytest.approx(0.7)


def test_tvd_is_symmetric_between_zero_and_one_and_zero_for_equals():
    p, q = pairs(5, 300)
    assert torch.equal(tvd(p, q), tvd(q, p))
    assert (tvd(p, q) > 0).all()
    assert (tvd(p, q) <= 1 + 1e-12).all()
    assert (tvd(p, p) == 0).all()


def test_tvd_of_disjoint_distributions_is_one():
    assert tvd(row(0.3, 0.7, 0, 0), row(0, 0, 0.5, 0.5)) == pytest.approx(1)


def test_jsd_of_equals_is_zero_and_of_different_one_hots_ln_2():
    assert jsd(row(0.2, 0.3, 0.5), row(0.2, 0.3, 0.5)) == 0
    assert jsd(row(1, 0, 0), row(0, 0, 1)) == pytest.approx(LN2, abs=1e-15)


def test_jsd_of_a_pair_written_out():
    """p = (1, 0), q = (½, ½): the middle is (¾, ¼)."""
    expected = 0.5 * (math.log(1 / 0.75) + 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25))
    assert jsd(row(1, 0), row(0.5, 0.5)) == pytest.approx(expected, abs=1e-15)


def test_jsd_lies_between_its_bounds_in_total_variation():
    """TVD²/2 ≤ JSD ≤ TVD·ln 2 (Pinsker; Lin 1991)."""
    p, q = pairs(7, 3000)
    distance = tvd(p, q)
    assert (jsd(p, q) >= distance**2 / 2 - 1e-12).all()
    assert (jsd(p, q) <= distance * LN2 + 1e-12).all()


def test_jsd_renormalises_half_precision_rows():
    p = torch.tensor([0.3333, 0.3333, 0.3333], dtype=torch.float16)
    assert jsd(p, p.float() * 1.01) == pytest.approx(0, abs=1e-7)


def test_the_gradient_of_jsd_is_finite_where_weights_are_zero():
    q = row(0.0, 0.4, 0.6).requires_grad_(True)
    (gradient,) = torch.autograd.grad(jsd(row(0.5, 0.5, 0.0), q), [q])
    assert gradient.isfinite().all()


@pytest.mark.parametrize(
    ("n", "expected"), [(2, 0.216), (3, 0.318), (5, 0.423), (10, 0.526), (50, 0.644)]
)
def test_the_attainable_jsd_of_a_uniform_row(n, expected):
    uniform = torch.full((n,), 1 / n, dtype=torch.float64)
    assert attainable_jsd(uniform, everything(uniform)) == pytest.approx(expected, abs=5e-4)


def test_the_attainable_jsd_is_that_of_all_weight_on_the_least_attended_key():
    p, _ = pairs(6, 200)
    one_hot = torch.nn.functional.one_hot(p.argmin(-1), 6).double()
    bound = attainable_jsd(p, everything(p))
    torch.testing.assert_close(bound, jsd(p, one_hot), rtol=1e-9, atol=1e-12)


def test_no_distribution_exceeds_the_attainable_jsd():
    p, q = pairs(4, 5000, seed=1)
    bound = attainable_jsd(p, everything(p))
    assert (jsd(p, q) <= bound + 1e-12).all()
    assert (bound <= LN2 + 1e-12).all()


def test_the_attainable_jsd_is_ln_2_only_with_an_unattended_key():
    weights = row(0.0, 0.25, 0.75)
    assert attainable_jsd(weights, everything(weights)) == pytest.approx(LN2)
    assert attainable_jsd(weights, torch.tensor([False, True, True])) < 0.5


def test_a_decision_flips_when_the_most_probable_outcome_changes():
    p = torch.tensor([[0.6, 0.4], [0.6, 0.4]])
    q = torch.tensor([[0.51, 0.49], [0.49, 0.51]])
    assert decision_flips(p, q).tolist() == [False, True]


@given(st.lists(st.floats(1e-30, 1), min_size=2, max_size=9), st.integers(0, 8))
def test_jsd_against_a_one_hot_never_exceeds_the_bound(values, at):
    p = torch.tensor(values, dtype=torch.float64)
    q = torch.zeros_like(p)
    q[at % len(values)] = 1
    assert jsd(p, q) <= attainable_jsd(p, everything(p)) + 1e-9
