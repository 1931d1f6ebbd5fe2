"""The arguments of experiments: which texts, and which read-out."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from dataclasses import replace

from attnprobe import data, readout
from attnprobe.commands import inputs
from attnprobe.data import TextSet
from attnprobe.errors import BadInput
from attnprobe.loaded import LoadedModel
from attnprobe.readout import ReadOut


def add_data(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        default="topics",
        help="topics or prose (bundled), or a .txt, .csv or .jsonl file (default: topics)",
    )
    parser.add_argument("--limit", type=int, help="take that many texts, evenly over the classes")
    add_readout(parser)


def add_readout(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--readout",
        choices=["auto", *_READOUTS],
        default="auto",
        help="what is watched (default: that of the model's own head, else label sentences)",
    )
    parser.add_argument(
        "--sentence",
        action="append",
        default=[],
        metavar="LABEL=SENTENCE",
        help="a label sentence; repeat it for every label",
    )
    parser.add_argument("--temperature", type=float, default=readout.TEMPERATURE)
    parser.add_argument("--seed", type=inputs.whole(0), default=0)


def texts_of(args: Namespace) -> TextSet:
    texts = data.bundled(args.data) if args.data in data.BUNDLED else data.read_file(args.data)
    if args.limit is not None and args.limit < 1:
        raise BadInput(f"--limit is {args.limit} and must be at least 1")
    texts = texts if args.limit is None else texts.first(args.limit)
    return replace(texts, sentences=readout.sentences_of(args.sentence)) if args.sentence else texts


def readout_of(args: Namespace, loaded: LoadedModel, texts: TextSet) -> ReadOut:
    if args.readout != "auto":
        return _READOUTS[args.readout](args, loaded, texts)
    if loaded.head_kind in ("bare encoder", "token classification"):
        return _label_sentences(args, loaded, texts)
    return readout.default(loaded, texts)


def of_one_text(args: Namespace, loaded: LoadedModel) -> ReadOut:
    """The read-out of a command about one text; label sentences are the bundled ones or given."""
    texts = data.bundled("topics")
    if args.sentence:
        texts = replace(texts, sentences=readout.sentences_of(args.sentence))
    if args.readout not in ("auto", "next-token", "last-token") or loaded.head_kind != "causal LM":
        return readout_of(args, loaded, texts)
    where = "last" if args.readout == "last-token" else "all"
    return readout.next_token(loaded, where=where, begin=args.begin)


def _label_sentences(args: Namespace, loaded: LoadedModel, texts: TextSet) -> ReadOut:
    if not texts.sentences:
        raise BadInput(
            f"{args.data} has no label sentences; give one per label, "
            "--sentence 'sport=This text is about sport.'"
        )
    return readout.label_sentences(loaded, texts.sentences, temperature=args.temperature)


_READOUTS: Mapping[str, Callable[[Namespace, LoadedModel, TextSet], ReadOut]] = {
    "next-token": lambda args, loaded, texts: readout.next_token(loaded),
    "last-token": lambda args, loaded, texts: readout.next_token(loaded, where="last"),
    "masked-token": lambda args, loaded, texts: readout.masked_token(loaded, seed=args.seed),
    "each-token": lambda args, loaded, texts: readout.masked_token(loaded, each=True),
    "class": lambda args, loaded, texts: readout.classes(loaded),
    "label-sentences": _label_sentences,
}
