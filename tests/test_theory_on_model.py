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
    spreads = (part.double().numpy().var(2).mean(-1) for part in (trace.queries, trace.keys))
    component = np.sqrt(trace.d_head * np.multiply(*spreads))
    np.testing.assert_allclose(frame["component_std"], component.ravel(), rtol=1e-9)
    assert (frame["textbook_std"] == math.sqrt(trace.d_head)).all()


def test_independent_unit_components_fit_the_textbook(trace):
    torch.manual_seed(0)
    shape = trace.n_layers, trace.n_heads, 2000, trace.d_head
    names = "queries", "keys", "values", "contexts"
    random = replace(trace, **{name: torch.randn(shape) for name in names})
    frame = theory_on_model.variance(random)
    for column in ("raw_std", "component_std"):
        np.testing.assert_allclose(frame[column], math.sqrt(trace.d_head), rtol=0.06)


def test_a_row_of_scores_divided_by_the_root_of_d_head_is_the_models_row(trace):
    last = len(trace.tokens) - 1
    row = theory_on_model.row_of_scores(trace, 1, 2, last, most=99)
    assert row["key"].tolist() == list(range(last + 1))
    divided = torch.tensor(row["score"].to_numpy() / math.sqrt(trace.d_head))
    np.testing.assert_allclose(divided.softmax(0), trace.weights(1, 2)[last], rtol=1e-4)
    np.testing.assert_allclose(row["weight"], trace.weights(1, 2)[last], rtol=1e-4)


def test_of_a_long_row_the_largest_scores_stay_in_the_order_of_the_text(trace):
    whole = theory_on_model.row_of_scores(trace, 0, 1, 7, most=99)
    few = theory_on_model.row_of_scores(trace, 0, 1, 7, most=3)
    assert few["key"].is_monotonic_increasing
    assert set(few["key"]) == set(whole.nlargest(3, "score")["key"])


def test_a_row_of_one_key_is_refused(tiny_model):
    alone = ap.trace(tiny_model("gpt2"), TEXT)
    with pytest.raises(BadInput, match="fewer than two keys"):
        theory_on_model.row_of_scores(alone, 0, 0, 0)


def test_at_the_models_own_exponent_a_head_is_what_the_model_computed(trace):
    frame = theory_on_model.exponent(trace, 1, 0).set_index("exponent")
    means = ap.head_table(trace).set_index(["layer", "head"]).loc[(1, 0)]
    assert trace.scales[1] == pytest.approx(trace.d_head**-0.5)
    for name in ("peak", "normalised_entropy", "saturated", "jacobian_frobenius"):
        assert frame.loc[0.5, name] == pytest.approx(means[name], rel=1e-4)
    assert frame.loc[0.5, "std"] == pytest.approx(means["scaled_std"], rel=1e-4)
    assert frame["peak"].is_monotonic_decreasing


def test_independent_unit_components_have_the_predicted_spread_at_every_exponent(trace):
    torch.manual_seed(1)
    shape = trace.n_layers, trace.n_heads, len(trace.tokens), trace.d_head
    many = replace(trace, queries=torch.randn(shape), keys=torch.randn(shape))
    spreads = [
        theory_on_model.exponent(many, layer, head, (0, 1))
        for layer in range(trace.n_layers)
        for head in range(trace.n_heads)
    ]
    measured = np.mean([frame["std"] for frame in spreads], axis=0)
    np.testing.assert_allclose(measured, spreads[0]["predicted_std"], rtol=0.25)


def test_a_heads_own_descent_is_that_of_autograd(trace):
    frame = theory_on_model.freezing(trace, 1, 2, rate=0.3, seed=3, steps=5)
    key, value = (part[1, 2].double() for part in (trace.keys, trace.values))
    for division, factor in (("1/√d_k", trace.scales[1]), ("none", 1.0)):
        start = frame[(frame["division"] == division) & (frame["query"] == 4)]
        query = trace.queries[1, 2, 4].double()
        for row in start.to_dict("records"):
            query = query.detach().requires_grad_()
            p = (factor * key @ query).softmax(0)
            loss = (p @ value - value[row["target"]]).square().sum() / 2
            (slope,) = torch.autograd.grad(loss, query)
            expected = loss.item(), p[row["target"]].item(), slope.norm().item()
            found = row["loss"], row["target_weight"], row["gradient_norm"]
            np.testing.assert_allclose(found, expected, rtol=1e-7)
            query = query - 0.3 * slope


def test_a_long_text_gives_sixteen_descents_over_its_first_tokens(tiny_model):
    trace = ap.trace(tiny_model("bert"), "the cat sat " * 10)
    frame = theory_on_model.freezing(trace, 0, 0, steps=2)
    assert frame["query"].nunique() == theory_on_model.MOST_RUNS < len(trace.tokens)
    assert frame[["query", "target"]].max().max() < len(trace.tokens)


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
    assert (frame["mean_ratio"] <= frame["largest_ratio"]).all()
    assert (frame["mean_ratio"] > 0).all()


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


def test_long_experiments_tell_how_far_they_are(tiny_model):
    loaded = tiny_model("bert")
    said = []
    theory_on_model.kernels(ap.trace(loaded, TEXT), told=lambda *part: said.append(part))
    assert said == [(done, loaded.n_layers) for done in range(1, loaded.n_layers + 1)]
