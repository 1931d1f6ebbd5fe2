"""Texts and their labels: pasted, from a .txt, .csv or .jsonl file, or bundled.

A set is split into a scoring part, on which heads are ranked, and a disjoint evaluation part, on
which the consequences are reported: choosing and reporting on one set flatters every choice.
"""

import csv
import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from pathlib import Path

import pandas as pd

from attnprobe.errors import BadInput

MAX_BYTES = 8 * 2**20
MAX_TEXTS = 5_000
csv.field_size_limit(MAX_BYTES)
_BUNDLED = Path(__file__).parent / "bundled" / "texts"


@dataclass(frozen=True)
class LabelledText:
    """One text and, where there is one, the name of its class."""

    text: str
    label: str | None = None


@dataclass(frozen=True)
class TextSet:
    """Texts in order, under the name that figures print.

    `sentences` says each label in words, for encoders that classify by similarity. `digest` names
    the content: two sets with the same texts and labels have the same digest.
    """

    name: str
    texts: tuple[LabelledText, ...]
    sentences: Mapping[str, str] = field(default_factory=dict)
    licence: str | None = None

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes that occur, sorted; empty when a text has none."""
        if any(text.label is None for text in self.texts):
            return ()
        return tuple(sorted({text.label for text in self.texts}))

    @property
    def digest(self) -> str:
        """SHA-256 over texts and labels, shortened to twelve hexadecimal digits."""
        pairs = [(text.text, text.label) for text in self.texts]
        return hashlib.sha256(repr(pairs).encode()).hexdigest()[:12]

    def first(self, count: int) -> "TextSet":
        """The first `count` texts of every class in turn, in the order of the set."""
        order = _taking_turns(self.texts)[:count]
        return replace(self, texts=tuple(self.texts[i] for i in sorted(order)))

    def split(self, share: float = 0.5, seed: int = 0) -> tuple["TextSet", "TextSet"]:
        """A scoring part with `share` of every class and the disjoint rest for evaluation.

        Which part a text goes to depends on its words, its class and the seed, not on its place in
        the file; equal texts never land on both sides. Both parts keep the order of the set.
        """
        if not 0 < share < 1:
            raise BadInput(
                f"the scoring part was to be {share:g} of the texts; choose 0 < share < 1"
            )
        chosen = _chosen(self.texts, share, seed)
        parts = [
            replace(
                self,
                name=f"{self.name}, {part}",
                texts=tuple(t for t in self.texts if (t.text in chosen) == inside),
            )
            for part, inside in (("scoring part", True), ("evaluation part", False))
        ]
        if not all(len(part) for part in parts):
            counts = len({t.text for t in self.texts}), len({t.label for t in self.texts})
            raise BadInput(
                f"{self.name} has {counts[0]} different text(s) in {counts[1]} class(es), which "
                "leaves scoring or evaluation without any; give a class at least two texts"
            )
        return parts[0], parts[1]


def _chosen(texts: Sequence[LabelledText], share: float, seed: int) -> set[str]:
    """The texts of the scoring part: the first of every class by a hash of seed and words."""
    first_label = {}
    for text in texts:
        first_label.setdefault(text.text, str(text.label))

    def key(words: str) -> tuple[str, str]:
        return first_label[words], hashlib.sha256(f"{seed}:{words}".encode()).hexdigest()

    chosen: set[str] = set()
    for _, group in groupby(sorted(first_label, key=key), key=lambda words: first_label[words]):
        members = list(group)
        chosen.update(members[: max(1, round(share * len(members)))])
    return chosen


def _taking_turns(texts: Sequence[LabelledText]) -> list[int]:
    """Indices such that every prefix holds the classes as evenly as they come."""
    seen: dict[str | None, int] = {}
    ranks = []
    for index, text in enumerate(texts):
        seen[text.label] = seen.get(text.label, 0) + 1
        ranks.append((seen[text.label], index))
    return [index for _, index in sorted(ranks)]


def pasted(value: str) -> TextSet:
    """One text a line, blank lines left out."""
    return _set("pasted texts", [LabelledText(line) for line in _lines(value)])


def read_file(path: str | Path) -> TextSet:
    """A .txt, .csv or .jsonl file by its path; see `from_bytes`."""
    path = Path(path)
    try:
        path = path.expanduser()
        _within(path.name, path.stat().st_size)
        if not path.is_file():
            raise BadInput(f"{path} is no ordinary file; choose a .txt, .csv or .jsonl file")
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}; check the path") from error
    except (ValueError, RuntimeError) as error:  # a NUL in the name, an unknown ~user
        raise BadInput(f"{str(path)!r} cannot be read: {error}; check the path") from error
    return from_bytes(path.name, content)


def from_bytes(name: str, content: bytes) -> TextSet:
    """A file's content as texts: .txt has a text a line; .csv and .jsonl have `text` and `label`.

    The `label` column may be missing. Raises `BadInput` for files that are too large, are not
    UTF-8, hold NUL bytes, lack the column `text` or have no text at all.
    """
    _within(name, len(content))
    suffix = Path(name).suffix.lower()
    if suffix not in _READERS:
        raise BadInput(f"{name} is of no known kind; choose a file ending in {', '.join(_READERS)}")
    if b"\0" in content:
        raise BadInput(f"{name} holds NUL bytes, so it is no text file; save it as UTF-8 text")
    try:
        decoded = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{name} is not UTF-8 (byte {error.start:,} cannot be read); save it as UTF-8"
        ) from error
    return _set(name, _READERS[suffix](name, decoded))


def _within(name: str, size: int) -> None:
    if size > MAX_BYTES:
        raise BadInput(
            f"{name} has {size / 2**20:.1f} MiB and at most {MAX_BYTES // 2**20} MiB are read; "
            "take a part of it"
        )


def _set(name: str, texts: list[LabelledText]) -> TextSet:
    if not texts:
        raise BadInput(f"{name} holds no text; give at least one line")
    if len(texts) > MAX_TEXTS:
        raise BadInput(
            f"{name} holds {len(texts):,} texts and at most {MAX_TEXTS:,} are read; take a part"
        )
    labelled = sum(text.label is not None for text in texts)
    if labelled not in (0, len(texts)):
        raise BadInput(
            f"{name} has a label for {labelled:,} of {len(texts):,} texts; label all or none"
        )
    broken = next((i for i, text in enumerate(texts, 1) if not _encodable(text)), None)
    if broken is not None:
        raise BadInput(
            f"text {broken:,} of {name} or its label has a lone surrogate, which is no character; "
            "remove it"
        )
    return TextSet(name, tuple(texts))


def _encodable(text: LabelledText) -> bool:
    try:
        f"{text.text}{text.label}".encode()
    except UnicodeEncodeError:
        return False
    return True


def _lines(value: str) -> list[str]:
    return [line.strip() for line in value.splitlines() if line.strip()]


def _plain(name: str, content: str) -> list[LabelledText]:
    return [LabelledText(line) for line in _lines(content)]


def _csv(name: str, content: str) -> list[LabelledText]:
    reader = csv.reader(io.StringIO(content, newline=""), strict=True)
    filled = (row for row in reader if row)
    records = []
    try:
        columns = [column.strip() for column in next(filled, [])]
        if not columns:
            raise BadInput(f"{name} is no CSV table: it is empty; save it as CSV again")
        for row in islice(filled, MAX_TEXTS + 1):
            if len(row) > len(columns):
                raise BadInput(
                    f"line {reader.line_num:,} of {name} has {len(row):,} cells and the header "
                    f"{len(columns):,}; put text with commas in quotes"
                )
            records.append({"text": ""} | dict(zip(columns, row, strict=False)))
    except csv.Error as error:
        raise BadInput(
            f"{name} is no CSV table: {error} (line {reader.line_num:,}); save it as CSV again"
        ) from error
    return _rows(name, records, columns)


def _jsonl(name: str, content: str) -> list[LabelledText]:
    records = []
    # Not splitlines(): the other line ends of Unicode may stand within a JSON string.
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"line {number:,} of {name} is not JSON; one object a line") from error
        if not isinstance(record, dict) or not isinstance(record.get("text"), str):
            raise BadInput(f'line {number:,} of {name} has no "text" that is a string')
        records.append(record)
    return _rows(name, records, ["text"])


def _rows(name: str, records: list[dict], columns: list[str]) -> list[LabelledText]:
    if "text" not in columns:
        there = ", ".join(repr(column[:40]) for column in columns[:8])
        raise BadInput(
            f"{name} has no column 'text' (it has {there}); "
            "name the column of the texts 'text' and that of the classes 'label'"
        )
    return [
        LabelledText(record["text"].strip(), _label(record.get("label")))
        for record in records
        if record["text"].strip()
    ]


def _label(value: object) -> str | None:
    return None if value is None or str(value).strip() == "" else str(value).strip()


_READERS: Mapping[str, Callable[[str, str], list[LabelledText]]] = {
    ".txt": _plain,
    ".csv": _csv,
    ".jsonl": _jsonl,
}

BUNDLED = ("topics", "prose")


def bundled(name: str) -> TextSet:
    """`topics`: short texts over five topics with a sentence per topic; `prose`: running prose."""
    if name not in BUNDLED:
        raise BadInput(f"{name!r} is no bundled set of texts; there are {', '.join(BUNDLED)}")
    licence = "Apache-2.0"
    if name == "prose":
        return replace(read_file(_BUNDLED / "prose.txt"), name="bundled prose", licence=licence)
    sentences = pd.read_csv(_BUNDLED / "topic_sentences.csv", dtype=str)
    return replace(
        read_file(_BUNDLED / "topics.csv"),
        name="bundled topics",
        sentences=dict(zip(sentences["label"], sentences["sentence"], strict=True)),
        licence=licence,
    )
