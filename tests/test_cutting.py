"""Heads cut out for good: equal to masked ones, smaller, saved, loaded, still provable."""

import json

import pytest
import torch
from transformers import AutoModel

import attnprobe as ap
from attnprobe import capture, cut_models, readout
from attnprobe.analyses.pruning import savings
from attnprobe.errors import BadInput, UnsupportedModel

TEXTS = ["the cat sat on the mat", "a dog", "zebra apple mango because it was tired"]
KINDS = ["bert", "bert-mlm", "bert-classifier", "gpt2", "roberta", "distilbert", "electra"]
GONE = [(0, 1), (1, 0)]


def everything(model):
    return [(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)]


def whole_layer(model):
    return [(0, head) for head in range(model.n_heads)] + [(1, 1)]


def masked(model, gone, batch):
    with capture.watching(capture.gate(dict.fromkeys(gone, 0.0))):
        return model.forward(batch)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gone", [lambda model: GONE, whole_layer, everything])
def test_a_cut_model_equals_the_masked_one_and_is_smaller_by_its_heads(tiny_model, kind, gone):
    model = tiny_model(kind)
    heads = gone(model)
    cut = cut_models.cut(model, heads)
    batch = model.batch([model.read(text) for text in TEXTS])
    expected = masked(model, heads, batch)
    real = batch.mask if expected.ndim == 3 else ...
    for found in (cut.forward(batch), masked(cut, [], batch)):
        assert (found - expected)[real].abs().max() <= 1e-5
    each = 4 * model.d_model * model.d_head + 3 * model.d_head
    assert model.parameters - cut.parameters == each * len(heads)
    assert cut.removed == set(heads)
    assert savings.equality(model, cut, TEXTS) <= 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_cut_model_is_loaded_again_and_computes_the_same(tiny_model, tmp_path, kind):
    model = tiny_model(kind)
    cut = cut_models.cut(model, whole_layer(model))
    folder = cut_models.save(cut, tmp_path / "cut")
    again = ap.load(str(folder), device="cpu")
    batch = model.batch([model.read(text) for text in TEXTS])
    assert torch.equal(again.forward(batch), cut.forward(batch))
    assert again.removed == cut.removed
    assert again.head_kind == model.head_kind
    assert any("heads are cut out" in note for note in again.notes)
    assert [path.name for path in tmp_path.iterdir()] == ["cut"]


@pytest.mark.parametrize("kind", ["bert-mlm", "gpt2", "electra"])
def test_a_cut_model_keeps_its_certificate_and_its_trace_leaves_removed_heads_out(tiny_model, kind):
    model = tiny_model(kind)
    cut = cut_models.cut(model, whole_layer(model))
    assert ap.certify(cut, TEXTS[0])["ok"].all()
    frame = ap.head_table(ap.trace(cut, TEXTS[0])).set_index(["layer", "head"])
    with capture.watching(capture.gate(dict.fromkeys(whole_layer(model), 0.0))):
        full = ap.head_table(ap.trace(model, TEXTS[0])).set_index(["layer", "head"])
    for at in frame.index:
        if at in cut.removed:
            assert frame.loc[at, "entropy"] != frame.loc[at, "entropy"]
        else:
            assert frame.loc[at, "entropy"] == pytest.approx(full.loc[at, "entropy"], rel=1e-4)


def test_gates_of_the_kept_heads_keep_their_numbers(tiny_model):
    model = tiny_model("gpt2", "float64")
    cut = cut_models.cut(model, [(1, 0), (1, 1)])
    batch = model.batch([model.read(text) for text in TEXTS])
    more = masked(cut, [(1, 3)], batch)
    expected = masked(model, [(1, 0), (1, 1), (1, 3)], batch)
    torch.testing.assert_close(more[batch.mask], expected[batch.mask], atol=1e-9, rtol=1e-9)


def test_cutting_twice_adds_up_and_leaves_the_first_model_alone(tiny_model):
    model = tiny_model("bert-mlm")
    once = cut_models.cut(model, [(0, 1)])
    twice = cut_models.cut(once, [(1, 2)])
    assert once.removed == {(0, 1)}
    assert twice.removed == {(0, 1), (1, 2)}
    assert not model.removed
    batch = model.batch(model.read(TEXTS[0]))
    torch.testing.assert_close(
        twice.forward(batch), masked(model, [(0, 1), (1, 2)], batch), atol=1e-5, rtol=1e-5
    )


def test_a_read_out_of_a_cut_model_resumes_like_any_other(tiny_model):
    cut = cut_models.cut(tiny_model("gpt2"), [(2, 0), (1, 4)])
    read = readout.default(cut)
    examples, hidden, contexts = read.prepare(TEXTS), [], []
    with capture.watching(lambda call: contexts.append(call.context()), keep=hidden):
        full = read.log_probabilities(examples)
    for layer in range(cut.n_layers):
        given = contexts[layer].transpose(1, 2).flatten(2)
        with capture.watching(start=layer, hidden=hidden[layer], contexts=given):
            found = read.log_probabilities(examples)
        torch.testing.assert_close(found, full, atol=2e-5, rtol=2e-5)


def test_a_head_that_does_not_exist_cannot_be_cut(tiny_model):
    with pytest.raises(BadInput, match=r"head 2\.0 does not exist: .* layers 0 to 1 with heads 0"):
        cut_models.cut(tiny_model("bert"), [(2, 0)])


def test_saving_refuses_a_whole_model_and_a_folder_that_is_there(tiny_model, tmp_path):
    model = tiny_model("bert")
    with pytest.raises(BadInput, match="has all its heads"):
        cut_models.save(model, tmp_path / "new")
    with pytest.raises(BadInput, match="exists already"):
        cut_models.save(cut_models.cut(model, GONE), tmp_path)
    with pytest.raises(BadInput, match="is no folder"):
        cut_models.save(cut_models.cut(model, GONE), tmp_path / "no" / "new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "note",
    [
        "{",
        "[]",
        '{"format": 1}',
        '{"format": 2, "kept": [[0], [1]]}',
        '{"format": 1, "kept": [[0]]}',
        '{"format": 1, "kept": [[0], [3]]}',
        '{"format": 1, "kept": [[1, 0], [1]]}',
        '{"format": 1, "kept": [[0], [true]]}',
        '{"format": 1, "kept": [[0, 1, 2], [0, 1]]}',
    ],
)
def test_a_damaged_note_is_refused_in_one_sentence(tiny_model, tmp_path, note):
    folder = cut_models.save(cut_models.cut(tiny_model("bert"), GONE), tmp_path / "cut")
    (folder / cut_models.NOTE).write_text(note)
    with pytest.raises(UnsupportedModel, match="save it again"):
        ap.load(str(folder), device="cpu")


def test_damaged_weights_of_a_cut_model_are_refused(tiny_model, tmp_path):
    folder = cut_models.save(cut_models.cut(tiny_model("bert"), GONE), tmp_path / "cut")
    path = folder / cut_models.WEIGHTS
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UnsupportedModel, match="save it again"):
        ap.load(str(folder), device="cpu")


def test_transformers_alone_does_not_read_a_cut_folder(tiny_model, tmp_path):
    folder = cut_models.save(cut_models.cut(tiny_model("bert"), GONE), tmp_path / "cut")
    with pytest.raises(OSError, match="no file named"):
        AutoModel.from_pretrained(folder, local_files_only=True)
    kept = json.loads((folder / cut_models.NOTE).read_text())["kept"]
    assert kept == [[0, 2], [1, 2]]


def test_multiply_adds_follow_the_formula_and_the_ceiling_their_ratio(tiny_model):
    model = tiny_model("bert")
    cut = cut_models.cut(model, GONE)
    layer = 4 * 21 * 21 + 2 * 21 * 37
    assert savings.multiply_adds(model, 5) == 2 * (5 * layer + 2 * 25 * 21)
    lost = 2 * (5 * 4 * 21 * 7 + 2 * 25 * 7)
    assert savings.multiply_adds(cut, 5) == savings.multiply_adds(model, 5) - lost
    assert savings.ceiling(model, cut, 5) > 1
    frame = savings.saved(model, cut, 5).set_index("what")
    assert frame.loc["heads", ["before", "after"]].tolist() == [6, 4]
    assert frame.loc["parameters", "saved"] == 1 - cut.parameters / model.parameters


def test_latency_measures_both_models_at_every_batch_size(tiny_model):
    model = tiny_model("gpt2")
    cut = cut_models.cut(model, GONE)
    frame = savings.latency(model, cut, 9, batches=(1, 2), repetitions=3)
    assert frame["batch"].tolist() == [1, 2]
    assert (frame[["before_ms", "after_ms", "speedup"]] > 0).all().all()
    assert (frame["speedup_low"] <= frame["speedup"]).all()
    assert (frame["speedup"] <= frame["speedup_high"]).all()
