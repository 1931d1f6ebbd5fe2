"""Whether a gradient can pass: Jacobian norms of every row, real gradients, sinks."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

import pandas as pd

from attnprobe.analyses import gradient, saturation, sinks
from attnprobe.commands import data, inputs
from attnprobe.data import LabelledText
from attnprobe.errors import BadInput
from attnprobe.loaded import LoadedModel
from attnprobe.text import Tokens
from attnprobe.trace import SATURATED_FROM, Trace, head_table, trace

NAME = "jacobian"
HELP = "Jacobian norms of every row, the real gradient through every softmax, and sinks"


def add_arguments(parser: ArgumentParser) -> None:
    inputs.add_model(parser)
    inputs.add_text(parser)
    inputs.add_head(parser)
    parser.add_argument("--query", type=int, help="the Jacobian of this row of the head")
    parser.add_argument(
        "--threshold",
        type=float,
        default=SATURATED_FROM,
        help=f"peak from which a row is saturated (default: {SATURATED_FROM})",
    )
    parser.add_argument(
        "--loss", choices=gradient.LOSSES, help="default: target, or top answer without a target"
    )
    parser.add_argument("--answer", help="the loss is −ln p of this class or label sentence")
    data.add_readout(parser)


def run(args: Namespace) -> Mapping[str, pd.DataFrame]:
    """`heads`, `rows`, `sinks`, `without_special`, the two of the gradient, and one `jacobian`."""
    loaded = inputs.model_of(args)
    tokens = inputs.tokens_of(args, loaded)
    layer, head = inputs.head_of(args, loaded)
    if not 0 < args.threshold <= 1:
        raise BadInput(f"--threshold is {args.threshold:g} and a peak is above 0 and at most 1")
    if args.query is not None and head is None:
        raise BadInput("--query came without a head; give --layer and --head")
    traced = trace(loaded, tokens)
    frames = {
        "heads": head_table(traced, saturated_from=args.threshold),
        "rows": saturation.rows(traced),
        "sinks": sinks.shares(traced),
        **_without_special(traced),
        **_gradients(args, loaded, tokens),
    }
    if args.query is not None:
        frames["jacobian"] = saturation.jacobian_frame(traced, layer, head, args.query)
    return frames


def _without_special(traced: Trace) -> dict[str, pd.DataFrame]:
    """Both ways, told by the column `renormalised`; nothing where too few tokens are left."""
    if sum(not special for special in traced.tokens.special) < 2:
        return {}
    frames = [
        sinks.without_special(traced, renormalised=way).assign(renormalised=way)
        for way in (True, False)
    ]
    return {"without_special": pd.concat(frames, ignore_index=True)}


def _gradients(args: Namespace, loaded: LoadedModel, tokens: Tokens) -> dict[str, pd.DataFrame]:
    """What one backward pass gives; said and left out where a text is too short for the read-out
    that nobody asked for."""
    read = data.of_one_text(args, loaded)
    if args.answer is not None and read.classes is None:
        raise BadInput(
            f"--answer came and the read-out is {read.name}, which has no classes; leave it out or "
            "choose --readout label-sentences"
        )
    try:
        examples = read.prepare([LabelledText(tokens.text, args.answer)])
    except BadInput as error:
        if args.readout != "auto" or args.loss is not None or args.answer is not None:
            raise
        print(f"attnprobe {NAME}: no gradient: {error}", file=sys.stderr)
        return {}
    rows = gradient.rows(gradient.gradients(read, examples, args.loss))
    return {"gradient_heads": gradient.heads(rows), "gradient_rows": rows}
