"""One row per `model_type`: where a family keeps its layers, what it counts as positions.

These are the only attribute paths in attnprobe. A new family that goes through transformers'
attention interface is a new row; a family with a from-scratch twin also has a file in `scratch`.
"""

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from attnprobe.errors import UnsupportedModel


@dataclass(frozen=True, kw_only=True)
class Family:
    """How one `model_type` of transformers is laid out.

    Paths are dotted and start at the bare model (`layers`) or at one layer (`output`, `attention`,
    `norm`). `attention` is the module that makes queries, keys and values, by its `projections`:
    three, or a fused one (`fused`: stored input × output); `projects` says that it applies W_O
    too, `norm` is what the layer puts before it. `position_table` is the embedding of
    places. `language_head` names the modules of the full model that turn hidden states into
    vocabulary logits, applied in order; `class_head` turns the hidden state at a text's first
    (`class_at_end`: last) token into class logits.
    """

    model_type: str
    layers: str
    output: str
    attention: str
    language_head: tuple[str, ...]
    class_head: Callable[[nn.Module, Tensor], Tensor]
    sizes: Callable[[PretrainedConfig], tuple[int, int, int]]
    positions: Callable[[PretrainedConfig], int]
    position_table: str = "embeddings.position_embeddings"
    projections: tuple[str, ...] = ("query", "key", "value")
    projects: bool = False
    norm: str | None = None
    class_at_end: bool = False
    takes_position_ids: bool = False
    twin: bool = False

    @property
    def fused(self) -> bool:
        """Queries, keys and values come from one projection, as GPT-2's Conv1D."""
        return len(self.projections) == 1

    @property
    def projection_paths(self) -> tuple[str, ...]:
        """The projections of a layer, from the layer."""
        return tuple(f"{self.attention}.{name}" for name in self.projections)

    def layer_list(self, model: nn.Module) -> nn.ModuleList:
        """The transformer layers of a model with or without a head, bottom first."""
        return attrgetter(self.layers)(model.base_model)

    def output_projection(self, model: nn.Module, layer: int) -> nn.Module:
        """W_O of a layer: d_model of concatenated head contexts to d_model, with its bias."""
        return attrgetter(self.output)(self.layer_list(model)[layer])

    def vocabulary_logits(self, model: nn.Module, hidden: Tensor) -> Tensor:
        """Hidden states of the last layer to logits over the vocabulary, for language models."""
        for module in self.language_modules(model):
            hidden = module(hidden)
        return hidden

    def language_modules(self, model: nn.Module) -> tuple[nn.Module, ...]:
        """The modules that `vocabulary_logits` applies in order."""
        return tuple(attrgetter(name)(model) for name in self.language_head)

    def class_logits(self, model: nn.Module, hidden: Tensor) -> Tensor:
        """Hidden states [text d_model] of the token that a classifier reads, to class logits."""
        return self.class_head(model, hidden)

    def position_vectors(self, model: nn.Module, length: int) -> Tensor:
        """What is added to the first `length` tokens for their places: [position width]."""
        table = attrgetter(self.position_table)(model.base_model).weight
        first = len(table) - self.positions(model.config)
        return table[first : first + length]

    def attention_module(self, layer: nn.Module) -> nn.Module:
        """The part of a layer that makes queries, keys and values."""
        return attrgetter(self.attention)(layer)

    def query_key_bias(self, model: nn.Module, layer: int, d_head: int, head: int) -> Tensor:
        """The biases b_q and b_k of one head's projections: [2 d_head]."""
        attention = self.attention_module(self.layer_list(model)[layer])
        biases = [getattr(attention, name).bias for name in self.projections]
        query, key = biases[0].chunk(3)[:2] if self.fused else biases[:2]
        mine = slice(head * d_head, (head + 1) * d_head)
        return torch.stack([query[mine], key[mine]])

    def before_attention(self, layer: nn.Module, hidden: Tensor) -> Tensor:
        """What the layer hands to its attention module: its input, normed first or as it is."""
        return attrgetter(self.norm)(layer)(hidden) if self.norm else hidden

    def after_attention(self, layer: nn.Module, contexts: Tensor) -> Tensor:
        """What the attention module gives for contexts [batch position d_model]."""
        return attrgetter(self.output)(layer)(contexts) if self.projects else contexts


def _bert_sizes(config: PretrainedConfig) -> tuple[int, int, int]:
    return config.num_hidden_layers, config.num_attention_heads, config.hidden_size


def _positions(config: PretrainedConfig) -> int:
    return config.max_position_embeddings


def _positions_after_padding(config: PretrainedConfig) -> int:
    return config.max_position_embeddings - config.pad_token_id - 1


def _pooled_class(model: nn.Module, hidden: Tensor) -> Tensor:
    return model.classifier(model.base_model.pooler(hidden[:, None]))


def _token_class(model: nn.Module, hidden: Tensor) -> Tensor:
    return model.classifier(hidden[:, None])


_ENCODER = "encoder.layer"
_DENSE = "attention.output.dense"
_SELF = "attention.self"

FAMILIES: Mapping[str, Family] = {
    family.model_type: family
    for family in (
        Family(
            model_type="bert",
            layers=_ENCODER,
            output=_DENSE,
            attention=_SELF,
            language_head=("cls",),
            class_head=_pooled_class,
            sizes=_bert_sizes,
            positions=_positions,
            twin=True,
        ),
        Family(
            model_type="gpt2",
            layers="h",
            output="attn.c_proj",
            attention="attn",
            language_head=("lm_head",),
            class_head=lambda model, hidden: model.score(hidden),
            sizes=lambda config: (config.n_layer, config.n_head, config.n_embd),
            positions=lambda config: config.n_positions,
            position_table="wpe",
            projections=("c_attn",),
            projects=True,
            norm="ln_1",
            class_at_end=True,
            takes_position_ids=True,
            twin=True,
        ),
        Family(
            model_type="roberta",
            layers=_ENCODER,
            output=_DENSE,
            attention=_SELF,
            language_head=("lm_head",),
            class_head=_token_class,
            sizes=_bert_sizes,
            positions=_positions_after_padding,
        ),
        Family(
            model_type="distilbert",
            layers="transformer.layer",
            output="attention.out_lin",
            attention="attention",
            language_head=("vocab_transform", "activation", "vocab_layer_norm", "vocab_projector"),
            class_head=lambda model, hidden: model.classifier(model.pre_classifier(hidden).relu()),
            sizes=lambda config: (config.n_layers, config.n_heads, config.dim),
            positions=_positions,
            projections=("q_lin", "k_lin", "v_lin"),
            projects=True,
        ),
        Family(
            model_type="electra",
            layers=_ENCODER,
            output=_DENSE,
            attention=_SELF,
            language_head=("generator_predictions", "generator_lm_head"),
            class_head=_token_class,
            sizes=_bert_sizes,
            positions=_positions,
        ),
    )
}

_REASONS: Mapping[str, str] = {
    "xlnet": "its attention adds relative-position terms to the logits",
    "deberta": "its attention adds disentangled position terms to the logits",
    "deberta-v2": "its attention adds disentangled position terms to the logits",
    "mpnet": "its attention adds a relative-position bias to the logits",
    "t5": "its attention adds a relative-position bias to the logits",
    "longformer": "its attention is a sliding window with global tokens",
    "gpt_neo": "its attention does not go through transformers' attention interface",
    "llama": "its key heads may be shared between query heads (grouped-query attention)",
    "mistral": "its key heads are shared between query heads (grouped-query attention)",
    "qwen2": "its key heads are shared between query heads (grouped-query attention)",
}


def supported() -> str:
    """The supported families as a phrase for messages."""
    return ", ".join(FAMILIES)


def family_of(name: str, config: Mapping[str, Any]) -> Family:
    """The row for a checkpoint's raw `config.json`; refuses what would be shown wrongly."""
    named = config.get("model_type")
    model_type = named if isinstance(named, str) else repr(named)
    if model_type not in FAMILIES:
        reason = _REASONS.get(model_type, "its attention has not been checked by attnprobe")
        raise UnsupportedModel(
            f"{name} is a model of type {reprlib.repr(named)} and {reason}; "
            f"supported: {supported()}"
        )
    for key, needed, reason in _FLAGS:
        if not needed(config.get(key)):
            raise UnsupportedModel(
                f"{name} has {key} = {reprlib.repr(config[key])} and {reason}; "
                f"supported: {supported()} without it"
            )
    return FAMILIES[model_type]


def _absent(value: object) -> bool:
    return not value


_FLAGS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    (
        "position_embedding_type",
        lambda value: value in (None, "absolute"),
        "transformers 5 drops the relative term without a word",
    ),
    ("pruned_heads", _absent, "transformers 5 ignores the list, so the heads would be wrong"),
    ("auto_map", _absent, "asks for Python code of its own, which is never run"),
    ("quantization_config", _absent, "quantised weights are not supported"),
    ("chunk_size_feed_forward", _absent, "texts of any length do not divide into its chunks"),
    ("add_cross_attention", _absent, "cross-attention is not supported"),
    ("is_encoder_decoder", _absent, "encoder–decoder models are not supported"),
)
