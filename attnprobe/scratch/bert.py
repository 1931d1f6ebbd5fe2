"""BERT's forward pass from its state dict (Devlin et al. 2019), one function per step.

    hidden = embeddings(ids)
    for each layer:
        query, key, value = query_key_value(hidden)
        context = softmax(query keyᵀ · scale) value          (in twin.py, as for GPT-2)
        hidden = layer_output(hidden, attention_output(context))
    output = a head of HEADS

`w` holds the tensors of the step by their names in the checkpoint; a weight of `nn.Linear` is
stored [n_out n_in], hence the transposes. Layer norms come after the residual sums.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnprobe.scratch.architecture import Architecture, Head, Settings, Weights, every_row
from attnprobe.scratch.arithmetic import Arithmetic, activation, merge_heads


def settings(config) -> Settings:
    """1/√d_k in every layer; causal only where the config says decoder."""
    d_head = config.hidden_size // config.num_attention_heads
    return Settings(
        n_heads=config.num_attention_heads,
        epsilon=config.layer_norm_eps,
        activation=activation(config.hidden_act),
        causal=config.is_decoder,
        scales=(d_head**-0.5,) * config.num_hidden_layers,
    )


def linear(w: Weights, name: str, x: Tensor, ops: Arithmetic) -> Tensor:
    """A dense layer by its name."""
    return ops.affine(x, w[f"{name}.weight"].T, w[f"{name}.bias"])


def norm(w: Weights, name: str, x: Tensor, s: Settings, ops: Arithmetic) -> Tensor:
    """A layer norm by its name."""
    return ops.layer_norm(x, w[f"{name}.weight"], w[f"{name}.bias"], s.epsilon)


def embeddings(
    w: Weights, ids: Int[Tensor, " position"], s: Settings, ops: Arithmetic
) -> Float[Tensor, "position d_model"]:
    """Word, segment (all 0 for one text) and position vectors, summed and normed."""
    words = w.rows("embeddings.word_embeddings.weight", ids)
    segment = w.rows("embeddings.token_type_embeddings.weight", 0)
    positions = w.rows("embeddings.position_embeddings.weight", slice(len(ids)))
    return norm(w, "embeddings.LayerNorm", words + segment + positions, s, ops)


def query_key_value(
    w: Weights, hidden: Float[Tensor, "position d_model"], s: Settings, ops: Arithmetic
) -> tuple[
    Float[Tensor, "head position d_head"],
    Float[Tensor, "head position d_head"],
    Float[Tensor, "head position d_head"],
]:
    """Three dense layers, each cut into heads."""
    query, key, value = (
        ops.split_heads(linear(w, f"attention.self.{name}", hidden, ops), s.n_heads)
        for name in ("query", "key", "value")
    )
    return query, key, value


def attention_output(
    w: Weights, context: Float[Tensor, "head position d_head"], ops: Arithmetic
) -> Float[Tensor, "position d_model"]:
    """The heads' contexts side by side through W_O, with its bias, before the residual."""
    return linear(w, "attention.output.dense", merge_heads(context), ops)


def layer_output(
    w: Weights,
    hidden: Float[Tensor, "position d_model"],
    attention: Float[Tensor, "position d_model"],
    s: Settings,
    ops: Arithmetic,
) -> Float[Tensor, "position d_model"]:
    """Residual and norm after attention; then the MLP, residual and norm again."""
    middle = norm(w, "attention.output.LayerNorm", hidden + attention, s, ops)
    wide = s.activation(linear(w, "intermediate.dense", middle, ops))
    return norm(w, "output.LayerNorm", middle + linear(w, "output.dense", wide, ops), s, ops)


def first_row(
    hidden: Float[Tensor, "position d_model"], ids: Int[Tensor, " position"], s: Settings
) -> Float[Tensor, "1 d_model"]:
    """The [CLS] position, which BERT's sequence classifier reads."""
    return hidden[:1]


def bare(w: Weights, rows: Tensor, s: Settings, ops: Arithmetic) -> Tensor:
    """No head: the last hidden states themselves."""
    return rows


def language_head(
    w: Weights, rows: Float[Tensor, "position d_model"], s: Settings, ops: Arithmetic
) -> Float[Tensor, "position vocabulary"]:
    """Dense, activation, norm, and a product with the word vectors: masked or causal LM."""
    wide = s.activation(linear(w, "cls.predictions.transform.dense", rows, ops))
    normed = norm(w, "cls.predictions.transform.LayerNorm", wide, s, ops)
    return linear(w, "cls.predictions.decoder", normed, ops)


def sequence_classifier(
    w: Weights, rows: Float[Tensor, "1 d_model"], s: Settings, ops: Arithmetic
) -> Float[Tensor, "1 class"]:
    """The pooler's tanh of a dense layer on [CLS], then the classifier."""
    pooled = torch.tanh(linear(w, "pooler.dense", rows, ops))
    return linear(w, "classifier", pooled, ops)


def token_classifier(
    w: Weights, rows: Float[Tensor, "position d_model"], s: Settings, ops: Arithmetic
) -> Float[Tensor, "position class"]:
    """One dense layer on every position."""
    return linear(w, "classifier", rows, ops)


_LANGUAGE_HEAD = Head(("cls.predictions.",), every_row, language_head)

BERT = Architecture(
    base="bert.",
    layer="encoder.layer",
    settings=settings,
    embeddings=embeddings,
    query_key_value=query_key_value,
    attention_output=attention_output,
    layer_output=layer_output,
    heads={
        "bare encoder": Head((), every_row, bare),
        "masked LM": _LANGUAGE_HEAD,
        "causal LM": _LANGUAGE_HEAD,
        "sequence classification": Head(("pooler.", "classifier."), first_row, sequence_classifier),
        "token classification": Head(("classifier.",), every_row, token_classifier),
    },
)
