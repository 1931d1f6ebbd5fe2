"""What heads do with repeated random tokens: previous-token, duplicate-token, induction scores."""

from argparse import ArgumentParser, Namespace

import pandas as pd

from attnprobe.analyses import roles
from attnprobe.commands import inputs

NAME = "roles"
HELP = "previous-token, duplicate-token and induction score of every head, on random repeats"


def add_arguments(parser: ArgumentParser) -> None:
    inputs.add_model(parser)
    parser.add_argument(
        "--period", type=int, default=roles.PERIOD, help="random tokens before they come again"
    )
    parser.add_argument("--sequences", type=int, default=roles.SEQUENCES)
    parser.add_argument("--seed", type=int, default=0)


def run(args: Namespace) -> pd.DataFrame:
    loaded = inputs.model_of(args)
    asked = roles.questions(loaded, period=args.period, sequences=args.sequences, seed=args.seed)
    return roles.role_table(loaded, asked)
