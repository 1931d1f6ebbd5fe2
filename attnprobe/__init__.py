"""attnprobe: what the attention heads of a pretrained model compute, with a proof."""

from attnprobe.capture import AttentionCall, gate, watching
from attnprobe.errors import AttnprobeError
from attnprobe.models import LoadedModel, load

__all__ = ["AttentionCall", "AttnprobeError", "LoadedModel", "gate", "load", "watching"]
