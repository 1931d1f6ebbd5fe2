"""Scores of head roles on attention patterns made by hand."""

import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM

from attnprobe.analyses.roles import (
    duplicate_token,
    induction,
    induction_profile,
    longest_period,
    previous_token,
    questions,
    repeated_random_tokens,
    role_table,
)
from attnprobe.errors import BadInput

LENGTH = 11


def looks_at(targets: list[int | None]) -> torch.Tensor:
    """One head, [query, key]: all weight on the target; uniform over the past where it is None."""
    weights = torch.tril(torch.ones(len(targets), len(targets)))
    weights /= weights.sum(-1, keepdim=True)
    for query, key in enumerate(targets):
        if key is not None:
            weights[query] = torch.nn.functional.one_hot(torch.tensor(key), len(targets))
    return weights


def one_head(weights: torch.Tensor) -> torch.Tensor:
    return weights[None, None]


def test_a_head_that_looks_back_one_scores_one():
    back = looks_at([0, *range(LENGTH - 1)])
    here = looks_at(list(range(LENGTH)))
    weights = torch.stack([torch.stack([back, here, here]), torch.stack([here, here, back])])
    expected = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    assert torch.equal(previous_token(weights), expected)


def test_a_uniform_causal_head_scores_the_harmonic_mean_as_previous_token_head():
    expected = sum(1 / (query + 1) for query in range(1, LENGTH)) / (LENGTH - 1)
    score = previous_token(one_head(looks_at([None] * LENGTH)))
    torch.testing.assert_close(score, torch.tensor([[expected]]))


def test_a_head_that_looks_at_its_own_token_s_last_occurrence_scores_one_as_duplicate_head():
    ids = torch.tensor([7, 3, 7, 5, 7, 3])
    weights = one_head(looks_at([None, None, 0, None, 2, 1]))
    assert duplicate_token(weights, ids).item() == 1.0
    first_instead_of_last = one_head(looks_at([None, None, 0, None, 0, 1]))
    assert duplicate_token(first_instead_of_last, ids).item() == pytest.approx(2 / 3)


def test_a_head_that_looks_behind_the_last_occurrence_scores_one_as_induction_head():
    ids = torch.tensor([7, 3, 9, 7, 5, 7, 3])
    weights = one_head(looks_at([None, None, None, 1, None, 4, 2]))
    assert induction(weights, ids).item() == 1.0
    assert duplicate_token(weights, ids).item() == 0.0


def test_queries_without_an_earlier_occurrence_do_not_count_as_induction():
    ids = torch.tensor([4, 6, 8, 4, 2])
    right_where_it_counts = one_head(looks_at([0, 0, 0, 1, 0]))
    assert induction(right_where_it_counts, ids).item() == 1.0


def test_a_token_that_follows_itself_is_no_case_of_induction():
    ids = torch.tensor([4, 6, 6, 8, 4])
    assert induction(one_head(looks_at([0, 0, 0, 0, 1])), ids).item() == 1.0


def test_a_text_without_repetition_has_no_induction_score():
    weights = one_head(looks_at([None] * 5))
    assert induction(weights, torch.arange(5)).isnan().all()
    assert duplicate_token(weights, torch.arange(5)).isnan().all()


def test_the_profile_of_a_blurred_head_shows_where_its_weight_is():
    period = 5
    ids = torch.arange(period).repeat(2)
    weights = torch.zeros(2 * period, 2 * period)
    for query in range(period, 2 * period - 2):
        weights[query, query - period + 1] = 0.25
        weights[query, query - period + 3] = 0.75
    profile = induction_profile(one_head(weights), ids, torch.tensor([-1, 0, 2]))[0, 0]
    rows = 3 / 5
    torch.testing.assert_close(profile, torch.tensor([0.0, 0.25 * rows, 0.75 * rows]))


def test_the_profile_leaves_out_keys_before_the_text_and_after_the_query():
    ids = torch.tensor([1, 2, 3, 1, 2])
    weights = one_head(looks_at([None, None, None, 0, 0]))
    profile = induction_profile(weights, ids, torch.tensor([-2, 3]))[0, 0]
    assert profile[0].item() == 1.0
    assert profile[1].isnan()


def test_a_repeat_has_the_same_different_tokens_twice():
    generator = torch.Generator().manual_seed(3)
    ids = repeated_random_tokens(torch.arange(20, 50), 13, generator)
    assert torch.equal(ids[:13], ids[13:])
    assert len(ids[:13].unique()) == 13
    assert ids.min() >= 20
    again = repeated_random_tokens(torch.arange(20, 50), 13, generator)
    assert not torch.equal(ids, again)


def test_the_table_of_a_model_agrees_with_its_eager_attention(tiny_model, tiny_folder):
    loaded = tiny_model("gpt2")
    ids = torch.tensor([[5, 9, 2, 5, 9, 2, 7], [3, 3, 8, 1, 3, 8, 4]])
    eager = AutoModelForCausalLM.from_pretrained(tiny_folder("gpt2"), attn_implementation="eager")
    with torch.no_grad():
        weights = torch.stack(eager.eval()(ids, output_attentions=True).attentions, dim=1)
    table = role_table(loaded, ids)
    assert len(table) == loaded.n_layers * loaded.n_heads
    for row in table.itertuples():
        one, other = weights[:, row.layer, row.head]
        previous = (one.diagonal(-1).mean() + other.diagonal(-1).mean()) / 2
        copied = (one[[3, 4, 5], [1, 2, 3]].mean() + other[[4, 5], [2, 3]].mean()) / 2
        same = (one[[3, 4, 5], [0, 1, 2]].mean() + other[[1, 4, 5], [0, 1, 2]].mean()) / 2
        assert row.previous_token == pytest.approx(previous.item(), abs=1e-6)
        assert row.induction == pytest.approx(copied.item(), abs=1e-6)
        assert row.duplicate_token == pytest.approx(same.item(), abs=1e-6)


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_questions_are_two_equal_halves_of_ordinary_tokens_inside_the_special_ones(
    tiny_model, kind
):
    loaded = tiny_model(kind)
    reader, period = loaded.reader, longest_period(loaded)
    asked = questions(loaded, period=period, sequences=3, seed=5)
    before, after = len(reader.prefix), len(reader.suffix)
    assert asked.shape == (3, before + 2 * period + after)
    content = asked[:, before : before + 2 * period]
    assert torch.equal(content[:, :period], content[:, period:])
    assert not set(content.flatten().tolist()) & set(reader.special_ids)
    for row in asked.tolist():
        assert tuple(row[:before]) == reader.prefix
        assert tuple(row[before + 2 * period :]) == reader.suffix
    with pytest.raises(BadInput, match=f"takes 2 to {period} "):
        questions(loaded, period=period + 1)


def test_progress_gets_the_mean_of_the_sequences_so_far(tiny_model):
    loaded, seen = tiny_model("gpt2"), []
    ids = torch.tensor([[5, 9, 2, 5, 9, 2, 7], [3, 3, 8, 1, 3, 8, 4]])
    role_table(loaded, ids, progress=lambda *step: seen.append(step))
    assert [step[:2] for step in seen] == [(1, 2), (2, 2)]
    pd.testing.assert_frame_equal(seen[0][2], role_table(loaded, ids[:1]))
