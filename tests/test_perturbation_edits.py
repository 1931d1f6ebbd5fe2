"""Edits after the softmax against whole forward passes with the same weights, and by hand."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import tiny
import torch
from transformers import BertForSequenceClassification, GPT2LMHeadModel

import attnprobe as ap
from attnprobe import capture, readout
from attnprobe.analyses.perturbation import edits, permutation, replacement, runs
from attnprobe.analyses.perturbation.distances import tvd
from attnprobe.analyses.perturbation.edits import READOUT_ROW, Scope
from attnprobe.capture import AttentionCall
from attnprobe.errors import BadInput

TEXT = "the cat sat on the mat because it was tired"
CAUSAL_TEXT = "a cat ran"


@pytest.fixture(scope="module")
def run(tiny_model):
    """A clean run of each kind, in float64."""

    def of(kind, dtype="float64", text=None):
        loaded = tiny_model(kind, dtype)
        return runs.clean_run(reader_of(loaded), text or text_for(kind))

    return of


def text_for(kind):
    return CAUSAL_TEXT if kind == "gpt2" else TEXT


def reader_of(loaded):
    if loaded.causal:
        return readout.next_token(loaded, where="last")
    if loaded.head_kind == "sequence classification":
        return readout.classes(loaded)
    return readout.label_sentences(loaded, {"cats": "the cat sat", "dogs": "a dog ran"})


def whole_pass(run, new_weights):
    """The output when `new_weights` {layer: [head query key]} stand in a full forward pass."""

    def watch(call):
        if call.layer in new_weights:
            return new_weights[call.layer].to(call.value.dtype) @ call.value
        return None

    with torch.no_grad(), capture.watching(watch):
        return run.readout.distribution(run.examples)


def identity(rows):
    return rows.weights


def shifted(rows):
    """Each row's valid weights turned by one place: row r's key k gets that of key k − 1."""
    new = rows.weights.clone()
    for query in range(new.shape[-2]):
        seen = rows.valid[query]
        new[..., query, seen] = rows.weights[..., query, seen].roll(1, -1)
    return new


def only(scope, run, new, row=None):
    """Clean weights with the scope's replaced by those of the rule `new`."""
    found = {}
    for layer in scope.layers(run.n_layers):
        heads = scope.heads(layer, run.loaded.n_heads)
        weights = run.weights(layer)
        rows = edits.Rows(
            layer, tuple(heads), weights[heads][None], run.valid, run.calls[layer].value[:, heads]
        )
        changed = weights.clone()
        at = slice(None) if row is None else [row]
        changed[heads[0] : heads[-1] + 1, at] = new(rows)[0][:, at]
        found[layer] = changed
    return found


@pytest.mark.parametrize("kind", ["bert", "bert-classifier", "gpt2"])
@pytest.mark.parametrize("scope", [Scope(1, 2), Scope(0), Scope(1)])
def test_an_edit_equals_a_whole_forward_pass_with_the_same_weights(run, kind, scope):
    clean = run(kind)
    found = runs.effects(clean, scope, lambda part: shifted, 1)
    expected = whole_pass(clean, only(scope, clean, shifted))
    torch.testing.assert_close(found.outcome[0], expected, rtol=1e-9, atol=1e-12)
    assert found.tvd[0] > 1e-6


def test_an_edit_of_all_layers_uses_the_weights_that_the_edits_below_lead_to(run):
    clean = run("gpt2")
    found = runs.effects(clean, Scope(), lambda part: shifted, 1)

    def watch(call):
        heads = range(call.query.shape[1])
        weights = edits.weights_of(call, heads)
        rows = edits.Rows(call.layer, tuple(heads), weights, clean.valid, call.value)
        return shifted(rows) @ call.value

    with torch.no_grad(), capture.watching(watch):
        expected = clean.readout.distribution(clean.examples)
    torch.testing.assert_close(found.outcome[0], expected, rtol=1e-9, atol=1e-12)


def test_a_scope_is_named_as_its_head_its_layer_or_all_of_them():
    scopes = Scope(2, 5), Scope(2), Scope()
    assert [scope.label for scope in scopes] == ["L2.H5", "layer 2", "all layers"]


@pytest.mark.parametrize("kind", ["bert-classifier", "gpt2"])
def test_editing_the_read_out_row_leaves_the_other_rows_alone(run, kind):
    clean = run(kind)
    row = clean.spots[0]
    scope = Scope(0, 1, READOUT_ROW)
    found = runs.effects(clean, scope, lambda part: shifted, 1)
    expected = whole_pass(clean, only(scope, clean, shifted, row))
    torch.testing.assert_close(found.outcome[0], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["bert", "bert-classifier", "gpt2", "roberta", "distilbert"])
@pytest.mark.parametrize("scope", [Scope(1, 0), Scope(1), Scope()])
def test_an_identity_edit_is_the_baseline_exactly(tiny_model, kind, scope):
    loaded = tiny_model(kind)
    reader = reader_of(loaded)
    clean = runs.clean_run(reader, "the cat sat")
    found = runs.effects(clean, scope, lambda part: identity, 3)
    assert (found.tvd == 0).all()
    assert (found.flips == 0).all()


def test_the_clean_variant_is_the_models_own_output(run):
    clean = run("bert-classifier", "float32")
    found = runs.outcomes(clean, Scope(1, 0), edits.uniform, 2)
    torch.testing.assert_close(found[0], clean.outcome, rtol=1e-5, atol=1e-6)


def test_swapping_two_tokens_moves_the_context_as_computed_by_hand():
    """Weights (a, 1 − a), values v₁ and v₂: swapped, the context moves by (1 − 2a)(v₁ − v₂)."""
    a, v1, v2 = 0.8, 3.0, -1.0
    call = AttentionCall(
        layer=0,
        query=torch.ones(1, 1, 2, 1, dtype=torch.float64),
        key=torch.tensor([[[[math.log(a)], [math.log(1 - a)]]]], dtype=torch.float64),
        value=torch.tensor([[[[v1], [v2]]]], dtype=torch.float64),
        scale=1.0,
        valid=None,
        causal=False,
    )
    everywhere = torch.ones(2, dtype=torch.bool)
    contexts = edits.contexts(call, Scope(0, 0), shifted, everywhere, 1)
    moved = (contexts[1] - contexts[0])[:, 0]
    assert moved.tolist() == pytest.approx([(1 - 2 * a) * (v1 - v2)] * 2)


def test_permuted_rows_keep_their_sum_and_put_nothing_on_unseen_keys():
    generator = torch.Generator().manual_seed(0)
    valid = torch.ones(7, 7, dtype=torch.bool).tril()
    weights = torch.rand(3, 7, 7, generator=generator).masked_fill(~valid, 0)
    weights = weights / weights.sum(-1, keepdim=True)
    new = edits.permuted(weights, valid, generator)
    assert (new[:, ~valid] == 0).all()
    torch.testing.assert_close(new.sum(-1), weights.sum(-1))
    assert torch.equal(new.sort(-1).values, weights.sort(-1).values)
    assert not torch.equal(new, weights)


def test_keys_that_may_not_move_keep_their_weights():
    generator = torch.Generator().manual_seed(1)
    movable = torch.ones(6, 6, dtype=torch.bool)
    movable[:, [0, 5]] = False
    weights = torch.rand(6, 6, generator=generator)
    new = edits.permuted(weights, movable, generator)
    assert torch.equal(new[:, [0, 5]], weights[:, [0, 5]])
    assert torch.equal(new.sort(-1).values, weights.sort(-1).values)


def test_every_permutation_of_three_keys_is_equally_likely():
    generator = torch.Generator().manual_seed(2)
    movable = torch.ones(1, 3, dtype=torch.bool)
    drawn = edits.shuffle((6000,), movable, generator)[:, 0]
    _, counts = drawn.unique(dim=0, return_counts=True)
    assert len(counts) == 6
    chi_squared = float(((counts - 1000.0) ** 2 / 1000).sum())
    assert chi_squared < 20.5  # 99.9 % point with five degrees of freedom


def test_rows_are_permuted_independently():
    generator = torch.Generator().manual_seed(3)
    movable = torch.ones(5, 11, dtype=torch.bool)
    drawn = edits.shuffle((1,), movable, generator)[0]
    assert len(drawn.unique(dim=0)) == 5


def zeroed(model, pairs):
    with torch.no_grad():
        for parameter, columns in pairs(model):
            parameter[columns] = 0
    return model


def uniform_bert(model):
    queries = [layer.attention.self.query for layer in model.bert.encoder.layer]
    return [(p, slice(None)) for query in queries for p in (query.weight, query.bias)]


def valueless_bert(model):
    layers = model.bert.encoder.layer
    return [(layer.attention.self.value.weight, slice(None)) for layer in layers]


def uniform_gpt2(model):
    n = model.config.n_embd
    return [(h.attn.c_attn.weight, (slice(None), slice(0, n))) for h in model.transformer.h] + [
        (h.attn.c_attn.bias, slice(0, n)) for h in model.transformer.h
    ]


def valueless_gpt2(model):
    n = model.config.n_embd
    return [(h.attn.c_attn.weight, (slice(None), slice(2 * n, None))) for h in model.transformer.h]


def altered(folder, kind, pairs):
    """A tiny saved model with some parameters 0; biases of values stay as they are."""
    torch.manual_seed(4)
    build = {
        "bert": lambda: BertForSequenceClassification(tiny.bert_config(num_labels=4)),
        "gpt2": lambda: GPT2LMHeadModel(tiny.gpt2_config()),
    }
    tokenizer = {"bert": tiny.wordpiece, "gpt2": tiny.byte_level}[kind]()
    model = build[kind]()
    tiny.save_model(folder, model, tokenizer)
    zeroed(model, pairs).save_pretrained(folder)
    return ap.load(str(folder), device="cpu")


@pytest.mark.parametrize(("kind", "pairs"), [("bert", uniform_bert), ("gpt2", uniform_gpt2)])
@pytest.mark.parametrize("scope", [Scope(0, 1), Scope(1), Scope()])
def test_uniform_rows_are_unmoved_by_permutation_exactly(tmp_path, kind, pairs, scope):
    loaded = altered(tmp_path / kind, kind, pairs)
    clean = runs.clean_run(reader_of(loaded), text_for(kind))
    draws = permutation.permutation_tvd(clean, scope, permutation.Draws(number=7))
    assert (draws["tvd"] == 0).all()


@pytest.mark.parametrize(("kind", "pairs"), [("bert", valueless_bert), ("gpt2", valueless_gpt2)])
@pytest.mark.parametrize("rule", [edits.uniform, edits.first_token, shifted])
def test_without_value_weights_no_edit_of_the_weights_does_anything(tmp_path, kind, pairs, rule):
    """Every key then has the value b_V, so that any weights that sum to 1 give the same context."""
    loaded = altered(tmp_path / kind, kind, pairs)
    clean = runs.clean_run(reader_of(loaded), text_for(kind))
    for scope in (Scope(0, 1), Scope(1), Scope()):
        assert runs.effects(clean, scope, lambda part: rule, 2).tvd.tolist() == [0, 0]


def test_gpt2s_first_position_never_moves(tiny_model):
    """Its only key is itself."""
    clean = runs.clean_run(readout.next_token(tiny_model("gpt2"), where="all"), CAUSAL_TEXT)
    hidden, edited = hidden_states(clean, Scope(), torch.ones(clean.length, dtype=torch.bool))
    assert torch.equal(hidden[1, 0], edited[1, 0])
    assert not torch.allclose(hidden[1, -1], edited[1, -1])


def hidden_states(clean, scope, chosen):
    """Last hidden states of a batch of two, both clean; and of one whose second is edited."""
    batch = clean.examples.repeat(2).batch
    moves = edits.rewritten(scope, shifted, chosen, torch.zeros(1, dtype=torch.bool))
    with torch.no_grad():
        plain = clean.loaded.hidden(batch)
        with capture.watching(moves):
            return plain, clean.loaded.hidden(batch)


def test_other_rows_of_the_last_layer_leave_a_cls_classifier_bit_equal(tiny_model):
    clean = runs.clean_run(readout.classes(tiny_model("bert-classifier")), TEXT)
    chosen = torch.ones(clean.length, dtype=torch.bool)
    chosen[0] = False
    hidden, edited = hidden_states(clean, Scope(clean.n_layers - 1), chosen)
    family, model = clean.loaded.family, clean.loaded.model
    before, after = (family.class_logits(model, states[:, 0]) for states in (hidden, edited))
    assert torch.equal(before, after)
    assert not torch.allclose(hidden[1, 1:], edited[1, 1:])


def test_lower_layers_are_not_computed_again(tiny_model):
    clean = runs.clean_run(readout.classes(tiny_model("bert-classifier")), TEXT)
    layers = []
    with capture.watching(lambda call: layers.append(call.layer)):
        runs.effects(clean, Scope(1, 0), lambda part: edits.uniform, 1)
    assert layers == []
    with capture.watching(lambda call: layers.append(call.layer)):
        runs.effects(clean, Scope(0, 0), lambda part: edits.uniform, 1)
    assert layers == [1]


def test_nothing_is_left_on_the_model_after_a_run_was_stopped(tiny_model):
    clean = runs.clean_run(readout.classes(tiny_model("bert-classifier")), TEXT)

    def stop():
        raise ap.errors.Stopped("stopped")

    with pytest.raises(ap.errors.Stopped):
        permutation.permutation_tvd(clean, Scope(0, 0), permutation.Draws(), tick=stop)
    again = runs.clean_run(clean.readout, TEXT)
    assert torch.equal(again.outcome, clean.outcome)


def permutations(clean, **choices):
    draws = permutation.Draws(number=9, **choices)
    return permutation.permutation_tvd(clean, Scope(1, 1), draws)


def test_a_seed_gives_the_same_permutations_however_they_are_batched(run, monkeypatch):
    clean = run("bert-classifier")
    at_once = permutations(clean, seed=5)
    monkeypatch.setattr(runs, "TOKENS", 3 * clean.length)
    in_parts = permutations(clean, seed=5)
    pd.testing.assert_frame_equal(at_once, in_parts, rtol=1e-9, atol=1e-12)
    other = permutations(clean, seed=6)
    assert not (at_once["tvd"] == other["tvd"]).any()


def test_different_texts_and_heads_draw_different_permutations(run):
    clean = run("bert-classifier")
    draws = permutation.Draws(number=4)
    first, second = (
        permutation.permutation_tvd(clean, Scope(1, 1), draws, number=n) for n in (0, 1)
    )
    assert not (first["tvd"] == second["tvd"]).any()


def test_special_tokens_can_be_left_in_their_places(run):
    clean = run("bert-classifier")
    movable = permutation.movable_keys(clean, permutation.Draws(specials=False))
    assert not movable[:, 0].any()
    assert not movable[:, -1].any()
    assert movable[:, 1:-1].all()
    assert not (permutations(clean)["tvd"] == permutations(clean, specials=False)["tvd"]).any()


def test_a_text_with_nothing_to_exchange_is_undefined_and_not_zero(tiny_model):
    one_word = runs.clean_run(readout.classes(tiny_model("bert-classifier")), "cat")
    assert permutations(one_word, specials=False)["tvd"].isna().all()
    two_words = runs.clean_run(readout.classes(tiny_model("bert-classifier")), "cat dog")
    assert permutations(two_words, specials=False)["tvd"].notna().all()
    one_letter = runs.clean_run(readout.next_token(tiny_model("gpt2"), where="last"), "a")
    assert permutations(one_letter)["tvd"].isna().all()
    assert math.isnan(permutation.row_peak(one_letter, Scope(0, 0)))


def test_the_peak_is_that_of_the_edited_rows(run):
    clean = run("gpt2")
    weights = clean.weights(1)
    row = permutation.row_peak(clean, Scope(1, 3, READOUT_ROW))
    assert row == pytest.approx(weights[3, -1].max().item())
    every = permutation.row_peak(clean, Scope(1))
    assert every == pytest.approx(weights[:, 1:].amax(-1).mean().item())


def test_ablating_by_weights_is_ablating_by_a_gate(run):
    for kind in ("bert-classifier", "gpt2"):
        clean = run(kind)
        found = runs.effects(clean, Scope(1, 2), lambda part: edits.ablated, 1)
        with torch.no_grad(), capture.watching(capture.gate({(1, 2): 0.0})):
            gated = clean.readout.distribution(clean.examples)
        torch.testing.assert_close(found.outcome[0], gated, rtol=1e-9, atol=1e-12)


@pytest.fixture(scope="module")
def three_runs(tiny_model):
    reader = readout.classes(tiny_model("bert-classifier", "float64"))
    texts = ["the cat sat on the mat", "a dog ran and then it was tired", "zebra came"]
    return [runs.clean_run(reader, text) for text in texts]


def test_every_replacement_is_what_it_says(three_runs):
    clean, longer, _ = three_runs
    scope = Scope(1, 2)
    frame = replacement.replacements(clean, scope, three_runs[1:]).set_index("edit")
    n = clean.length
    ids = clean.ids.clone()
    ids[1:-1] = longer.ids[1 : n - 1]
    frozen = runs.unedited(
        clean.readout, replace(clean.examples, batch=ap.text.Batch(ids[None], ids[None] >= 0))
    )
    mean = (longer.weights(1)[:, :n, :n].double()).clone()
    m = three_runs[2].length
    mean[:, :m, :m] = (mean[:, :m, :m] + three_runs[2].weights(1)) / 2
    new = {
        "uniform": torch.full((n, n), 1 / n),
        "first token": torch.eye(n)[[0]].expand(n, n),
        "frozen": edits.weights_of(frozen.calls[1], range(3))[0, 2],
        "mean": (mean / mean.sum(-1, keepdim=True))[2],
    }
    for edit, weights in new.items():
        changed = clean.weights(1).clone()
        changed[2] = weights
        expected = tvd(whole_pass(clean, {1: changed}), clean.outcome).item()
        assert frame.loc[edit, "tvd"] == pytest.approx(expected, abs=1e-9), edit


def test_without_other_texts_mean_and_frozen_weights_are_undefined(three_runs):
    frame = replacement.replacements(three_runs[0], Scope(0, 0)).set_index("edit")
    assert frame["tvd"].isna().to_dict() == {
        "uniform": False,
        "mean": True,
        "zero": False,
        "first token": False,
        "frozen": True,
    }


def test_replacements_in_all_layers_run_together_as_they_do_alone(three_runs, monkeypatch):
    together = replacement.replacements(three_runs[0], Scope(), three_runs[1:])
    monkeypatch.setattr(runs, "TOKENS", 1)
    alone = replacement.replacements(three_runs[0], Scope(), three_runs[1:])
    pd.testing.assert_frame_equal(together, alone, rtol=1e-9, atol=1e-12)


def summary_of(values):
    return pd.DataFrame(
        [{"layer": 0, "head": h, "text": t, "median": v} for (h, t), v in values.items()]
    )


def replaced_of(values):
    return pd.DataFrame(
        [
            {"layer": 0, "head": h, "text": t, "edit": edit, "tvd": v}
            for (h, t), v in values.items()
            for edit in ("zero", "uniform")
        ]
    )


def test_the_ratio_is_of_means_and_ranked_among_the_other_heads():
    medians = {(0, 0): 0.1, (0, 1): 0.3, (1, 0): 0.2, (1, 1): 0.2, (2, 0): 0.0, (2, 1): 0.0}
    ablations = {(0, 0): 0.1, (0, 1): 0.1, (1, 0): 0.4, (1, 1): 0.4, (2, 0): 0.0, (2, 1): 0.0}
    frame = permutation.ratios(summary_of(medians), replaced_of(ablations)).set_index("head")
    assert frame["ratio"].tolist()[:2] == pytest.approx([2.0, 0.5])
    assert math.isnan(frame.loc[2, "ratio"])
    assert frame.loc[0, "null_share"] == 1
    assert frame.loc[1, "null_share"] == 0
    assert frame.loc[0, "null_median"] == pytest.approx(0.5)
    assert frame.loc[0, "null_scopes"] == 1
    assert frame["texts"].tolist() == [2, 2, 2]


def test_a_head_alone_has_a_ratio_and_no_null():
    alone = {(0, text): 0.3 for text in range(2)}
    row = permutation.ratios(summary_of(alone), replaced_of(alone)).iloc[0]
    assert row["ratio"] == pytest.approx(1.0)
    assert row["null_scopes"] == 0
    assert row[["null_low", "null_median", "null_high", "null_share"]].isna().all()


def test_the_null_is_of_other_heads_drawn_by_the_seed(tiny_model):
    loaded = tiny_model("gpt2")
    drawn = permutation.other_scopes(loaded, Scope(1, 2), 6, 0)
    assert len(set(drawn)) == 6
    assert Scope(1, 2) not in drawn
    assert drawn == permutation.other_scopes(loaded, Scope(1, 2), 6, 0)
    assert drawn != permutation.other_scopes(loaded, Scope(1, 2), 6, 1)
    assert permutation.other_scopes(loaded, Scope(1), 9, 0) == [Scope(0), Scope(2)]
    assert permutation.other_scopes(loaded, Scope(), 9, 0) == []
    with pytest.raises(BadInput, match="-3 other heads"):
        permutation.other_scopes(loaded, Scope(1, 2), -3, 0)


def test_peaks_fall_into_the_papers_four_bins():
    assert permutation.peak_bin(np.array([0.1, 0.25, 0.6, 1.0, math.nan])) == [
        "0–0.25",
        "0.25–0.5",
        "0.5–0.75",
        "0.75–1",
        "undefined",
    ]


@pytest.mark.parametrize(
    ("scope", "message"),
    [
        (Scope(9, 0), "layer 9 came"),
        (Scope(0, 9), "head 9 came"),
        (Scope(None, 1), "without a layer"),
        (Scope(0, 0, "some"), "rows 'some'"),
    ],
)
def test_a_scope_that_the_model_does_not_have_is_refused(tiny_model, scope, message):
    with pytest.raises(BadInput, match=message):
        scope.checked(tiny_model("gpt2"))


def test_a_pooled_read_out_has_no_row_to_edit_alone(tiny_model):
    clean = runs.clean_run(reader_of(tiny_model("bert")), TEXT)
    with pytest.raises(BadInput, match="no row of its own"):
        runs.effects(clean, Scope(0, 0, READOUT_ROW), lambda part: edits.uniform, 1)


def test_a_read_out_with_several_runs_of_a_text_is_refused(tiny_model):
    each = readout.masked_token(tiny_model("bert-mlm"), each=True)
    with pytest.raises(BadInput, match="runs a text 6 times"):
        runs.clean_run(each, "the cat sat on the mat")
