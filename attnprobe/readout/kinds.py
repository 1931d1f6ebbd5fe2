"""The kinds of read-out: next token, masked token, class, label sentences."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnprobe.data import LabelledText, TextSet
from attnprobe.errors import BadInput
from attnprobe.loaded import LoadedModel
from attnprobe.readout.watched import Examples, Head, ReadOut, mean_pooled, wide
from attnprobe.text import Batch, Tokens

TEMPERATURE = 0.05
MASKED_SHARE = 0.15


def next_token(loaded: LoadedModel, *, where: str = "all", begin: bool = False) -> ReadOut:
    """The next token of a causal language model.

    `all`: at every position that has a next token, which is its target. `last`: after the whole
    text; what follows is unknown, so the loss is KL to the unedited model. `begin` puts the
    begin-of-text token first, which gives the first token of the text a prediction too.
    """
    _require(loaded, "causal LM", "next token")
    places = {"all": _every_next, "last": _after_the_text}
    if where not in places:
        raise BadInput(f"positions {where!r} are not known; choose {' or '.join(places)}")

    def place(texts: Sequence[LabelledText]) -> Examples:
        tokens = [loaded.read(text.text, begin=begin) for text in texts]
        return places[where](loaded, tokens)

    said = "at every position" if where == "all" else "after the last token"
    first = ", begin-of-text token first" if begin else ""
    return ReadOut(
        "next token", f"next token {said}{first}", loaded, place, _vocabulary_head(loaded)
    )


def _every_next(loaded: LoadedModel, tokens: list[Tokens]) -> Examples:
    short = next((t for t in tokens if len(t) < 2), None)
    if short is not None:
        raise BadInput(
            f"the text {short.text[:40]!r} is a single token and has no next one; "
            "lengthen it or begin with the begin-of-text token"
        )
    batch = loaded.batch(tokens)
    row, column = (batch.mask[:, :-1] & batch.mask[:, 1:]).nonzero(as_tuple=True)
    return Examples(batch, row, column, row, batch.ids[row, column + 1], len(tokens))


def _after_the_text(loaded: LoadedModel, tokens: list[Tokens]) -> Examples:
    batch = loaded.batch(tokens)
    row = torch.arange(len(tokens), device=batch.ids.device)
    return Examples(batch, row, _last(batch), row, None, len(tokens))


def _last(batch: Batch) -> Int[Tensor, " batch"]:
    """The column of each row's last real token, wherever the padding is."""
    width = batch.mask.shape[1]
    return width - 1 - batch.mask.flip(1).long().argmax(1)


def masked_token(
    loaded: LoadedModel, *, share: float = MASKED_SHARE, seed: int = 0, each: bool = False
) -> ReadOut:
    """The token behind a mask, for masked language models.

    `share` of each text's content tokens (at least one) are masked together, chosen by `seed` and
    the text alone; with `each`, every content token is masked in a run of its own.
    """
    _require(loaded, "masked LM", "masked token")
    mask_id = loaded.reader.tokenizer.mask_token_id
    if mask_id is None:
        raise BadInput(f"the tokenizer of {loaded.name} has no mask token")

    def place(texts: Sequence[LabelledText]) -> Examples:
        tokens = [loaded.read(text.text) for text in texts]
        hidden = [_hidden_sets(t, share, seed, each) for t in tokens]
        return _masked(loaded, tokens, hidden, mask_id)

    said = "one at a time" if each else f"{share:.0%} of the tokens at once, seed {seed}"
    return ReadOut("masked token", f"masked token, {said}", loaded, place, _vocabulary_head(loaded))


def _hidden_sets(tokens: Tokens, share: float, seed: int, each: bool) -> list[list[int]]:
    """The columns to mask in each run of one text."""
    content = [i for i, special in enumerate(tokens.special) if not special]
    if not content:
        raise BadInput(f"the text {tokens.text[:40]!r} has only special tokens, nothing to mask")
    if each:
        return [[column] for column in content]
    generator = torch.Generator().manual_seed(int(tokens.digest, 16) % 2**32 + seed)
    order = torch.randperm(len(content), generator=generator).tolist()
    count = max(1, round(share * len(content)))
    return [sorted(content[i] for i in order[:count])]


def _masked(
    loaded: LoadedModel, tokens: list[Tokens], hidden: list[list[list[int]]], mask_id: int
) -> Examples:
    rows = [(text, columns) for text, sets in enumerate(hidden) for columns in sets]
    batch = loaded.batch([tokens[text] for text, _ in rows])
    spots = [(row, column, text) for row, (text, cs) in enumerate(rows) for column in cs]
    row, column, text = torch.tensor(spots, device=batch.ids.device).T
    ids = batch.ids.clone()
    ids[row, column] = mask_id
    return Examples(replace(batch, ids=ids), row, column, text, batch.ids[row, column], len(tokens))


def classes(loaded: LoadedModel) -> ReadOut:
    """The class by the head of a sequence classifier; labels are its class names or numbers."""
    _require(loaded, "sequence classification", "class")
    names = loaded.config.id2label
    known = tuple(str(names[i]) for i in range(len(names)))
    if len(known) < 2:
        raise BadInput(f"{loaded.name} has one output (a regression), which is no distribution")

    def index(label: str) -> int:
        if label in known:
            return known.index(label)
        if label.isdecimal() and int(label) < len(known):
            return int(label)
        raise BadInput(
            f"the data have a label {label!r} and {loaded.name} knows {', '.join(known)} "
            f"(or 0 to {len(known) - 1})"
        )

    def place(texts: Sequence[LabelledText]) -> Examples:
        batch = loaded.batch([loaded.read(text.text) for text in texts])
        row = torch.arange(len(texts), device=batch.ids.device)
        first = torch.zeros_like(row)
        column = _last(batch) if loaded.family.class_at_end else first
        return Examples(batch, row, column, row, _targets(texts, index), len(texts))

    return ReadOut(
        "class",
        f"class by the model's own head over {len(known)} classes",
        loaded,
        place,
        lambda hidden: loaded.family.class_logits(loaded.model, hidden),
        known,
    )


def sentences_of(lines: Sequence[str]) -> dict[str, str]:
    """Lines `label = sentence` as a table; raises `BadInput` for a line that is none."""
    table: dict[str, str] = {}
    for line in lines:
        label, equals, sentence = (part.strip() for part in line.partition("="))
        if not equals:
            raise BadInput(f"{line[:40]!r} has no '='; write label = sentence")
        if not label or not sentence:
            missing = "label" if sentence else "sentence"
            raise BadInput(f"{line[:40]!r} has no {missing}; write label = sentence")
        if label in table:
            raise BadInput(f"the label {label!r} has two sentences; give each label one")
        table[label] = sentence
    return table


def _distinct(sentences: Mapping[str, str]) -> None:
    """Raises `BadInput` for two labels with one sentence: no text could be told apart by them."""
    first: dict[str, str] = {}
    for label, sentence in sentences.items():
        if first.setdefault(sentence, label) != label:
            raise BadInput(
                f"the labels {first[sentence]!r} and {label!r} have the same sentence; "
                "give each its own"
            )


def label_sentences(
    loaded: LoadedModel, sentences: Mapping[str, str], *, temperature: float = TEMPERATURE
) -> ReadOut:
    """Zero-shot classes: softmax of cosine similarities to the label sentences over a temperature.

    Texts and sentences are mean-pooled over their real tokens, special ones included, as sentence
    encoders are trained. The sentences are embedded once by the model as it is, so an edit moves
    the text and not the yardstick.
    """
    if len(sentences) < 2:
        raise BadInput(f"{len(sentences)} label sentence(s) came and at least 2 are needed")
    if not temperature > 0:
        raise BadInput(f"the temperature is {temperature:g} and must be above 0")
    known = tuple(sentences)
    _distinct(sentences)
    anchors = _anchors(loaded, list(sentences.values()))

    def index(label: str) -> int:
        if label not in known:
            raise BadInput(
                f"the data have a label {label!r} and there are sentences for {', '.join(known)}"
            )
        return known.index(label)

    def place(texts: Sequence[LabelledText]) -> Examples:
        batch = loaded.batch([loaded.read(text.text) for text in texts])
        row = torch.arange(len(texts), device=batch.ids.device)
        return Examples(batch, row, torch.zeros_like(row), row, _targets(texts, index), len(texts))

    def head(pooled: Tensor) -> Tensor:
        unit = torch.nn.functional.normalize(wide(pooled), dim=-1)
        return unit @ anchors.T / temperature

    return ReadOut(
        "label sentences",
        f"softmax of cosine similarity to {len(known)} label sentences, "
        f"temperature {temperature:g}",
        loaded,
        place,
        head,
        known,
        pooled=True,
    )


def _anchors(loaded: LoadedModel, sentences: list[str]) -> Float[Tensor, "class d_model"]:
    batch = loaded.batch([loaded.read(sentence) for sentence in sentences])
    row = torch.arange(len(sentences), device=batch.ids.device)
    examples = Examples(batch, row, torch.zeros_like(row), row, None, len(sentences))
    with torch.no_grad():
        pooled = mean_pooled(loaded.hidden(batch), examples)
    return torch.nn.functional.normalize(wide(pooled), dim=-1)


def _targets(
    texts: Sequence[LabelledText], index: Callable[[str], int]
) -> Int[Tensor, " text"] | None:
    if any(text.label is None for text in texts):
        return None
    return torch.tensor([index(text.label) for text in texts])


def _vocabulary_head(loaded: LoadedModel) -> Head:
    return lambda hidden: loaded.family.vocabulary_logits(loaded.model, hidden)


def _require(loaded: LoadedModel, head_kind: str, name: str) -> None:
    if loaded.head_kind != head_kind:
        raise BadInput(
            f"the read-out '{name}' needs a {head_kind} model and {loaded.name} is a "
            f"{loaded.head_kind}; choose another read-out (label sentences work for any model)"
        )


_OWN: Mapping[str, Callable[[LoadedModel], ReadOut]] = {
    "causal LM": next_token,
    "masked LM": masked_token,
    "sequence classification": classes,
}


def default(loaded: LoadedModel, texts: TextSet | None = None) -> ReadOut:
    """The read-out of the model's own head, or label sentences (those of the data) without one."""
    if loaded.head_kind in _OWN:
        return _OWN[loaded.head_kind](loaded)
    if texts is None or not texts.sentences:
        raise BadInput(
            f"{loaded.name} is a {loaded.head_kind} without a head that attnprobe reads; "
            "give label sentences, such as sports = 'This text is about sports.'"
        )
    return label_sentences(loaded, texts.sentences)
