"""attnprobe: what the attention heads of a pretrained model compute, with a proof.

>>> import attnprobe as ap
>>> loaded = ap.load("bundled:bert")
>>> trace = ap.trace(loaded, "The cat sat on the mat.")
>>> ap.head_table(trace)
"""

from attnprobe.capture import AttentionCall, gate, watching
from attnprobe.errors import AttnprobeError
from attnprobe.models import LoadedModel, load
from attnprobe.scratch.certificate import certify
from attnprobe.trace import Trace, head_table, trace

__version__ = "0.1.0"

__all__ = [
    "AttentionCall",
    "AttnprobeError",
    "LoadedModel",
    "Trace",
    "certify",
    "gate",
    "head_table",
    "load",
    "trace",
    "watching",
]
