"""LoadedModel: a model that has been checked, with what a person should know of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from attnprobe import capture, cutting
from attnprobe.errors import DeviceFull
from attnprobe.families import Family
from attnprobe.text import Batch, Reader, Tokens


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model in evaluation mode, its tokenizer, and what a person should know of both.

    Weights need no gradient and are never changed. `head_kind` is one of bare encoder, masked LM,
    causal LM, sequence classification, token classification. `revision` is the Hub's commit, or
    for other weights their digest. `notes` are sentences for the card.
    """

    name: str
    revision: str
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
    def removed(self) -> frozenset[tuple[int, int]]:
        """(layer, head) of the heads that were cut out of this model; empty for a whole one."""
        return cutting.removed_heads(self.model)

    def weights(self) -> Mapping[str, Tensor]:
        """All weights by name; heads that were cut out have zeros in their places."""
        return cutting.full_weights(self.model, self.family)

    @property
    def causal(self) -> bool:
        """Whether a token sees only itself and earlier ones."""
        return bool(self.family.model_type == "gpt2" or getattr(self.config, "is_decoder", False))

    @property
    def key(self) -> str:
        """One string that names this model among all others: for caches and provenance."""
        return f"{self.name}@{self.revision}:{self.device}:{self.precision}"

    def read(
        self, text: str, *, window: tuple[int, int] | None = None, begin: bool = False
    ) -> Tokens:
        """The text as this model's tokens; see `text.Reader.read`."""
        return self.reader.read(text, window=window, begin=begin)

    def batch(self, texts: list[Tokens] | Tokens) -> Batch:
        """One or several texts as a padded batch on the model's device."""
        batch = self.reader.batch([texts] if isinstance(texts, Tokens) else texts)
        return Batch(batch.ids.to(self.device), batch.mask.to(self.device))

    def forward(self, batch: Batch) -> Float[Tensor, " batch *rest"]:
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
        try:
            with capture.every_layer_once(self.n_layers):
                return module(**inputs, return_dict=False)
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            raise DeviceFull(
                f"{batch.ids.numel():,} tokens do not fit on {self.device} beside {self.name}; "
                "shorten the text, choose a window of it, or choose device cpu"
            ) from error
