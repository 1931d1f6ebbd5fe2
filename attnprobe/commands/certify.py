"""The running model against its from-scratch twin, stage by stage."""

from argparse import ArgumentParser, Namespace

import pandas as pd

from attnprobe.commands import inputs
from attnprobe.scratch.certificate import certify

NAME = "certify"
HELP = "compare the running model with a from-scratch re-implementation, stage by stage"


def add_arguments(parser: ArgumentParser) -> None:
    inputs.add_model(parser)
    inputs.add_text(parser)


def run(args: Namespace) -> pd.DataFrame:
    loaded = inputs.model_of(args)
    return certify(loaded, inputs.tokens_of(args, loaded))
