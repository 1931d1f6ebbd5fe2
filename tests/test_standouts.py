"""Heads that stand out on one text: targets by hand, scores against the other room's functions."""

import pytest
import torch

import attnprobe as ap
from attnprobe.analyses import roles
from attnprobe.analyses.standouts import HABITS, LEAST_QUERIES, standouts

REPEATS = torch.tensor([7, 8, 9, 7, 7, 9])
TARGETS = {
    "previous_token": [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4)],
    "next_token": [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)],
    "self_token": [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)],
    "first_token": [(1, 0), (2, 0), (3, 0), (4, 0), (5, 0)],
    "last_token": [(0, 5), (1, 5), (2, 5), (3, 5), (4, 5)],
    "duplicate_token": [(3, 0), (4, 3), (5, 2)],
    "induction": [(3, 1), (5, 3)],
}
REPEATING = "the cat sat the cat sat the cat"


@pytest.mark.parametrize("name", HABITS)
def test_each_habit_has_the_targets_that_its_name_says(name):
    query, key = HABITS[name].targets(REPEATS)
    assert list(zip(query.tolist(), key.tolist(), strict=True)) == TARGETS[name]


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_the_named_head_has_the_highest_score_of_all(kind, tiny_model):
    loaded = tiny_model(kind)
    trace = ap.trace(loaded, REPEATING)
    frame = standouts(trace).set_index("habit")
    weights = torch.stack(
        [
            torch.stack([trace.weights(layer, head) for head in range(loaded.n_heads)])
            for layer in range(loaded.n_layers)
        ]
    )
    ids = torch.tensor(trace.tokens.ids)
    for name, score in roles.ROLES.items():
        scores, row = score(weights, ids), frame.loc[name]
        assert row["score"] == pytest.approx(scores.max().item(), rel=1e-5)
        here = scores[int(row["layer"]), int(row["head"])].item()
        assert here == pytest.approx(row["score"], rel=1e-5)


def test_the_strongest_comes_first(tiny_model):
    scores = standouts(ap.trace(tiny_model("bert"), REPEATING))["score"].tolist()
    assert scores == sorted(scores, reverse=True)


def test_a_causal_model_is_not_asked_for_what_it_cannot_see(tiny_model):
    found = set(standouts(ap.trace(tiny_model("gpt2"), REPEATING))["habit"])
    assert found == {name for name, habit in HABITS.items() if not habit.ahead}


def test_a_text_with_few_repeats_names_no_head_for_them(tiny_model):
    frame = standouts(ap.trace(tiny_model("bert"), "the cat sat on the mat"))
    assert set(frame["habit"]).isdisjoint({"duplicate_token", "induction"})
    assert (frame["queries"] >= LEAST_QUERIES).all()


def test_one_token_has_no_habits(tiny_model):
    assert standouts(ap.trace(tiny_model("gpt2"), "a")).empty
