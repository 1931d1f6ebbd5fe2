"""The models that come with attnprobe."""

from argparse import ArgumentParser, Namespace

import pandas as pd

from attnprobe.models import load
from attnprobe.sources import BUNDLED

NAME = "models"
HELP = "list the bundled models with their size, source and licence"


def add_arguments(parser: ArgumentParser) -> None:
    """Nothing to choose."""


def run(args: Namespace) -> pd.DataFrame:
    return pd.DataFrame([_row(name) for name in BUNDLED])


def _row(name: str) -> dict[str, object]:
    loaded = load(name, device="cpu")
    return {
        "model": name,
        "title": BUNDLED[name].title,
        "head_kind": loaded.head_kind,
        "layers": loaded.n_layers,
        "heads": loaded.n_heads,
        "d_head": loaded.d_head,
        "parameters": loaded.parameters,
        "max_tokens": loaded.max_tokens,
        "licence": loaded.licence,
        "source": loaded.origin,
    }
