"""Head pruning on a set of texts: importance and effects, curves, and heads cut out for good."""

from argparse import ArgumentParser, Namespace

import pandas as pd

from attnprobe import cut_models
from attnprobe.analyses import ablation
from attnprobe.analyses.ablation import Replacement
from attnprobe.analyses.pruning import curve, effects, importance, ranking, savings
from attnprobe.commands import data, inputs
from attnprobe.data import TextSet
from attnprobe.errors import BadInput
from attnprobe.export.files import require_place
from attnprobe.loaded import LoadedModel
from attnprobe.readout import ReadOut

MODEL = "cut_model"
"""The folder of the cut model inside --out."""
NAME = "prune"
HELP = "importance of every head, effect of switching it off, pruning curves, cutting heads out"


def add_arguments(parser: ArgumentParser) -> None:
    inputs.add_model(parser)
    data.add_data(parser)
    parser.add_argument("--ablation", choices=list(ablation.ABLATIONS), default="zero")
    parser.add_argument(
        "--by",
        choices=list(ranking.SCORES),
        default="importance",
        help="the score that orders heads for --curve and --cut",
    )
    parser.add_argument(
        "--keep-one", action="store_true", help="all heads of a layer off but the best one"
    )
    parser.add_argument("--curve", action="store_true", help="remove heads in several orders")
    parser.add_argument(
        "--one-by-one", action="store_true", help="curve head by head, not in tenths"
    )
    parser.add_argument(
        "--rescore", action="store_true", help="add the order re-scored after each step"
    )
    parser.add_argument(
        "--random", type=inputs.whole(0), default=curve.RANDOM_ORDERS, help="random orders"
    )
    parser.add_argument(
        "--cut",
        type=int,
        metavar="K",
        help="cut out the K least important heads and measure; saved in --out",
    )
    parser.add_argument(
        "--tokens", type=inputs.whole(1), default=64, help="text length for --cut's timing"
    )


def run(args: Namespace) -> dict[str, pd.DataFrame]:
    """`heads` (scored on the scoring part) and, as asked for, `kept`, `curve`, `falls`, `saved`,
    `latency`."""
    loaded = inputs.model_of(args)
    texts = data.texts_of(args)
    readout = data.readout_of(args, loaded, texts)
    scoring, evaluation = texts.split(seed=args.seed)
    instead = ablation.replacement(args.ablation, readout, scoring)
    heads = ranking.table(
        importance.importance(readout, scoring, seed=args.seed),
        effects.one_head_off(readout, scoring, instead).frame(seed=args.seed),
    )
    heads = heads.assign(ablation=args.ablation, readout=readout.statement)
    frames = {"heads": heads}
    if args.keep_one:
        both = [effects.all_but_one(readout, part, instead) for part in (scoring, evaluation)]
        frames["kept"] = effects.best_to_keep(*both)
    if args.curve:
        frames |= _curve(args, readout, heads, scoring, evaluation, instead)
    if args.cut is not None:
        frames |= _cut(args, loaded, heads)
    return frames


def _curve(
    args: Namespace,
    readout: ReadOut,
    heads: pd.DataFrame,
    scoring: TextSet,
    evaluation: TextSet,
    instead: Replacement,
) -> dict[str, pd.DataFrame]:
    at = curve.steps(len(heads), one_by_one=args.one_by_one)
    orders = ranking.orders(heads, args.by, random=args.random, seed=args.seed)
    if args.rescore:
        normalised = args.by.endswith("l2")
        orders["re-scored"] = [curve.rescored_order(readout, scoring, at, normalised=normalised)]
    frame = curve.curve(readout, evaluation, orders, at, instead)
    return {"curve": frame, "falls": curve.first_fall(frame)}


def _cut(args: Namespace, loaded: LoadedModel, heads: pd.DataFrame) -> dict[str, pd.DataFrame]:
    if not 1 <= args.cut <= len(heads):
        raise BadInput(f"--cut is {args.cut} and the model has {len(heads)} heads")
    least = heads.nsmallest(args.cut, args.by)
    cut = cut_models.cut(loaded, zip(least["layer"], least["head"], strict=True))
    if args.out is not None:
        require_place(args.out / MODEL)
        cut_models.save(cut, args.out / MODEL)
    tokens = min(args.tokens, loaded.max_tokens)
    return {
        "saved": savings.saved(loaded, cut, tokens),
        "latency": savings.latency(loaded, cut, tokens),
    }
