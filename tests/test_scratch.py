"""The twins against transformers' own eager models, and their primitives against torch's."""

import ast
import itertools
import math
from pathlib import Path

import pytest
import tiny
import torch
import torch.nn.functional as F
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertForPreTraining,
    BertForSequenceClassification,
    BertLMHeadModel,
    BertModel,
    GPT2ForSequenceClassification,
    GPT2ForTokenClassification,
    GPT2LMHeadModel,
    GPT2Model,
)
from transformers.activations import ACT2FN

import attnprobe as ap
from attnprobe.errors import UnsupportedModel
from attnprobe.scratch import arithmetic, twin
from attnprobe.scratch.twin import head_slices, twin_of

TEXT = "the cat sat on a mat."
D_HEAD_5 = {"n_embd": 20, "n_head": 4}
"""GPT-2 with a scale that is no power of two: a wrong order of scaling would show."""


def _gpt2(model_class, **changes):
    return lambda: (model_class(tiny.gpt2_config(**D_HEAD_5 | changes)), tiny.byte_level())


def _bert(model_class, **changes):
    return lambda: (model_class(tiny.bert_config(**changes)), tiny.wordpiece())


HEADS = {
    "bert, bare": (_bert(BertModel), AutoModel),
    "bert, pre-training": (_bert(BertForPreTraining), None),
    "bert, causal LM": (_bert(BertLMHeadModel, is_decoder=True), AutoModelForCausalLM),
    "bert, sequence classification": (
        _bert(BertForSequenceClassification, num_labels=4),
        AutoModelForSequenceClassification,
    ),
    "gpt2, bare": (_gpt2(GPT2Model), AutoModel),
    "gpt2, causal LM": (_gpt2(GPT2LMHeadModel), AutoModelForCausalLM),
    "gpt2, sequence classification": (
        _gpt2(GPT2ForSequenceClassification, num_labels=4),
        AutoModelForSequenceClassification,
    ),
    "gpt2, token classification": (
        _gpt2(GPT2ForTokenClassification, num_labels=6),
        AutoModelForTokenClassification,
    ),
}
FLAGS = ("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn")


def folder_of(tmp_path, make):
    torch.manual_seed(3)
    return tiny.save_model(tmp_path / "model", *make())


def ids_of(loaded, text=TEXT):
    return torch.tensor(loaded.read(text).ids)


def eager(folder, auto, dtype=torch.float64):
    """Transformers' own implementation with the attention weights kept."""
    return auto.from_pretrained(folder, attn_implementation="eager", dtype=dtype).eval()


def twin_weights(own, hidden_states):
    """The weights of every layer from the given layer inputs."""
    layers = [own.layer(index) for index in range(own.n_layers)]
    return [
        layer.attend(*layer.query_key_value(hidden)).weights
        for layer, hidden in zip(layers, hidden_states, strict=False)
    ]


# The primitives


def test_softmax_is_torchs_even_where_exp_would_overflow():
    logits = torch.tensor([[[1e4, 1e4 - 1, -1e4], [0.5, -math.inf, 2.0]]], dtype=torch.float64)
    torch.testing.assert_close(arithmetic.softmax(logits), logits.softmax(-1), rtol=1e-15, atol=0)


def test_layer_norm_is_torchs_at_a_large_epsilon():
    torch.manual_seed(0)
    x, gain, bias = (
        torch.randn(5, 7).double(),
        torch.randn(7).double(),
        torch.randn(7).double(),
    )
    expected = F.layer_norm(x, (7,), gain, bias, 0.3)
    torch.testing.assert_close(arithmetic.layer_norm(x, gain, bias, 0.3), expected)


@pytest.mark.parametrize("name", arithmetic.ACTIVATIONS)
def test_an_activation_is_the_one_that_transformers_means_by_the_name(name):
    x = torch.linspace(-30, 30, 1001, dtype=torch.float64)
    ours, theirs = arithmetic.activation(name)(x), ACT2FN[name](x)
    # Transformers writes √(2/π) with ten digits in gelu_fast.
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_an_unknown_activation_is_refused_in_one_sentence():
    with pytest.raises(UnsupportedModel, match=r"^the model's activation 'mish' has no .*: gelu, "):
        arithmetic.activation("mish")


def test_merging_heads_undoes_splitting_them():
    x = torch.randn(5, 6)
    heads = arithmetic.split_heads(x, 3)
    assert heads.shape == (3, 5, 2)
    assert torch.equal(heads[1], x[:, 2:4])
    assert torch.equal(arithmetic.merge_heads(heads), x)


def test_the_first_query_of_a_causal_row_sees_itself_alone():
    weights = arithmetic.softmax(arithmetic.mask_future(torch.randn(2, 5, 5), True))
    assert torch.equal(weights.triu(1), torch.zeros(2, 5, 5))
    assert torch.equal(weights[:, 0, 0], torch.ones(2))


# The whole forward pass


@pytest.mark.parametrize("kind", ["bert-mlm", "bert-tagger", *HEADS])
def test_the_twin_alone_gives_the_models_output(kind, tmp_path, tiny_folder):
    folder = folder_of(tmp_path, HEADS[kind][0]) if kind in HEADS else tiny_folder(kind)
    loaded = ap.load(str(folder), device="cpu", dtype="float64")
    ids = ids_of(loaded)
    ours = twin_of(loaded)(ids)
    theirs = loaded.forward(loaded.batch(loaded.read(TEXT)))[0]
    torch.testing.assert_close(ours.reshape(theirs.shape), theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", [kind for kind, (_, auto) in HEADS.items() if auto])
def test_weights_and_output_are_those_of_transformers_eager_attention(kind, tmp_path):
    folder = folder_of(tmp_path, HEADS[kind][0])
    own = twin_of(ap.load(str(folder), device="cpu", dtype="float64"))
    model = eager(folder, HEADS[kind][1])
    ids = torch.tensor(ap.load(str(folder), device="cpu").read(TEXT).ids)
    with torch.no_grad():
        theirs = model(ids[None], output_attentions=True, output_hidden_states=True)
    ours = twin_weights(own, [hidden[0] for hidden in theirs.hidden_states])
    assert len(ours) == len(theirs.attentions) > 0
    for mine, reference in zip(ours, theirs.attentions, strict=True):
        torch.testing.assert_close(mine, reference[0], rtol=1e-10, atol=1e-13)
    output = theirs[0][0]
    torch.testing.assert_close(own(ids).reshape(output.shape), output, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("flags", itertools.product([True, False], repeat=3))
def test_the_three_flags_of_gpt2_mean_what_they_mean_to_eager_attention(flags, tmp_path):
    changes = dict(zip(FLAGS, flags, strict=True))
    folder = folder_of(tmp_path, _gpt2(GPT2LMHeadModel, **changes))
    loaded = ap.load(str(folder), device="cpu")
    own, model = twin_of(loaded), eager(folder, AutoModelForCausalLM, torch.float32)
    ids = ids_of(loaded)
    with torch.no_grad():
        theirs = model(ids[None], output_attentions=True, output_hidden_states=True)
    ours = twin_weights(own, [hidden[0] for hidden in theirs.hidden_states])
    for layer, (mine, reference) in enumerate(zip(ours, theirs.attentions, strict=True)):
        expected = (5**-0.5 if flags[0] else 1.0) / (layer + 1 if flags[1] else 1)
        assert own.settings.scales[layer] == pytest.approx(expected, rel=1e-15)
        torch.testing.assert_close(mine, reference[0], rtol=1e-4, atol=1e-6)


def test_upcasting_keeps_logits_and_weights_of_a_bfloat16_model_in_float32(tmp_path):
    folder = folder_of(tmp_path, _gpt2(GPT2LMHeadModel, reorder_and_upcast_attn=True))
    layer = twin_of(ap.load(str(folder), device="cpu", dtype="bfloat16")).layer(0)
    attended = layer.attend(*layer.query_key_value(torch.randn(7, 20)))
    assert attended.weights.dtype == torch.float32
    assert attended.context.dtype == torch.bfloat16


@pytest.mark.parametrize(("ending", "last"), [("", -1), ("xx", -3), ("xax", -2)])
def test_a_gpt2_classifier_reads_the_last_token_that_is_no_padding(ending, last, tmp_path):
    tokenizer = tiny.byte_level()
    tokenizer.pad_token = "x"
    config = tiny.gpt2_config(**D_HEAD_5, num_labels=4, pad_token_id=tokenizer.pad_token_id)
    folder = folder_of(tmp_path, lambda: (GPT2ForSequenceClassification(config), tokenizer))
    loaded = ap.load(str(folder), device="cpu", dtype="float64")
    tokens = loaded.read("the cat" + ending)
    own, ids = twin_of(loaded), torch.tensor(tokens.ids)
    hidden = torch.randn(len(ids), 20)
    assert torch.equal(own.output().rows(hidden, ids)[0], hidden[last].double())
    torch.testing.assert_close(own(ids), loaded.forward(loaded.batch(tokens)))


def test_heads_taken_in_slices_give_the_same_context(tiny_model, monkeypatch):
    layer = twin_of(tiny_model("bert", "float64")).layer(1)
    hidden = torch.randn(11, 21)
    whole = layer(hidden)
    monkeypatch.setattr(twin, "_CELLS", 2 * 11**2)
    assert [*head_slices(3, 11)] == [slice(0, 2), slice(2, 4)]
    torch.testing.assert_close(layer(hidden), whole, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("length", [1, 60])
def test_one_token_and_a_full_text_go_through(length, tiny_model):
    loaded = tiny_model("gpt2", "float64")
    tokens = loaded.read("m" * length)
    ours = twin_of(loaded)(torch.tensor(tokens.ids))
    torch.testing.assert_close(ours, loaded.forward(loaded.batch(tokens))[0])


def test_a_family_without_a_twin_is_refused_in_one_sentence(tiny_model):
    with pytest.raises(UnsupportedModel, match="is a roberta model and only bert and gpt2 have"):
        twin_of(tiny_model("roberta"))


# What makes it a proof: nothing is borrowed


BORROWED = {
    "transformers",
    "nn",
    "functional",
    "softmax",
    "log_softmax",
    "logsumexp",
    "layer_norm",
    "gelu",
    "scaled_dot_product_attention",
}


@pytest.mark.parametrize("module", ["arithmetic", "architecture", "bert", "gpt2", "faults"])
def test_the_twins_import_and_call_nothing_that_does_their_work(module):
    tree = ast.parse((Path(twin.__file__).parent / f"{module}.py").read_text(encoding="utf-8"))
    imported = {
        part
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
        for part in name.split(".")
    }
    from_torch = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and not _is_ours(node)
    }
    assert not BORROWED & (imported | from_torch)


def _is_ours(node: ast.Attribute) -> bool:
    """`ops.softmax` and `ops.layer_norm` are the twin's own, by whatever name they are called."""
    return isinstance(node.value, ast.Name) and node.value.id == "ops"


# A key bias adds the same number to all logits of a row, which softmax takes off again; the other
# name is a second one for the decoder's bias.
WITHOUT_EFFECT = ("attention.self.key.bias", "cls.predictions.bias")


@pytest.mark.parametrize("kind", ["bert-classifier", "bert-mlm", "gpt2"])
def test_every_weight_of_the_checkpoint_changes_the_output(kind, tiny_model):
    """A twin that ignored a tensor would agree with a model in which that tensor is wrong."""
    loaded = tiny_model(kind, "float64")
    own, ids = twin_of(loaded), ids_of(loaded)
    plain = own(ids)
    for name, tensor in own.weights.tensors.items():
        if any(part in name for part in WITHOUT_EFFECT):
            continue
        changed = {**own.weights.tensors, name: tensor + torch.rand_like(tensor)}
        other = twin.Twin(
            own.steps, own.settings, type(own.weights)(changed, torch.float64), own.head, own.ops
        )
        assert not torch.allclose(other(ids), plain, rtol=1e-9, atol=1e-12), name
