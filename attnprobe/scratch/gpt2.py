"""GPT-2's forward pass from its state dict (Radford et al. 2019), one function per step.

    hidden = embeddings(ids)
    for each layer:
        query, key, value = query_key_value(hidden)
        context = softmax(mask(query keyᵀ · scale)) value    (in twin.py, as for BERT)
        hidden = layer_output(hidden, attention_output(context))
    output = a head of HEADS

`w` holds the tensors of the step by their names in the checkpoint; a weight is stored
[n_in n_out]. Layer norms come before attention, before the MLP and after the last layer.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnprobe.scratch.architecture import Architecture, Head, Settings, Weights, every_row
from attnprobe.scratch.arithmetic import Arithmetic, activation, merge_heads


def settings(config) -> Settings:
    """Always causal; the three flags of GPT-2's config change scale and precision."""
    return Settings(
        n_heads=config.n_head,
        epsilon=config.layer_norm_epsilon,
        activation=activation(config.activation_function),
        causal=True,
        scales=tuple(scale(config, layer) for layer in range(config.n_layer)),
        upcast=config.reorder_and_upcast_attn,
        pad_id=config.pad_token_id,
    )


def scale(config, layer: int) -> float:
    """1/√d_k unless `scale_attn_weights` is off; over layer + 1 if the inverse flag is on."""
    factor = (config.n_embd // config.n_head) ** -0.5 if config.scale_attn_weights else 1.0
    return factor / (layer + 1) if config.scale_attn_by_inverse_layer_idx else factor


def dense(w: Weights, name: str, x: Tensor, ops: Arithmetic) -> Tensor:
    """A dense layer by its name."""
    return ops.affine(x, w[f"{name}.weight"], w[f"{name}.bias"])


def norm(w: Weights, name: str, x: Tensor, s: Settings, ops: Arithmetic) -> Tensor:
    """A layer norm by its name."""
    return ops.layer_norm(x, w[f"{name}.weight"], w[f"{name}.bias"], s.epsilon)


def embeddings(
    w: Weights, ids: Int[Tensor, " position"], s: Settings, ops: Arithmetic
) -> Float[Tensor, "position d_model"]:
    """Token and position vectors, summed."""
    return w.rows("wte.weight", ids) + w.rows("wpe.weight", slice(len(ids)))


def query_key_value(
    w: Weights, hidden: Float[Tensor, "position d_model"], s: Settings, ops: Arithmetic
) -> tuple[
    Float[Tensor, "head position d_head"],
    Float[Tensor, "head position d_head"],
    Float[Tensor, "head position d_head"],
]:
    """Norm, then one dense layer of width 3·d_model: queries, keys, values side by side."""
    joint = dense(w, "attn.c_attn", norm(w, "ln_1", hidden, s, ops), ops)
    query, key, value = (ops.split_heads(part, s.n_heads) for part in joint.chunk(3, -1))
    return query, key, value


def attention_output(
    w: Weights, context: Float[Tensor, "head position d_head"], ops: Arithmetic
) -> Float[Tensor, "position d_model"]:
    """The heads' contexts side by side through W_O, with its bias, before the residual."""
    return dense(w, "attn.c_proj", merge_heads(context), ops)


def layer_output(
    w: Weights,
    hidden: Float[Tensor, "position d_model"],
    attention: Float[Tensor, "position d_model"],
    s: Settings,
    ops: Arithmetic,
) -> Float[Tensor, "position d_model"]:
    """The residual sum with attention; then the normed MLP on top of it."""
    middle = hidden + attention
    wide = s.activation(dense(w, "mlp.c_fc", norm(w, "ln_2", middle, s, ops), ops))
    return middle + dense(w, "mlp.c_proj", wide, ops)


def last_row(
    hidden: Float[Tensor, "position d_model"], ids: Int[Tensor, " position"], s: Settings
) -> Float[Tensor, "1 d_model"]:
    """The last position that is not the padding token, which the sequence classifier reads."""
    if s.pad_id is None:
        return hidden[-1:]
    last = int((torch.arange(len(ids), device=ids.device) * (ids != s.pad_id)).argmax())
    return hidden[last : last + 1]


def bare(
    w: Weights, rows: Float[Tensor, "position d_model"], s: Settings, ops: Arithmetic
) -> Float[Tensor, "position d_model"]:
    """No head: the last norm alone."""
    return norm(w, "ln_f", rows, s, ops)


def language_head(
    w: Weights, rows: Float[Tensor, "position d_model"], s: Settings, ops: Arithmetic
) -> Float[Tensor, "position vocabulary"]:
    """The last norm, then the dot product with every token's vector; no bias."""
    return norm(w, "ln_f", rows, s, ops) @ w["lm_head.weight"].T


def sequence_classifier(
    w: Weights, rows: Float[Tensor, "1 d_model"], s: Settings, ops: Arithmetic
) -> Float[Tensor, "1 class"]:
    """The last norm, then one product without bias."""
    return norm(w, "ln_f", rows, s, ops) @ w["score.weight"].T


def token_classifier(
    w: Weights, rows: Float[Tensor, "position d_model"], s: Settings, ops: Arithmetic
) -> Float[Tensor, "position class"]:
    """The last norm, then one dense layer on every position."""
    rows = norm(w, "ln_f", rows, s, ops)
    return ops.affine(rows, w["classifier.weight"].T, w["classifier.bias"])


GPT2 = Architecture(
    base="transformer.",
    layer="h",
    settings=settings,
    embeddings=embeddings,
    query_key_value=query_key_value,
    attention_output=attention_output,
    layer_output=layer_output,
    heads={
        "bare encoder": Head(("ln_f.",), every_row, bare),
        "causal LM": Head(("ln_f.", "lm_head."), every_row, language_head),
        "sequence classification": Head(("ln_f.", "score."), last_row, sequence_classifier),
        "token classification": Head(("ln_f.", "classifier."), every_row, token_classifier),
    },
)
