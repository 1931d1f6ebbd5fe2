"""The adversary against cases whose answer is known: nothing at stake, and everything at stake."""

import math
from dataclasses import replace

import pytest
import tiny
import torch
from transformers import BertForSequenceClassification

import attnprobe as ap
from attnprobe import readout
from attnprobe.analyses.perturbation import adversary
from attnprobe.analyses.perturbation.adversary import Settings
from attnprobe.analyses.perturbation.distances import attainable_jsd, jsd, tvd
from attnprobe.analyses.perturbation.edits import READOUT_ROW, Scope
from attnprobe.analyses.perturbation.runs import clean_run, outcomes

TEXT = "the cat sat on it"
QUICK = Settings(restarts=2, steps=30, rate=0.8)


def last(found):
    """The end of a search; None of one that has nothing to look for."""
    return [None, *found][-1]


def linear(values, slope, offset):
    """A two-class output whose logit is slope·(w·values − offset)."""

    def outcome(weights):
        def output(context):
            logit = slope * (context - offset)
            return torch.stack([logit, torch.zeros_like(logit)], -1).softmax(-1)

        return output(weights[:, 0, 0] @ values), output(torch.tensor(offset))

    return outcome


def one_row(*weights):
    real = torch.tensor([[weights]])
    valid = torch.ones(1, len(weights), dtype=torch.bool)
    return real, valid, torch.ones(1, 1, dtype=torch.bool)


def test_with_equal_values_the_adversary_reaches_the_bound_at_no_cost():
    real, valid, influential = one_row(0.5, 0.3, 0.15, 0.05)
    outcome = linear(torch.ones(4), 50.0, 1.0)
    found = last(adversary.search(real, valid, influential, outcome, QUICK))
    assert found.feasible_share == 1
    assert found.tvd.tolist() == pytest.approx([0, 0], abs=1e-5)
    assert found.max_jsd == pytest.approx(found.bound, rel=0.02)


def test_with_everything_hanging_on_one_token_the_adversary_finds_next_to_nothing():
    real, valid, influential = one_row(0.999, 0.0005, 0.0003, 0.0002)
    outcome = linear(torch.tensor([1.0, 0.0, 0.0, 0.0]), 4000.0, 0.999)
    settings = replace(QUICK, steps=120)
    found = last(adversary.search(real, valid, influential, outcome, settings))
    assert found.bound > 0.69
    assert found.max_jsd < 0.01


def test_what_is_found_meets_the_constraint_that_was_optimised():
    real, valid, influential = one_row(0.4, 0.3, 0.2, 0.1)
    outcome = linear(torch.tensor([1.0, -1.0, 0.5, 0.0]), 3.0, 0.2)
    settings = Settings(epsilon=0.02, restarts=3, steps=40, rate=0.2)
    found = last(adversary.search(real, valid, influential, outcome, settings))
    outputs, clean = outcome(found.weights)
    again = tvd(outputs, clean.expand_as(outputs))
    torch.testing.assert_close(again, found.tvd, rtol=1e-4, atol=1e-6)
    assert (found.tvd <= settings.epsilon).all()
    best = jsd(found.weights[found.best, 0, 0], real[0, 0])
    assert found.max_jsd == pytest.approx(best.item())
    assert 0 < found.max_jsd <= found.bound


def test_a_constraint_that_everything_meets_costs_nothing():
    """Within ε nothing is paid for how far an output moves, however much hangs on the weights."""
    real, valid, influential = one_row(0.5, 0.3, 0.15, 0.05)
    outcome = linear(torch.tensor([1.0, -1.0, 0.5, 0.0]), 3.0, 0.2)
    free = Settings(epsilon=0.999, restarts=2, steps=60, rate=0.8)
    found = last(adversary.search(real, valid, influential, outcome, free))
    assert found.feasible_share == 1
    assert found.max_jsd == pytest.approx(found.bound, rel=0.02)


def test_an_impossible_constraint_leaves_the_real_weights_and_says_so():
    real, valid, influential = one_row(0.7, 0.2, 0.1)
    outcome = linear(torch.tensor([1.0, 0.0, -1.0]), 1.0, -5.0)

    def elsewhere(weights):
        return outcome(weights)[0], torch.tensor([0.0, 1.0])

    found = last(
        adversary.search(real, valid, influential, elsewhere, replace(QUICK, epsilon=1e-4))
    )
    assert found.feasible_share == 0
    assert found.max_jsd == 0
    assert torch.equal(found.weights, real.expand_as(found.weights))


def test_only_influential_rows_are_changed_and_counted():
    real = torch.full((1, 2, 3), 1 / 3)
    valid = torch.ones(2, 3, dtype=torch.bool)
    influential = torch.tensor([[True, False]])
    found = last(adversary.search(real, valid, influential, linear(torch.ones(3), 1.0, 1.0), QUICK))
    assert torch.equal(found.weights[:, :, 1], real[:, 1].expand_as(found.weights[:, :, 1]))
    assert found.bound == pytest.approx(attainable_jsd(real[0, 0], valid[0]).item())
    assert found.rows == 1


def test_a_seed_determines_the_search():
    real, valid, influential = one_row(0.4, 0.3, 0.2, 0.1)
    outcome = linear(torch.tensor([1.0, -1.0, 0.5, 0.0]), 3.0, 0.2)
    first, same, other = (
        last(adversary.search(real, valid, influential, outcome, replace(QUICK, seed=seed)))
        for seed in (0, 0, 1)
    )
    assert torch.equal(first.weights, same.weights)
    assert not torch.equal(first.weights, other.weights)


@pytest.fixture(scope="module")
def classifier_run(tiny_model):
    return clean_run(readout.classes(tiny_model("bert-classifier")), TEXT)


@pytest.fixture(scope="module")
def gpt2_run(tiny_model):
    return clean_run(readout.next_token(tiny_model("gpt2"), where="last"), "a cat")


def test_only_the_cls_row_of_the_last_layer_has_influence(classifier_run):
    influence = adversary.influence(classifier_run)
    assert influence[:-1].all()
    assert influence[-1, :, 0].all()
    assert not influence[-1, :, 1:].any()


def test_only_the_last_row_of_the_last_causal_layer_has_influence(gpt2_run):
    influence = adversary.influence(gpt2_run)
    assert influence[-1, :, -1].all()
    assert not influence[-1, :, :-1].any()


@pytest.mark.parametrize("scope", [Scope(1, 2), Scope(0), Scope(), Scope(0, 1, READOUT_ROW)])
def test_the_adversarial_weights_really_give_that_output(classifier_run, scope):
    settings = Settings(epsilon=0.05, restarts=2, steps=5, rate=0.5)
    found = last(adversary.adversarial(classifier_run, scope, settings))
    heads = scope.heads(scope.first_layer, 3)

    def rule(rows):
        at = (rows.layer - scope.first_layer) * len(heads)
        return found.weights[:, at : at + len(heads)]

    with torch.no_grad():
        again = outcomes(classifier_run, scope, rule, 2)
    distance = tvd(again[1:], again[:1]).mean(-1)
    torch.testing.assert_close(distance, found.tvd, rtol=1e-3, atol=1e-5)
    assert (found.tvd <= settings.epsilon).all()


def test_causal_adversaries_put_nothing_on_later_keys(gpt2_run):
    found = last(adversary.adversarial(gpt2_run, Scope(0), replace(QUICK, steps=5)))
    assert (found.weights.masked_select(~gpt2_run.valid) == 0).all()
    torch.testing.assert_close(found.weights.sum(-1), torch.ones(found.weights.shape[:-1]))


def test_without_value_weights_every_head_has_an_adversary_at_its_bound(tmp_path):
    torch.manual_seed(5)
    model = BertForSequenceClassification(tiny.bert_config(num_labels=3))
    folder = tiny.save_model(tmp_path / "valueless", model, tiny.wordpiece())
    with torch.no_grad():
        model.bert.encoder.layer[1].attention.self.value.weight.zero_()
    model.save_pretrained(folder)
    run = clean_run(readout.classes(ap.load(str(folder), device="cpu")), TEXT)
    found = last(adversary.adversarial(run, Scope(1, 0), QUICK))
    assert found.rows == 1
    assert found.tvd.tolist() == [0, 0]
    assert found.max_jsd > 0.97 * found.bound


def test_a_scope_without_any_influence_is_undefined(tiny_model):
    """A single letter has a single key, so there is nothing to choose."""
    run = clean_run(readout.next_token(tiny_model("gpt2"), where="last"), "a")
    found = last(adversary.adversarial(run, Scope(0, 0), QUICK))
    assert found is None
    row = adversary.adversary_row(found, QUICK)
    assert math.isnan(row["max_jsd"])
    assert row["influential_rows"] == 0


def test_what_is_found_on_the_way_is_what_a_search_of_so_few_steps_finds():
    real, valid, influential = one_row(0.4, 0.3, 0.2, 0.1)
    outcome = linear(torch.tensor([1.0, -1.0, 0.5, 0.0]), 3.0, 0.2)
    settings = Settings(epsilon=0.02, restarts=3, steps=40, rate=0.2)
    best = 0.0
    for found in adversary.search(real, valid, influential, outcome, settings):
        assert found.max_jsd >= best
        best = found.max_jsd
        if found.steps in (1, 7, 40):
            short = replace(settings, steps=found.steps)
            alone = last(adversary.search(real, valid, influential, outcome, short))
            assert alone.steps == found.steps
            for name in ("weights", "jsd", "tvd", "feasible"):
                assert torch.equal(getattr(found, name), getattr(alone, name)), (found.steps, name)
    assert found.steps == 40
    assert best > 0


def test_the_row_of_a_search_gives_its_divergence_as_a_share_of_the_bound():
    real, valid, influential = one_row(0.4, 0.3, 0.2, 0.1)
    outcome = linear(torch.tensor([1.0, -1.0, 0.5, 0.0]), 3.0, 0.2)
    found = last(adversary.search(real, valid, influential, outcome, QUICK))
    row = adversary.adversary_row(found, QUICK)
    assert row["relative_jsd"] == pytest.approx(row["max_jsd"] / found.bound)
    assert 0 < row["relative_jsd"] <= 1


def test_a_stopped_search_says_how_far_it_came():
    settings = Settings(restarts=3, steps=40)
    assert settings.after(40) == settings.statement
    assert settings.after(7).startswith("3 restarts of 7 steps (stopped, 40 were asked for), ")


def test_a_search_can_be_stopped_between_layers(classifier_run):
    steps = []

    def tick():
        steps.append(1)
        if len(steps) == 4:
            raise ap.errors.Stopped("stopped")

    with pytest.raises(ap.errors.Stopped):
        last(adversary.adversarial(classifier_run, Scope(0, 0), QUICK, tick))
    assert len(steps) == 4
