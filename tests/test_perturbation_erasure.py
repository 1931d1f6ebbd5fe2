"""Erased keys against masked logits, orders against what they are defined by."""

import math

import numpy as np
import pandas as pd
import pytest
import tiny
import torch
from transformers import BertForSequenceClassification

import attnprobe as ap
from attnprobe import capture, readout
from attnprobe.analyses.perturbation import edits, erasure, runs
from attnprobe.analyses.perturbation.edits import Rows, Scope
from attnprobe.analyses.perturbation.importance import decision
from attnprobe.analyses.perturbation.runs import clean_run

TEXT = "the cat sat on the mat"


def rows_of(weights, valid):
    value = weights.new_zeros(*weights.shape[:2], weights.shape[-1], 1)
    return Rows(0, tuple(range(weights.shape[1])), weights, valid, value)


def random_weights(variants, n, causal, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(variants, 2, n, n, generator=generator, dtype=torch.float64)
    valid = edits.valid_keys(n, causal)
    logits = logits.masked_fill(~valid, -math.inf)
    return logits, logits.softmax(-1), valid


@pytest.mark.parametrize("causal", [False, True])
def test_erasing_and_renormalising_is_masking_the_logits(causal):
    logits, weights, valid = random_weights(3, 6, causal)
    rank = torch.tensor([[2, 0, 1, 3, 5, 4]] * 3)
    count = torch.tensor([1, 2, 4])
    found = edits.erased(rows_of(weights, valid), rank, count)
    for variant in range(3):
        gone = rank[variant] < count[variant]
        for query in range(6):
            left = valid[query] & ~gone
            if left.any():
                expected = logits[variant, :, query].masked_fill(~left, -math.inf).softmax(-1)
                torch.testing.assert_close(found[variant, :, query], expected)


def test_erasing_a_key_without_weight_changes_nothing():
    weights = torch.tensor([[[[0.6, 0.0, 0.4]]]])
    valid = torch.ones(1, 3, dtype=torch.bool)
    rank, count = torch.tensor([[1, 0, 2]]), torch.tensor([1])
    assert torch.equal(edits.erased(rows_of(weights, valid), rank, count), weights)


def test_a_row_keeps_the_last_of_its_keys():
    """In a causal model the first rows run out of keys long before the last."""
    _, weights, valid = random_weights(1, 4, causal=True)
    rank, count = torch.tensor([[0, 1, 2, 3]]), torch.tensor([3])
    found = edits.erased(rows_of(weights, valid), rank, count)
    assert torch.equal(found[0, 0], torch.eye(4, dtype=torch.float64))


def test_what_is_left_without_any_weight_becomes_uniform():
    weights = torch.tensor([[[[1.0, 0.0, 0.0]]]])
    rank, count = torch.tensor([[0, 1, 2]]), torch.tensor([1])
    found = edits.erased(rows_of(weights, torch.ones(1, 3, dtype=torch.bool)), rank, count)
    assert found[0, 0, 0].tolist() == [0, 0.5, 0.5]


@pytest.fixture(scope="module")
def run(tiny_model):
    return clean_run(readout.classes(tiny_model("bert-classifier", "float64")), TEXT)


@pytest.fixture(scope="module")
def causal_run(tiny_model):
    return clean_run(readout.next_token(tiny_model("gpt2", "float64"), where="last"), "a cat")


@pytest.mark.parametrize("name", ["run", "causal_run"])
def test_the_norms_are_those_of_the_values_through_the_heads_part_of_w_o(name, request):
    """Σ over heads and keys of αf(x), plus the bias, is the attention output."""
    clean = request.getfixturevalue(name)
    layer, call = 1, clean.calls[1]
    project = clean.loaded.family.output_projection(clean.loaded.model, layer)
    matrix = project.weight.T if name == "run" else project.weight
    heads = matrix.unflatten(0, (clean.loaded.n_heads, -1))
    mapped = torch.einsum("hkd,hdm->hkm", call.value[0], heads)
    torch.testing.assert_close(erasure.value_norms(clean, layer), mapped.norm(dim=-1))
    summed = torch.einsum("hqk,hkm->qm", clean.weights(layer), mapped) + project.bias
    contexts = call.edited.transpose(1, 2).flatten(2)
    torch.testing.assert_close(summed, project(contexts)[0])


@pytest.mark.parametrize("name", ["run", "causal_run"])
@pytest.mark.parametrize("scope", [Scope(0, 1), Scope(1), Scope()])
def test_the_gradient_order_is_the_slope_of_the_decision(name, scope, request):
    clean = request.getfixturevalue(name)
    found = erasure.weight_gradient(clean, scope)
    for key in (0, clean.length - 1):
        values = [shifted_decision(clean, scope, key, step) for step in (1e-5, -1e-5)]
        assert found[key] == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-4, abs=1e-7)


def shifted_decision(clean, scope, key, step):
    """ln p when every weight in scope on one key is larger by `step`."""

    def watch(call):
        heads = scope.heads(call.layer, call.query.shape[1])
        if not heads:
            return None
        context = call.context().clone()
        more = step * clean.valid[:, [key]].double() * call.value[:, heads, key][:, :, None]
        context[:, heads] = context[:, heads] + more
        return context

    with torch.no_grad(), capture.watching(watch):
        return decision(clean).item()


def test_with_equal_value_norms_attention_and_norm_give_one_order(tmp_path):
    torch.manual_seed(6)
    model = BertForSequenceClassification(tiny.bert_config(num_labels=3))
    folder = tiny.save_model(tmp_path / "valueless", model, tiny.wordpiece())
    with torch.no_grad():
        for layer in model.bert.encoder.layer:
            layer.attention.self.value.weight.zero_()
    model.save_pretrained(folder)
    clean = clean_run(readout.classes(ap.load(str(folder), device="cpu")), TEXT)
    scores = erasure.scores(clean, Scope(1, 2))
    assert torch.equal(scores["attention"].argsort(), scores["norm"].argsort())


def whole(run, scope, erasing):
    """The rows of all orders."""
    *_, (share, frame) = erasure.erasure(run, scope, erasing)
    assert share == 1
    return frame


def test_rows_come_order_by_order_and_finished_ones_do_not_change(run, monkeypatch):
    erasing = erasure.Erasing(random_orders=2)
    at_once = whole(run, Scope(0, 1), erasing)
    monkeypatch.setattr(runs, "TOKENS", 4 * run.length)
    steps = list(erasure.erasure(run, Scope(0, 1), erasing))
    assert [share for share, _ in steps] == [0.2, 0.4, 0.6, 0.8, 1.0]
    for number, (_, frame) in enumerate(steps, start=1):
        assert len(frame) == 5 * number
        expected = at_once.iloc[: 5 * number]
        pd.testing.assert_frame_equal(frame, expected, rtol=1e-9, atol=1e-12)


def test_one_key_always_stays_and_specials_are_never_erased(run):
    frame = whole(run, Scope(), erasure.Erasing(random_orders=3))
    assert set(frame["order"]) == set(erasure.ORDERS)
    assert frame.groupby(["order", "draw"])["removed"].apply(list).map(len).eq(5).all()
    assert frame["removed"].max() == 5
    assert frame["share"].max() == pytest.approx(5 / 6)


def test_erasing_in_order_of_attention_erases_the_most_attended_first(run):
    scope = Scope(0, 1)
    frame = whole(run, scope, erasure.Erasing(random_orders=1))
    first = frame[(frame["order"] == "attention") & (frame["removed"] == 1)]["tvd"].item()
    row = run.weights(0)[1, 0].clone()
    row[[0, -1]] = -1
    key = int(row.argmax())
    weights = run.weights(0).clone()
    weights[1, :, key] = 0
    weights = weights / weights.sum(-1, keepdim=True)
    with (
        torch.no_grad(),
        capture.watching(lambda c: None if c.layer else weights @ c.value),
    ):
        changed = run.readout.distribution(run.examples)
    expected = 0.5 * (changed - run.outcome).abs().sum()
    assert first == pytest.approx(expected.item(), abs=1e-9)


def test_erasing_is_determined_by_the_seed(run):
    frames = [
        whole(run, Scope(), erasure.Erasing(random_orders=2, seed=seed)) for seed in (3, 3, 4)
    ]
    pd.testing.assert_frame_equal(frames[0], frames[1])
    assert not frames[0]["tvd"].equals(frames[2]["tvd"])


def test_a_single_word_has_nothing_to_erase(tiny_model):
    clean = clean_run(readout.classes(tiny_model("bert-classifier")), "cat")
    assert whole(clean, Scope(), erasure.Erasing()).empty


CURVE = pd.DataFrame(
    {
        "text": 0,
        "order": ["attention"] * 4 + ["chance"] * 8,
        "draw": [0] * 8 + [1] * 4,
        "removed": [1, 2, 3, 4] * 3,
        "share": [0.2, 0.4, 0.6, 0.8] * 3,
        "tvd": 0.0,
        "flips": [0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1],
    }
)


def test_the_decision_flips_at_the_first_change_or_never():
    points = erasure.flip_points(CURVE).set_index(["order", "draw"])
    assert points.loc[("attention", 0), "share"] == pytest.approx(0.4)
    assert math.isnan(points.loc[("chance", 0), "share"])
    assert points.loc[("chance", 1), "share"] == pytest.approx(0.8)
    assert points["flipped"].tolist() == [True, False, True]


def test_each_head_of_a_text_has_a_flip_of_its_own():
    two = pd.concat([CURVE.assign(head=0), CURVE.assign(head=1, flips=0)], ignore_index=True)
    flipped = erasure.flip_points(two).groupby("head")["flipped"].sum()
    assert flipped.to_dict() == {0: 2, 1: 0}


def test_the_erasure_curve_counts_what_has_flipped_by_then_and_never_falls():
    curve = erasure.survival(CURVE, points=10)
    shares = curve[curve["order"] == "attention"]["share"]
    assert shares.tolist() == pytest.approx([tenth / 10 for tenth in range(11)])
    by_order = {name: group["flipped"].tolist() for name, group in curve.groupby("order")}
    assert by_order["attention"][:4] == [0, 0, 0, 0]
    assert by_order["attention"][4] == 1
    assert by_order["chance"][-1] == 0.5
    assert all(np.all(np.diff(values) >= 0) for values in by_order.values())


def a_text(tvds, **columns):
    """One order of a text with one key more than there are numbers."""
    share = np.arange(1, len(tvds) + 1) / (len(tvds) + 1)
    return pd.DataFrame({"text": 0, "order": "norm", "share": share, "tvd": tvds} | columns)


def test_a_text_s_movement_starts_at_nothing_and_has_the_shares_that_were_erased():
    frame = pd.concat([a_text([0.3, 0.1]), a_text([0.2, 0.4], order="attention")])
    moved = erasure.movement(frame)
    assert moved["order"].tolist() == ["norm"] * 3 + ["attention"] * 3
    assert moved["share"].tolist() == pytest.approx([0, 1 / 3, 2 / 3] * 2)
    assert moved["tvd"].tolist() == [0, 0.3, 0.1, 0, 0.2, 0.4]


def test_movement_is_the_mean_over_random_orders_and_texts_of_one_length():
    frame = pd.concat([a_text([0.3, 0.1]), a_text([0.1, 0.2]), a_text([0.2, 0.6], text=1)])
    moved = erasure.movement(frame)
    assert moved["share"].tolist() == pytest.approx([0, 1 / 3, 2 / 3])
    assert moved["tvd"].tolist() == pytest.approx([0, 0.2, 0.3])


def test_texts_of_different_lengths_meet_at_the_nearest_step_but_never_at_none_or_all():
    """Of 60 keys the first is a share of 0.017 and the last but one of 0.983."""
    frame = pd.concat([a_text([0.5] * 59), a_text([0.2, 0.4], text=1)])
    moved = erasure.movement(frame)
    assert moved["share"].tolist() == pytest.approx([step / 20 for step in range(20)])
    assert moved["tvd"].iloc[0] == 0
    at = dict(zip(moved["share"].round(2), moved["tvd"], strict=True))
    assert at[0.05] == at[0.95] == 0.5
    counted = [round(20 * k / 60) for k in range(1, 60)].count(7)
    assert at[0.35] == pytest.approx((0.5 * counted + 0.2) / (counted + 1))
