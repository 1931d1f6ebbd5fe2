"""load(): from a name to a model whose attention goes through the door, or a clear refusal."""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from attnprobe import capture, cut_models, hub, memory, sources
from attnprobe.errors import BadInput, DeviceFull, UnsupportedModel
from attnprobe.families import Family, family_of
from attnprobe.foreign import refusing
from attnprobe.loaded import LoadedModel
from attnprobe.proof import prove
from attnprobe.text import Reader

__all__ = ["DTYPES", "LoadedModel", "load"]

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
}

_HEADS: tuple[tuple[tuple[str, ...], str, Any], ...] = (
    (("LMHeadModel", "ForCausalLM"), "causal LM", AutoModelForCausalLM),
    (("ForMaskedLM", "ForPreTraining"), "masked LM", AutoModelForMaskedLM),
    (
        ("ForSequenceClassification",),
        "sequence classification",
        AutoModelForSequenceClassification,
    ),
    (("ForTokenClassification",), "token classification", AutoModelForTokenClassification),
    (("Model",), "bare encoder", AutoModel),
)
_BARE = ("bare encoder", AutoModel)
_UNUSED = ("pooler.", "cls.seq_relationship", "nsp_cls")
# Letters that few vocabularies have: a tokenizer that cannot say "unknown" fails on them.
_RARE = "\ua66e \u13a0"
_TOKENIZER_FILES = (("tokenizer.json",), ("vocab.txt",), ("vocab.json", "merges.txt"))


def load(
    name: str,
    *,
    device: str = "auto",
    dtype: str = "float32",
    revision: str | None = None,
    progress: hub.Progress | None = None,
) -> LoadedModel:
    """A pretrained model, ready to be looked into, or an `UnsupportedModel` that says why not.

    `name` is `bundled:bert`, `bundled:gpt2`, a local folder or a Hub id. `device` is auto (CUDA
    if there is one, else CPU), cpu, cuda or mps; `dtype` is float32, float64 or bfloat16,
    whatever the checkpoint's own. Only safetensors are read and no code of the checkpoint is run.
    A short probe text proves the result before it is returned. `progress` is told the bytes of a
    download and may raise to stop it; the next call fetches the files still missing.
    """
    target, precision = _device(device), _dtype(dtype)
    source = sources.find(name, revision, progress)
    raw = _raw_config(source)
    family = family_of(name, raw)
    _require_files(source)
    head_kind, auto = _head(raw)
    config = _config(source)
    _require_sizes(name, family, config)
    memory.require_for_model(name, family, config, precision, target)
    model, notes = _read(source, family, config, auto, precision)
    _require_finite(name, model)
    _move(model, name, target)
    reader = _reader(source, family, model)
    n_layers, n_heads, d_model = family.sizes(model.config)
    capture.wrap_layers(family.layer_list(model), family)
    loaded = LoadedModel(
        name, source.version(), source.origin, source.licence, source.folder,
        model, reader, family, head_kind, n_layers, n_heads, d_model,
        reader.max_tokens, notes + _config_notes(raw, head_kind),
    )  # fmt: skip
    with refusing(f"{name} cannot be run"):
        return replace(loaded, notes=loaded.notes + prove(loaded))


def _device(device: str) -> torch.device:
    available: dict[str, Callable[[], bool]] = {
        "cpu": lambda: True,
        "cuda": torch.cuda.is_available,
        "mps": torch.backends.mps.is_available,
    }
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind = device.split(":")[0]
    if kind not in available:
        raise BadInput(f"device {device!r} is not known; choose auto, cpu, cuda or mps")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise BadInput(f"device {device!r} is not known; choose cuda or cuda:0") from error
    if not available[kind]():
        raise BadInput(f"device {device!r} is not available on this machine; choose cpu")
    return chosen


def _dtype(dtype: str) -> torch.dtype:
    if dtype not in DTYPES:
        raise BadInput(f"dtype {dtype!r} is not supported; choose one of {', '.join(DTYPES)}")
    return DTYPES[dtype]


def _raw_config(source: sources.Source) -> dict[str, Any]:
    path = source.folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UnsupportedModel(
            f"{source.name} is a folder without config.json, so it is no model; choose the folder "
            "that save_pretrained wrote"
        ) from error
    except (ValueError, OSError, RecursionError) as error:
        raise UnsupportedModel(
            f"the config.json of {source.name} cannot be read: {error}"
        ) from error
    if not isinstance(raw, dict):
        raise UnsupportedModel(f"the config.json of {source.name} is not a JSON object")
    return raw


def _require_files(source: sources.Source) -> None:
    present = {path.name for path in source.folder.iterdir()}
    if not present & {"model.safetensors", "model.safetensors.index.json", cut_models.WEIGHTS}:
        pickled = sorted(name for name in present if name.endswith((".bin", ".pt", ".ckpt", ".h5")))
        found = f"only {', '.join(pickled)}" if pickled else "no weights"
        raise UnsupportedModel(
            f"{source.name} has {found} and attnprobe reads model.safetensors only, because other "
            "formats can run code; save it with save_pretrained(safe_serialization=True)"
        )
    if not any(set(files) <= present for files in _TOKENIZER_FILES):
        raise UnsupportedModel(
            f"{source.name} has no tokenizer (tokenizer.json, vocab.txt, or vocab.json with "
            "merges.txt is needed); save the tokenizer into the same folder"
        )


def _head(raw: dict[str, Any]) -> tuple[str, Any]:
    for endings, kind, auto in _HEADS:
        if _architecture(raw).endswith(endings):
            return kind, auto
    return _BARE


def _architecture(raw: dict[str, Any]) -> str:
    """The class that the checkpoint was saved from, or nothing where it does not say so."""
    named = raw.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else ""


def _config_notes(raw: dict[str, Any], head_kind: str) -> tuple[str, ...]:
    notes = []
    architecture = _architecture(raw)
    if head_kind == "bare encoder" and architecture and not architecture.endswith("Model"):
        notes.append(
            f"The head of {architecture[:60]} is not used: attnprobe reads the encoder alone."
        )
    if raw.get("reorder_and_upcast_attn"):
        notes.append(
            "The checkpoint asks for attention in float32 whatever its dtype "
            "(reorder_and_upcast_attn); attnprobe computes attention in the chosen dtype."
        )
    return tuple(notes)


def _config(source: sources.Source) -> PretrainedConfig:
    with refusing(f"the config.json of {source.name} is not that of a model"):
        return AutoConfig.from_pretrained(
            source.folder, trust_remote_code=False, local_files_only=True
        )


def _require_sizes(name: str, family: Family, config: PretrainedConfig) -> None:
    with refusing(f"the config.json of {name} has impossible sizes"):
        n_layers, n_heads, d_model = family.sizes(config)
        positions = family.positions(config)
        if min(n_layers, n_heads, d_model, positions, config.vocab_size) < 1 or d_model % n_heads:
            raise UnsupportedModel(
                f"the config.json of {name} asks for {n_layers} layers of {n_heads} heads, width "
                f"{d_model} and {positions} positions; at least one each is needed and the heads "
                "must divide the width"
            )


def _require_finite(name: str, model: PreTrainedModel) -> None:
    for key, weight in model.state_dict().items():
        if not bool(torch.isfinite(weight).all()):
            raise UnsupportedModel(
                f"the weights of {name} are not all numbers ({key} has NaN or infinity); the "
                "checkpoint is damaged, or dtype float32 is needed"
            )


def _move(model: PreTrainedModel, name: str, device: torch.device) -> None:
    try:
        model.to(device)
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise DeviceFull(f"{name} does not fit on {device}; choose device cpu") from error


def _read(
    source: sources.Source, family: Family, config: PretrainedConfig, auto, dtype: torch.dtype
) -> tuple[PreTrainedModel, tuple[str, ...]]:
    if not cut_models.is_cut(source.folder):
        return _weights(source, config, auto, dtype)

    def make(config: PretrainedConfig) -> PreTrainedModel:
        return auto.from_config(config, attn_implementation=capture.IMPLEMENTATION)

    return cut_models.read(source.name, source.folder, family, make, config, dtype)


def _weights(
    source: sources.Source, config: PretrainedConfig, auto, dtype: torch.dtype
) -> tuple[PreTrainedModel, tuple[str, ...]]:
    with refusing(f"{source.name} cannot be loaded"):
        model, report = auto.from_pretrained(
            source.folder,
            config=deepcopy(config),
            dtype=dtype,
            attn_implementation=capture.IMPLEMENTATION,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    head_kind, _ = _head({"architectures": config.architectures})
    notes = _coverage(source, report, head_kind)
    return model.eval().requires_grad_(False), notes


def _coverage(source: sources.Source, report: dict[str, Any], head_kind: str) -> tuple[str, ...]:
    """Refuses randomly initialised layers; a missing part that nothing here uses is a note."""
    wrong = [str(key[0] if isinstance(key, tuple) else key) for key in report["mismatched_keys"]]
    missing = [key for key in report["missing_keys"] if not _is_unused(key, head_kind)]
    if wrong or missing:
        listed = ", ".join(sorted([*missing, *wrong])[:3])
        raise UnsupportedModel(
            f"the weights of {source.name} do not cover the model: {len(missing)} missing and "
            f"{len(wrong)} of another shape ({listed}, …); they would be random numbers"
        )
    if report["missing_keys"]:
        return ("The checkpoint has no pooler; nothing here uses it.",)
    return ()


def _is_unused(key: str, head_kind: str) -> bool:
    """A pooler feeds a sequence classifier and nothing else that is read here."""
    pooled = head_kind == "sequence classification"
    return any(part in key for part in _UNUSED if not (pooled and part == "pooler."))


def _reader(source: sources.Source, family: Family, model: PreTrainedModel) -> Reader:
    with refusing(f"the tokenizer of {source.name} cannot be read"):
        tokenizer = AutoTokenizer.from_pretrained(
            source.folder, trust_remote_code=False, local_files_only=True
        )
        if not getattr(tokenizer, "is_fast", False):
            raise UnsupportedModel(
                f"{source.name} has only a slow tokenizer; save its fast form (tokenizer.json)"
            )
        _require_fit(source.name, tokenizer, model.get_input_embeddings().weight.shape[0])
        reader = Reader(tokenizer, family.positions(model.config))
        reader.count(_RARE)
    return reader


def _require_fit(name: str, tokenizer: PreTrainedTokenizerBase, rows: int) -> None:
    """Every token must have its row in the embedding: ids may have gaps, so the largest counts."""
    known = max(len(tokenizer), max(tokenizer.get_vocab().values(), default=-1) + 1)
    if known > rows:
        raise UnsupportedModel(
            f"the tokenizer of {name} knows {known:,} tokens and the model embeds only {rows:,}; "
            "they do not belong together"
        )
