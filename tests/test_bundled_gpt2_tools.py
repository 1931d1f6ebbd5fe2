"""The scripts that made the shipped GPT-2: its baseline, its split and how its loss is measured."""

import importlib
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

TOOLS = Path(__file__).parent.parent / "tools"
SIZE = 7


@pytest.fixture(scope="module")
def tool():
    sys.path.insert(0, str(TOOLS))
    yield importlib.import_module
    sys.path.remove(str(TOOLS))


def text(seed, length):
    return np.random.default_rng(seed).choice(SIZE, length, p=np.arange(1, SIZE + 1) / 28)


def kneser_ney(seen, context, token):
    """The same model from its definition, one probability at a time."""
    order = len(context) + 1
    if order == 3:
        counts = Counter(zip(seen, seen[1:], seen[2:], strict=False))
    else:
        trigrams = set(zip(seen, seen[1:], seen[2:], strict=False))
        bigrams = {gram[1:] for gram in trigrams}
        counts = Counter(gram[1:] for gram in (trigrams if order == 2 else bigrams))
    once, twice = (sum(count == n for count in counts.values()) for n in (1, 2))
    discount = once / max(once + 2 * twice, 1)
    here = {gram[-1]: count for gram, count in counts.items() if gram[:-1] == context}
    lower = kneser_ney(seen, context[1:], token) if context else 1 / SIZE
    total = sum(here.values())
    if not total:
        return lower
    return (max(here.get(token, 0) - discount, 0) + discount * len(here) * lower) / total


def test_the_trigram_model_is_kneser_ney_s(tool):
    seen, wanted = text(0, 83), text(1, 31)
    model = tool("trigram").Trigram.trained_on(seen, SIZE)
    triples = list(zip(wanted, wanted[1:], wanted[2:], strict=False))
    expected = [kneser_ney(list(seen), (a, b), c) for a, b, c in triples]
    np.testing.assert_allclose(model.probabilities(wanted), expected, rtol=1e-12)


def test_the_teacher_s_distributions_are_the_trigram_model_s_and_sum_to_one(tool):
    model = tool("trigram").Trigram.trained_on(text(2, 60), SIZE)
    one = model.after_one()
    before, last = (part.ravel() for part in np.meshgrid(np.arange(SIZE), np.arange(SIZE)))
    two = model.after_two(before, last, one)
    for distribution in (one, two):
        np.testing.assert_allclose(distribution.sum(1), 1, rtol=1e-5)
    for row, (a, b) in enumerate(zip(before, last, strict=True)):
        each = [model.probabilities(np.array([a, b, c])).item() for c in range(SIZE)]
        np.testing.assert_allclose(two[row], each, rtol=1e-5)


@pytest.mark.parametrize("length", [5, 8, 13, 21])
def test_every_token_from_the_third_on_is_scored_once(tool, length):
    """Logits that name the token at each place make the loss tell which token was scored."""

    def forward(batch):
        logits = torch.zeros(*batch.ids.shape, 64)
        return logits.scatter(2, batch.ids[..., None], batch.ids[..., None].float())

    ids = torch.arange(1, length + 1)
    fake = SimpleNamespace(max_tokens=8, forward=forward)
    losses = tool("ship_bundled_gpt2").held_out_losses(fake, ids, batch=2)
    previous = F.one_hot(ids[1:-1], 64).float() * ids[1:-1, None]
    torch.testing.assert_close(losses, F.cross_entropy(previous, ids[2:], reduction="none"))


def test_a_document_is_held_out_by_its_name_alone(tool):
    document = tool("bundled_text").Document
    assert document("plays/pericles_gut", "a").held_out
    assert document("plays/pericles_gut", "another text").held_out
    share = np.mean([document(f"some/{number}", "").held_out for number in range(4000)])
    assert share == pytest.approx(1 / 40, abs=4 * (1 / 40 / 4000) ** 0.5)


def test_a_wordnet_line_becomes_words_and_gloss(tool):
    line = '00006 03 a 02 small(p) 0 very_small 1 001 @ 0004 n 0000 | of little size; "a cat"  '
    assert tool("bundled_text")._synset(line) == 'small, very small: of little size; "a cat"'


def test_a_batch_counts_only_what_can_be_known_of_a_repeat(tool):
    recipe = tool("train_bundled_gpt2")
    stream = np.arange(1, 3000, dtype=np.uint16)
    ids, positions, counts = recipe.batch_at(600, stream)
    phase = recipe.phase_at(600)
    for row in range(phase.repeats):
        for place in counts[row].nonzero().flatten().tolist():
            assert ids[row, place + 1] in ids[row, : place + 1]
    assert counts[phase.repeats :, :-1].all()
    assert not counts[:, -1].any()
    assert positions.max() < recipe.POSITIONS
    again = recipe.batch_at(600, stream)
    assert all(torch.equal(*pair) for pair in zip((ids, positions, counts), again, strict=True))


def test_the_starting_weights_look_back_one_and_compare(tool):
    recipe = tool("train_bundled_gpt2")
    line = recipe.heads_line(recipe.fresh_model())
    assert "previous 0.88 (0, 0) induction 0.50 (1, 0)" in line
