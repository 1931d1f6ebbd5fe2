"""Read-outs against the model's own full output, in plain, resumed and differentiated runs."""

from dataclasses import replace

import pytest
import tiny
import torch
from transformers import DistilBertForSequenceClassification, GPT2ForSequenceClassification

import attnprobe as ap
from attnprobe import capture, readout
from attnprobe.data import LabelledText
from attnprobe.errors import BadInput
from attnprobe.readout import Examples, score
from attnprobe.readout.watched import mean_pooled
from attnprobe.text import Batch

TEXTS = ["the cat sat on the mat", "a dog", "zebra apple mango because it was tired and then ran"]
SENTENCES = {"pets": "the cat and a dog", "fruit": "a mango and an apple", "rest": "it was tired"}
LANGUAGE = ["bert-mlm", "gpt2", "roberta", "distilbert", "electra"]
KINDS = [*LANGUAGE, "bert-classifier", "bert"]
LIMIT = 2e-5


def of(model, **options) -> readout.ReadOut:
    if model.head_kind == "bare encoder":
        return readout.label_sentences(model, SENTENCES, **options)
    return readout.default(model)


def left_padded(examples: Examples) -> Examples:
    """The same examples with their padding moved to the left."""
    batch = examples.batch
    shift = (~batch.mask).sum(1)
    width = batch.ids.shape[1]
    source = (torch.arange(width) - shift[:, None]) % width
    moved = replace(batch, ids=batch.ids.gather(1, source), mask=batch.mask.gather(1, source))
    return replace(examples, batch=moved, column=examples.column + shift[examples.row])


def test_every_read_out_has_the_name_that_captions_and_errors_print(tiny_model):
    names = {kind: of(tiny_model(kind)).name for kind in ("gpt2", "bert-mlm", "bert-classifier")}
    assert names == {"gpt2": "next token", "bert-mlm": "masked token", "bert-classifier": "class"}
    assert of(tiny_model("bert")).name == "label sentences"


def test_a_read_out_states_how_it_reads(tiny_model):
    causal, masked = tiny_model("gpt2"), tiny_model("bert-mlm")
    stated = [
        readout.next_token(causal, begin=True),
        readout.next_token(causal, where="last"),
        readout.masked_token(masked, share=0.25, seed=3),
        readout.masked_token(masked, each=True),
        readout.classes(tiny_model("bert-classifier")),
    ]
    assert [read.statement for read in stated] == [
        "next token at every position, begin-of-text token first",
        "next token after the last token",
        "masked token, 25% of the tokens at once, seed 3",
        "masked token, one at a time",
        "class by the model's own head over 4 classes",
    ]


def test_a_text_of_one_token_has_no_next_one_and_the_sentence_says_what_to_do(tiny_model):
    read = readout.next_token(tiny_model("gpt2"))
    ways_out = r"single token and has no next one; lengthen it or begin with the begin-of-text"
    with pytest.raises(BadInput, match=ways_out):
        read.prepare([LabelledText("a")])


@pytest.mark.parametrize("kind", KINDS)
def test_a_read_out_is_the_model_s_own_output_at_its_spots(tiny_model, kind):
    model = tiny_model(kind)
    read = of(model)
    examples = read.prepare(TEXTS)
    found = read.log_probabilities(examples)
    output = model.forward(examples.batch).float()
    if kind in LANGUAGE:
        expected = output[examples.row, examples.column].log_softmax(-1)
    elif kind == "bert-classifier":
        expected = output.log_softmax(-1)
    else:
        texts = torch.stack([model.forward(model.batch(model.read(t)))[0].mean(0) for t in TEXTS])
        anchors = [model.forward(model.batch(model.read(s)))[0].mean(0) for s in SENTENCES.values()]
        cosine = torch.cosine_similarity(texts[:, None], torch.stack(anchors)[None], dim=-1)
        expected = (cosine / readout.TEMPERATURE).log_softmax(-1)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=LIMIT, rtol=LIMIT)
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(len(found)))


@pytest.mark.parametrize("kind", KINDS)
def test_padding_never_changes_a_loss(tiny_model, kind):
    read = of(tiny_model(kind))
    together = read.prepare(TEXTS)
    base = read.log_probabilities(together)
    target = base.argmin(-1)
    together = replace(together, target=target)
    losses = score(read, base, together).loss
    for number, text in enumerate(TEXTS):
        alone = read.prepare([text])
        alone = replace(alone, target=target[together.text == number])
        single = score(read, read.log_probabilities(alone), alone).loss[0]
        torch.testing.assert_close(single, losses[number], atol=LIMIT, rtol=LIMIT)


def test_left_padding_of_gpt2_gives_the_numbers_of_right_padding(tiny_model):
    read = of(tiny_model("gpt2"))
    right = read.prepare(TEXTS)
    left = left_padded(right)
    assert not torch.equal(left.batch.mask, right.batch.mask)
    torch.testing.assert_close(
        read.log_probabilities(left), read.log_probabilities(right), atol=LIMIT, rtol=LIMIT
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_read_out_resumed_at_any_layer_gives_the_full_run_for_every_variant(tiny_model, kind):
    model = tiny_model(kind)
    read = of(model)
    examples, hidden, contexts = read.prepare(TEXTS), [], []

    def keep(call):
        contexts.append(call.context())

    with capture.watching(keep, keep=hidden):
        full = read.log_probabilities(examples)
    for layer in range(model.n_layers):
        given = contexts[layer].transpose(1, 2).flatten(2).repeat(3, 1, 1)
        for more in ({}, {"contexts": given}):
            with capture.watching(start=layer, hidden=hidden[layer].repeat(3, 1, 1), **more):
                found = read.log_probabilities(examples.repeat(3))
            torch.testing.assert_close(found, full.repeat(3, 1), atol=LIMIT, rtol=LIMIT)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_of_a_gate_through_a_read_out_is_its_central_difference(tiny_model, kind):
    model = tiny_model(kind, "float64")
    read = of(model)
    examples = read.prepare(TEXTS)
    target = torch.zeros(len(examples.row), dtype=torch.long)
    examples = replace(examples, target=target)

    def loss(gates):
        with capture.watching(capture.gate(gates)):
            return score(read, read.log_probabilities(examples), examples).loss.sum()

    ones = torch.ones(model.n_layers, model.n_heads, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(loss(ones.requires_grad_()), ones)
    for layer in range(model.n_layers):
        step = torch.zeros_like(ones)
        step[layer, 1] = 1e-5
        difference = (loss(ones.detach() + step) - loss(ones.detach() - step)) / 2e-5
        assert gradient[layer, 1].item() == pytest.approx(difference.item(), abs=1e-7, rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "make"),
    [("gpt2", GPT2ForSequenceClassification), ("distilbert", DistilBertForSequenceClassification)],
)
def test_classifiers_of_other_families_are_read_where_their_own_head_reads(tmp_path, kind, make):
    config = tiny.KINDS[kind]()[0].config
    config.num_labels, config.pad_token_id = 4, 0
    tokenizer = tiny.KINDS[kind]()[1]
    folder = tiny.save_model(tmp_path / kind, make(config), tokenizer)
    model = ap.load(str(folder), device="cpu")
    read = readout.default(model)
    found = torch.cat([read.log_probabilities(read.prepare([text])) for text in TEXTS])
    single = [model.forward(model.batch(model.read(text))).log_softmax(-1) for text in TEXTS]
    torch.testing.assert_close(found, torch.cat(single), atol=LIMIT, rtol=LIMIT)


def test_next_token_targets_are_the_following_tokens_of_each_text(tiny_model):
    model = tiny_model("gpt2")
    read = readout.next_token(model)
    examples = read.prepare(TEXTS)
    for number, text in enumerate(TEXTS):
        ids = model.read(text).ids
        assert examples.target[examples.text == number].tolist() == list(ids[1:])


def test_with_a_begin_token_the_first_token_is_predicted_too(tiny_model):
    model = tiny_model("gpt2")
    examples = readout.next_token(model, begin=True).prepare(["cat"])
    assert examples.target.tolist() == list(model.read("cat").ids)


def test_after_the_text_there_is_one_spot_without_a_target(tiny_model):
    model = tiny_model("gpt2")
    read = readout.next_token(model, where="last")
    examples = read.prepare(TEXTS)
    assert examples.target is None
    assert examples.column.tolist() == [len(model.read(t)) - 1 for t in TEXTS]
    assert left_padded(examples).column.unique().numel() == 1


@pytest.mark.parametrize(("kind", "part"), [("gpt2", "mlp"), ("bert-classifier", "intermediate")])
def test_the_last_layer_is_computed_at_the_read_positions_only(kind, part, tiny_model):
    model = tiny_model(kind)
    read = readout.next_token(model, where="last") if model.causal else readout.default(model)
    examples, widths = read.prepare(TEXTS), []
    hooks = [
        getattr(layer, part).register_forward_pre_hook(
            lambda module, inputs: widths.append(inputs[0].shape[1])
        )
        for layer in model.family.layer_list(model.model)
    ]
    read.log_probabilities(examples)
    for hook in hooks:
        hook.remove()
    assert widths == [examples.batch.ids.shape[1]] * (model.n_layers - 1) + [1]


def test_the_masked_share_is_masked_the_same_way_every_time_and_only_content(tiny_model):
    model = tiny_model("bert-mlm")
    read = readout.masked_token(model, share=0.3, seed=4)
    first, again = read.prepare(TEXTS), read.prepare(TEXTS)
    assert torch.equal(first.batch.ids, again.batch.ids)
    mask_id = model.reader.tokenizer.mask_token_id
    for number, text in enumerate(TEXTS):
        tokens = model.read(text)
        content = sum(not s for s in tokens.special)
        mine = first.text == number
        assert int(mine.sum()) == max(1, round(0.3 * content))
        for column, target in zip(first.column[mine], first.target[mine], strict=True):
            assert tokens.ids[column] == target
            assert not tokens.special[column]
            assert first.batch.ids[number, column] == mask_id
    other = readout.masked_token(model, share=0.3, seed=5).prepare(TEXTS)
    assert not torch.equal(first.batch.ids, other.batch.ids)


def test_texts_of_the_same_length_are_masked_in_different_places(tiny_model):
    texts = [f"the {a} sat on the {b}" for a in ("cat", "dog", "mango") for b in ("mat", "zebra")]
    found = readout.masked_token(tiny_model("bert-mlm"), share=0.34, seed=4).prepare(texts)
    places = {tuple(found.column[found.text == n].tolist()) for n in range(len(texts))}
    assert {len(place) for place in places} == {2}
    assert len(places) > 2


def test_one_at_a_time_masks_every_content_token_once_in_its_own_row(tiny_model):
    model = tiny_model("bert-mlm")
    examples = readout.masked_token(model, each=True).prepare(TEXTS)
    mask_id = model.reader.tokenizer.mask_token_id
    assert (examples.batch.ids == mask_id).sum(1).tolist() == [1] * len(examples.row)
    assert torch.bincount(examples.text).tolist() == [len(model.read(t)) - 2 for t in TEXTS]
    assert torch.equal(examples.text_of_row, examples.text)


def test_labels_are_class_names_or_numbers(tiny_model):
    read = readout.classes(tiny_model("bert-classifier"))
    named = read.prepare([LabelledText("a cat", "LABEL_2"), LabelledText("a dog", "1")])
    assert named.target.tolist() == [2, 1]
    with pytest.raises(BadInput, match="label 'blue'"):
        read.prepare([LabelledText("a cat", "blue")])


def test_loss_is_minus_log_probability_and_accuracy_counts_hits(tiny_model):
    read = readout.label_sentences(tiny_model("bert"), SENTENCES)
    examples = read.prepare([LabelledText(t, "fruit") for t in TEXTS])
    read_out = torch.tensor([[0.2, 0.7, 0.1], [0.5, 0.25, 0.25], [0.1, 0.6, 0.3]]).log()
    scores = score(read, read_out, examples)
    torch.testing.assert_close(scores.loss, -torch.tensor([0.7, 0.25, 0.6]).log())
    assert scores.right.tolist() == [1, 0, 1]
    assert scores.metric_name == "accuracy"
    assert scores.metric.item() == pytest.approx(2 / 3)


def test_without_labels_the_loss_is_the_divergence_from_the_unedited_model(tiny_model):
    read = readout.label_sentences(tiny_model("bert"), SENTENCES)
    examples = read.prepare(TEXTS[:1])
    base = torch.tensor([[0.5, 0.5, 0.0]]).log()
    edited = torch.tensor([[0.25, 0.5, 0.25]]).log()
    scores = score(read, edited, examples, base)
    assert scores.metric_name == "agreement"
    assert scores.loss.item() == pytest.approx(0.5 * torch.log(torch.tensor(2.0)).item())
    assert score(read, base, examples, base).loss.item() == 0
    with pytest.raises(BadInput, match="unedited"):
        score(read, edited, examples)


def test_perplexity_weighs_texts_by_their_spots(tiny_model):
    read = readout.next_token(tiny_model("gpt2"))
    examples = read.prepare(TEXTS)
    scores = score(read, read.log_probabilities(examples), examples)
    every = -read.log_probabilities(examples).gather(1, examples.target[:, None]).mean()
    assert scores.metric_name == "perplexity"
    assert scores.metric.item() == pytest.approx(every.exp().item(), rel=1e-5)


def test_a_bfloat16_model_gives_float32_distributions_that_sum_to_one(tiny_model):
    read = of(tiny_model("bert-mlm", "bfloat16"))
    found = read.distribution(read.prepare(TEXTS))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.sum(-1), torch.ones(len(found)))


def test_a_read_out_that_the_model_has_not_is_refused_with_what_it_has(tiny_model):
    with pytest.raises(BadInput, match=r"needs a causal LM model and .* is a masked LM"):
        readout.next_token(tiny_model("bert-mlm"))
    with pytest.raises(BadInput, match="label sentences"):
        readout.default(tiny_model("bert"))
    with pytest.raises(BadInput, match="at least 2"):
        readout.label_sentences(tiny_model("bert"), {"one": "a cat"})
    with pytest.raises(BadInput, match="no text"):
        of(tiny_model("gpt2")).prepare([])


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["sport"], "'sport' has no '='"),
        (["sport ="], "'sport =' has no sentence"),
        (["= This is sport."], "has no label"),
        (["a = one", "a = two"], "the label 'a' has two sentences"),
    ],
)
def test_a_line_that_names_no_label_and_sentence_is_one_sentence(lines, said):
    with pytest.raises(BadInput, match=said):
        readout.sentences_of(lines)


def test_label_sentences_keep_their_order_and_whatever_follows_the_first_sign():
    assert readout.sentences_of([" b = x = y ", "a=z"]) == {"b": "x = y", "a": "z"}


def test_the_fewest_that_are_enough_are_taken(tiny_model):
    two = readout.label_sentences(tiny_model("bert"), {"a": "the cat", "b": "a dog"})
    assert two.log_probabilities(two.prepare(["it ran"])).shape == (1, 2)
    read, loaded = of(tiny_model("gpt2")), tiny_model("gpt2")
    text = "ab"
    assert len(loaded.read(text)) == 2
    assert len(read.log_probabilities(read.prepare([text]))) == 1


def test_two_labels_with_one_sentence_are_refused(tiny_model):
    with pytest.raises(BadInput, match="'a' and 'c' have the same sentence"):
        readout.label_sentences(tiny_model("bert"), {"a": "the cat", "b": "a dog", "c": "the cat"})


def spots_of(rows, text, target=None):
    row, text = torch.tensor(rows), torch.tensor(text)
    ids = torch.arange(6).reshape(2, 3)
    batch = Batch(ids, torch.tensor([[True, True, True], [True, False, False]]))
    target = None if target is None else torch.tensor(target)
    return Examples(batch, row, torch.zeros_like(row), text, target, 2)


def test_what_is_right_is_the_share_of_a_text_s_spots(tiny_model):
    probabilities = torch.tensor([[0.7, 0.3], [0.2, 0.8], [0.9, 0.1], [0.4, 0.6], [0.3, 0.7]])
    examples = spots_of([0, 0, 0, 1, 1], [0, 0, 0, 1, 1], target=[0, 1, 1, 1, 0])
    found = score(readout.next_token(tiny_model("gpt2")), probabilities.log(), examples)
    assert found.right.tolist() == pytest.approx([2 / 3, 1 / 2])
    assert found.spots.tolist() == [3, 2]


def test_pooling_is_the_mean_over_each_row_s_own_real_tokens():
    hidden = torch.arange(12, dtype=torch.float64).reshape(2, 3, 2) ** 2
    pooled = mean_pooled(hidden, spots_of([1, 0], [1, 0]))
    first = [(0 + 4 + 16) / 3, (1 + 9 + 25) / 3]
    assert pooled.tolist() == [pytest.approx([36.0, 49.0]), pytest.approx(first)]


def test_a_class_number_ends_before_the_number_of_classes(tiny_model):
    read = readout.classes(tiny_model("bert-classifier"))
    last = read.prepare([LabelledText("a dog", "3")])
    assert last.target.tolist() == [3]
    with pytest.raises(BadInput, match=r"label '4' .* \(or 0 to 3\)"):
        read.prepare([LabelledText("a dog", "4")])
