"""What a freshly loaded model has to show before anybody sees it, and whether it looks trained."""

from dataclasses import replace

import torch
from torch import Tensor

from attnprobe import capture
from attnprobe.capture import AttentionCall
from attnprobe.errors import UnsupportedModel
from attnprobe.families import supported
from attnprobe.loaded import LoadedModel
from attnprobe.softmax_stats import row_statistics
from attnprobe.text import Batch

_PROBE = "The cat sat on the mat, and then 1 dog came."


def prove(loaded: LoadedModel) -> tuple[str, ...]:
    """A short text shows that the door sees and steers this model; raises `UnsupportedModel`.

    One call per layer; the output equals that of transformers' own SDPA; in a causal model no
    earlier position moves when the last token changes; ablating a layer's heads moves the output.
    Returns notes for the card: a model that looks untrained is named so.
    """
    tokens = loaded.read(_PROBE, window=(0, max(1, min(12, loaded.reader.room))))
    batch = loaded.batch(tokens)
    calls: list[AttentionCall] = []
    with torch.no_grad():
        with capture.watching(calls.append):
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
        return _untrained(loaded, calls)


def _with_library_sdpa(loaded: LoadedModel, batch: Batch) -> Tensor:
    """The hidden states by transformers' SDPA; only here, before anybody shares the model."""
    loaded.model.set_attn_implementation("sdpa")
    try:
        return loaded.hidden(batch)
    finally:
        loaded.model.set_attn_implementation(capture.IMPLEMENTATION)


def _prove_steering(loaded: LoadedModel, batch: Batch, plain: Tensor) -> None:
    if len(loaded.removed) == loaded.n_layers * loaded.n_heads:
        return
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


_NEAR_UNIFORM = 0.95
_SPREAD = 2.0


def _untrained(loaded: LoadedModel, calls: list[AttentionCall]) -> tuple[str, ...]:
    """A note when every head is near uniform and its logits spread as at initialisation.

    At initialisation a component of q or k has variance d_model·σ² (unit-variance inputs), so
    scaled logits have the standard deviation scale·√d_k·d_model·σ², σ the initialiser's range.
    """
    sigma = getattr(loaded.config, "initializer_range", 0.02)
    entropies, spreads = [], []
    for call in calls:
        rows = row_statistics(
            call.query, call.key, scale=call.scale, valid=call.valid, causal=call.causal,
            spectral=False,
        )  # fmt: skip
        entropies.append(rows.normalised_entropy.nanmean(-1).min().item())
        expected = abs(call.scale) * loaded.d_head**0.5 * loaded.d_model * sigma**2
        spreads.append(rows.scaled_std.mean().item() / max(expected, 1e-12))
    if not entropies or min(entropies) < _NEAR_UNIFORM or max(spreads) > _SPREAD:
        return ()
    return (
        f"This checkpoint looks untrained: on a probe text every head is near uniform (normalised "
        f"entropy at least {min(entropies):.2f}) and its logits spread as at initialisation.",
    )
