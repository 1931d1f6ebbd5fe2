"""Rows of all heads, bounds on their norms, and one row's Jacobian against autograd."""

import numpy as np
import pytest
import torch

import attnprobe as ap
from attnprobe.analyses import saturation
from attnprobe.errors import BadInput

TEXT = "the cat sat on the mat because it was tired"


@pytest.fixture(params=["bert", "gpt2"])
def trace(request, tiny_model):
    return ap.trace(tiny_model(request.param, "float64"), TEXT)


def test_every_counted_row_of_every_head_is_listed_with_its_own_numbers(trace):
    frame = saturation.rows(trace)
    assert len(frame) == int(trace.counted.sum())
    row = frame[(frame.layer == 1) & (frame["head"] == 2) & (frame["query"] == 4)].iloc[0]
    p = trace.weights(1, 2)[4]
    jacobian = torch.diag(p) - torch.outer(p, p)
    assert row.peak == pytest.approx(p.max().item())
    assert row.jacobian_frobenius == pytest.approx(jacobian.norm().item())
    assert row.jacobian_spectral == pytest.approx(torch.linalg.eigvalsh(jacobian)[-1].item())
    assert row.jacobian_max == pytest.approx(jacobian.abs().max().item())
    assert row.jacobian_trace == pytest.approx(jacobian.trace().item())


def between(bounds, norm, peak, name):
    curve = bounds[bounds.bound == name]
    return np.interp(peak, curve.peak, curve[norm])


@pytest.mark.parametrize("keys", [2, 3, 17])
@pytest.mark.parametrize("spread", [0.1, 2.0, 9.0])
def test_no_row_of_weights_leaves_the_bounds(keys, spread):
    generator = torch.Generator().manual_seed(keys)
    weights = (spread * torch.randn(300, keys, generator=generator).double()).softmax(-1)
    peak = weights.amax(-1).numpy()
    jacobians = torch.diag_embed(weights) - weights[:, :, None] * weights[:, None, :]
    norms = {
        "jacobian_frobenius": jacobians.flatten(1).norm(dim=1),
        "jacobian_spectral": torch.linalg.eigvalsh(jacobians)[:, -1],
        "jacobian_max": jacobians.abs().flatten(1).amax(1),
        "jacobian_trace": jacobians.diagonal(dim1=1, dim2=2).sum(1),
    }
    for norm, values in norms.items():
        values, bounds = values.numpy(), saturation.bounds(norm, points=20001)
        lower = "1 − m" if norm == "jacobian_trace" else "m(1 − m)"
        assert (values >= between(bounds, norm, peak, lower) - 1e-7).all()
        if norm == "jacobian_max":
            np.testing.assert_allclose(values, between(bounds, norm, peak, lower), atol=1e-7)
        if norm in {"jacobian_frobenius", "jacobian_spectral"}:
            half = peak >= 0.5
            upper = between(bounds, norm, peak, "2ε(1 − ε)")
            assert (values[half] <= upper[half] + 1e-7).all()
        if norm == "jacobian_trace":
            assert (values <= between(bounds, norm, peak, "1 − m²") + 1e-7).all()
    assert (norms["jacobian_spectral"] <= 0.5 + 1e-12).all()
    assert (norms["jacobian_frobenius"] <= 0.5 + 1e-12).all()


def test_many_small_weights_beside_the_peak_attain_the_upper_bound_of_the_trace():
    bounds = saturation.bounds("jacobian_trace")
    p = torch.full((1_000_001,), 0.4e-6, dtype=torch.float64)
    p[0] = 0.6
    trace = 1 - p.square().sum().item()
    assert trace == pytest.approx(between(bounds, "jacobian_trace", 0.6, "1 − m²"), abs=1e-6)


def test_a_row_of_two_equal_keys_attains_a_half():
    p = torch.tensor([0.5, 0.5], dtype=torch.float64)
    jacobian = torch.diag(p) - torch.outer(p, p)
    found = {
        "jacobian_spectral": torch.linalg.eigvalsh(jacobian)[-1].item(),
        "jacobian_frobenius": jacobian.norm().item(),
    }
    for norm, value in found.items():
        assert value == pytest.approx(between(saturation.bounds(norm), norm, 0.5, "½"))


def test_rows_of_two_keys_attain_the_upper_bound():
    bounds = saturation.bounds("jacobian_frobenius")
    p = torch.tensor([0.8, 0.2], dtype=torch.float64)
    norm = (torch.diag(p) - torch.outer(p, p)).norm().item()
    assert norm == pytest.approx(between(bounds, "jacobian_frobenius", 0.8, "2ε(1 − ε)"))


def test_one_row_s_jacobian_is_autograd_s(trace):
    logits = trace.scaled_logits(1, 0)[5][trace.valid()[5]]
    expected = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), logits)
    torch.testing.assert_close(saturation.jacobian(trace, 1, 0, 5), expected)


def test_the_frame_of_a_row_s_jacobian_names_keys_by_their_places(trace):
    frame = saturation.jacobian_frame(trace, 0, 1, 3).set_index(["key_i", "key_j"])
    p = trace.weights(0, 1)[3].double()
    keys = trace.valid()[3].nonzero()[:, 0].tolist()
    assert sorted(frame.index) == [(i, j) for i in keys for j in keys]
    i, j = keys[0], keys[-1]
    assert frame.loc[(i, j), "entry"] == pytest.approx((-p[i] * p[j]).item())
    assert frame.loc[(j, j), "entry"] == pytest.approx((p[j] * (1 - p[j])).item())
    assert frame.loc[(i, j), "key_i_token"] == trace.tokens.display[i]
    assert frame.loc[(i, j), "key_j_token"] == trace.tokens.display[j]


def test_unknown_norms_and_rows_outside_the_text_are_one_sentence(trace):
    with pytest.raises(BadInput, match="choose one of"):
        saturation.bounds("nuclear")
    with pytest.raises(BadInput, match="the text has tokens 0 to"):
        saturation.jacobian(trace, 0, 0, 99)
