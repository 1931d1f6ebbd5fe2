"""What loads, how it is described, and what is refused in one sentence."""

import gc
import json
import re
import shutil
import weakref

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from transformers import BertForSequenceClassification, BertModel, GPT2LMHeadModel

from attnprobe import capture, load, memory
from attnprobe.errors import BadInput, TooLarge, UnsupportedModel
from attnprobe.families import FAMILIES
from attnprobe.models import LoadedModel
from attnprobe.text import Batch

HEAD_KINDS = {
    "bert": "bare encoder",
    "bert-mlm": "masked LM",
    "bert-classifier": "sequence classification",
    "bert-tagger": "token classification",
    "gpt2": "causal LM",
    "roberta": "masked LM",
    "distilbert": "masked LM",
    "electra": "masked LM",
}


@pytest.fixture
def copied(tiny_folder, tmp_path):
    """A fresh copy of a tiny model's folder, to be spoilt."""

    def copy(kind="bert"):
        return tmp_path / shutil.copytree(tiny_folder(kind), tmp_path / kind)

    return copy


def refused(folder, **options) -> str:
    with pytest.raises(UnsupportedModel) as caught:
        load(str(folder), device="cpu", **options)
    message = str(caught.value)
    assert "\n" not in message
    assert folder.name in message
    return message


@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_every_head_kind_is_recognised_and_sizes_are_the_config_s(tiny_model, kind):
    loaded = tiny_model(kind)
    assert loaded.head_kind == HEAD_KINDS[kind]
    assert loaded.n_layers == len(FAMILIES[loaded.config.model_type].layer_list(loaded.model))
    assert loaded.n_heads * loaded.d_head == loaded.d_model
    assert loaded.max_tokens == 64
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())


@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_the_logits_are_those_of_transformers_own_sdpa(tiny_folder, tiny_model, kind):
    loaded = tiny_model(kind)
    theirs = type(loaded.model).from_pretrained(tiny_folder(kind), attn_implementation="sdpa")
    batch = loaded.batch(loaded.read("the cat sat on the mat"))
    with torch.no_grad():
        expected = theirs.eval()(batch.ids, attention_mask=batch.mask.long())[0]
        torch.testing.assert_close(loaded.forward(batch), expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", ["bert-mlm", "gpt2", "roberta", "distilbert", "electra"])
def test_vocabulary_logits_of_hidden_states_are_the_model_s_logits(tiny_model, kind):
    loaded = tiny_model(kind)
    batch = loaded.batch(loaded.read("the cat sat"))
    with torch.no_grad():
        logits = loaded.family.vocabulary_logits(loaded.model, loaded.hidden(batch))
        torch.testing.assert_close(logits, loaded.forward(batch))


def test_bundled_bert_is_the_real_minilm(bundled_bert):
    assert (bundled_bert.n_layers, bundled_bert.n_heads, bundled_bert.d_head) == (6, 12, 32)
    assert bundled_bert.parameters == 22_713_216
    assert (bundled_bert.max_tokens, bundled_bert.licence) == (512, "Apache-2.0")
    batch = bundled_bert.batch([bundled_bert.read(t) for t in ("a happy dog", "a glad dog", "tax")])
    with torch.no_grad():
        hidden = bundled_bert.hidden(batch)
    pooled = (hidden * batch.mask[..., None]).sum(1) / batch.mask.sum(1)[:, None]
    near, far = torch.cosine_similarity(pooled[:1], pooled[1:]).tolist()
    assert near > 0.7 > 0.4 > far


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_the_dtype_asked_for_is_the_dtype_got_whatever_the_checkpoint_s(tmp_path, dtype):
    torch.manual_seed(0)
    folder = tiny.save_model(
        tmp_path / "half", BertModel(tiny.bert_config()).bfloat16(), tiny.wordpiece()
    )
    loaded = load(str(folder), device="cpu", dtype=dtype)
    assert {p.dtype for p in loaded.model.parameters()} == {getattr(torch, dtype)}
    assert loaded.precision == dtype


def test_two_models_from_one_folder_share_no_setting(tiny_folder):
    one, two = (load(str(tiny_folder("bert")), device="cpu") for _ in range(2))
    two.model.set_attn_implementation("eager")
    assert one.config._attn_implementation == capture.IMPLEMENTATION


def test_the_key_tells_models_apart(tiny_model):
    keys = {
        tiny_model(kind, dtype).key for kind in ("bert", "gpt2") for dtype in ("float32", "float64")
    }
    assert len(keys) == 4


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (1, 3), (2, 1)])
def test_one_layer_and_one_head_are_models_too(tmp_path, layers, heads):
    torch.manual_seed(0)
    config = tiny.gpt2_config(n_layer=layers, n_head=heads, n_embd=9)
    folder = tiny.save_model(tmp_path / "small", GPT2LMHeadModel(config), tiny.byte_level())
    loaded = load(str(folder), device="cpu")
    assert (loaded.n_layers, loaded.n_heads) == (layers, heads)


def test_a_missing_pooler_is_a_note_and_a_missing_layer_an_error(tmp_path):
    torch.manual_seed(0)
    bare = BertModel(tiny.bert_config(), add_pooling_layer=False)
    folder = tiny.save_model(tmp_path / "no-pooler", bare, tiny.wordpiece())
    assert any("pooler" in note for note in load(str(folder), device="cpu").notes)
    tiny.edit_config(folder, num_hidden_layers=3)
    assert "do not cover the model" in refused(folder)


def test_a_classifier_without_its_pooler_is_refused(tmp_path):
    """The pooler feeds the classifier: a random one would give plausible wrong classes."""
    torch.manual_seed(0)
    classifier = BertForSequenceClassification(tiny.bert_config(num_labels=3))
    folder = tiny.save_model(tmp_path / "headless", classifier, tiny.wordpiece())
    weights = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if "pooler" not in name}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    assert "pooler" in refused(folder)


def test_weights_of_another_width_are_refused(copied):
    folder = copied()
    tiny.edit_config(folder, intermediate_size=41)
    refused(folder)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"position_embedding_type": "relative_key"}, "relative"),
        ({"pruned_heads": {"0": [0]}}, "pruned_heads"),
        ({"auto_map": {"AutoModel": "modeling.Own"}}, "Python code of its own"),
        ({"quantization_config": {"quant_method": "x"}}, "quantised"),
        ({"model_type": "xlnet"}, "relative-position"),
        ({"model_type": "deberta-v2"}, "disentangled"),
        ({"model_type": "llama"}, "grouped-query"),
        ({"model_type": "<b>x"}, "has not been checked"),
        ({"model_type": None}, "has not been checked"),
    ],
)
def test_configs_that_would_be_shown_wrongly_are_refused_with_the_reason(copied, change, reason):
    folder = copied()
    tiny.edit_config(folder, **change)
    message = refused(folder)
    assert reason in message
    assert "supported: bert, gpt2" in message


def test_code_of_a_checkpoint_is_never_run(copied):
    folder = copied()
    marker = folder / "ran"
    (folder / "modeling.py").write_text(f"open({str(marker)!r}, 'w').close()")
    tiny.edit_config(folder, auto_map={"AutoModel": "modeling.Own", "AutoConfig": "modeling.C"})
    refused(folder)
    assert not marker.exists()


def test_pickled_weights_are_refused_and_not_opened(copied):
    folder = copied()
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04not a pickle that may be read")
    message = refused(folder)
    assert "only pytorch_model.bin" in message
    assert "safetensors" in message


@pytest.mark.parametrize("keep", [0, 7, 100, -10])
def test_truncated_weights_are_refused(copied, keep):
    folder = copied()
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:keep])
    assert "cannot be loaded" in refused(folder)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("config.json", "no model"),
        ("model.safetensors", "no weights"),
        ("tokenizer.json", "no tokenizer"),
    ],
)
def test_a_folder_with_a_file_missing_says_which(copied, name, part):
    folder = copied()
    (folder / name).unlink()
    assert part in refused(folder)


@pytest.mark.parametrize("content", ["", "{", "[1]", "null", "\x00", '{"model_type": "bert"'])
def test_a_config_that_is_no_json_object_is_refused(copied, content):
    folder = copied()
    (folder / "config.json").write_text(content)
    refused(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"num_attention_heads": 5},
        {"num_attention_heads": 0},
        {"hidden_size": -21},
        {"num_hidden_layers": "two"},
        {"vocab_size": 7},
        {"hidden_act": "no_such"},
        {"max_position_embeddings": 3},
    ],
)
def test_configs_with_impossible_sizes_are_refused(copied, change):
    folder = copied()
    tiny.edit_config(folder, **change)
    refused(folder)


def test_a_broken_tokenizer_is_refused(copied):
    folder = copied()
    (folder / "tokenizer.json").write_text("{}")
    assert "tokenizer" in refused(folder)


def test_a_tokenizer_larger_than_the_embedding_is_refused(copied, tiny_folder):
    folder = copied("gpt2")
    shutil.copy(tiny_folder("roberta") / "tokenizer.json", folder / "tokenizer.json")
    shutil.copy(tiny_folder("roberta") / "tokenizer_config.json", folder / "tokenizer_config.json")
    assert "do not belong together" in refused(folder)


@pytest.mark.parametrize(
    "name", ["no/such-model", "nobody-has-this", "bundled:x", "../nowhere", "", "a b", "x" * 300]
)
def test_names_that_lead_nowhere_are_one_sentence(name):
    with pytest.raises(UnsupportedModel) as caught:
        load(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("device", ["tpu", "cuda:x", "", "CPU "])
def test_unknown_devices_are_one_sentence(tiny_folder, device):
    with pytest.raises(BadInput, match="choose"):
        load(str(tiny_folder("bert")), device=device)


def test_unknown_dtypes_are_one_sentence(tiny_folder):
    with pytest.raises(BadInput, match="float32, float64, bfloat16"):
        load(str(tiny_folder("bert")), dtype="int8")


def test_auto_means_cuda_if_there_and_never_mps(tiny_folder):
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert load(str(tiny_folder("bert"))).device.type == expected


def test_the_proof_at_load_notices_attention_that_misses_the_mask(tiny_folder, monkeypatch):
    """Without the mask function, transformers drops causality without a word."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    original = capture.AttentionCall._sdpa

    def maskless(self, **mask):
        return original(self)

    monkeypatch.setattr(capture.AttentionCall, "_sdpa", maskless)
    assert capture.IMPLEMENTATION in ALL_MASK_ATTENTION_FUNCTIONS
    with pytest.raises(UnsupportedModel, match="computes something else"):
        load(str(tiny_folder("gpt2")), device="cpu")


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name_is_not_the_current_folder(name, tiny_folder, monkeypatch):
    monkeypatch.chdir(tiny_folder("bert"))
    with pytest.raises(UnsupportedModel, match="neither a folder here nor a Hub id"):
        load(name, device="cpu")


def test_the_proof_at_load_notices_a_layer_that_never_attends(tiny_folder, monkeypatch):
    monkeypatch.setattr(
        capture,
        "_RUN",
        type(
            "Nobody",
            (),
            {
                "get": lambda self: None,
                "set": lambda self, run: None,
                "reset": lambda self, token: None,
            },
        )(),
    )
    with pytest.raises(UnsupportedModel, match="same output with every head ablated"):
        load(str(tiny_folder("bert")), device="cpu")


def test_a_loaded_model_is_described_by_values(tiny_model):
    loaded = tiny_model("gpt2")
    assert isinstance(loaded, LoadedModel)
    described = json.dumps(
        [loaded.key, loaded.origin, loaded.licence, loaded.parameters, loaded.causal]
    )
    assert "local folder" in described
    batch = Batch(torch.tensor([[1, 2]]), torch.tensor([[True, True]]))
    assert loaded.forward(batch).shape == (1, 2, loaded.config.vocab_size)


def test_a_model_larger_than_the_free_memory_is_refused_with_both_figures(tiny_folder, monkeypatch):
    monkeypatch.setattr(memory, "free", lambda device: 3 * 2**20)
    with pytest.raises(TooLarge, match=r"about \d+ MiB on cpu and 3 MiB are free"):
        load("bundled:bert", device="cpu")
    assert load(str(tiny_folder("bert")), device="cpu")


@pytest.mark.parametrize("kind", ["bundled", "gpt2", "distilbert"])
def test_the_estimated_size_is_near_the_true_one(kind, bundled_bert, tiny_model):
    loaded = bundled_bert if kind == "bundled" else tiny_model(kind)
    estimate = memory.parameters(loaded.family, loaded.config)
    assert estimate == pytest.approx(loaded.parameters, rel=0.02 if kind == "bundled" else 0.25)


def test_a_config_of_impossible_size_is_refused_before_anything_is_built(copied):
    folder = copied()
    tiny.edit_config(folder, vocab_size=10**13)
    with pytest.raises(TooLarge, match="are free"):
        load(str(folder), device="cpu")


def test_a_model_that_looks_untrained_is_named_so_and_a_trained_one_is_not(tmp_path, bundled_bert):
    torch.manual_seed(0)
    config = tiny.bert_config(hidden_size=63, initializer_range=0.02)
    fresh = BertModel(config).eval()
    fresh.save_pretrained(tmp_path / "fresh")
    tiny.wordpiece().save_pretrained(tmp_path / "fresh")
    assert any("untrained" in note for note in load(str(tmp_path / "fresh"), device="cpu").notes)
    assert not bundled_bert.notes


def test_a_forgotten_model_leaves_memory(tiny_folder):
    loaded = load(str(tiny_folder("bert")), device="cpu")
    weights = weakref.ref(next(loaded.model.parameters()))
    del loaded
    gc.collect()
    assert weights() is None


def test_weights_that_are_no_hub_commit_are_named_by_their_digest(tiny_folder, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(tiny_folder("gpt2"), folder)
    first = load(str(folder), device="cpu").revision
    assert re.fullmatch("sha256:[0-9a-f]{12}", first)
    assert load(str(tiny_folder("gpt2")), device="cpu").revision == first
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["transformer.wte.weight"][3, 1] += 1
    save_file(tensors, path, metadata={"format": "pt"})
    assert load(str(folder), device="cpu").revision != first
