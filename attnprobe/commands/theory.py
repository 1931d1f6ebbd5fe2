"""The theory lab's experiments, with the settings of the texts they come from."""

from argparse import ArgumentParser, Namespace

import pandas as pd

from attnprobe.errors import BadInput
from attnprobe.theory import EXPERIMENTS

NAME = "theory"
HELP = "an experiment of the theory lab: why scores are divided by the square root of d_k"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("experiment", choices=list(EXPERIMENTS))
    parser.add_argument("--part", help="another frame of the same experiment, by name")


def run(args: Namespace) -> pd.DataFrame:
    experiment = EXPERIMENTS[args.experiment]
    if args.part is None:
        return experiment.run()
    if args.part not in experiment.parts:
        known = ", ".join(experiment.parts) or "no further frames"
        raise BadInput(f"{args.experiment} has no part {args.part!r}; it has {known}")
    return experiment.parts[args.part]()
