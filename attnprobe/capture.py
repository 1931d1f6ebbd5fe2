"""The door to attention: the hook that captures raw and scaled logits from a running model.

One function is registered with transformers' `AttentionInterface`, with a mask function of the
same name, and every supported model is loaded to use it. Without a watcher it is plain scaled
dot-product attention. With one, the watcher sees each layer's `AttentionCall` on whatever device
the model runs, and may return another call or another context.

Who is watching is a `ContextVar`: threads that share one model never see each other's runs.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import wraps

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from attnprobe.errors import CaptureFailed, UnsupportedModel
from attnprobe.families import Family

IMPLEMENTATION = "attnprobe"
_MASK_RULES = {"causal_mask_function", "bidirectional_mask_function"}
_LEFT_PADDED_ROWS = 256


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """What one layer is about to attend with.

    `scale` is the factor that the model puts on QKᵀ; `valid` marks the keys that are real tokens
    (None: all are); `causal` means that a query sees itself and earlier keys only. `edited` is the
    context that an earlier watcher put in place of A·V, or None.
    """

    layer: int
    query: Float[Tensor, "batch head query d_head"]
    key: Float[Tensor, "batch head key d_head"]
    value: Float[Tensor, "batch head key d_head"]
    scale: float
    valid: Bool[Tensor, "batch key"] | None
    causal: bool
    edited: Float[Tensor, "batch head query d_head"] | None = None

    def context(self) -> Float[Tensor, "batch head query d_head"]:
        """A·V by torch's scaled dot-product attention, or what an earlier watcher put there."""
        if self.edited is not None:
            return self.edited
        if self.valid is None:
            return self._sdpa(is_causal=self.causal)
        if not self.causal:
            return self._sdpa(attn_mask=self.valid[:, None, None, :])
        if _right_padded(self.valid):
            return self._sdpa(is_causal=True)
        return self._left_padded()

    def _sdpa(self, **mask) -> Tensor:
        return F.scaled_dot_product_attention(
            self.query, self.key, self.value, scale=self.scale, **mask
        )

    def _left_padded(self) -> Tensor:
        """Causal with padding before the text, some rows at a time: no query × key mask."""
        position = torch.arange(self.query.shape[2], device=self.query.device)
        parts = []
        for rows in position.split(_LEFT_PADDED_ROWS):
            mask = self.valid[:, None, None, :] & (position <= rows[:, None])
            parts.append(
                F.scaled_dot_product_attention(
                    self.query[:, :, rows], self.key, self.value, attn_mask=mask, scale=self.scale
                )
            )
        return torch.cat(parts, 2)


def _right_padded(valid: Tensor) -> bool:
    return bool((valid[:, :-1] >= valid[:, 1:]).all())


Watcher = Callable[[AttentionCall], AttentionCall | Tensor | None]
"""Sees a call; returns None (as is), another call (compute that), or a context (use this)."""


@dataclass(eq=False)
class _Run:
    watchers: tuple[Watcher, ...]
    start: int = 0
    hidden: Tensor | None = None
    contexts: Tensor | None = None
    keep: list[Tensor] | None = None
    read: Tensor | None = None
    tick: Callable[[], None] | None = None
    layer: int = 0
    seen: list[int] = field(default_factory=list)
    whole: Tensor | None = None


_RUN: ContextVar[_Run | None] = ContextVar("attnprobe_run", default=None)


@contextmanager
def watching(
    watcher: Watcher | None = None,
    *,
    start: int | None = None,
    hidden: Tensor | None = None,
    contexts: Tensor | None = None,
    keep: list[Tensor] | None = None,
    read: Tensor | None = None,
    tick: Callable[[], None] | None = None,
) -> Iterator[None]:
    """Forward passes in this block, in this thread, are shown to `watcher`.

    `start` and `hidden` resume at a layer from its cached input [batch position d_model]: lower
    layers are not computed. `contexts` [batch position d_model] are that layer's concatenated head
    contexts, edited already: its queries, keys and attention are not computed and no watcher sees
    it. `keep` collects the input of every computed layer and the output of the last. `read`
    [batch read] are the positions, different ones in each row, at which the last layer is
    computed; the others are zero after it. `tick` is called before every layer and may raise to
    end the run. Blocks
    nest: an outer watcher edits first, an inner one sees its edit, and what an inner block does
    not say stays as the outer block has it.
    """
    outer = _RUN.get() or _Run(())
    run = _Run(
        outer.watchers + ((watcher,) if watcher else ()),
        *(
            (outer.start, outer.hidden, outer.contexts)
            if start is None
            else (start, hidden, contexts)
        ),
        keep=outer.keep if keep is None else keep,
        read=outer.read if read is None else read,
        tick=tick or outer.tick,
    )
    token = _RUN.set(run)
    try:
        yield
    finally:
        _RUN.reset(token)


def is_watched() -> bool:
    """Whether a run in this thread has somebody watching or skips something."""
    return _RUN.get() is not None


@contextmanager
def every_layer_once(n_layers: int) -> Iterator[None]:
    """One forward pass; raises `CaptureFailed` unless each computed layer attended once."""
    run = _RUN.get()
    if run is None:
        yield
        return
    run.seen.clear()
    if run.keep is not None:
        run.keep.clear()
    yield
    if run.seen != list(range(run.start, n_layers)):
        raise CaptureFailed(
            f"attention was captured in layers {run.seen} and layers {run.start} to "
            f"{n_layers - 1} were expected once each; this model cannot be shown"
        )


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **options,
) -> tuple[Tensor, None]:
    """The registered function: transformers' attention interface, [batch query head d_head] out."""
    _refuse(query, key, attention_mask, dropout, options)
    run = _RUN.get()
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    causal = bool(module.is_causal if is_causal is None else is_causal)
    layer = run.layer if run else -1
    call = AttentionCall(layer, query, key, value, scale, attention_mask, causal)
    if run is None:
        return call.context().transpose(1, 2), None
    run.seen.append(layer)
    return _watched(call, run.watchers).transpose(1, 2), None


def _watched(call: AttentionCall, watchers: tuple[Watcher, ...]) -> Tensor:
    """Each watcher sees the call as edited so far; what the last one leaves is computed."""
    for watcher in watchers:
        edit = watcher(call)
        if isinstance(edit, AttentionCall):
            call = edit
        elif edit is not None:
            call = replace(call, edited=edit)
    return call.context()


_UNHANDLED = ("softcap", "position_bias", "s_aux", "sliding_window")


def _refuse(query: Tensor, key: Tensor, valid: Tensor | None, dropout: float, options) -> None:
    changed = [name for name in _UNHANDLED if options.get(name) is not None]
    if dropout:
        changed.append("dropout")
    if changed:
        raise UnsupportedModel(
            f"this model changes its softmax by {', '.join(changed)}, which is not supported"
        )
    if query.shape[:3] != key.shape[:3]:
        raise UnsupportedModel(
            f"queries of shape {list(query.shape)} meet keys of shape {list(key.shape)}: "
            "grouped-query and cached attention are not supported"
        )
    if valid is not None and (valid.dtype != torch.bool or valid.ndim != 2):
        raise UnsupportedModel(
            f"a mask of shape {list(valid.shape)} came and only valid keys [batch key] are "
            "supported"
        )


def _valid_keys(
    batch_size: int, q_length: int, kv_length: int, *, mask_function, attention_mask=None, **_
) -> Tensor | None:
    """The boolean [batch key], or None when every key is a real token; never query × key."""
    if mask_function.__name__ not in _MASK_RULES:
        raise UnsupportedModel(
            f"this model masks by {mask_function.__name__!r}; only causal and bidirectional "
            "attention are supported"
        )
    if attention_mask is None or bool(attention_mask.all()):
        return None
    return attention_mask


AttentionInterface.register(IMPLEMENTATION, attend)
AttentionMaskInterface.register(IMPLEMENTATION, _valid_keys)


def wrap_layers(layers: nn.ModuleList, family: Family) -> None:
    """Let each layer ask, once per call, what this run computes of it. Done once, at load."""
    for index, layer in enumerate(layers):
        last = index == len(layers) - 1
        module = family.attention_module(layer)
        module.forward = _shortened(module.forward, layer, index, family)
        layer.forward = _reusable(layer.forward, index, last=last)


def _reusable(forward: Callable, index: int, *, last: bool) -> Callable:
    """A layer that hands on the cached state below a run's start, and knows what the last reads."""

    @wraps(forward)
    def layer(hidden_states: Tensor, *args, **kwargs) -> Tensor:
        run = _RUN.get()
        if run is None:
            return forward(hidden_states, *args, **kwargs)
        if index < run.start:
            return run.hidden
        if index == run.start and run.hidden is not None:
            hidden_states = run.hidden
        if run.tick:
            run.tick()
        run.layer = index
        if run.keep is not None:
            run.keep.append(hidden_states)
        run.whole = hidden_states if last and run.read is not None else None
        if run.whole is not None:
            hidden_states = _at(run.whole, run.read)
        output = forward(hidden_states, *args, **kwargs)
        if run.whole is not None:
            output = _spread(output, run.read, run.whole)
        if run.keep is not None and last:
            run.keep.append(output)
        return output

    return layer


def _shortened(forward: Callable, layer: nn.Module, index: int, family: Family) -> Callable:
    """A layer's attention that computes nothing that is cached or that nobody reads.

    Keys and values need the whole text; what follows attention is per position, so a last layer
    that is read at a few positions goes on with those alone.
    """

    @wraps(forward)
    def attention(hidden_states: Tensor, *args, **kwargs) -> tuple[Tensor, None]:
        run = _RUN.get()
        if run is None:
            return forward(hidden_states, *args, **kwargs)
        if run.contexts is not None and index == run.start:
            run.seen.append(index)
            contexts = run.contexts if run.whole is None else _at(run.contexts, run.read)
            return family.after_attention(layer, contexts), None
        if run.whole is None:
            return forward(hidden_states, *args, **kwargs)
        output, weights = forward(family.before_attention(layer, run.whole), *args, **kwargs)
        return _at(output, run.read), weights

    return attention


def _at(
    values: Float[Tensor, "batch position d_model"], read: Int[Tensor, "batch read"]
) -> Float[Tensor, "batch read d_model"]:
    return values.gather(1, read[..., None].expand(-1, -1, values.shape[2]))


def _spread(
    values: Float[Tensor, "batch read d_model"],
    read: Int[Tensor, "batch read"],
    like: Float[Tensor, "batch position d_model"],
) -> Float[Tensor, "batch position d_model"]:
    """The read positions in their places, zeros elsewhere: what follows counts positions."""
    places = read[..., None].expand_as(values)
    return torch.zeros_like(like).scatter(1, places, values)


def gate(gates: Mapping[tuple[int, int], float] | Float[Tensor, "layer *batch head"]) -> Watcher:
    """A factor ξ on each head's context (1: as is, 0: ablated), by (layer, head) or as a tensor.

    A tensor may have a batch axis, one gate per example, and may require a gradient (Michel,
    Levy & Neubig 2019, eq. 2).
    """

    def gated(call: AttentionCall) -> Tensor | None:
        factors = _factors(gates, call)
        if factors is None:
            return None
        return call.context() * factors[..., None, None]

    return gated


def _factors(gates: Mapping | Tensor, call: AttentionCall) -> Tensor | None:
    if isinstance(gates, Tensor):
        return gates[call.layer]
    mine = {head: factor for (layer, head), factor in gates.items() if layer == call.layer}
    if not mine:
        return None
    factors = call.query.new_ones(call.query.shape[1])
    for head, factor in mine.items():
        factors[head] = factor
    return factors
