"""Rank correlations against counted pairs, importances against texts really changed by hand."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch

from attnprobe import capture, readout
from attnprobe.analyses.perturbation import importance
from attnprobe.analyses.perturbation.agreement import agreement, null_sd, rollout, top_overlap
from attnprobe.analyses.perturbation.distances import tvd
from attnprobe.analyses.perturbation.edits import Scope
from attnprobe.analyses.perturbation.runs import clean_run


def counted_tau(a, b):
    """τ-b by counting every pair."""
    pairs = [
        (np.sign(a[i] - a[j]), np.sign(b[i] - b[j])) for i, j in combinations(range(len(a)), 2)
    ]
    agreeing = sum(x * y for x, y in pairs)
    return agreeing / math.sqrt(sum(x != 0 for x, _ in pairs) * sum(y != 0 for _, y in pairs))


def tau(a, b):
    return agreement(np.array(a, float), np.array(b, float)).tau


def test_tau_of_hand_computed_orders():
    assert tau([1, 2, 3], [1, 2, 3]) == pytest.approx(1)
    assert tau([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert tau([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(2 / 3)
    assert tau([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / math.sqrt(6))


def test_tau_with_ties_equals_counting_every_pair():
    random = np.random.default_rng(0)
    for n in (2, 5, 13, 31):
        a, b = random.integers(0, 5, n), random.integers(0, 3, n)
        if len(set(a)) > 1 and len(set(b)) > 1:
            assert tau(a, b) == pytest.approx(counted_tau(a, b), abs=1e-12)


def test_a_constant_importance_agrees_with_nothing_and_is_undefined():
    found = agreement(np.full(5, 0.2), np.arange(5.0))
    assert math.isnan(found.tau)
    assert math.isnan(found.weighted_tau)
    assert math.isnan(found.top_overlap)


@pytest.mark.parametrize("n", [0, 1])
def test_fewer_than_two_tokens_are_undefined(n):
    assert math.isnan(agreement(np.ones(n), np.ones(n)).tau)


@pytest.mark.parametrize(("n", "expected"), [(5, 0.41), (8, 0.29), (20, 0.16), (100, 0.07)])
def test_the_spread_of_tau_by_chance(n, expected):
    assert null_sd(n) == pytest.approx(expected, abs=5e-3)


def test_the_spread_of_tau_by_chance_is_that_of_shuffled_orders():
    random = np.random.default_rng(1)
    order = np.arange(9)
    drawn = [counted_tau(order, random.permutation(9)) for _ in range(800)]
    assert np.std(drawn) == pytest.approx(null_sd(9), rel=0.1)


def test_the_top_tokens_that_two_importances_share():
    a, b = np.array([9, 8, 7, 1, 0.0]), np.array([9, 0, 7, 8, 1.0])
    assert top_overlap(a, b, 1) == 1
    assert top_overlap(a, b, 2) == pytest.approx(1 / 2)
    assert top_overlap(a, b, 3) == pytest.approx(2 / 3)


def test_ties_at_the_border_of_the_top_count_in_part():
    """Two of three equal tokens: each is in with probability ⅔."""
    a, b = np.array([1.0, 1.0, 1.0]), np.array([3.0, 2.0, 1.0])
    assert top_overlap(a, b, 2) == pytest.approx(2 / 3)


def test_agreeing_on_the_top_and_not_on_the_tail_shows_in_the_weighted_tau():
    random = np.random.default_rng(2)
    a = np.concatenate([[100, 90, 80], random.permutation(47)])
    b = np.concatenate([[100, 90, 80], random.permutation(47)])
    found = agreement(a.astype(float), b.astype(float), top_k=3)
    assert found.top_overlap == 1
    assert found.weighted_tau > found.tau + 0.2


def test_rollout_of_two_layers_by_hand():
    weights = torch.tensor([[[1, 0], [0.5, 0.5]], [[1, 0], [0.2, 0.8]]])
    expected = torch.tensor([[1, 0], [0.325, 0.675]])
    torch.testing.assert_close(rollout(weights)[-1], expected)


def test_rollout_of_uniform_weights_by_hand():
    rolled = rollout(torch.full((2, 3, 3), 1 / 3))[-1]
    expected = torch.full((3, 3), 0.25) + 0.25 * torch.eye(3)
    torch.testing.assert_close(rolled, expected)


def test_rollout_of_looking_at_oneself_is_looking_at_oneself():
    weights = torch.eye(5).repeat(3, 1, 1)
    assert torch.equal(rollout(weights)[-1], torch.eye(5))


def test_rollout_of_causal_weights_stays_causal_and_sums_to_one():
    weights = torch.rand(4, 6, 6, generator=torch.Generator().manual_seed(3)).tril()
    weights = weights / weights.sum(-1, keepdim=True)
    rolled = rollout(weights)
    assert (rolled.triu(1) == 0).all()
    torch.testing.assert_close(rolled.sum(-1), torch.ones(4, 6))


TEXT = "the cat sat on the mat"


@pytest.fixture(scope="module")
def classifier(tiny_model):
    return readout.classes(tiny_model("bert-classifier", "float64"))


def test_a_hidden_token_is_a_text_with_a_mask_in_its_place(classifier):
    run = clean_run(classifier, TEXT)
    found = importance.leave_one_out(run, deleted=False)
    words = TEXT.split()
    for at, _ in enumerate(words):
        text = " ".join([*words[:at], "[MASK]", *words[at + 1 :]])
        changed = clean_run(classifier, text)
        assert found[at + 1] == pytest.approx(tvd(changed.outcome, run.outcome).item(), abs=1e-12)
    assert found[[0, -1]].isnan().all()


def test_a_deleted_token_is_a_text_without_it(classifier):
    run = clean_run(classifier, TEXT)
    found = importance.leave_one_out(run, deleted=True)
    words = TEXT.split()
    for at, _ in enumerate(words):
        changed = clean_run(classifier, " ".join([*words[:at], *words[at + 1 :]]))
        assert found[at + 1] == pytest.approx(tvd(changed.outcome, run.outcome).item(), abs=1e-12)


def test_deleting_before_the_read_out_moves_it_along(tiny_model):
    reader = readout.next_token(tiny_model("gpt2", "float64"), where="last")
    run = clean_run(reader, "abcde")
    found = importance.leave_one_out(run, deleted=True)
    for at in range(5):
        changed = clean_run(reader, "abcde"[:at] + "abcde"[at + 1 :])
        assert found[at] == pytest.approx(tvd(changed.outcome, run.outcome).item(), abs=1e-12)


def test_the_only_token_cannot_be_deleted(classifier):
    assert importance.leave_one_out(clean_run(classifier, "cat"), deleted=True).isnan().all()


def log_decision(run, hidden, watcher=None):
    with torch.no_grad(), capture.watching(watcher, start=0, hidden=hidden):
        return importance.decision(run).item()


def slope(run, token, watcher=None, step=1e-5):
    """Central difference of ln p when one token's input grows by a share `step`."""
    values = []
    for sign in (1, -1):
        hidden = run.hidden[0].clone()
        hidden[:, token] *= 1 + sign * step
        values.append(log_decision(run, hidden, watcher))
    return abs(values[0] - values[1]) / (2 * step)


def test_gradient_times_input_is_the_slope_along_the_input(classifier):
    run = clean_run(classifier, TEXT)
    found = importance.gradient_times_input(run, detached=False)
    for token in range(run.length):
        assert found[token] == pytest.approx(slope(run, token), rel=1e-5, abs=1e-9)


def test_detached_gradient_is_the_slope_with_weights_frozen(classifier):
    run = clean_run(classifier, TEXT)
    frozen = [run.weights(layer) for layer in range(run.n_layers)]
    found = importance.gradient_times_input(run, detached=True)
    attached = importance.gradient_times_input(run, detached=False)
    for token in range(run.length):
        expected = slope(run, token, lambda call: frozen[call.layer] @ call.value)
        assert found[token] == pytest.approx(expected, rel=1e-5, abs=1e-9)
    assert not torch.allclose(found, attached, rtol=0.05)


def test_column_means_are_over_the_queries_that_see_the_key(tiny_model):
    run = clean_run(readout.next_token(tiny_model("gpt2"), where="last"), "abcd")
    weights = run.weights(1)[2]
    means = importance.column_mean(run, weights)
    for key in range(4):
        queries = [q for q in range(1, 4) if q >= key]
        assert means[key] == pytest.approx(weights[queries, key].mean().item(), abs=1e-6)


def test_special_tokens_are_left_out_unless_asked_for(classifier):
    run = clean_run(classifier, TEXT)
    *_, others = importance.importances(run)
    scope = Scope(1, 2)
    assert set(importance.agreements(run, scope, others)["n"]) == {6}
    with_specials = importance.agreements(run, scope, others, specials=True)
    by_kind = with_specials.groupby("importance")["n"].max()
    assert by_kind[importance.GRADIENT] == 8
    assert by_kind[importance.HIDDEN] == 6


def test_every_attention_meets_every_importance_and_gradient_meets_leaving_out(classifier):
    run = clean_run(classifier, TEXT)
    *_, others = importance.importances(run)
    frame = importance.agreements(run, Scope(0, 1), others)
    assert len(frame[~frame["yardstick"]]) == 4 * 4
    assert len(frame[frame["yardstick"]]) == 2 * 2


def test_a_pooled_read_out_has_no_row_of_its_own(tiny_model):
    sentences = {"cats": "the cat sat", "dogs": "a dog ran"}
    run = clean_run(readout.label_sentences(tiny_model("bert"), sentences), TEXT)
    assert set(importance.attentions(run, Scope(0, 1))) == {
        "column mean",
        "mean over heads",
        "rollout",
    }


@pytest.mark.parametrize("kind", ["bert-classifier", "gpt2"])
def test_the_read_out_row_is_that_of_the_watched_position(tiny_model, kind):
    loaded = tiny_model(kind)
    run = clean_run(
        readout.next_token(loaded, where="last") if kind == "gpt2" else readout.classes(loaded),
        "the cat sat",
    )
    row = run.length - 1 if kind == "gpt2" else 0
    found = importance.attentions(run, Scope(1, 2))["read-out row"]
    assert torch.equal(found, run.weights(1)[2, row])
