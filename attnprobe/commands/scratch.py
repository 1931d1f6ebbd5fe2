"""The model against its re-implementation, with mistakes put in, and facts about one head."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

import pandas as pd

from attnprobe.commands import inputs
from attnprobe.scratch.certificate import certify
from attnprobe.scratch.faults import FAULTS
from attnprobe.scratch.head import properties, slack
from attnprobe.trace import trace

NAME = "scratch"
HELP = "the certificate with mistakes put into the re-implementation, and facts about one head"


def add_arguments(parser: ArgumentParser) -> None:
    inputs.add_model(parser)
    inputs.add_text(parser)
    inputs.add_head(parser)
    parser.add_argument(
        "--fault", action="append", default=[], choices=list(FAULTS), help="may be given repeatedly"
    )


def run(args: Namespace) -> Mapping[str, pd.DataFrame]:
    loaded = inputs.model_of(args)
    tokens = inputs.tokens_of(args, loaded)
    layer, head = inputs.head_of(args, loaded)
    frames = {"certificate": certify(loaded, tokens, faults=args.fault)}
    if layer is not None and head is not None:
        traced = trace(loaded, tokens)
        frames["properties"] = properties(traced, layer, head)
        frames["slack"] = slack(traced, layer, head)
    return frames
