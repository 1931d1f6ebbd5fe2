"""Damaged, wrong and hostile checkpoints: a model that is right, or one sentence."""

import json
import os
import pickle
import shutil

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import attnprobe as ap
from attnprobe.errors import AttnprobeError, UnsupportedModel

TEXT = "the cat sat"
FEW = settings(
    max_examples=12, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture(scope="module")
def whole(tiny_folder, tmp_path_factory):
    """A fresh copy of a tiny model's folder, the same place again for each kind."""
    place = tmp_path_factory.mktemp("checkpoints")

    def copy(kind="bert"):
        shutil.rmtree(place / kind, ignore_errors=True)
        return shutil.copytree(tiny_folder(kind), place / kind)

    return copy


def said(folder) -> str:
    """The one sentence that refuses the checkpoint, or nothing after a whole, finite trace."""
    try:
        trace = ap.trace(ap.load(str(folder), device="cpu"), TEXT)
    except AttnprobeError as error:
        return one_sentence(str(error))
    assert bool(torch.isfinite(trace.output).all())
    assert ap.head_table(trace)["entropy"].notna().all()
    return ""


def one_sentence(message: str) -> str:
    assert "\n" not in message
    assert len(message) < 700
    return message


def rewritten(folder, change):
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})
    return folder


def configured(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


STRANGE = [
    ("bert", {"architectures": 5}),
    ("bert", {"architectures": {"a": 1}}),
    ("bert", {"architectures": [[1]]}),
    ("bert", {"architectures": "BertModel"}),
    ("bert", {"model_type": ["bert"]}),
    ("bert", {"model_type": {"bert": 1}}),
    ("bert", {"model_type": "x" * 10_000}),
    ("bert", {"auto_map": {"x" * 5_000: "y"}}),
    ("bert", {"hidden_size": 10**400}),
    ("bert", {"hidden_size": 1e308}),
    ("bert", {"num_hidden_layers": 0}),
    ("bert", {"num_attention_heads": True}),
    ("bert", {"layer_norm_eps": float("nan")}),
    ("bert", {"layer_norm_eps": -1.0}),
    ("bert", {"chunk_size_feed_forward": 3}),
    ("bert", {"initializer_range": 0}),
    ("gpt2", {"n_layer": 0}),
    ("gpt2", {"n_inner": -3}),
    ("gpt2", {"n_positions": 1}),
    ("roberta", {"pad_token_id": None}),
    ("roberta", {"pad_token_id": -5}),
]


@pytest.mark.parametrize(("kind", "change"), STRANGE, ids=lambda value: ascii(value)[:40])
def test_a_strange_config_is_one_sentence_or_a_right_model(kind, change, whole):
    said(configured(whole(kind), **change))


VALUES = st.one_of(
    st.integers(-3, 70), st.none(), st.booleans(), st.floats(), st.text(max_size=3),
    st.sampled_from([10**30, [], {}, [3], "absolute", "relative_key", "gelu", 21]),
)  # fmt: skip
KEYS = {
    "bert": (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
        "vocab_size", "max_position_embeddings", "type_vocab_size", "hidden_act",
        "position_embedding_type", "is_decoder", "use_cache", "tie_word_embeddings",
        "pad_token_id", "layer_norm_eps", "dtype", "hidden_dropout_prob", "initializer_range",
        "num_labels", "id2label", "return_dict",
    ),
    "gpt2": (
        "n_embd", "n_layer", "n_head", "n_positions", "n_inner", "vocab_size",
        "activation_function", "scale_attn_weights", "scale_attn_by_inverse_layer_idx",
        "reorder_and_upcast_attn", "add_cross_attention", "layer_norm_epsilon", "attn_pdrop",
        "use_cache", "tie_word_embeddings", "bos_token_id", "dtype", "output_attentions",
    ),
}  # fmt: skip


FLAGS = {
    "bert": ("use_cache", "return_dict", "output_hidden_states"),
    "gpt2": ("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"),
}


@pytest.mark.parametrize("kind", KEYS)
@given(data=st.data())
@FEW
def test_any_config_is_one_sentence_or_a_right_model(kind, whole, data):
    changes = st.dictionaries(st.sampled_from(KEYS[kind]), VALUES, min_size=1, max_size=3)
    said(configured(whole(kind), **data.draw(changes)))


@pytest.mark.parametrize("kind", FLAGS)
@given(data=st.data())
@FEW
def test_any_flags_of_a_config_make_a_model_that_its_certificate_proves(kind, whole, data):
    flags = data.draw(st.dictionaries(st.sampled_from(FLAGS[kind]), st.booleans()))
    loaded = ap.load(str(configured(whole(kind), **flags)), device="cpu")
    assert bool(ap.certify(loaded, loaded.read(TEXT))["ok"].all())


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
@given(data=st.data())
@FEW
def test_corrupted_bytes_are_one_sentence_or_a_right_model(whole, name, data):
    path = whole() / name
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1) | st.integers(0, min(900, len(content) - 1)))
    patch = data.draw(st.binary(min_size=1, max_size=9))
    content[at : at + data.draw(st.integers(0, 40))] = patch
    path.write_bytes(content)
    said(path.parent)


@given(name=st.sampled_from([
    "embeddings.word_embeddings.weight", "embeddings.LayerNorm.bias",
    "encoder.layer.0.attention.self.query.weight", "encoder.layer.1.attention.output.dense.bias",
    "encoder.layer.1.output.LayerNorm.weight", "encoder.layer.0.intermediate.dense.weight",
]))  # fmt: skip
@FEW
def test_a_missing_tensor_is_never_made_up(whole, name):
    folder = rewritten(whole(), lambda w: {key: w[key] for key in w if key != name})
    assert "do not cover the model" in said(folder)


@pytest.mark.parametrize("shape", [(0,), (3, 5), (21,), (1, 21, 21), (37, 21)])
@pytest.mark.parametrize("part", ["embeddings.word_embeddings", "encoder.layer.1.output.dense"])
def test_a_tensor_of_another_shape_is_refused(whole, part, shape):
    name = f"{part}.weight"
    assert said(rewritten(whole(), lambda w: w | {name: torch.zeros(shape)}))


@given(data=st.data())
@FEW
def test_a_tensor_of_any_other_shape_is_refused(whole, data):
    folder = whole("gpt2")
    weights = load_file(folder / "model.safetensors")
    name = data.draw(st.sampled_from(sorted(weights)))
    shape = tuple(data.draw(st.lists(st.integers(0, 65), max_size=3)))
    assume(shape != weights[name].shape)
    assert said(rewritten(folder, lambda w: w | {name: torch.zeros(shape)}))


@given(name=st.text(st.characters(codec="utf-8"), min_size=1, max_size=60))
@FEW
def test_a_tensor_of_any_unknown_name_is_left_alone(whole, name):
    assert said(rewritten(whole(), lambda w: w | {name: torch.zeros(2)})) == ""


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_no_numbers_are_refused_by_name_even_where_a_probe_misses_them(
    value, whole
):
    def broken(weights):
        weights["embeddings.word_embeddings.weight"][-1, -1] = value
        return weights

    message = said(rewritten(whole(), broken))
    assert "embeddings.word_embeddings.weight" in message
    assert "NaN or infinity" in message


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_weights_of_whole_numbers_are_one_sentence_or_a_right_model(dtype, whole):
    said(rewritten(whole(), lambda w: {key: tensor.to(dtype) for key, tensor in w.items()}))


def test_tensors_with_hostile_names_are_left_alone(whole):
    extra = {"<script>alert(1)</script>\x00": torch.zeros(2), "../../x": torch.zeros(2)}
    assert said(rewritten(whole(), lambda w: w | extra)) == ""


@pytest.mark.parametrize(
    "name", ["<b>x", "a\nb", "[a](http:evil)", "`$x$`", "\u202egnp", "'\"", "-rf", "x" * 200]
)
def test_a_folder_with_a_hostile_name_is_a_model_like_any_other(name, tiny_folder, tmp_path):
    folder = shutil.copytree(tiny_folder("bert"), tmp_path / name)
    loaded = ap.load(str(folder), device="cpu")
    assert loaded.name == str(folder)


@given(name=st.text(st.characters(codec="utf-8", exclude_characters="/\0"), max_size=40))
@FEW
def test_a_folder_of_any_name_is_a_model_like_any_other(name, tiny_folder, tmp_path):
    place = tmp_path / f"x{name}"
    place.symlink_to(tiny_folder("bert"))
    assert ap.load(str(place), device="cpu").name == str(place)
    place.unlink()


@pytest.mark.parametrize(
    "index",
    [
        '{"weight_map": {"a": "../../../../etc/passwd"}}', "{}", "[]", "null",
        '{"weight_map": 5}', '{"weight_map": {}, "metadata": {}}', "[" * 50_000,
    ],
    ids=lambda index: index[:30],
)  # fmt: skip
def test_an_index_of_shards_that_leads_nowhere_is_one_sentence(index, whole):
    folder = whole()
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(index)
    assert said(folder)


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt"])
def test_the_payload_of_pickled_weights_never_runs(name, whole, tmp_path):
    marker = tmp_path / "ran"
    folder = whole()
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Payload(marker)))
    assert "safetensors only" in said(folder)
    (folder / name).rename(folder / "model.safetensors")
    assert said(folder)
    assert not marker.exists()


def test_code_that_a_tokenizer_or_a_card_asks_for_never_runs(whole, tmp_path):
    marker = tmp_path / "ran"
    folder = whole()
    (folder / "own.py").write_text(f"import os\nos.mkdir({str(marker)!r})\nclass Y: pass")
    config = folder / "tokenizer_config.json"
    own = {"auto_map": {"AutoTokenizer": ["own.Y", "own.Y"]}, "tokenizer_class": "Y"}
    config.write_text(json.dumps(json.loads(config.read_text()) | own))
    card = f"---\n!!python/object/apply:os.mkdir ['{marker}']\n---\n"
    (folder / "README.md").write_text(card)
    said(folder)
    assert not marker.exists()


@pytest.mark.parametrize(
    "card", ["---\nlicense: [a\n b: : c\n---\n", "---\n- a\n---\n", "---\nlicense: {a: 1}\n---\n"]
)
def test_a_broken_model_card_costs_the_licence_and_not_the_model(card, whole):
    folder = whole()
    (folder / "README.md").write_text(card)
    assert ap.load(str(folder), device="cpu").licence is None


def vocabulary(folder, change):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"] |= change(content["model"])
    path.write_text(json.dumps(content))
    return folder


def test_token_ids_with_gaps_beyond_the_embedding_are_refused(whole):
    folder = vocabulary(
        whole(), lambda m: {"vocab": {t: i + 10**5 * (i > 50) for t, i in m["vocab"].items()}}
    )
    assert "do not belong together" in said(folder)


def test_a_tokenizer_that_cannot_say_unknown_is_refused(whole):
    folder = vocabulary(whole(), lambda m: {"unk_token": "[NONE]"})
    assert "tokenizer" in said(folder)


@pytest.mark.parametrize(
    "content",
    [
        "[]", "5", "null", "\x00", '{"tokenizer_class": "NoSuch"}', '{"tokenizer_class": 5}',
        '{"model_max_length": "x"}', '{"pad_token": 5}', '{"chat_template": 5}',
        '{"added_tokens_decoder": {"a": 5}}', '{"extra_special_tokens": 5}',
    ],
)  # fmt: skip
def test_a_strange_tokenizer_config_is_one_sentence_or_a_right_model(content, whole):
    folder = whole()
    (folder / "tokenizer_config.json").write_text(content)
    said(folder)


def test_a_config_nested_a_hundred_thousand_deep_is_one_sentence(whole):
    folder = whole()
    (folder / "config.json").write_text('{"a":' + "[" * 100_000 + "]" * 100_000 + "}")
    assert "cannot be read" in said(folder)


@pytest.mark.parametrize(
    "note",
    ["[" * 100_000, '{"format": 1, "kept": "ab"}', '{"format": 1, "kept": [[0], [true]]}', "\xff"],
    ids=["deep", "letters", "truth", "latin"],
)
def test_a_damaged_note_of_a_cut_model_is_one_sentence(note, whole):
    folder = whole()
    (folder / "attnprobe_cut.json").write_text(note, encoding="latin-1")
    with pytest.raises(UnsupportedModel, match=r"attnprobe_cut\.json"):
        ap.load(str(folder), device="cpu")
