"""From a person's text to token ids, and from token ids to what a person reads.

`display_token` is the only place where a token becomes a label; the screen, the tooltips, the
figures and the files all use `Tokens.display`. CSV files keep `Tokens.raw`.
"""

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from tokenizers import Encoding, decoders
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from attnprobe.errors import BadInput, BadText, TextTooLong

_BREAKS = {"\n": "↵", "\r": "␍", "\t": "⇥"}


@dataclass(frozen=True)
class Tokens:
    """One text as a model reads it, special tokens included.

    `special` marks tokens that the tokenizer added or that are its control tokens; `words` gives
    the index of the word a token belongs to (None for special tokens). `window` is the slice
    (start, length) of content tokens that was taken out of `total`, or None for the whole text;
    `text` is then that part of it.
    """

    text: str
    ids: tuple[int, ...]
    raw: tuple[str, ...]
    display: tuple[str, ...]
    special: tuple[bool, ...]
    words: tuple[int | None, ...]
    total: int
    window: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the token ids, shortened to twelve hexadecimal digits."""
        return hashlib.sha256(repr(self.ids).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Batch:
    """Several texts as one padded array; `mask` is true where there is a real token."""

    ids: Int[Tensor, "batch position"]
    mask: Bool[Tensor, "batch position"]

    def __post_init__(self) -> None:
        # Some models take a mask of another length without a word.
        if self.ids.shape != self.mask.shape:
            raise BadInput(
                f"ids of shape {list(self.ids.shape)} came with a mask of shape "
                f"{list(self.mask.shape)}; one mark per token is needed"
            )

    @property
    def position_ids(self) -> Int[Tensor, "batch position"]:
        """Positions counted over real tokens only, so that padding moves nobody."""
        return (self.mask.long().cumsum(-1) - 1).clamp_min(0)

    def repeat(self, times: int) -> "Batch":
        """The whole batch `times` over, for variants of one run."""
        return Batch(self.ids.repeat(times, 1), self.mask.repeat(times, 1))


class Reader:
    """A tokenizer with what attnprobe needs to know about it, worked out once."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_tokens: int) -> None:
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens
        self.byte_level = isinstance(tokenizer.backend_tokenizer.decoder, decoders.ByteLevel)
        self.special_ids = _control_ids(tokenizer)
        self.prefix, self.suffix = self._wrapping()
        self.pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0

    def _wrapping(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The special ids that the tokenizer puts before and after a text."""
        plain = self.tokenizer("a", add_special_tokens=False)["input_ids"]
        full = self.tokenizer("a")["input_ids"]
        at = next(i for i in range(len(full)) if full[i : i + len(plain)] == plain)
        return tuple(full[:at]), tuple(full[at + len(plain) :])

    @property
    def begin_id(self) -> int | None:
        """The id that a causal model may be given as a first token, if it has one."""
        return self.tokenizer.bos_token_id if not self.prefix else None

    @property
    def room(self) -> int:
        """How many content tokens fit beside the special tokens."""
        return self.max_tokens - len(self.prefix) - len(self.suffix)

    def count(self, text: str) -> int:
        """Tokens of a text with its special tokens, whatever the limit."""
        return len(self._content(text).ids) + len(self.prefix) + len(self.suffix)

    def _content(self, text: str) -> Encoding:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadText(
                f"the text has a lone surrogate at character {error.start}, which is no "
                "character; remove it or save the file as UTF-8"
            ) from error
        return self.tokenizer(text, add_special_tokens=False, verbose=False).encodings[0]

    def read(
        self, text: str, *, window: tuple[int, int] | None = None, begin: bool = False
    ) -> Tokens:
        """A text as `Tokens`.

        `window` takes (start, length) content tokens out of a longer text; `begin` puts the
        model's begin-of-text token first where the tokenizer does not add one by itself. Raises
        `BadText` when there is no content token and `TextTooLong` when the model has too few
        positions: nothing is ever cut off silently.
        """
        content = self._content(text)
        ids, words = content.ids, content.word_ids
        if not ids:
            raise BadText(
                "the text is empty for this tokenizer (0 tokens of content came, at least 1 is "
                "needed); type a word or a sentence"
            )
        total = len(ids)
        if window is not None:
            start, length = window
            if start < 0 or length < 1:
                raise BadText(
                    f"the window starts at token {start:,} and is {length:,} long; choose a start "
                    "from 0 on and a length of at least 1"
                )
            ids, words = ids[start : start + length], words[start : start + length]
            if not ids:
                raise BadText(
                    f"the window starts at token {start:,} and the text has {total:,}; "
                    "choose a smaller start"
                )
            spans = content.offsets[start : start + length]
            text = text[spans[0][0] : spans[-1][1]]
        prefix = self.prefix
        if begin and self.begin_id is not None:
            prefix = (self.begin_id,)
        ids = [*prefix, *ids, *self.suffix]
        words = [*[None] * len(prefix), *words, *[None] * len(self.suffix)]
        if len(ids) > self.max_tokens:
            raise TextTooLong(
                f"the text is {len(ids):,} tokens long and the model reads at most "
                f"{self.max_tokens:,}; shorten it or pick a window of it"
            )
        return self._tokens(text, ids, words, total, window)

    def _tokens(self, text, ids, words, total, window) -> Tokens:
        raw = self.tokenizer.convert_ids_to_tokens(ids)
        special = tuple(i in self.special_ids for i in ids)
        pairs = zip(raw, special, strict=True)
        display = tuple(display_token(r, byte_level=self.byte_level and not s) for r, s in pairs)
        return Tokens(text, tuple(ids), tuple(raw), display, special, tuple(words), total, window)

    def label(self, token_id: int) -> str:
        """One id of the vocabulary as a person reads it."""
        raw = self.tokenizer.convert_ids_to_tokens(token_id)
        if raw is None:
            return f"id {token_id}"
        return display_token(raw, byte_level=self.byte_level and token_id not in self.special_ids)

    def batch(self, texts: Sequence[Tokens], *, side: str = "right") -> Batch:
        """Texts padded to the longest on the right (or left), on the CPU."""
        longest = max(len(tokens) for tokens in texts)
        ids = torch.full((len(texts), longest), self.pad_id)
        mask = torch.zeros(len(texts), longest, dtype=torch.bool)
        for row, tokens in enumerate(texts):
            at = slice(0, len(tokens)) if side == "right" else slice(longest - len(tokens), None)
            ids[row, at] = torch.tensor(tokens.ids)
            mask[row, at] = True
        return Batch(ids, mask)


def _control_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids of control tokens. An unknown word is content, unless its token also has another role."""
    roles = ("bos", "eos", "cls", "sep", "pad", "mask")
    ids = {getattr(tokenizer, f"{role}_token_id", None) for role in roles}
    return frozenset(ids - {None})


def _byte_table() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for 256, 257, …"""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTES = _byte_table()


def display_token(raw: str, *, byte_level: bool) -> str:
    """A token as a person reads it: never empty, never invisible, never a replacement box.

    A leading space is a middle dot, line ends and tabs are arrows, other invisible characters are
    written as escapes; a byte-level piece that is no whole character is its bytes, ‹E4 B8›.
    """
    if byte_level and all(character in _BYTES for character in raw):
        data = bytes(_BYTES[character] for character in raw)
        try:
            raw = data.decode()
        except UnicodeDecodeError:
            return "‹" + data.hex(" ").upper() + "›"
    return "".join(map(_visible, raw.replace("▁", " "))) or "∅"


def _visible(character: str) -> str:
    if character == " ":
        return "·"
    if character in _BREAKS:
        return _BREAKS[character]
    if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp", "Zs"}:
        return f"\\u{ord(character):04x}"
    return character
