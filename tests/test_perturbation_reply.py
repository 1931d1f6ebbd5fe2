"""Variation between checkpoints: none between a model and itself, some between two seeds."""

import math

import pytest
import tiny
import torch

import attnprobe as ap
from attnprobe import readout
from attnprobe.analyses.perturbation import reply
from attnprobe.analyses.perturbation.distances import attainable_jsd, jsd, tvd
from attnprobe.analyses.perturbation.reply import Snapshot, snapshot
from attnprobe.analyses.perturbation.runs import clean_run
from attnprobe.errors import BadInput

TEXT = "the cat sat on the mat"


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """Three trainings of one model, as far as a test can have them: three initialisations."""
    folder = tmp_path_factory.mktemp("seeds")
    return [
        ap.load(str(tiny.save(folder / str(seed), "bert-classifier", seed=seed)), device="cpu")
        for seed in range(3)
    ]


def runs_of(models, text=TEXT):
    return [snapshot(clean_run(readout.classes(model), text)) for model in models]


def test_a_checkpoint_does_not_differ_from_itself(seeds):
    frame = reply.seed_variation(runs_of([seeds[0], seeds[0]]))
    assert (frame["jsd"] == 0).all()
    assert (frame["tvd"] == 0).all()


def test_every_pair_of_checkpoints_is_compared_in_every_head_and_layer(seeds):
    frame = reply.seed_variation(runs_of(seeds))
    assert len(frame) == 3 * (2 * 3 + 2)
    assert set(zip(frame["first"], frame["second"], strict=True)) == {(0, 1), (0, 2), (1, 2)}
    assert (frame["jsd"] > 0).all()
    assert frame["relative_jsd"].between(0, 1).all()


def test_the_distance_of_a_head_is_the_mean_over_its_rows(seeds):
    one, other = runs_of(seeds[:2])
    frame = reply.seed_variation([one, other]).set_index(["layer", "head"])
    mine, theirs = one.weights[1, 2], other.weights[1, 2]
    by_row = torch.stack([jsd(a, b) for a, b in zip(mine, theirs, strict=True)])
    bounds = attainable_jsd(mine, one.valid)
    assert frame.loc[(1, 2), "jsd"] == pytest.approx(by_row.mean().item(), abs=1e-6)
    assert frame.loc[(1, 2), "relative_jsd"] == pytest.approx(
        (by_row.mean() / bounds.mean()).item(), abs=1e-6
    )
    assert frame.loc[(1, 2), "tvd"] == pytest.approx(tvd(one.outcome, other.outcome).item())


def test_rows_that_see_a_single_key_are_not_in_the_mean():
    """The first row of a causal model has no choice: being 0, it would only lower the mean."""
    mine = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])
    theirs = torch.tensor([[1.0, 0.0, 0.0], [0.9, 0.1, 0.0], [0.6, 0.3, 0.1]])
    seen, outcome = torch.ones(3, 3, dtype=torch.bool).tril(), torch.tensor([[0.5, 0.5]])
    frame = reply.seed_variation(
        [
            Snapshot(torch.arange(3), seen, weights[None, None], outcome)
            for weights in (mine, theirs)
        ]
    )
    by_row = [jsd(a, b).item() for a, b in zip(mine[1:], theirs[1:], strict=True)]
    assert frame["jsd"].tolist() == pytest.approx([sum(by_row) / 2] * 2)


def test_the_layers_mean_does_not_depend_on_the_numbering_of_heads(seeds):
    one, other = runs_of(seeds[:2])
    frame = reply.seed_variation([one, other])
    whole = frame[frame["head"].isna() & (frame["layer"] == 0)]["jsd"].item()
    turned = other.weights[0, [2, 0, 1]].mean(0)
    assert whole == pytest.approx(jsd(one.weights[0].mean(0), turned).mean().item(), abs=1e-6)


def test_one_checkpoint_is_not_enough(seeds):
    with pytest.raises(BadInput, match="at least two"):
        reply.same_kind(seeds[:1])


def test_different_architectures_are_refused(seeds, tiny_model):
    reply.same_kind(seeds)
    with pytest.raises(BadInput, match="differ in architecture"):
        reply.same_kind([seeds[0], tiny_model("gpt2")])


def test_different_tokens_are_refused(seeds):
    runs = runs_of(seeds[:1]) + runs_of(seeds[1:2], "the cat")
    with pytest.raises(BadInput, match="different tokens"):
        reply.seed_variation(runs)


def test_a_text_of_one_token_has_undefined_variation(tiny_model):
    reader = readout.next_token(tiny_model("gpt2"), where="last")
    taken = snapshot(clean_run(reader, "a"))
    frame = reply.seed_variation([taken, taken])
    assert all(math.isnan(value) for value in frame["jsd"])


def test_it_is_said_which_of_the_replys_tests_are_not_run():
    assert len(reply.TESTS) == 4
    assert sum("not run here" in said for said in reply.TESTS.values()) == 2
