"""What the scale does: moments, identities and rescaled rows against float64 numpy."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import attnprobe as ap
from attnprobe.analyses import rescaling, scaling
from attnprobe.errors import BadInput
from attnprobe.readout import next_token

TEXT = "the cat sat on the mat because it was tired"


@pytest.fixture(params=["bert", "gpt2", "distilbert"])
def run(request, tiny_model):
    loaded = tiny_model(request.param, "float64")
    return loaded, ap.trace(loaded, TEXT)


def valid_logits(trace, layer, head):
    q, k = trace.queries[layer, head].numpy(), trace.keys[layer, head].numpy()
    return (q @ k.T)[trace.valid().numpy()]


def test_a_histogram_integrates_to_one_and_spans_the_logits(run):
    _, trace = run
    frame = scaling.histogram(trace, 1, 0)
    expected = valid_logits(trace, 1, 0)
    for kind, factor in (("raw logits", 1.0), ("scaled logits", trace.scales[1])):
        bars = frame[frame.kind == kind]
        assert (bars.density * (bars.right - bars.left)).sum() == pytest.approx(1)
        assert bars.left.min() == pytest.approx((expected * factor).min())
        assert bars.right.max() == pytest.approx((expected * factor).max())


def test_quantiles_mean_and_deviation_are_numpy_s(run):
    _, trace = run
    frame = scaling.spread(trace).set_index(["layer", "head", "kind"])
    for layer, head in scaling.heads(trace):
        expected = valid_logits(trace, layer, head)
        row = frame.loc[(layer, head, "raw logits")]
        assert row.q25 == pytest.approx(np.quantile(expected, 0.25))
        assert row["mean"] == pytest.approx(expected.mean())
        assert row["std"] == pytest.approx(expected.std())
        scaled = frame.loc[(layer, head, "scaled logits")]
        assert scaled["std"] == pytest.approx(expected.std() * trace.scales[layer])
        assert row.sqrt_d_head == pytest.approx(math.sqrt(trace.d_head))


def test_one_layer_s_spread_is_its_part_of_all(run):
    _, trace = run
    everything = scaling.spread(trace)
    part = everything[everything.layer == 1].reset_index(drop=True)
    pd.testing.assert_frame_equal(scaling.spread(trace, 1), part)


def test_the_measured_variance_is_numpy_s_over_valid_pairs(run):
    _, trace = run
    frame = scaling.causes(trace).set_index(["layer", "head"])
    for layer, head in scaling.heads(trace):
        expected = valid_logits(trace, layer, head).var()
        assert frame.loc[(layer, head), "measured"] == pytest.approx(expected, rel=1e-10)


def test_the_predicted_variance_over_all_pairs_is_an_identity_and_its_parts_add_up(run):
    _, trace = run
    frame = scaling.causes(trace)
    np.testing.assert_allclose(frame.predicted, frame.measured_all, rtol=1e-10)
    parts = frame.from_variances + frame.from_correlation + frame.from_means
    np.testing.assert_allclose(parts, frame.predicted, rtol=1e-10)
    assert (frame.textbook == trace.d_head).all()


def drawn(trace, query, key):
    """A trace of one head with these queries and keys [position d_head] in place of its own."""
    tokens = replace(trace.tokens, ids=tuple(range(len(query))))
    one = {"queries": query, "keys": key, "values": key, "contexts": query}
    return replace(trace, tokens=tokens, **{name: x[None, None] for name, x in one.items()})


def test_independent_unit_components_have_the_textbook_variance_and_no_other_cause(tiny_model):
    trace = ap.trace(tiny_model("bert", "float64"), TEXT)
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 3001, 7, generator=generator, dtype=torch.float64)
    row = scaling.causes(drawn(trace, query, key)).iloc[0]
    assert row.measured == pytest.approx(7, rel=0.05)
    assert row.from_variances == pytest.approx(7, rel=0.05)
    assert abs(row.from_means) < 0.05
    assert abs(row.from_correlation) < 0.1


def test_a_symmetric_head_has_asymmetry_zero_and_an_antisymmetric_one_has_one(tiny_model):
    trace = ap.trace(tiny_model("bert", "float64"), TEXT)
    key = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    found = [
        scaling.asymmetry(drawn(trace, query, key)).asymmetry[0]
        for query in (key, key @ turn, key * 0)
    ]
    assert found[0] == pytest.approx(0, abs=1e-12)
    assert found[1] == pytest.approx(1)
    assert math.isnan(found[2])


def test_the_curve_at_one_is_the_head_table_and_elsewhere_numpy_s_softmax(run):
    _, trace = run
    table = ap.head_table(trace).set_index(["layer", "head"]).loc[(1, 1)]
    frame = scaling.what_if(trace, 1, 1, [0.125, 1.0, 32.0]).set_index("factor")
    for name in ("peak", "entropy", "jacobian_frobenius", "jacobian_max", "saturated"):
        assert frame.loc[1.0, name] == pytest.approx(table[name], rel=1e-9)
    seen = trace.valid().numpy()
    logits = np.where(seen, trace.scaled_logits(1, 1).numpy() * 32, -np.inf)
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p = (p / p.sum(-1, keepdims=True))[seen.sum(-1) >= 2]
    assert frame.loc[32.0, "peak"] == pytest.approx(p.max(-1).mean())
    frobenius = [np.linalg.norm(np.diag(row) - np.outer(row, row)) for row in p]
    assert frame.loc[32.0, "jacobian_frobenius"] == pytest.approx(np.mean(frobenius))
    assert frame.loc[1.0, "scale"] == pytest.approx(trace.scales[1])


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_in_float32_every_point_of_the_curve_is_as_exact_as_its_logits(tiny_model, kind):
    """A logit that errs by δ changes p by 2δ of itself, 1 − p too, so J by 4δ and the entropy by
    2δ of itself; products of d_k components in any order err by d_k + 3 roundings at most."""
    trace = ap.trace(tiny_model(kind), TEXT)
    curve = scaling.what_if(trace, 1, 2)
    q, k = (x[1, 2].double().numpy() for x in (trace.queries, trace.keys))
    seen = trace.valid().numpy()
    several = seen.sum(-1) >= 2
    rounding = (trace.d_head + 3) * torch.finfo(torch.float32).eps * (np.abs(q) @ np.abs(k).T).max()
    for row in curve.itertuples():
        logits = np.where(seen, q @ k.T * row.scale, -np.inf)[several]
        p = np.exp(logits - logits.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        jacobian = np.array([np.diag(each) - np.outer(each, each) for each in p])
        terms = np.where(p > 0, -p * np.log(np.where(p > 0, p, 1)), 0)
        away = rounding * row.scale + 1e-5
        assert row.peak == pytest.approx(p.max(-1).mean(), rel=2 * away)
        assert row.entropy == pytest.approx(terms.sum(-1).mean(), rel=2 * away)
        frobenius = np.linalg.norm(jacobian, axis=(-2, -1)).mean()
        assert row.jacobian_frobenius == pytest.approx(frobenius, rel=4 * away)
        assert row.jacobian_max == pytest.approx(jacobian.max((-2, -1)).mean(), rel=4 * away)
        assert row.saturated == pytest.approx((p.max(-1) >= 0.9).mean())


def test_a_curve_builds_no_matrix_of_queries_and_keys(tiny_model, monkeypatch):
    trace = ap.trace(tiny_model("bert"), TEXT)
    expected = scaling.what_if(trace, 0, 1)
    for matrix in ("raw_logits", "scaled_logits", "weights", "valid"):
        monkeypatch.delattr(type(trace), matrix)
    pd.testing.assert_frame_equal(scaling.what_if(trace, 0, 1), expected)
    assert scaling.what_if_rows(trace, 0, 1, 2.0).shape == (2 * trace.counted[0, 1].sum(), 7)


def test_rows_are_given_as_they_are_and_rescaled(run):
    _, trace = run
    frame = scaling.what_if_rows(trace, 0, 0, 4.0)
    plain = frame[frame.factor == 1.0]
    counted = trace.counted[0, 0]
    np.testing.assert_allclose(plain.peak, trace.rows.peak[0, 0][counted], rtol=1e-9)
    assert (frame[frame.factor == 4.0].peak.to_numpy() >= plain.peak.to_numpy()).all()
    assert len(scaling.what_if_rows(trace, 0, 0, 1.0)) == len(plain)


def test_the_summands_of_a_pair_add_up_to_its_logit_and_its_bias_parts_to_each_summand(run):
    loaded, trace = run
    frame = scaling.summands(loaded, trace, 1, 1, 4, 2)
    assert frame.cumulative.iloc[-1] == pytest.approx(trace.raw_logits(1, 1)[4, 2].item())
    parts = frame[["bias_only", "query_only", "key_only", "both"]].sum(axis=1)
    np.testing.assert_allclose(parts, frame.summand, rtol=1e-9, atol=1e-12)
    assert frame.summand.abs().is_monotonic_decreasing


def test_the_bias_part_is_what_a_model_without_input_would_score(run):
    """With a zero input a projection gives its bias, so the bias-only part is b_q·b_k."""
    loaded, trace = run
    attention = loaded.family.attention_module(loaded.family.layer_list(loaded.model)[1])
    zero = torch.zeros(1, 1, loaded.d_model, dtype=torch.float64)
    outputs = [getattr(attention, name)(zero)[0, 0] for name in loaded.family.projections]
    query, key = outputs[0].chunk(3)[:2] if loaded.family.fused else outputs[:2]
    head = slice(loaded.d_head, 2 * loaded.d_head)
    frame = scaling.summands(loaded, trace, 1, 1, 0, 0)
    assert frame.bias_only.sum() == pytest.approx((query[head] @ key[head]).item())


def test_a_pair_outside_the_text_is_one_sentence(run):
    loaded, trace = run
    with pytest.raises(BadInput, match="the text has tokens 0 to"):
        scaling.summands(loaded, trace, 0, 0, 999, 0)


@pytest.mark.parametrize(("layer", "head"), [(1, 2), (1, None), (None, None)])
def test_another_scale_in_the_model_is_the_model_with_scaled_query_projections(
    tiny_folder, layer, head
):
    """The oracle multiplies W_Q and b_Q of the heads in the weights of a second model."""
    loaded, other = (ap.load(str(tiny_folder("gpt2")), device="cpu", dtype="float64") for _ in "ab")
    factor = 2.5
    factors = rescaling.factors_for(loaded, factor, layer, head)
    for index, block in enumerate(other.family.layer_list(other.model)):
        columns = factors[index].repeat_interleave(other.d_head).double()
        with torch.no_grad():
            block.attn.c_attn.weight[:, : other.d_model] *= columns
            block.attn.c_attn.bias[: other.d_model] *= columns
    batch = loaded.batch(loaded.read(TEXT))
    with torch.no_grad():
        expected = other.forward(batch)
        with ap.watching(rescaling.scaled_by(factors)):
            torch.testing.assert_close(loaded.forward(batch), expected)


def test_a_sweep_is_zero_change_at_one_and_agrees_with_one_run_elsewhere(tiny_model):
    loaded = tiny_model("gpt2", "float64")
    readout = next_token(loaded)
    examples = readout.prepare([TEXT])
    seen = []
    frame = rescaling.sweep(
        readout, examples, 1, None, factors=[1.0, 4.0], progress=lambda *p: seen.append(p)
    ).set_index("factor")
    assert frame.loc[1.0, "tvd"] == 0
    assert frame.loc[1.0, "kl"] == 0
    trace = ap.trace(loaded, TEXT)
    assert frame.loc[1.0, "entropy"] == pytest.approx(
        trace.rows.entropy[trace.counted].mean().item(), rel=1e-5
    )
    with torch.no_grad():
        plain = loaded.forward(loaded.batch(loaded.read(TEXT)))[0, :-1].log_softmax(-1)
        with ap.watching(rescaling.scaled_by(rescaling.factors_for(loaded, 4.0, 1, None))):
            edited = loaded.forward(loaded.batch(loaded.read(TEXT)))[0, :-1].log_softmax(-1)
    targets = torch.tensor(loaded.read(TEXT).ids[1:])
    loss = torch.nn.functional.nll_loss(edited, targets).item()
    assert frame.loc[4.0, "loss"] == pytest.approx(loss)
    tvd = (plain.exp() - edited.exp()).abs().sum(-1).mean().item() / 2
    assert frame.loc[4.0, "tvd"] == pytest.approx(tvd)
    kl = torch.nn.functional.kl_div(edited, plain, log_target=True, reduction="batchmean").item()
    assert frame.loc[4.0, "kl"] == pytest.approx(kl)
    assert seen == [(0, 2), (1, 2), (2, 2)]


def test_the_top_answers_are_sorted_probabilities_of_both_runs(tiny_model):
    loaded = tiny_model("gpt2", "float64")
    readout = next_token(loaded)
    examples = readout.prepare([TEXT])
    factors = rescaling.factors_for(loaded, 8.0, None, None)
    frame = rescaling.top(readout, examples, factors)
    for run, column in (("as the model", "before"), ("rescaled", "after")):
        part = frame[frame.run == run]
        assert part["rank"].tolist() == [1, 2, 3, 4, 5]
        assert part[column].is_monotonic_decreasing
    best = readout.distribution(examples)[-1].argmax().item()
    assert frame.answer[0] == loaded.reader.label(best)


def test_entropies_after_are_those_of_an_edited_trace(tiny_model):
    loaded = tiny_model("bert", "float64")
    factors = rescaling.factors_for(loaded, 0.125, 0, 1)
    frame = rescaling.heads_after(loaded, loaded.read(TEXT), factors).set_index(["layer", "head"])
    untouched = frame.loc[[(0, 0), (0, 2)]]
    assert (untouched.change == 0).all()
    logits = ap.trace(loaded, TEXT).scaled_logits(0, 1) * 0.125
    expected = torch.special.entr(logits.softmax(-1)).sum(-1).mean().item()
    assert frame.loc[(0, 1), "after"] == pytest.approx(expected)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_a_factor_that_is_not_positive_and_finite_is_one_sentence(tiny_model, factor):
    loaded = tiny_model("bert")
    trace = ap.trace(loaded, TEXT)
    for call in (
        lambda: rescaling.factors_for(loaded, factor, None, None),
        lambda: scaling.what_if(trace, 0, 0, [factor]),
        lambda: scaling.what_if_rows(trace, 0, 0, factor),
    ):
        with pytest.raises(BadInput, match="must be above 0 and finite"):
            call()


def test_the_factors_hold_the_one_that_undoes_the_scale(run):
    """d_head is 7 or so here: √7 is no power of two, and no factor twice."""
    _, trace = run
    factors = scaling.factors_of(trace, 1)
    undone = min(factors, key=lambda factor: abs(factor - trace.d_head**0.5))
    assert undone == pytest.approx(trace.d_head**0.5, rel=1e-3)
    assert list(factors) == sorted(set(factors))
    assert {0.125, 1.0, 32.0} < set(factors)
    raw = trace.raw_logits(1, 0).masked_fill(~trace.valid(), -torch.inf).softmax(-1)
    counted = trace.counted[1, 0]
    curve = scaling.what_if(trace, 1, 0).set_index("factor")
    assert curve.loc[undone, "peak"] == pytest.approx(raw.amax(-1)[counted].mean().item(), rel=1e-3)


def test_a_layer_s_histogram_holds_the_cells_of_all_its_heads(run):
    _, trace = run
    frame = scaling.histogram(trace, 1, bins=7)
    cells = np.concatenate([valid_logits(trace, 1, head) for head in range(trace.n_heads)])
    raw = frame[frame.kind == "raw logits"]
    counts = raw.density * (raw.right - raw.left) * len(cells)
    expected, _ = np.histogram(cells, bins=np.append(raw.left, raw.right.iloc[-1]))
    np.testing.assert_allclose(counts, expected, rtol=1e-9)
    assert expected.sum() == len(cells)
