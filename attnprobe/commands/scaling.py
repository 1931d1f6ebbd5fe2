"""What √d_k does: spread of the logits, its causes, and other scales."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

import pandas as pd

from attnprobe import readout
from attnprobe.analyses import rescaling, scaling
from attnprobe.commands import inputs
from attnprobe.data import bundled
from attnprobe.trace import trace

NAME = "scaling"
HELP = "spread of every head's logits, where it comes from, and what other scales would do"


def add_arguments(parser: ArgumentParser) -> None:
    inputs.add_model(parser)
    inputs.add_text(parser)
    inputs.add_head(parser)
    parser.add_argument(
        "--in-model",
        action="store_true",
        help="also sweep factors inside the running model: the head, its --layer, or all layers",
    )


def run(args: Namespace) -> Mapping[str, pd.DataFrame]:
    loaded = inputs.model_of(args)
    tokens = inputs.tokens_of(args, loaded)
    layer, head = inputs.head_of(args, loaded)
    traced = trace(loaded, tokens)
    frames = {
        "spread": scaling.spread(traced),
        "causes": scaling.causes(traced),
        "asymmetry": scaling.asymmetry(traced),
    }
    if layer is not None and head is not None:
        frames["what_if"] = scaling.what_if(traced, layer, head)
    if args.in_model:
        read = readout.default(loaded, bundled("topics"))
        frames["in_model"] = rescaling.sweep(read, read.prepare([tokens.text]), layer, head)
    return frames
