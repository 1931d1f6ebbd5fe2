"""Head pruning: importance, single-head effects, curves, against definitions and brute force."""

from dataclasses import replace

import pandas as pd
import pytest
import torch

import attnprobe as ap
from attnprobe import capture, readout
from attnprobe.analyses import ablation, sweeps
from attnprobe.analyses.frames import heads_as_tensor
from attnprobe.analyses.pruning import cost, curve, effects, importance, ranking
from attnprobe.data import LabelledText, TextSet
from attnprobe.errors import BadInput, Stopped
from attnprobe.readout import score

WORDS = [
    "the cat sat on the mat",
    "a dog",
    "zebra apple mango because it was tired and then ran",
    "it was a mango",
    "then came the zebra on a mat",
]
LABELS = ["0", "1", "2", "3", "1"]
TEXTS = TextSet(
    "five", tuple(LabelledText(w, label) for w, label in zip(WORDS, LABELS, strict=True))
)
PLAIN = TextSet("five, no labels", tuple(map(LabelledText, WORDS)))
KINDS = ["bert-mlm", "bert-classifier", "gpt2", "distilbert"]


def texts_for(kind):
    return TEXTS if kind == "bert-classifier" else PLAIN


@pytest.fixture(scope="module")
def classifier(tiny_model):
    return readout.default(tiny_model("bert-classifier", "float64"))


def edited_folder(folder, source, edit):
    """A copy of a tiny model with some of its weights changed."""
    loaded = ap.load(str(source), device="cpu")
    model, tokenizer = loaded.model, loaded.reader.tokenizer
    with torch.no_grad():
        edit(model.base_model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return ap.load(str(folder), device="cpu", dtype="float64")


# --- importance


@pytest.mark.parametrize("kind", KINDS)
def test_importance_is_the_mean_absolute_central_difference_of_each_text(tiny_model, kind):
    read = readout.default(tiny_model(kind, "float64"))
    texts = texts_for(kind)
    frame = importance.importance(read, texts, draws=2)
    assert (frame["texts"] == len(texts.texts)).all()
    step = 1e-5
    for layer, head in [(0, 0), (1, 2)]:
        slopes = []
        for text in texts.texts:
            examples = read.prepare([text])
            losses = []
            for value in (1 + step, 1 - step):
                with capture.watching(capture.gate({(layer, head): value})):
                    losses.append(score(read, read.log_probabilities(examples), examples).loss)
            slopes.append(abs(float(losses[0] - losses[1])) / (2 * step))
        row = frame[(frame["layer"] == layer) & (frame["head"] == head)].iloc[0]
        assert row["importance"] == pytest.approx(sum(slopes) / len(slopes), abs=1e-7, rel=1e-5)
        # Means of drawn texts lie between the smallest and the largest text.
        low, high = row["importance_low"], row["importance_high"]
        assert min(slopes) - 1e-6 <= low <= high <= max(slopes) + 1e-6


def test_importance_does_not_depend_on_order_or_batches(classifier, monkeypatch):
    whole = importance.importance(classifier, TEXTS, draws=2)
    backwards = importance.importance(classifier, TEXTS.texts[::-1], draws=2)
    monkeypatch.setattr(sweeps, "TEXT_TOKENS", 1)
    assert len(sweeps.batches(classifier, TEXTS)) == len(TEXTS)
    alone = importance.importance(classifier, TEXTS, draws=2)
    for other in (backwards, alone):
        for column in ("importance", "per_token"):
            assert other[column].to_numpy() == pytest.approx(whole[column].to_numpy(), rel=1e-9)


def test_opposite_gradients_count_and_equal_ones_are_not_accumulated():
    gradients = torch.tensor([1.0, -1.0]).reshape(1, 1, 2, 1)
    assert importance.per_example(gradients).mean().item() == 1
    assert importance.per_example(torch.ones(1, 1, 3, 1)).mean().item() == 1


def test_per_token_is_at_least_per_example_and_equal_for_one_sign():
    gradients = torch.tensor([[0.5, -2.0, 1.0], [1.0, 2.0, 0.0]]).reshape(1, 1, 2, 3)
    assert importance.per_example(gradients).flatten().tolist() == [0.5, 3.0]
    assert importance.per_token(gradients).flatten().tolist() == [3.5, 3.0]


def test_per_token_is_the_absolute_product_of_context_and_its_gradient(classifier):
    examples = classifier.prepare(TEXTS)
    found = importance.gate_gradients(classifier, examples)
    contexts = []

    def hold(call):
        contexts.append(call.context().detach().requires_grad_())
        return contexts[-1]

    for layer in range(classifier.loaded.n_layers):
        contexts.clear()

        def only(call, layer=layer):
            return hold(call) if call.layer == layer else None

        with capture.watching(only):
            loss = score(classifier, classifier.log_probabilities(examples), examples).loss.sum()
        (gradient,) = torch.autograd.grad(loss, contexts[0])
        product = (contexts[0] * gradient).sum(-1).transpose(0, 1)
        torch.testing.assert_close(found[layer], product, atol=1e-12, rtol=1e-9)


def test_padding_has_no_gradient_and_the_last_layer_of_a_classifier_none_off_cls(classifier):
    examples = classifier.prepare(TEXTS)
    gradients = importance.gate_gradients(classifier, examples)
    assert (gradients.transpose(-1, -2)[:, :, ~examples.batch.mask.T] == 0).all()
    assert (gradients[-1, ..., 1:] == 0).all()
    assert (gradients[-1, ..., 0] != 0).any()
    assert (gradients[0, ..., 1:] != 0).any()


def test_texts_masked_one_token_at_a_time_add_up_over_their_runs(tiny_model):
    read = readout.masked_token(tiny_model("bert-mlm", "float64"), each=True)
    examples = read.prepare(WORDS[:2])
    gradients = importance.gate_gradients(read, examples).sum(-1)

    def loss(gates):
        with capture.watching(capture.gate(gates)):
            return score(read, read.log_probabilities(examples), examples).loss

    ones = torch.ones(2, 3, dtype=torch.float64)
    step = torch.zeros_like(ones)
    step[0, 1] = 1e-5
    difference = (loss(ones + step) - loss(ones - step)) / 2e-5
    torch.testing.assert_close(gradients[0, 1], difference.detach(), atol=1e-7, rtol=1e-5)


def test_without_labels_importance_is_of_the_model_s_own_choice_and_not_zero(tiny_model):
    read = readout.default(tiny_model("bert-classifier", "float64"))
    assert importance.loss_name(read, PLAIN) == importance.OWN_CHOICE
    assert importance.loss_name(read, TEXTS) == importance.TARGET
    assert (importance.importance(read, PLAIN, draws=2)["importance"] > 0).all()


def test_a_normed_layer_has_norm_one_and_a_layer_of_zeros_stays_zero():
    normed = importance.l2_per_layer(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    assert normed.tolist() == [[pytest.approx(0.6), pytest.approx(0.8)], [0, 0]]


def test_a_head_without_values_is_unimportant_and_its_ablation_changes_nothing(
    tiny_folder, tmp_path
):
    def silence(model):
        value = model.encoder.layer[1].attention.self.value
        value.weight[7:14], value.bias[7:14] = 0, 0

    model = edited_folder(tmp_path / "silent", tiny_folder("bert-classifier"), silence)
    read = readout.default(model)
    frame = importance.importance(read, TEXTS, draws=2)
    changed = effects.one_head_off(read, TEXTS)
    row = frame[(frame["layer"] == 1) & (frame["head"] == 1)].iloc[0]
    assert row["importance"] == 0
    assert row["per_token"] == 0
    assert changed.loss_change[1, 1].item() == pytest.approx(0, abs=1e-12)
    assert changed.loss_change[1, 0].abs() > 1e-6


def test_duplicate_heads_are_equally_important(tiny_folder, tmp_path):
    def duplicate(model):
        attention = model.encoder.layer[0].attention
        for module in (attention.self.query, attention.self.key, attention.self.value):
            module.weight[14:21], module.bias[14:21] = module.weight[0:7], module.bias[0:7]
        attention.output.dense.weight[:, 14:21] = attention.output.dense.weight[:, 0:7] / 2
        attention.output.dense.weight[:, 0:7] /= 2

    model = edited_folder(tmp_path / "twins", tiny_folder("bert-classifier"), duplicate)
    values = heads_as_tensor(
        importance.importance(readout.default(model), TEXTS, draws=2), "importance"
    )
    assert values[0, 0].item() == pytest.approx(values[0, 2].item(), rel=1e-9)
    assert values[0, 0].item() != pytest.approx(values[0, 1].item(), rel=1e-3)


def test_bootstrap_weights_are_counts_over_n_and_repeat_by_seed():
    weights = importance.resampled(5, 40, 3)
    torch.testing.assert_close(weights.sum(1), torch.ones(40, dtype=torch.float64))
    assert ((weights * 5) % 1 < 1e-12).all()
    assert torch.equal(weights, importance.resampled(5, 40, 3))


# --- single-head effects


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("instead", ["zero", "uniform", "mean"])
def test_one_head_off_equals_full_runs_with_that_head_replaced(tiny_model, kind, instead):
    read = readout.default(tiny_model(kind, "float64"))
    texts = texts_for(kind)
    replaced = ablation.replacement(instead, read, texts)
    found = effects.one_head_off(read, texts, replaced)
    for layer, head in [(0, 1), (1, 0)]:
        for number, text in enumerate(texts.texts):
            examples = read.prepare([text])

            def off(call, layer=layer, head=head):
                context = call.context().clone()
                if call.layer == layer:
                    context[:, head] = replaced(call)[:, head]
                return context

            with capture.watching(off):
                loss = score(read, read.log_probabilities(examples), examples).loss[0]
            assert found.loss[layer, head, number].item() == pytest.approx(
                loss.item(), abs=1e-9, rel=1e-9
            )


def test_uniform_attention_is_the_mean_over_the_keys_a_query_may_see(tiny_model):
    model = tiny_model("gpt2", "float64")
    batch = model.batch([model.read(w) for w in WORDS[:2]])
    calls = []
    with torch.no_grad(), capture.watching(calls.append):
        model.hidden(batch)
    found = ablation.uniform(calls[0])
    assert torch.equal(found[:, :, 0], calls[0].value[:, :, 0])
    torch.testing.assert_close(found[0, :, 4], calls[0].value[0, :, :5].mean(1))


def test_the_mean_context_is_over_real_tokens_of_all_texts(tiny_model):
    read = readout.default(tiny_model("bert-mlm", "float64"))
    replaced = ablation.mean_context(read, PLAIN)
    contexts = []
    for text in WORDS:
        with torch.no_grad(), capture.watching(lambda call: contexts.append(call)):
            read.loaded.hidden(read.prepare([text]).batch)
    mine = torch.cat([call.context()[0] for call in contexts if call.layer == 1], 1)
    torch.testing.assert_close(replaced(contexts[1])[0, :, 0], mine.mean(1))


def test_effects_come_with_a_paired_interval_around_them(classifier):
    found = effects.one_head_off(classifier, TEXTS)
    frame = found.frame(draws=200)
    assert list(frame.columns[:2]) == ["layer", "head"]
    assert (frame["loss_low"] <= frame["loss_change"] + 1e-12).all()
    assert (frame["loss_high"] >= frame["loss_change"] - 1e-12).all()
    assert frame["texts"].unique().tolist() == [5]
    direct = (found.loss - found.base_loss).mean(-1)
    assert torch.equal(heads_as_tensor(frame, "loss_change"), direct)


def test_an_effect_is_significant_where_its_interval_leaves_zero_out():
    low, high = [0.1, -0.1, -0.3, 0.0, -0.2], [0.2, 0.1, -0.1, 0.5, 0.0]
    found = effects.significant(pd.DataFrame({"loss_low": low, "loss_high": high}))
    assert found.tolist() == [True, False, True, False, False]


def test_an_edit_that_changes_nothing_has_an_interval_of_zero_width(classifier):
    found = effects.layer_by_layer(classifier, TEXTS, torch.ones(1, 3))
    limits = found.intervals(draws=50)
    assert all(abs(value).max() < 1e-12 for value in limits.values())


def test_perplexity_change_is_that_of_the_whole_set(tiny_model):
    read = readout.default(tiny_model("gpt2", "float64"))
    found = effects.one_head_off(read, PLAIN)
    examples = read.prepare(PLAIN)
    with capture.watching(capture.gate({(2, 3): 0.0})):
        edited = score(read, read.log_probabilities(examples), examples)
    plain = score(read, read.log_probabilities(examples), examples)
    assert found.metric_change[2, 3].item() == pytest.approx(
        (edited.metric - plain.metric).item(), rel=1e-6
    )


def test_all_but_one_keeps_one_head_and_the_choice_is_made_on_the_scoring_part(classifier):
    scoring, evaluation = TextSet("a", TEXTS.texts[:2]), TextSet("b", TEXTS.texts[2:])
    found = [effects.all_but_one(classifier, part) for part in (scoring, evaluation)]
    examples = classifier.prepare(evaluation)
    with capture.watching(capture.gate({(1, 0): 0.0, (1, 2): 0.0})):
        edited = score(classifier, classifier.log_probabilities(examples), examples)
    torch.testing.assert_close(found[1].loss[1, 1], edited.loss)
    kept = effects.best_to_keep(*found)
    for layer, head in enumerate(kept["head"]):
        assert found[0].loss_change[layer, head] == found[0].loss_change[layer].min()
        assert kept["loss_change"][layer] == found[1].loss_change[layer, head].item()
    assert kept["texts"].unique().tolist() == [3]


def test_transfer_of_a_set_to_itself_is_perfect_and_of_a_constant_is_undefined(classifier):
    found = effects.one_head_off(classifier, TEXTS)
    _, same = effects.transfer(found, found)
    assert same["pearson"] == pytest.approx(1)
    assert same["spearman"] == pytest.approx(1)
    still = replace(found, loss=found.base_loss.expand_as(found.loss))
    assert effects.transfer(found, still)[1]["pearson"] is None


def test_a_stop_keeps_the_finished_texts_and_leaves_the_model_unchanged(classifier, monkeypatch):
    monkeypatch.setattr(sweeps, "TEXT_TOKENS", 1)
    before = classifier.log_probabilities(classifier.prepare(TEXTS))

    def stop(done, total, partial=None):
        if done >= 5:
            raise Stopped("stopped")

    found = effects.one_head_off(classifier, TEXTS, progress=stop)
    assert 0 < len(found.numbers) < len(TEXTS)
    whole = effects.one_head_off(classifier, TEXTS)
    torch.testing.assert_close(found.loss, whole.loss[..., list(found.numbers)])
    went_on = effects.one_head_off(classifier, TEXTS, so_far=found)
    torch.testing.assert_close(went_on.loss, whole.loss)
    assert went_on.numbers == whole.numbers
    assert torch.equal(classifier.log_probabilities(classifier.prepare(TEXTS)), before)
    assert not capture.is_watched()
    assert all(parameter.grad is None for parameter in classifier.loaded.model.parameters())


def test_a_stop_before_anything_is_finished_is_passed_on(classifier):
    def stop(done, total, partial=None):
        raise Stopped("stopped")

    with pytest.raises(Stopped):
        effects.one_head_off(classifier, TEXTS, progress=stop)
    assert not capture.is_watched()


# --- curves


@pytest.mark.parametrize("kind", ["bert-classifier", "gpt2"])
def test_a_curve_begins_at_the_model_as_it_is_and_ends_at_biases_alone(tiny_model, kind):
    read = readout.default(tiny_model(kind, "float64"))
    texts = texts_for(kind)
    heads = read.loaded.n_layers * read.loaded.n_heads
    orders = {"random": curve.random_orders(heads, 2)}
    frame = curve.curve(read, texts, orders, curve.steps(heads))
    examples = read.prepare(texts)
    plain = score(read, read.log_probabilities(examples), examples)
    everything = torch.zeros(read.loaded.n_layers, read.loaded.n_heads, dtype=torch.float64)
    with capture.watching(capture.gate(everything)):
        bare = score(read, read.log_probabilities(examples), examples)
    for _, part in frame.groupby("repeat"):
        assert part["removed"].tolist() == curve.steps(heads)
        assert part["loss"].iloc[0] == pytest.approx(plain.loss.mean().item(), rel=1e-9)
        assert part["value"].iloc[0] == pytest.approx(plain.metric.item(), rel=1e-6)
        assert part["loss"].iloc[-1] == pytest.approx(bare.loss.mean().item(), rel=1e-9)
        assert part["share"].iloc[-1] == 1


def test_every_point_of_a_curve_is_a_masked_run(classifier):
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    frame = curve.curve(classifier, TEXTS, {"mine": [order]}, curve.steps(6, one_by_one=True))
    examples = classifier.prepare(TEXTS)
    for removed in range(7):
        gone = [(int(h) // 3, int(h) % 3) for h in order[:removed]]
        with capture.watching(capture.gate(dict.fromkeys(gone, 0.0))):
            found = score(classifier, classifier.log_probabilities(examples), examples)
        assert frame["loss"][removed] == pytest.approx(found.loss.mean().item(), rel=1e-9)


def test_a_stopped_curve_keeps_its_texts_and_goes_on_where_it_was(classifier, monkeypatch):
    monkeypatch.setattr(sweeps, "TEXT_TOKENS", 1)
    points = curve.points_of({"random": curve.random_orders(6, 3)}, [0, 3, 6], (2, 3))

    def stop(done, total, partial=None):
        if done > total / 2:
            raise Stopped("stopped")

    part = curve.evaluated(classifier, TEXTS, points, progress=stop)
    assert 0 < len(part.numbers) < len(TEXTS)
    assert part.frame(points)["texts"].unique().tolist() == [len(part.numbers)]
    whole = curve.evaluated(classifier, TEXTS, points, so_far=part).frame(points)
    expected = curve.evaluated(classifier, TEXTS, points).frame(points)
    pd.testing.assert_frame_equal(whole, expected)


def test_steps_are_tenths_of_the_heads_or_single_heads():
    assert curve.steps(144)[:4] == [0, 15, 29, 44]
    assert curve.steps(144)[-1] == 144
    assert curve.steps(6) == [0, 1, 2, 3, 4, 5, 6]
    assert curve.steps(3, one_by_one=True) == [0, 1, 2, 3]


def test_an_order_must_name_every_head_once(classifier):
    with pytest.raises(BadInput, match="each of the 6 heads once"):
        curve.curve(classifier, TEXTS, {"bad": [torch.tensor([0, 1, 2, 3, 4, 4])]}, [0, 6])


def test_rescored_order_starts_like_importance_and_names_every_head_once(classifier):
    values = heads_as_tensor(importance.importance(classifier, TEXTS, draws=2), "importance")
    at = curve.steps(6, one_by_one=True)
    order = curve.rescored_order(classifier, TEXTS, at)
    assert order[0] == curve.order_by(values)[0]
    assert sorted(order.tolist()) == list(range(6))
    gates = torch.ones(2, 3)
    gates.view(-1)[order[0]] = 0
    again = importance.measured(classifier, TEXTS, gates=gates)[0].mean(-1).flatten()
    again[order[0]] = torch.inf
    assert order[1] == again.argmin()


def test_the_curve_falls_where_its_metric_first_crosses_the_share():
    frame = pd.DataFrame(
        {
            "order": "a",
            "repeat": 0,
            "removed": [0, 1, 2, 3],
            "share": [0, 1 / 3, 2 / 3, 1],
            "value": [0.8, 0.73, 0.71, 0.9],
            "loss": 0.0,
            "metric": "accuracy",
        }
    )
    assert curve.first_fall(frame, 0.9)["removed"].tolist() == [2]
    assert curve.first_fall(frame, 0.5)["removed"].isna().all()
    worse = frame.assign(value=[10, 11, 12, 9], metric="perplexity")
    assert curve.first_fall(worse, 0.9)["removed"].tolist() == [2]


def test_bands_are_medians_and_quantiles_over_repeats(classifier):
    orders = {"random": curve.random_orders(6, 5)}
    frame = curve.curve(classifier, TEXTS, orders, [0, 3, 6])
    band = curve.bands(frame)
    middle = frame[frame["removed"] == 3]["loss"]
    assert band["loss"][1] == middle.median()
    assert band["loss_low"][1] == pytest.approx(middle.quantile(0.05))
    assert band["loss_high"][0] == pytest.approx(band["loss_low"][0], rel=1e-12)
    assert band["removed"].tolist() == [0, 3, 6]
    assert band["repeats"].unique().tolist() == [5]


def test_the_map_says_when_each_head_goes():
    found = curve.order_map(torch.tensor([4, 0, 5, 2, 1, 3]), 3, [0, 2, 4, 6])
    assert found["place"].tolist() == [2, 5, 4, 6, 1, 3]
    assert found["step"].tolist() == [1, 3, 2, 3, 1, 2]


# --- side by side, and cost


def test_the_table_ranks_heads_and_orders_follow_it(classifier):
    scores = importance.importance(classifier, TEXTS, draws=2)
    frame = ranking.table(scores, effects.one_head_off(classifier, TEXTS).frame(draws=10))
    assert len(frame) == 6
    top = frame.loc[frame["importance_rank"] == 1].iloc[0]
    assert top["importance"] == frame["importance"].max()
    orders = ranking.orders(frame, random=3)
    assert orders["importance"][0][-1] == int(top["layer"]) * 3 + int(top["head"])
    assert torch.equal(orders["reverse"][0].flip(0), orders["importance"][0])
    assert len(orders["random"]) == 3
    assert ranking.agreement(frame.assign(loss_change=frame["importance"])) == pytest.approx(1)
    opposite = frame.assign(loss_change=-frame["importance"])
    assert ranking.agreement(opposite) == pytest.approx(-1)
    assert ranking.agreement(opposite, size=True) == pytest.approx(1)
    assert ranking.agreement(frame.assign(importance=1.0)) is None


def test_the_cost_of_a_sweep_counts_the_layers_that_it_computes(tiny_model):
    model = tiny_model("gpt2")
    assert cost.one_layer_sweep(model) == 1 + 5 * ((2.75 + 1.75 + 0.75) / 3)
    assert cost.curve_passes(20, 11) == 182
    read = readout.default(model)
    frame = cost.estimate(read, {"scoring": PLAIN}, {"one head off": ("scoring", 9.75)})
    assert frame["seconds"][0] > 0
    assert frame["texts"][0] == 5


def test_a_sweep_never_computes_a_lower_layer_or_the_edited_layer_s_attention(tiny_model):
    read = readout.default(tiny_model("gpt2"))
    base = sweeps.unedited(read, read.prepare(PLAIN))
    seen = []

    def look(call):
        seen.append((call.layer, len(call.query)))

    same = base.calls[1].edited
    with capture.watching(look):
        ((numbers, found),) = sweeps.variants(
            base, 1, lambda some: same.expand(len(some), *same.shape), 3
        )
    assert seen == [(2, 15)]
    assert numbers.tolist() == [0, 1, 2]
    expected = base.log_probabilities.expand(3, -1, -1)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)
