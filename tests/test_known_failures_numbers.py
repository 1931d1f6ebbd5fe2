"""What attention viewers are known to get wrong without an error: the right value of each."""

import json
import math
import shutil
from dataclasses import replace

import jaxtyping
import pytest
import tiny
import torch
from transformers import AutoModel, BertForMaskedLM, GPT2LMHeadModel

import attnprobe as ap
from attnprobe import capture
from attnprobe.errors import BadInput, TextTooLong, UnsupportedModel
from attnprobe.softmax_stats import attention_rows, attention_weights, statistics_of
from attnprobe.text import Batch

TEXT = "the cat sat"


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_where_the_default_backend_gives_no_weights_every_layer_has_some(
    kind, tiny_folder, tiny_model
):
    """A model in its default backend answers `output_attentions` with nothing and no error."""
    loaded = tiny_model(kind)
    plain = AutoModel.from_pretrained(tiny_folder(kind)).eval()
    ids = loaded.batch(loaded.read(TEXT)).ids
    assert not [w for w in plain(ids, output_attentions=True).attentions if w is not None]
    trace = ap.trace(loaded, TEXT)
    weights = torch.stack(
        [trace.weights(i, h) for i in range(trace.n_layers) for h in range(trace.n_heads)]
    )
    assert trace.n_layers == len(trace.scales) == loaded.n_layers
    assert weights.shape == (loaded.n_layers * loaded.n_heads, ids.shape[1], ids.shape[1])
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


def test_weights_sum_to_one_and_stay_the_same_though_the_config_asks_for_dropout(tmp_path):
    torch.manual_seed(0)
    model = BertForMaskedLM(tiny.bert_config(attention_probs_dropout_prob=0.5))
    folder = tiny.save_model(tmp_path / "dropping", model, tiny.wordpiece())
    loaded = ap.load(str(folder), device="cpu")
    first, second = (ap.trace(loaded, TEXT).weights(1, 2) for _ in range(2))
    assert not loaded.model.training
    assert torch.equal(first, second)
    torch.testing.assert_close(first.sum(-1), torch.ones(len(first)))


def test_a_model_in_training_mode_is_refused_instead_of_dropping_weights(tmp_path):
    torch.manual_seed(0)
    model = BertForMaskedLM(tiny.bert_config(attention_probs_dropout_prob=0.5))
    folder = tiny.save_model(tmp_path / "training", model, tiny.wordpiece())
    loaded = ap.load(str(folder), device="cpu")
    loaded.model.train()
    with pytest.raises(UnsupportedModel, match="dropout"):
        ap.trace(loaded, TEXT)


def test_a_checkpoint_that_asks_for_upcast_attention_says_that_it_is_not_upcast(tmp_path):
    torch.manual_seed(0)
    model = GPT2LMHeadModel(tiny.gpt2_config(reorder_and_upcast_attn=True))
    folder = tiny.save_model(tmp_path / "upcast", model, tiny.byte_level())
    loaded = ap.load(str(folder), device="cpu")
    assert any("reorder_and_upcast_attn" in note for note in loaded.notes)


def test_half_precision_logits_of_minus_seventy_under_padding_give_no_nan():
    """finfo(float16).min − 70 is −inf, and a row of −inf has no softmax."""
    query, key = torch.full((2, 3, 6, 4), 5.0).half(), torch.full((2, 3, 6, 4), -3.5).half()
    valid = torch.tensor([[False, False, True, True, True, True], [True] * 6])
    context, rows = attention_rows(
        query, key, torch.ones_like(key), scale=1.0, valid=valid, causal=True
    )
    assert bool(torch.isfinite(context).all())
    seen = torch.tensor([[0, 0, 1, 2, 3, 4], [1, 2, 3, 4, 5, 6]])[:, None].expand(2, 3, 6)
    assert torch.equal(rows.keys, seen)
    torch.testing.assert_close(rows.entropy[seen > 0], seen[seen > 0].float().log())
    weights = attention_weights(query, key, scale=1.0, valid=valid, causal=True)
    assert bool(torch.isfinite(weights).all())


ROWS_WITH_KNOWN_ENTROPY = [
    (torch.tensor([[0.0, 0.0, -math.inf]]), [[True, True, False]], math.log(2)),
    (torch.tensor([[0.0, 0.0, -math.inf]]), None, math.log(2)),
    (torch.tensor([[65504.0, -65504.0]], dtype=torch.float16), None, 0.0),
    (torch.tensor([[3.7]]), None, 0.0),
    (torch.zeros(1, 512, dtype=torch.bfloat16), None, 6.238325),
]


@pytest.mark.parametrize(("logits", "mask", "entropy"), ROWS_WITH_KNOWN_ENTROPY)
def test_a_weight_of_zero_costs_no_entropy_and_half_precision_no_digit(logits, mask, entropy):
    mask = None if mask is None else torch.tensor(mask)
    rows = statistics_of(logits, mask)
    assert rows.entropy.item() == pytest.approx(entropy, abs=1e-6)
    assert rows.entropy.dtype == torch.float32


def test_a_logit_of_minus_infinity_is_a_key_that_is_not_seen():
    logits = torch.tensor([[0.0, 3.0, -math.inf, 1.0], [-math.inf] * 4])
    given = statistics_of(logits, None)
    masked = statistics_of(logits.nan_to_num(neginf=7.0), logits > -math.inf)
    assert given.keys.tolist() == [3, 0]
    for name in ("entropy", "peak", "jacobian_frobenius", "jacobian_spectral", "raw_std"):
        assert torch.equal(getattr(given, name)[0], getattr(masked, name)[0])
        assert getattr(given, name)[1].isnan()


def test_a_row_of_one_key_has_no_normalised_entropy_and_a_masked_row_no_entropy():
    rows = statistics_of(torch.zeros(2, 3), torch.tensor([[False, True, False], [False] * 3]))
    assert rows.entropy[0].item() == 0.0
    assert rows.normalised_entropy.isnan().all()
    assert rows.entropy[1].isnan()


def test_a_normalised_entropy_never_exceeds_one_even_from_bfloat16_logits():
    rows = statistics_of(torch.zeros(1, 512, dtype=torch.bfloat16), None)
    assert rows.normalised_entropy.item() <= 1.0 + 1e-6


def test_weights_of_a_bfloat16_model_sum_to_one_as_those_of_float32_do(tiny_model):
    """A softmax in bfloat16 misses one by 2e-3 and gives entropies above ln of the keys."""
    trace = ap.trace(tiny_model("bert", "bfloat16"), TEXT)
    ones = torch.ones(len(trace.tokens))
    for layer, head in ((0, 0), (1, 2)):
        weights = trace.weights(layer, head)
        torch.testing.assert_close(weights.sum(-1), ones, atol=1e-6, rtol=0)
    assert bool((trace.rows.entropy <= math.log(len(ones)) + 1e-6).all())


@pytest.mark.parametrize("named", [None, 10**30, 7])
def test_how_long_a_text_may_be_is_what_the_config_says_and_not_the_tokenizer(
    named, tiny_folder, tmp_path
):
    folder = shutil.copytree(tiny_folder("gpt2"), tmp_path / "gpt2")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": named}))
    loaded = ap.load(str(folder), device="cpu")
    assert loaded.max_tokens == loaded.config.n_positions == len(loaded.read("a" * 64))
    with pytest.raises(TextTooLong, match="reads at most 64"):
        loaded.read("a" * 65)


def test_a_gpt2_of_one_token_has_statistics_or_undefined_ones_and_no_nan_weights(tiny_model):
    trace = ap.trace(tiny_model("gpt2"), "a")
    assert torch.equal(trace.weights(0, 0), torch.ones(1, 1))
    table = ap.head_table(trace)
    assert table["entropy"].isna().all()
    assert (table["rows"] == 0).all()


def test_a_mask_of_another_length_than_the_text_is_refused():
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with pytest.raises(BadInput, match="one mark per token"):
            Batch(torch.ones(1, 4, dtype=torch.long), torch.ones(1, 3, dtype=torch.bool))
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize("typo", ["head_mask", "output_attention", "attentionmask"])
def test_an_argument_that_transformers_would_swallow_is_no_argument_here(typo, tiny_model):
    loaded = tiny_model("bert")
    with pytest.raises(TypeError, match=typo):
        loaded.forward(loaded.batch(loaded.read(TEXT)), **{typo: None})


def test_captured_logits_are_not_the_masked_ones(tiny_model):
    """Means of finfo.min are −1e38, and a score that was masked in place is lost."""
    loaded = tiny_model("gpt2")
    trace = ap.trace(loaded, TEXT)
    for layer in range(trace.n_layers):
        raw = trace.raw_logits(layer, 1)
        by_hand = torch.einsum("qd,kd->qk", trace.queries[layer, 1], trace.keys[layer, 1])
        torch.testing.assert_close(raw, by_hand)
        assert bool(raw.abs().max() < 1e4)
    assert ap.head_table(trace)["raw_mean"].abs().max() < 1e4


def test_the_scale_is_seen_at_a_width_that_is_no_power_of_two(tiny_model):
    """(QKᵀ)/8 and (Q/8)Kᵀ are bit-equal at d = 64, so such a width could prove nothing."""
    widths = {kind: tiny_model(kind).d_head for kind in ("bert", "gpt2", "roberta")}
    assert any(width & (width - 1) for width in widths.values())
    loaded = tiny_model("bert")
    assert ap.trace(loaded, TEXT).scales == pytest.approx([7**-0.5] * 2)


def test_an_argument_of_the_model_is_never_changed_by_a_run(tiny_model):
    loaded = tiny_model("gpt2")
    batch = loaded.batch(loaded.read(TEXT))
    before = replace(batch, ids=batch.ids.clone(), mask=batch.mask.clone())
    weights = {name: w.clone() for name, w in loaded.model.state_dict().items()}
    with torch.no_grad(), capture.watching(capture.gate({(1, 2): 0.0})):
        loaded.forward(batch)
    assert torch.equal(batch.ids, before.ids)
    assert torch.equal(batch.mask, before.mask)
    assert all(torch.equal(w, weights[name]) for name, w in loaded.model.state_dict().items())
