"""load(): from a name to a model whose attention goes through the door, or a clear refusal."""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from jaxtyping import Float
from safetensors import SafetensorError
from torch import Tensor, nn
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
)

from attnprobe import capture, sources
from attnprobe.errors import BadInput, UnsupportedModel
from attnprobe.families import Family, family_of, supported
from attnprobe.text import Batch, Reader, Tokens

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
# What transformers, tokenizers and safetensors raise on files that are damaged or do not fit.
_LIBRARY_FAILURES = (
    OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError, ArithmeticError,
    SafetensorError, StrictDataclassError,
)  # fmt: skip
_TOKENIZER_FILES = (("tokenizer.json",), ("vocab.txt",), ("vocab.json", "merges.txt"))
_PROBE = "The cat sat on the mat, and then 1 dog came."


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model in evaluation mode, its tokenizer, and what a person should know of both.

    Weights need no gradient and are never changed. `head_kind` is one of bare encoder, masked LM,
    causal LM, sequence classification, token classification. `notes` are sentences for the card.
    """

    name: str
    revision: str | None
    origin: str
    licence: str | None
    folder: Path
    model: PreTrainedModel
    reader: Reader
    family: Family
    head_kind: str
    n_layers: int
    n_heads: int
    d_model: int
    max_tokens: int
    notes: tuple[str, ...] = field(default=())

    @property
    def config(self) -> PretrainedConfig:
        return self.model.config

    @property
    def d_head(self) -> int:
        """d_k: the width of one head's queries and keys."""
        return self.d_model // self.n_heads

    @property
    def dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype

    @property
    def precision(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    @property
    def causal(self) -> bool:
        """Whether a token sees only itself and earlier ones."""
        return bool(self.family.model_type == "gpt2" or getattr(self.config, "is_decoder", False))

    @property
    def key(self) -> str:
        """One string that names this model among all others: for caches and provenance."""
        return f"{self.name}@{self.revision or '-'}:{self.device}:{self.precision}"

    def read(
        self, text: str, *, window: tuple[int, int] | None = None, begin: bool = False
    ) -> Tokens:
        """The text as this model's tokens; see `text.Reader.read`."""
        return self.reader.read(text, window=window, begin=begin)

    def batch(self, texts: list[Tokens] | Tokens) -> Batch:
        """One or several texts as a padded batch on the model's device."""
        batch = self.reader.batch([texts] if isinstance(texts, Tokens) else texts)
        return Batch(batch.ids.to(self.device), batch.mask.to(self.device))

    def forward(self, batch: Batch) -> Float[Tensor, "batch *rest"]:
        """What the model's head gives: logits over vocabulary or classes, or hidden states.

        Shapes: [batch position vocabulary], [batch class], [batch position class] or, without a
        head, [batch position d_model]. Gradients flow where the caller has them on.
        """
        return self._run(self.model, batch)[0]

    def hidden(self, batch: Batch) -> Float[Tensor, "batch position d_model"]:
        """The last hidden states, without the model's head."""
        return self._run(self.model.base_model, batch)[0]

    def _run(self, module: nn.Module, batch: Batch):
        inputs = {"input_ids": batch.ids, "attention_mask": batch.mask.long()}
        if self.family.takes_position_ids:
            inputs |= {"position_ids": batch.position_ids, "use_cache": False}
        with capture.every_layer_once(self.n_layers):
            return module(**inputs, return_dict=False)


def load(
    name: str,
    *,
    device: str = "auto",
    dtype: str = "float32",
    revision: str | None = None,
) -> LoadedModel:
    """A pretrained model, ready to be looked into, or an `UnsupportedModel` that says why not.

    `name` is `bundled:bert`, `bundled:gpt2`, a local folder or a Hub id. `device` is auto (CUDA
    if there is one, else CPU), cpu, cuda or mps; `dtype` is float32, float64 or bfloat16,
    whatever the checkpoint's own. Only safetensors are read and no code of the checkpoint is run.
    A short probe text proves the result before it is returned.
    """
    target, precision = _device(device), _dtype(dtype)
    source = sources.find(name, revision)
    raw = _raw_config(source)
    family = family_of(name, raw)
    _require_files(source)
    head_kind, auto = _head(raw)
    model, notes = _weights(source, auto, precision)
    model.to(target)
    reader = _reader(source, family, model)
    n_layers, n_heads, d_model = family.sizes(model.config)
    capture.wrap_layers(family.layer_list(model), family)
    loaded = LoadedModel(
        name, source.revision or revision, source.origin, source.licence, source.folder,
        model, reader, family, head_kind, n_layers, n_heads, d_model,
        reader.max_tokens, notes + _config_notes(raw, head_kind),
    )  # fmt: skip
    prove(loaded)
    return loaded


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
    if not available[kind]():
        raise BadInput(f"device {device!r} is not available on this machine; choose cpu")
    return torch.device(device)


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
    except (ValueError, OSError) as error:
        raise UnsupportedModel(
            f"the config.json of {source.name} cannot be read: {error}"
        ) from error
    if not isinstance(raw, dict):
        raise UnsupportedModel(f"the config.json of {source.name} is not a JSON object")
    return raw


def _require_files(source: sources.Source) -> None:
    present = {path.name for path in source.folder.iterdir()}
    if not present & {"model.safetensors", "model.safetensors.index.json"}:
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
    architectures = raw.get("architectures") or [""]
    for endings, kind, auto in _HEADS:
        if str(architectures[0]).endswith(endings):
            return kind, auto
    return _BARE


def _config_notes(raw: dict[str, Any], head_kind: str) -> tuple[str, ...]:
    notes = []
    architecture = (raw.get("architectures") or ["a bare model"])[0]
    if head_kind == "bare encoder" and not str(architecture).endswith("Model"):
        notes.append(f"The head of {architecture} is not used: attnprobe reads the encoder alone.")
    if raw.get("reorder_and_upcast_attn"):
        notes.append(
            "The checkpoint asks for attention in float32 whatever its dtype "
            "(reorder_and_upcast_attn); attnprobe computes attention in the chosen dtype."
        )
    return tuple(notes)


def _weights(source: sources.Source, auto, dtype) -> tuple[PreTrainedModel, tuple[str, ...]]:
    try:
        config = AutoConfig.from_pretrained(
            source.folder, trust_remote_code=False, local_files_only=True
        )
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
    except _LIBRARY_FAILURES as error:
        raise UnsupportedModel(
            f"{source.name} cannot be loaded: {_first_line(error)}; the files may be damaged or "
            "not belong together"
        ) from error
    notes = _coverage(source, report)
    return model.eval().requires_grad_(False), notes


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300].rstrip(".;")


def _coverage(source: sources.Source, report: dict[str, Any]) -> tuple[str, ...]:
    """Refuses randomly initialised layers; a missing part that nothing here uses is a note."""
    wrong = [str(key[0] if isinstance(key, tuple) else key) for key in report["mismatched_keys"]]
    missing = [key for key in report["missing_keys"] if not _is_unused(key)]
    if wrong or missing:
        listed = ", ".join(sorted([*missing, *wrong])[:3])
        raise UnsupportedModel(
            f"the weights of {source.name} do not cover the model: {len(missing)} missing and "
            f"{len(wrong)} of another shape ({listed}, …); they would be random numbers"
        )
    if report["missing_keys"]:
        return ("The checkpoint has no pooler; nothing here uses it.",)
    return ()


def _is_unused(key: str) -> bool:
    return any(part in key for part in _UNUSED)


def _reader(source: sources.Source, family: Family, model: PreTrainedModel) -> Reader:
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            source.folder, trust_remote_code=False, local_files_only=True
        )
    except _LIBRARY_FAILURES as error:
        raise UnsupportedModel(
            f"the tokenizer of {source.name} cannot be read: {_first_line(error)}"
        ) from error
    if not getattr(tokenizer, "is_fast", False):
        raise UnsupportedModel(
            f"{source.name} has only a slow tokenizer; save its fast form (tokenizer.json)"
        )
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise UnsupportedModel(
            f"the tokenizer of {source.name} knows {len(tokenizer):,} tokens and the model embeds "
            f"only {rows:,}; they do not belong together"
        )
    return Reader(tokenizer, family.positions(model.config))


def prove(loaded: LoadedModel) -> None:
    """A short text shows that the door sees and steers this model; raises `UnsupportedModel`.

    One call per layer; the output equals that of transformers' own SDPA; in a causal model no
    earlier position moves when the last token changes; ablating a layer's heads moves the output.
    """
    tokens = loaded.read(_PROBE, window=(0, max(1, min(12, loaded.reader.room))))
    batch = loaded.batch(tokens)
    with torch.no_grad():
        with capture.watching(lambda call: None):
            plain = loaded.hidden(batch)
        reference = _with_library_sdpa(loaded, batch)
        limit = 64 * torch.finfo(loaded.dtype).eps * reference.abs().max().clamp_min(1.0)
        if not bool(torch.isfinite(plain).all()) or bool((plain - reference).abs().max() > limit):
            raise UnsupportedModel(
                f"{loaded.name} computes something else through attnprobe's attention than "
                f"through transformers' own; supported: {supported()}"
            )
        _prove_steering(loaded, batch, plain)
        _prove_causality(loaded, batch, plain)


def _with_library_sdpa(loaded: LoadedModel, batch: Batch) -> Tensor:
    """The hidden states by transformers' SDPA; only here, before anybody shares the model."""
    loaded.model.set_attn_implementation("sdpa")
    try:
        return loaded.hidden(batch)
    finally:
        loaded.model.set_attn_implementation(capture.IMPLEMENTATION)


def _prove_steering(loaded: LoadedModel, batch: Batch, plain: Tensor) -> None:
    gates = torch.zeros(loaded.n_layers, loaded.n_heads, dtype=loaded.dtype, device=loaded.device)
    with capture.watching(capture.gate(gates)):
        ablated = loaded.hidden(batch)
    if torch.equal(ablated, plain):
        raise UnsupportedModel(
            f"{loaded.name} gives the same output with every head ablated, so its heads cannot "
            "be edited here"
        )


def _prove_causality(loaded: LoadedModel, batch: Batch, plain: Tensor) -> None:
    if not loaded.causal or batch.ids.shape[1] < 2:
        return
    ids = batch.ids.clone()
    ids[:, -1] = (ids[:, -1] + 1) % loaded.model.get_input_embeddings().weight.shape[0]
    moved = loaded.hidden(replace(batch, ids=ids))
    limit = 64 * torch.finfo(loaded.dtype).eps * plain.abs().max().clamp_min(1.0)
    if bool((moved[:, :-1] - plain[:, :-1]).abs().max() > limit):
        raise UnsupportedModel(f"{loaded.name} lets earlier tokens see later ones")
