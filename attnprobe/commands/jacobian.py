"""Whether a gradient can pass: Jacobian norms of every row, real gradients, sinks."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

import pandas as pd

from attnprobe import readout
from attnprobe.analyses import gradient, saturation, sinks
from attnprobe.commands import inputs
from attnprobe.data import bundled
from attnprobe.trace import trace

NAME = "jacobian"
HELP = "Jacobian norms of every row, the real gradient through every softmax, and sinks"


def add_arguments(parser: ArgumentParser) -> None:
    inputs.add_model(parser)
    inputs.add_text(parser)
    parser.add_argument(
        "--loss", choices=gradient.LOSSES, default="target", help="the loss whose gradient is taken"
    )


def run(args: Namespace) -> Mapping[str, pd.DataFrame]:
    loaded = inputs.model_of(args)
    tokens = inputs.tokens_of(args, loaded)
    traced = trace(loaded, tokens)
    read = readout.default(loaded, bundled("topics"))
    rows = gradient.rows(gradient.gradients(read, read.prepare([tokens.text]), args.loss))
    return {
        "rows": saturation.rows(traced),
        "gradient_heads": gradient.heads(rows),
        "gradient_rows": rows,
        "sinks": sinks.shares(traced),
    }
