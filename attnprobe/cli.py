"""`python -m attnprobe`: the same engine as the pages, without a browser.

Exit status 0, or 2 with one sentence on standard error.
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import pandas as pd
from transformers.utils import logging as transformers_logging

from attnprobe.commands import (
    certify,
    heads,
    jacobian,
    models,
    perturb,
    prune,
    roles,
    scaling,
    scratch,
    theory,
)
from attnprobe.errors import AttnprobeError, Stopped
from attnprobe.export.files import require_place, write

COMMANDS = (models, heads, roles, certify, scaling, scratch, jacobian, prune, perturb, theory)


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        if args.out is not None:
            require_place(args.out)
        _run(args)
    except AttnprobeError as error:
        print(f"attnprobe {args.command.NAME}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        sys.stderr.close()
    return 0


def _run(args: Namespace) -> None:
    """Runs the command; of one that was stopped, delivers what it kept before saying so."""
    try:
        found = args.command.run(args)
    except Stopped as stopped:
        if stopped.kept:
            _deliver(args, stopped.kept)
        raise
    _deliver(args, found)


class _OneSentence(ArgumentParser):
    """Says what is wrong with the arguments without printing the whole usage first."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser() -> ArgumentParser:
    parser = _OneSentence(
        prog="python -m attnprobe",
        description="What the attention heads of a pretrained model compute.",
    )
    choices = parser.add_subparsers(required=True, metavar="command")
    for command in COMMANDS:
        sub = choices.add_parser(command.NAME, help=command.HELP, description=command.HELP)
        command.add_arguments(sub)
        sub.add_argument("--format", choices=list(_FORMATS), default="table")
        sub.add_argument(
            "--out",
            type=Path,
            help="write here instead of printing: a file, or a folder for several",
        )
        sub.set_defaults(command=command)
    return parser


def _deliver(args: Namespace, result: pd.DataFrame | Mapping[str, pd.DataFrame]) -> None:
    """Prints frames or writes them, whole files only."""
    frames = {"": result} if isinstance(result, pd.DataFrame) else dict(result)
    rendered = {name: _FORMATS[args.format](frame) for name, frame in frames.items()}
    if args.out is None:
        for name, text in rendered.items():
            print(f"# {name}\n{text}" if len(frames) > 1 else text)
    elif len(frames) == 1:
        _write(args.out, *rendered.values())
    else:
        for name, text in rendered.items():
            _write(args.out / f"{name}.{_ENDINGS[args.format]}", text)


def _write(path: Path, text: str) -> None:
    require_place(path)
    write(path, (text + "\n").encode())


def _table(frame: pd.DataFrame) -> str:
    return frame.to_string(index=False, na_rep="–", float_format=lambda value: f"{value:.4g}")


def _csv(frame: pd.DataFrame) -> str:
    return frame.to_csv(index=False).rstrip("\n")


def _json(frame: pd.DataFrame) -> str:
    return frame.to_json(orient="records", double_precision=15, indent=1)


_FORMATS = {"table": _table, "csv": _csv, "json": _json}
_ENDINGS = {"table": "txt", "csv": "csv", "json": "json"}
