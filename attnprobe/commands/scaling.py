"""What √d_k does: spread of the logits, its causes, and other scales."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

import pandas as pd

from attnprobe.analyses import rescaling, scaling
from attnprobe.commands import data, inputs
from attnprobe.errors import BadInput
from attnprobe.loaded import LoadedModel
from attnprobe.text import Tokens
from attnprobe.trace import Trace, trace

NAME = "scaling"
HELP = "spread of every head's logits, where it comes from, and what other scales would do"


def add_arguments(parser: ArgumentParser) -> None:
    inputs.add_model(parser)
    inputs.add_text(parser)
    inputs.add_head(parser)
    parser.add_argument(
        "--factor", type=float, help="this factor on the scale in detail: row by row, in the model"
    )
    parser.add_argument(
        "--pair", nargs=2, type=int, metavar=("QUERY", "KEY"), help="split this logit of the head"
    )
    parser.add_argument(
        "--in-model",
        action="store_true",
        help="also sweep factors inside the running model: the head, its --layer, or all layers",
    )
    data.add_readout(parser)


def run(args: Namespace) -> Mapping[str, pd.DataFrame]:
    """`spread`, `causes`, `asymmetry`; of a layer or head `histogram`; of a head `what_if`."""
    loaded = inputs.model_of(args)
    tokens = inputs.tokens_of(args, loaded)
    layer, head = inputs.head_of(args, loaded)
    traced = trace(loaded, tokens)
    frames = {
        "spread": scaling.spread(traced),
        "causes": scaling.causes(traced),
        "asymmetry": scaling.asymmetry(traced),
    }
    if layer is not None:
        frames["histogram"] = scaling.histogram(traced, layer, head)
    if head is not None:
        frames |= _of_head(args, loaded, traced, layer, head)
    elif args.pair:
        raise BadInput("--pair came without a head; give --layer and --head")
    if args.factor is not None and head is None and not args.in_model:
        raise BadInput("--factor came alone; give --layer and --head, or --in-model")
    if args.in_model:
        frames |= _in_model(args, loaded, tokens, layer, head)
    return frames


def _of_head(
    args: Namespace, loaded: LoadedModel, traced: Trace, layer: int, head: int
) -> dict[str, pd.DataFrame]:
    frames = {"what_if": scaling.what_if(traced, layer, head)}
    if args.factor is not None:
        frames["what_if_rows"] = scaling.what_if_rows(traced, layer, head, args.factor)
    if args.pair:
        frames["summands"] = scaling.summands(loaded, traced, layer, head, *args.pair)
    return frames


def _in_model(
    args: Namespace, loaded: LoadedModel, tokens: Tokens, layer: int | None, head: int | None
) -> dict[str, pd.DataFrame]:
    """The sweep, and for one factor its answers and every head's entropy."""
    read = data.of_one_text(args, loaded)
    examples = read.prepare([tokens.text])
    if args.factor is None:
        return {"in_model": rescaling.sweep(read, examples, layer, head)}
    factors = rescaling.factors_for(loaded, args.factor, layer, head)
    return {
        "in_model": rescaling.sweep(read, examples, layer, head),
        "in_model_answers": rescaling.top(read, examples, factors),
        "in_model_heads": rescaling.heads_after(loaded, tokens, factors),
    }
