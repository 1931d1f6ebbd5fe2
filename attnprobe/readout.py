"""Read-outs: the distribution that an experiment watches, its loss and its metric.

A read-out turns texts into `Examples` (what to run and where to look), runs the model whatever
edits, gates or resumed layers are active around the call (`capture.watching`), and gives one
distribution per *spot*. Only the positions that are read go through the model's head.

    readout = next_token(loaded)
    examples = readout.prepare(texts)
    base = readout.log_probabilities(examples)            # [spot class]
    with capture.watching(gate({(3, 2): 0.0})):
        edited = readout.log_probabilities(examples)
    score(edited, examples, base).loss                    # [text]

Resumed with a batch of variants: `examples.repeat(n)` under `watching(start=, hidden=)`. Gradients
flow to whatever the watcher brings in.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnprobe import capture
from attnprobe.data import LabelledText, TextSet
from attnprobe.errors import BadInput
from attnprobe.models import LoadedModel
from attnprobe.text import Batch, Tokens

TEMPERATURE = 0.05
MASKED_SHARE = 0.15


@dataclass(frozen=True, eq=False)
class Examples:
    """Texts as one batch, and the spots where a read-out looks.

    `row` and `column` place each spot in the batch, `text` says which text it belongs to (a text
    may have several spots, and, masked one token at a time, several rows). `target` is what is
    right at each spot: a token, a class, or None when nobody knows.
    """

    batch: Batch
    row: Int[Tensor, " spot"]
    column: Int[Tensor, " spot"]
    text: Int[Tensor, " spot"]
    target: Int[Tensor, " spot"] | None
    texts: int

    @property
    def text_of_row(self) -> Int[Tensor, " batch"]:
        """Which text each row of the batch belongs to."""
        owner = self.row.new_zeros(len(self.batch.ids))
        return owner.scatter(0, self.row, self.text)

    def repeat(self, times: int) -> "Examples":
        """All texts `times` over, variant by variant: text t of variant v is number v·texts + t."""
        copies = torch.arange(times, device=self.row.device)[:, None]
        return Examples(
            batch=self.batch.repeat(times),
            row=(self.row + copies * len(self.batch.ids)).flatten(),
            column=self.column.repeat(times),
            text=(self.text + copies * self.texts).flatten(),
            target=None if self.target is None else self.target.repeat(times),
            texts=self.texts * times,
        )

    @property
    def columns(self) -> Int[Tensor, "batch read"]:
        """The positions that are read in each row, filled up with others to the same number."""
        batch, width = self.batch.ids.shape
        wanted = torch.zeros(batch, width, dtype=torch.long, device=self.row.device)
        wanted[self.row, self.column] = 1
        most = int(wanted.sum(1).max())
        return torch.argsort(wanted, dim=1, descending=True, stable=True)[:, :most]


Place = Callable[[Sequence[LabelledText]], Examples]
Head = Callable[[Float[Tensor, "spot d_model"]], Float[Tensor, "spot class"]]


@dataclass(frozen=True, eq=False)
class ReadOut:
    """What is watched, in words that a caption can print.

    `statement` says how; `loss` and `metric` name the two numbers. `classes` are the class names,
    or None when a class is an entry of the vocabulary. `pooled`: the distribution belongs to the
    mean over a text's tokens and not to single positions.
    """

    name: str
    statement: str
    loaded: LoadedModel
    place: Place
    head: Head
    classes: tuple[str, ...] | None = None
    pooled: bool = False

    def prepare(self, texts: TextSet | Sequence[LabelledText | str]) -> Examples:
        """Texts as examples on the model's device; `BadText` for an empty or too long one."""
        items = texts.texts if isinstance(texts, TextSet) else texts
        items = [LabelledText(item) if isinstance(item, str) else item for item in items]
        if not items:
            raise BadInput("no text came and a read-out needs at least one; add a text")
        return _on(self.place(items), self.loaded.device)

    def log_probabilities(self, examples: Examples) -> Float[Tensor, "spot class"]:
        """The natural logarithm of each spot's distribution, float32 or float64.

        Runs the model once, under the watchers around the call. The last layer is computed at the
        read positions only.
        """
        return self._logits(examples).log_softmax(-1)

    def distribution(self, examples: Examples) -> Float[Tensor, "spot class"]:
        """Each spot's distribution; rows sum to 1."""
        return self.log_probabilities(examples).exp()

    def answer(self, index: int) -> str:
        """A class as a person reads it: its name, or the token of the vocabulary."""
        return self.classes[index] if self.classes else self.loaded.reader.label(index)

    def _logits(self, examples: Examples) -> Float[Tensor, "spot class"]:
        if self.pooled:
            return _wide(self.head(_mean_pooled(self.loaded.hidden(examples.batch), examples)))
        with capture.watching(read=self._read(examples)):
            hidden = self.loaded.hidden(examples.batch)
        return _wide(self.head(hidden[examples.row, examples.column]))

    def _read(self, examples: Examples) -> Int[Tensor, "batch read"] | None:
        """The read positions, or None when there is next to nothing to leave out."""
        columns = examples.columns
        return columns if columns.shape[1] < 0.75 * examples.batch.ids.shape[1] else None


def _wide(logits: Tensor) -> Tensor:
    """Statistics are float32 at least, whatever the weights' dtype."""
    return logits if logits.dtype == torch.float64 else logits.float()


def _mean_pooled(hidden: Tensor, examples: Examples) -> Float[Tensor, "spot d_model"]:
    mask = examples.batch.mask[..., None].to(hidden.dtype)
    return ((hidden * mask).sum(1) / mask.sum(1))[examples.row]


def _on(examples: Examples, device: torch.device) -> Examples:
    target = examples.target
    return Examples(
        Batch(examples.batch.ids.to(device), examples.batch.mask.to(device)),
        examples.row.to(device),
        examples.column.to(device),
        examples.text.to(device),
        None if target is None else target.to(device),
        examples.texts,
    )


@dataclass(frozen=True, eq=False)
class Scores:
    """What a read-out says of each text: mean loss over its spots, and how many spots are right.

    Right means equal to the target or, without targets, equal to the unedited model's choice.
    """

    loss: Float[Tensor, " text"]
    right: Float[Tensor, " text"]
    spots: Int[Tensor, " text"]
    metric_name: str

    @property
    def metric(self) -> Float[Tensor, ""]:
        """Accuracy or agreement (mean over texts), or perplexity (exp of the mean over spots)."""
        return METRICS[self.metric_name].over(self.loss, self.right, self.spots)


@dataclass(frozen=True)
class Metric:
    """How per-text numbers become the metric of a set, and whether more of it is better."""

    over: Callable[[Tensor, Tensor, Tensor], Tensor]
    higher_is_better: bool


def _mean_right(loss: Tensor, right: Tensor, spots: Tensor) -> Tensor:
    return right.mean(-1)


def _perplexity(loss: Tensor, right: Tensor, spots: Tensor) -> Tensor:
    return ((loss * spots).sum(-1) / spots.sum(-1)).exp()


METRICS: Mapping[str, Metric] = {
    "accuracy": Metric(_mean_right, higher_is_better=True),
    "agreement": Metric(_mean_right, higher_is_better=True),
    "perplexity": Metric(_perplexity, higher_is_better=False),
}


def metric_name(readout: ReadOut, examples: Examples) -> str:
    """Perplexity of a language model with targets, accuracy of a classifier, else agreement."""
    if examples.target is None:
        return "agreement"
    return "perplexity" if readout.classes is None else "accuracy"


def score(
    readout: ReadOut,
    log_probabilities: Float[Tensor, "spot class"],
    examples: Examples,
    unedited: Float[Tensor, "spot class"] | None = None,
) -> Scores:
    """Loss and hits per text.

    With targets the loss is −ln p(target); without, KL(unedited ‖ edited) against the unedited
    model's log-probabilities, which are then needed.
    """
    if examples.target is None and unedited is None:
        raise BadInput("without targets a loss needs the unedited model's distribution")
    if examples.target is None:
        loss = divergence(unedited, log_probabilities)
        goal = unedited.argmax(-1)
    else:
        loss = -log_probabilities.gather(-1, examples.target[:, None])[:, 0]
        goal = examples.target
    right = (log_probabilities.argmax(-1) == goal).to(loss.dtype)
    spots = torch.bincount(examples.text, minlength=examples.texts)
    return Scores(
        per_text(loss, examples), per_text(right, examples), spots, metric_name(readout, examples)
    )


def per_text(values: Float[Tensor, " spot"], examples: Examples) -> Float[Tensor, " text"]:
    """The mean of spot values over each text's spots."""
    spots = torch.bincount(examples.text, minlength=examples.texts)
    return values.new_zeros(examples.texts).index_add(0, examples.text, values) / spots


def divergence(
    reference: Float[Tensor, "*rest class"], other: Float[Tensor, "*rest class"]
) -> Float[Tensor, "*rest"]:
    """KL(reference ‖ other) in nats from log-probabilities; 0 when equal."""
    return torch.where(reference.isneginf(), 0.0, reference.exp() * (reference - other)).sum(-1)


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
        unit = torch.nn.functional.normalize(_wide(pooled), dim=-1)
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
        pooled = _mean_pooled(loaded.hidden(batch), examples)
    return torch.nn.functional.normalize(_wide(pooled), dim=-1)


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
