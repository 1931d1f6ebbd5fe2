"""Every head's statistics on a text."""

from argparse import ArgumentParser, Namespace

import pandas as pd

from attnprobe.commands import inputs
from attnprobe.trace import SATURATED_FROM, head_table, trace

NAME = "heads"
HELP = "entropy, peak, saturation, Jacobian norms and logits of every head on a text"


def add_arguments(parser: ArgumentParser) -> None:
    inputs.add_model(parser)
    inputs.add_text(parser)
    parser.add_argument(
        "--saturated-from",
        type=float,
        default=SATURATED_FROM,
        help=f"peak from which a row counts as saturated (default: {SATURATED_FROM})",
    )


def run(args: Namespace) -> pd.DataFrame:
    loaded = inputs.model_of(args)
    traced = trace(loaded, inputs.tokens_of(args, loaded))
    return head_table(traced, saturated_from=args.saturated_from)
