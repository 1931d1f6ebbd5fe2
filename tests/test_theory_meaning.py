"""Convexity, direction and kernels, against explicit matrices and geometry."""

import math

import numpy as np
import pytest

from attnprobe.errors import BadInput
from attnprobe.theory import meaning
from attnprobe.theory.softmax import weights


def test_one_rival_reaches_the_bound_and_nothing_exceeds_it():
    rows = meaning.meaning(keys=7)
    shares = rows.groupby("arrangement")["share"].max()
    assert shares["one rival"] == pytest.approx(1.0, rel=1e-9)
    assert rows["share"].max() <= 1.0 + 1e-9


@pytest.mark.parametrize("epsilon", [1e-3, 0.2])
def test_the_even_arrangement_is_the_norm_of_the_explicit_matrix(epsilon):
    p = np.r_[1 - epsilon, np.full(4, epsilon / 4)]
    explicit = np.linalg.norm(np.diag(p) - np.outer(p, p))
    rows = meaning.meaning((epsilon,), keys=5).set_index("arrangement")
    assert rows.loc["evenly", "jacobian_frobenius"] == pytest.approx(explicit, rel=1e-11)


def test_a_peak_below_one_half_is_refused():
    with pytest.raises(BadInput, match="outside"):
        meaning.meaning((0.6,))


def test_the_output_lies_in_the_hull_of_its_values():
    rows = meaning.convex_hull()
    output = rows[rows["point"] == "output"][["x", "y"]].to_numpy()[0]
    points = np.array(meaning.TRIANGLE)
    corners = points[meaning.hull_corners(points)]
    edges = np.roll(corners, -1, axis=0) - corners
    to_point = output - corners
    assert (edges[:, 0] * to_point[:, 1] - edges[:, 1] * to_point[:, 0] > 0).all()


def test_a_point_inside_is_no_corner():
    square = np.array([[0, 0], [2, 0], [2, 2], [0, 2], [1, 1], [1, 0]], dtype=float)
    assert sorted(meaning.hull_corners(square)) == [0, 1, 2, 3]


def test_every_value_point_is_left_of_every_edge():
    points = np.random.RandomState(2).standard_normal((23, 2))
    corners = points[meaning.hull_corners(points)]
    edges = np.roll(corners, -1, axis=0) - corners
    offsets = points[:, None] - corners[None]
    assert (edges[:, 0] * offsets[..., 1] - edges[:, 1] * offsets[..., 0] > -1e-12).all()


def test_points_and_scores_must_match():
    with pytest.raises(BadInput, match="2 points for 3 scores"):
        meaning.convex_hull(((0, 0), (1, 1)), (1, 2, 3))


def test_outputs_never_leave_the_values_range():
    assert meaning.contraction(stds=(0.1, 3, 100))["largest_ratio"].max() <= 1.0


def test_asymmetry_is_none_when_tied_and_full_when_turned():
    found = meaning.asymmetry().groupby("projections")["asymmetry"].first()
    assert found["tied"] == 0.0
    assert found["turned by a quarter"] == pytest.approx(1.0, rel=1e-12)
    assert 0.4 < found["separate"] < 0.8


def test_random_matrices_tend_to_one_over_root_two():
    scores = np.random.RandomState(0).standard_normal((301, 301))
    assert meaning.asymmetry_of(scores) == pytest.approx(1 / math.sqrt(2), rel=0.01)


def test_rbf_equals_softmax_when_the_keys_have_one_norm_whatever_the_queries_have():
    rng = np.random.RandomState(1)
    query, value = 3 * rng.standard_normal((5, 7)), rng.standard_normal((11, 3))
    key = rng.standard_normal((11, 7))
    unit = key / np.linalg.norm(key, axis=1, keepdims=True)
    expected = weights(query @ (2 * unit).T / math.sqrt(7)) @ value
    rbf = meaning.kernel_regression(query, 2 * unit, value, "rbf")
    np.testing.assert_allclose(rbf, expected, rtol=1e-12, atol=1e-14)
    unequal = meaning.kernel_regression(query, key, value, "rbf")
    assert np.abs(unequal - weights(query @ key.T / math.sqrt(7)) @ value).max() > 0.1


def test_the_kernel_form_is_attention_and_rbf_drifts_with_the_norms():
    frame = meaning.kernels().pivot(index="spread", columns="kernel", values="max_abs_difference")
    assert frame["exponential"].max() < 1e-13
    assert frame["rbf"].is_monotonic_increasing
