"""A Trace and its table against transformers' eager attention and float64 arithmetic."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from transformers import AutoModel

import attnprobe as ap
from attnprobe.trace import SATURATED_FROM

KINDS = ["bert", "bert-classifier", "gpt2", "roberta", "distilbert", "electra"]
TEXT = "the cat sat on the mat because it was tired"


@pytest.fixture(params=KINDS)
def loaded(request, tiny_model):
    return tiny_model(request.param)


def eager_weights(loaded, tokens) -> torch.Tensor:
    """[layer head query key] from transformers' own eager attention."""
    model = AutoModel.from_pretrained(
        loaded.folder, attn_implementation="eager", dtype=loaded.dtype
    )
    batch = loaded.batch(tokens)
    with torch.no_grad():
        output = model.eval()(batch.ids, attention_mask=batch.mask.long(), output_attentions=True)
    return torch.cat(output.attentions)


def test_weights_are_those_of_eager_attention(loaded):
    trace = ap.trace(loaded, TEXT)
    theirs = eager_weights(loaded, trace.tokens)
    for layer in range(trace.n_layers):
        for head in range(trace.n_heads):
            weights = trace.weights(layer, head)
            torch.testing.assert_close(weights, theirs[layer, head], atol=1e-6, rtol=1e-5)
            assert bool((weights[~trace.valid()] == 0).all())


def test_scaled_logits_are_raw_logits_times_the_scale_and_give_the_weights(loaded):
    trace = ap.trace(loaded, TEXT)
    raw, scaled = trace.raw_logits(1, 1), trace.scaled_logits(1, 1)
    torch.testing.assert_close(scaled, raw / math.sqrt(loaded.d_head))
    softmax = scaled.masked_fill(~trace.valid(), -torch.inf).softmax(-1)
    torch.testing.assert_close(trace.weights(1, 1), softmax, atol=1e-6, rtol=1e-5)


def test_the_head_table_agrees_with_numpy_in_float64(loaded):
    trace = ap.trace(loaded, TEXT)
    table = ap.head_table(trace).set_index(["layer", "head"])
    first = 1 if loaded.causal else 0
    for layer in range(trace.n_layers):
        for head in range(trace.n_heads):
            row = table.loc[layer, head]
            raw = trace.raw_logits(layer, head).double().numpy()
            seen = trace.valid().numpy()
            logits = np.where(seen, raw * trace.scales[layer], -np.inf)
            p = np.exp(logits - logits.max(-1, keepdims=True))
            p = (p / p.sum(-1, keepdims=True))[first:]
            jacobians = [np.diag(row) - np.outer(row, row) for row in p]
            bits = entropy(p, axis=-1)
            close = pytest.approx
            assert row.entropy == close(bits.mean(), rel=1e-4)
            assert row.normalised_entropy == close(
                (bits / np.log(seen.sum(-1)[first:])).mean(), rel=1e-4
            )
            assert row.effective_keys == close(np.exp(bits).mean(), rel=1e-4)
            assert row.peak == close(p.max(-1).mean(), rel=1e-4)
            assert row.saturated == close((p.max(-1) >= SATURATED_FROM).mean(), abs=1e-6)
            assert row.jacobian_frobenius == close(
                np.mean([np.linalg.norm(j) for j in jacobians]), rel=1e-4
            )
            assert row.jacobian_max == close(
                np.mean([np.abs(j).max() for j in jacobians]), rel=1e-4
            )
            assert row.jacobian_spectral == close(
                np.mean([np.linalg.norm(j, 2) for j in jacobians]), rel=1e-4
            )
            assert row.jacobian_trace == close(np.mean([np.trace(j) for j in jacobians]), rel=1e-4)
            cells = raw[first:][seen[first:]]
            assert row.raw_mean == close(cells.mean(), rel=1e-3, abs=1e-5)
            assert row.raw_std == close(cells.std(), rel=1e-4)
            assert row.scaled_mean == close(cells.mean() * trace.scales[layer], rel=1e-3, abs=1e-5)
            assert row.scaled_std == close(cells.std() * trace.scales[layer], rel=1e-4)
            assert row.rows == len(p)


def test_the_output_of_a_trace_is_the_model_s_output(loaded):
    trace = ap.trace(loaded, TEXT)
    with torch.no_grad():
        plain = loaded.forward(loaded.batch(trace.tokens))[0]
    torch.testing.assert_close(trace.output, plain, atol=5e-6, rtol=1e-5)


def test_contexts_are_weights_times_values(loaded):
    trace = ap.trace(loaded, TEXT)
    for layer in range(trace.n_layers):
        expected = trace.weights(layer, 0) @ trace.values[layer, 0]
        torch.testing.assert_close(trace.contexts[layer, 0], expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_one_token_is_a_value_where_it_is_one_and_undefined_where_it_is_not(tiny_model, kind):
    loaded = tiny_model(kind)
    tokens = loaded.read("a")
    table = ap.head_table(ap.trace(loaded, tokens))
    if kind == "gpt2":
        assert (table.rows == 0).all()
        assert table.drop(columns=["layer", "head", "rows"]).isna().all(axis=None)
    else:
        assert (table.rows == 3).all()
        assert not table.isna().any(axis=None)


def test_a_causal_head_s_first_row_is_left_out_of_means(tiny_model):
    trace = ap.trace(tiny_model("gpt2"), "ab")
    table = ap.head_table(trace)
    assert (table.rows == 1).all()
    second = trace.rows.entropy[:, :, 1].flatten()
    np.testing.assert_allclose(table.entropy, second, rtol=1e-6)


def test_a_float64_model_has_float64_statistics_and_others_float32(tiny_model):
    for dtype, expected in [
        ("float64", torch.float64), ("float32", torch.float32), ("bfloat16", torch.float32),
    ]:  # fmt: skip
        trace = ap.trace(tiny_model("bert", dtype), TEXT)
        assert trace.rows.entropy.dtype == expected
        assert trace.raw_logits(0, 0).dtype == expected


def test_a_trace_of_an_edited_run_shows_the_edit(tiny_model):
    loaded = tiny_model("gpt2")
    gates = {(0, 2): 0.0}
    edited = ap.trace(loaded, TEXT, edit=ap.gate(gates))
    plain = ap.trace(loaded, TEXT)
    assert torch.equal(edited.queries[0], plain.queries[0])
    assert not torch.equal(edited.queries[1], plain.queries[1])
    assert not edited.contexts[0, 2].any()
    with torch.no_grad(), ap.watching(ap.gate(gates)):
        expected = loaded.forward(loaded.batch(plain.tokens))[0]
    torch.testing.assert_close(edited.output, expected, atol=5e-6, rtol=1e-5)


def test_a_trace_holds_nothing_that_grows_with_the_square_of_the_text(tiny_model):
    loaded = tiny_model("gpt2")
    trace = ap.trace(loaded, "a" * 64)
    largest = max(
        value.numel() for value in vars(trace).values() if isinstance(value, torch.Tensor)
    )
    assert largest <= 64 * max(loaded.n_layers * loaded.d_model, loaded.config.vocab_size)


def test_the_same_text_twice_is_the_same_table(bundled_bert):
    one, two = (ap.head_table(ap.trace(bundled_bert, TEXT)) for _ in range(2))
    assert one.equals(two)
    assert one.shape == (72, 16)
    assert one.notna().all(axis=None)


def test_a_text_of_the_model_s_full_length_works_and_one_more_token_does_not(bundled_bert):
    trace = ap.trace(bundled_bert, "cat " * 510)
    assert len(trace.tokens) == 512
    with pytest.raises(ap.AttnprobeError, match="513 tokens long and the model reads at most 512"):
        ap.trace(bundled_bert, "cat " * 511)
