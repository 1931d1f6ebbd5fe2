"""The model against its re-implementation, with mistakes put in, and facts about one head."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

import pandas as pd

from attnprobe.analyses.orders import equivariance
from attnprobe.commands import inputs
from attnprobe.errors import BadInput
from attnprobe.loaded import LoadedModel
from attnprobe.scratch.certificate import certify
from attnprobe.scratch.faults import FAULTS
from attnprobe.scratch.head import (
    STEPS,
    difference_frame,
    head_steps,
    properties,
    slack,
    step_frame,
)
from attnprobe.text import Tokens
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
    parser.add_argument(
        "--step",
        action="append",
        default=[],
        choices=STEPS,
        help="a tensor of the head as the re-implementation computes it; may be given repeatedly",
    )
    parser.add_argument(
        "--order",
        action="store_true",
        help="also the text in other orders, with and without places",
    )


def run(args: Namespace) -> Mapping[str, pd.DataFrame]:
    """`certificate`; of a head `properties`, `slack`, its steps and, with faults, `difference`."""
    loaded = inputs.model_of(args)
    tokens = inputs.tokens_of(args, loaded)
    layer, head = inputs.head_of(args, loaded)
    if args.step and head is None:
        raise BadInput("--step came without a head; give --layer and --head")
    frames = {"certificate": certify(loaded, tokens, faults=args.fault)}
    if args.order:
        frames["order"] = equivariance(loaded, tokens, permutations=4)
    if head is not None:
        frames |= _of_head(args, loaded, tokens, layer, head)
    return frames


def _of_head(
    args: Namespace, loaded: LoadedModel, tokens: Tokens, layer: int, head: int
) -> dict[str, pd.DataFrame]:
    traced = trace(loaded, tokens)
    frames = {"properties": properties(traced, layer, head), "slack": slack(traced, layer, head)}
    if not (args.step or args.fault):
        return frames
    steps = head_steps(loaded, tokens, layer, head, args.fault)
    frames |= {name: step_frame(steps, name) for name in args.step}
    if args.fault:
        frames["difference"] = difference_frame(traced, steps, layer, head)
    return frames
