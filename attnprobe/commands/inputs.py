"""The arguments that commands share: which model, on what, and which text."""

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path

from attnprobe.errors import BadInput
from attnprobe.models import DTYPES, LoadedModel, load
from attnprobe.text import Tokens

LARGEST_FILE = 4 * 1024 * 1024


def whole(least: int, most: int = 2**63 - 1) -> Callable[[str], int]:
    """An argument that is a whole number within limits, for `add_argument(type=…)`."""

    def number(given: str) -> int:
        try:
            value = int(given)
        except ValueError as error:
            raise ArgumentTypeError(f"{given!r} is no whole number") from error
        if not least <= value <= most:
            raise ArgumentTypeError(f"{given} came and {least} to {most} are possible")
        return value

    return number


def add_model(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        default="bundled:bert",
        help="bundled:bert, bundled:gpt2, a folder, or a Hub id (default: bundled:bert)",
    )
    parser.add_argument("--revision", help="branch, tag or commit of a Hub id")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument("--dtype", default="float32", choices=list(DTYPES))


def add_text(parser: ArgumentParser) -> None:
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--text", help="the text to look at")
    given.add_argument("--file", help="a UTF-8 file with the text, or - for standard input")
    parser.add_argument(
        "--window",
        nargs=2,
        type=int,
        metavar=("START", "LENGTH"),
        help="take LENGTH tokens from START on, for a text longer than the model reads",
    )
    parser.add_argument(
        "--begin",
        action="store_true",
        help="put the begin-of-text token first (GPT-2 does not do it by itself)",
    )


def add_head(parser: ArgumentParser) -> None:
    parser.add_argument("--layer", type=int, help="layer, from 0")
    parser.add_argument("--head", type=int, help="head, from 0; needs --layer")


def head_of(args: Namespace, loaded: LoadedModel) -> tuple[int | None, int | None]:
    """The chosen layer and head, None where not chosen; checked against the model."""
    if args.head is not None and args.layer is None:
        raise BadInput("--head came without --layer; give both")
    for name, number, count in (
        ("layer", args.layer, loaded.n_layers),
        ("head", args.head, loaded.n_heads),
    ):
        if number is not None and not 0 <= number < count:
            raise BadInput(
                f"{name} {number} came and {loaded.name} has {count} {name}s (0 to {count - 1})"
            )
    return args.layer, args.head


def model_of(args: Namespace) -> LoadedModel:
    return load(args.model, device=args.device, dtype=args.dtype, revision=args.revision)


def tokens_of(args: Namespace, loaded: LoadedModel) -> Tokens:
    text = args.text if args.file is None else read_text(args.file)
    window = tuple(args.window) if args.window else None
    return loaded.read(text, window=window, begin=args.begin)


def read_text(path: str) -> str:
    """A text file as a string; `-` is standard input."""
    try:
        data = sys.stdin.buffer.read(LARGEST_FILE + 1) if path == "-" else _bytes(Path(path))
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{path} is not UTF-8 (byte {error.start} is no part of a character); save it as UTF-8"
        ) from error
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}; check the path") from error
    if len(data) > LARGEST_FILE:
        raise BadInput(
            f"{path} has more than {LARGEST_FILE // 1024**2} MiB of text; take a part of it"
        )
    return text


def _bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(LARGEST_FILE + 1)
