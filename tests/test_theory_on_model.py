"""The lab's experiments on tiny models: identities hold, trained positions break the order."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import attnprobe as ap
from attnprobe.analyses import theory_on_model
from attnprobe.errors import BadInput

TEXT = "the cat sat on the mat because it was tired"


@pytest.fixture(scope="module", params=["bert", "gpt2"])
def trace(request, tiny_model):
    return ap.trace(tiny_model(request.param), TEXT)


def test_the_second_moments_predict_the_spread_exactly(trace):
    frame = theory_on_model.variance(trace)
    np.testing.assert_allclose(frame["moments_std"], frame["raw_std"], rtol=1e-9)
    assert (frame["textbook_std"] == math.sqrt(trace.d_head)).all()


def test_independent_unit_components_fit_the_textbook(trace):
    torch.manual_seed(0)
    shape = trace.n_layers, trace.n_heads, 2000, trace.d_head
    names = "queries", "keys", "values", "contexts"
    random = replace(trace, **{name: torch.randn(shape) for name in names})
    frame = theory_on_model.variance(random)
    for column in ("raw_std", "component_std"):
        np.testing.assert_allclose(frame[column], math.sqrt(trace.d_head), rtol=0.06)


def test_no_row_exceeds_the_bound_of_its_peak(trace):
    rows = theory_on_model.jacobian_rows(trace, 1, 2)
    assert len(rows) == int(trace.counted[1, 2].sum())
    bounded = rows.dropna()
    assert (bounded["jacobian_frobenius"] <= bounded["bound"] * (1 + 1e-5)).all()
    assert (rows["bound"].isna() == (rows["epsilon"] > 0.5)).all()


def test_no_output_leaves_the_range_of_its_values(trace):
    frame = theory_on_model.contraction(trace)
    assert frame["largest_ratio"].max() <= 1 + 1e-5
    weights = trace.weights(0, 1).double()
    output = (weights @ trace.values[0, 1].double()).abs().amax(-1)
    seen = trace.valid().double()[..., None] * trace.values[0, 1].double().abs()[None]
    expected = (output / seen.amax((1, 2))).max()
    assert frame["largest_ratio"][1] == pytest.approx(float(expected), rel=1e-4)


def test_asymmetry_and_self_weight_are_those_of_the_explicit_matrices(trace):
    row = theory_on_model.asymmetry(trace).set_index(["layer", "head"]).loc[(1, 0)]
    raw = trace.raw_logits(1, 0).double()
    expected = float((raw - raw.T).norm() / (raw.norm() + raw.T.norm()))
    assert row["asymmetry"] == pytest.approx(expected, rel=1e-5)
    diagonal = trace.weights(1, 0).diagonal()[trace.counted[1, 0]]
    assert row["self_weight"] == pytest.approx(float(diagonal.mean()), rel=1e-5)


def test_the_exponential_kernel_gives_the_models_context_and_the_gaussian_does_not(trace):
    frame = theory_on_model.kernels(trace)
    assert frame["exponential_difference"].max() < 1e-5
    assert frame["rbf_difference"].min() > 1e-3


def test_the_gaussian_kernel_does_where_the_keys_have_one_norm(trace):
    keys = torch.nn.functional.normalize(trace.keys.double(), dim=-1) * 3
    logits = trace.queries.double() @ keys.mT * trace.scales[0]
    weights = logits.masked_fill(~trace.valid(), -math.inf).softmax(-1)
    even = replace(trace, keys=keys, contexts=weights @ trace.values.double())
    frame = theory_on_model.kernels(even)
    assert frame["key_norm_spread"].max() < 1e-12
    assert frame["rbf_difference"].max() < 1e-9


def test_many_features_approach_the_heads_softmax(trace):
    short = replace(trace, queries=0.5 * trace.queries, keys=0.5 * trace.keys)
    frame = theory_on_model.linear_errors(short, 0, 0, features=(20_000,), repeats=1)
    predicted, measured = frame.loc[0, ["predicted_kernel_error", "kernel_error"]]
    assert measured < 3 * predicted
    assert frame["output_error"][0] < 0.1


def test_without_positions_an_encoder_does_not_know_the_order(tiny_model):
    loaded = tiny_model("bert", "float64")
    frame = theory_on_model.equivariance(loaded, loaded.read(TEXT), permutations=3)
    worst = frame.groupby("positions")["relative_difference"].max()
    assert worst["zeroed"] < 1e-12
    assert worst["as trained"] > 0.01
    assert sorted(frame["layer"].unique()) == list(range(loaded.n_layers + 1))


@pytest.mark.parametrize("kind", ["roberta", "distilbert", "electra"])
def test_the_position_vectors_of_every_encoder_are_found(kind, tiny_model):
    loaded = tiny_model(kind)
    frame = theory_on_model.equivariance(loaded, loaded.read(TEXT), permutations=2)
    worst = frame.groupby("positions")["relative_difference"].max()
    assert worst["zeroed"] < 1e-4
    assert worst["as trained"] > 0.01


def test_the_causal_mask_alone_keeps_the_order(tiny_model):
    loaded = tiny_model("gpt2")
    frame = theory_on_model.equivariance(loaded, loaded.read(TEXT), permutations=3)
    zeroed = frame[frame["positions"] == "zeroed"].groupby("layer")["relative_difference"].max()
    assert zeroed[0] < 1e-5
    assert zeroed[loaded.n_layers] > 0.01


def test_one_token_has_no_order(tiny_model):
    loaded = tiny_model("gpt2")
    with pytest.raises(BadInput, match="an order needs two"):
        theory_on_model.equivariance(loaded, loaded.read("a"))
