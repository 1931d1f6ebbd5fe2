"""Heads that stand out on one text, against weights made by hand."""

import math

import pytest
import torch

import attnprobe as ap
from attnprobe.analyses import standouts as s

ROWS = torch.tensor(
    [[[[0.5, 0.2, 0.3], [0.1, 0.7, 0.2], [0.4, 0.4, 0.2]]]],
)


def test_a_head_on_itself_is_scored_without_the_first_query():
    assert s.self_token(ROWS).item() == pytest.approx((0.7 + 0.2) / 2)


def test_a_head_that_looks_ahead_is_scored_without_the_last_query():
    assert s.next_token(ROWS).item() == pytest.approx((0.2 + 0.2) / 2)


def test_a_head_on_the_first_token_is_scored_without_the_first_query():
    assert s.first_token(ROWS).item() == pytest.approx((0.1 + 0.4) / 2)


def test_a_head_on_the_last_token_is_scored_without_the_last_query():
    assert s.last_token(ROWS).item() == pytest.approx((0.3 + 0.2) / 2)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_the_named_head_has_the_highest_score_of_all(kind, tiny_model):
    loaded = tiny_model(kind)
    trace = ap.trace(loaded, "the cat and the dog")
    frame = s.standouts(trace).set_index("habit")
    ids = torch.tensor(trace.tokens.ids)
    for name, row in frame.iterrows():
        scores = {
            (layer, head): s.HABITS[name].score(trace.weights(layer, head)[None, None], ids).item()
            for layer in range(loaded.n_layers)
            for head in range(loaded.n_heads)
        }
        assert row["score"] == pytest.approx(max(scores.values()), rel=1e-6)
        assert scores[row["layer"], row["head"]] == pytest.approx(row["score"], rel=1e-6)


def test_a_causal_model_is_not_asked_for_what_it_cannot_see(tiny_model):
    frame = s.standouts(ap.trace(tiny_model("gpt2"), "the cat"))
    assert set(frame["habit"]).isdisjoint(s.AHEAD)


def test_a_text_without_repeats_names_no_head_for_them(tiny_model):
    frame = s.standouts(ap.trace(tiny_model("bert"), "the cat sat"))
    assert set(frame["habit"]).isdisjoint({"duplicate_token", "induction"})
    assert not any(math.isnan(score) for score in frame["score"])


def test_one_token_has_no_habits(tiny_model):
    assert s.standouts(ap.trace(tiny_model("gpt2"), "a")).empty
