"""A model's forward pass again: the steps of its family, run layer by layer in any precision."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnprobe.errors import UnsupportedModel
from attnprobe.models import LoadedModel
from attnprobe.scratch.architecture import Architecture, Head, Settings, Weights
from attnprobe.scratch.arithmetic import Arithmetic, raw_logits, weighted_values
from attnprobe.scratch.bert import BERT
from attnprobe.scratch.faults import arithmetic
from attnprobe.scratch.gpt2 import GPT2

TWINS: Mapping[str, Architecture] = {"bert": BERT, "gpt2": GPT2}

_CELLS = 2**18
"""Query–key pairs that one slice of heads may have: a long text is worked through by heads."""


@dataclass(frozen=True, eq=False)
class Attended:
    """The query × key matrices of some heads, and the context that comes of them."""

    raw_logits: Float[Tensor, "head query key"]
    scaled_logits: Float[Tensor, "head query key"]
    masked_logits: Float[Tensor, "head query key"]
    weights: Float[Tensor, "head query key"]
    context: Float[Tensor, "head query d_head"]


def attend(
    query: Float[Tensor, "head query d_head"],
    key: Float[Tensor, "head key d_head"],
    value: Float[Tensor, "head key d_head"],
    *,
    scale: float,
    causal: bool,
    ops: Arithmetic,
) -> Attended:
    """softmax(mask(QKᵀ · scale))·V with every step kept (Vaswani et al. 2017, eq. 1)."""
    raw = raw_logits(query, key)
    scaled = ops.scale(raw, scale)
    masked = ops.mask(scaled, causal)
    weights = ops.softmax(masked)
    return Attended(raw, scaled, masked, weights, weighted_values(weights, value))


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer of a twin, its weights in the twin's precision."""

    steps: Architecture
    settings: Settings
    weights: Weights
    ops: Arithmetic
    index: int

    def query_key_value(
        self, hidden: Float[Tensor, "position d_model"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each [head position d_head], from the layer's input."""
        hidden = hidden.to(self.weights.dtype)
        return self.steps.query_key_value(self.weights, hidden, self.settings, self.ops)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Attended:
        """The attention of some or all heads, from their queries, keys and values."""
        if self.settings.upcast and query.itemsize < 4:
            query, key = query.float(), key.float()
        return attend(
            query,
            key,
            value,
            scale=self.settings.scales[self.index],
            causal=self.settings.causal,
            ops=self.ops,
        )

    def attention_output(
        self, context: Float[Tensor, "head position d_head"]
    ) -> Float[Tensor, "position d_model"]:
        """The contexts through W_O, before the residual."""
        return self.steps.attention_output(self.weights, context, self.ops)

    def output(
        self,
        hidden: Float[Tensor, "position d_model"],
        attention: Float[Tensor, "position d_model"],
    ) -> Float[Tensor, "position d_model"]:
        """What the layer hands on, from its input and its attention output."""
        hidden = hidden.to(self.weights.dtype)
        return self.steps.layer_output(self.weights, hidden, attention, self.settings, self.ops)

    def context(
        self,
        query: Float[Tensor, "head query d_head"],
        key: Float[Tensor, "head key d_head"],
        value: Float[Tensor, "head key d_head"],
    ) -> Float[Tensor, "head query d_head"]:
        """A·V alone; only some heads' query × key matrices are alive at a time."""
        slices = head_slices(*query.shape[:2])
        parts = [self.attend(query[heads], key[heads], value[heads]).context for heads in slices]
        return torch.cat(parts)

    def __call__(self, hidden: Float[Tensor, "position d_model"]) -> Tensor:
        """The whole layer."""
        context = self.context(*self.query_key_value(hidden))
        return self.output(hidden, self.attention_output(context))


def head_slices(n_heads: int, length: int) -> Iterator[slice]:
    """Heads in groups whose query × key matrices stay small together."""
    step = max(1, _CELLS // length**2)
    return (slice(start, start + step) for start in range(0, n_heads, step))


@dataclass(frozen=True, eq=False)
class Output:
    """The head of a twin, its weights in the twin's precision."""

    head: Head
    settings: Settings
    weights: Weights
    ops: Arithmetic

    def rows(
        self, hidden: Float[Tensor, "position d_model"], ids: Int[Tensor, " position"]
    ) -> Float[Tensor, "row d_model"]:
        """The hidden states that the head reads: all, the first, or the last that is no padding."""
        return self.head.rows(hidden, ids, self.settings).to(self.weights.dtype)

    def __call__(self, rows: Float[Tensor, "row d_model"]) -> Float[Tensor, "row out"]:
        """What the head makes of each of those rows."""
        return self.head.output(self.weights, rows, self.settings, self.ops)


@dataclass(frozen=True, eq=False)
class Twin:
    """A model's re-implementation in one precision, from its state dict and its config."""

    steps: Architecture
    settings: Settings
    weights: Weights
    head: Head
    ops: Arithmetic

    @property
    def n_layers(self) -> int:
        return len(self.settings.scales)

    def embeddings(self, ids: Int[Tensor, " position"]) -> Float[Tensor, "position d_model"]:
        """The input of the first layer."""
        return self.steps.embeddings(self.weights, ids, self.settings, self.ops)

    def layer(self, index: int) -> Layer:
        """One layer with its weights converted; let go of it to free them."""
        weights = self.weights.within(f"{self.steps.layer}.{index}")
        return Layer(self.steps, self.settings, weights, self.ops, index)

    def output(self) -> Output:
        """The model's head with its weights converted."""
        weights = self.weights.under(*self.head.parts)
        return Output(self.head, self.settings, weights, self.ops)

    def __call__(self, ids: Int[Tensor, " position"]) -> Float[Tensor, "row out"]:
        """The whole forward pass, from token ids to the model's output."""
        hidden = self.embeddings(ids)
        for index in range(self.n_layers):
            hidden = self.layer(index)(hidden)
        head = self.output()
        return head(head.rows(hidden, ids))


def twin_device(loaded: LoadedModel) -> torch.device:
    """Where the twin is computed: beside the model, but not on MPS, which has no float64."""
    return torch.device("cpu") if loaded.device.type == "mps" else loaded.device


def twin_of(
    loaded: LoadedModel, *, dtype: torch.dtype | None = None, faults: Iterable[str] = ()
) -> Twin:
    """The twin of a loaded model, in its own precision or another, with faults if asked for."""
    if loaded.family.model_type not in TWINS:
        raise UnsupportedModel(
            f"{loaded.name} is a {loaded.family.model_type} model and only "
            f"{' and '.join(TWINS)} have a from-scratch twin; its attention alone can be certified"
        )
    steps = TWINS[loaded.family.model_type]
    device = twin_device(loaded)
    state = {
        name.removeprefix(steps.base): tensor.to(device)
        for name, tensor in loaded.weights().items()
    }
    return Twin(
        steps=steps,
        settings=steps.settings(loaded.config),
        weights=Weights(state, dtype or loaded.dtype),
        head=steps.heads[loaded.head_kind],
        ops=arithmetic(faults),
    )
