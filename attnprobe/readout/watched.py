"""What is read where: examples with their spots, and the model's distribution at each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnprobe import capture
from attnprobe.data import LabelledText, TextSet
from attnprobe.errors import BadInput
from attnprobe.loaded import LoadedModel
from attnprobe.text import Batch


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
            return wide(self.head(mean_pooled(self.loaded.hidden(examples.batch), examples)))
        with capture.watching(read=self._read(examples)):
            hidden = self.loaded.hidden(examples.batch)
        return wide(self.head(hidden[examples.row, examples.column]))

    def _read(self, examples: Examples) -> Int[Tensor, "batch read"] | None:
        """The read positions, or None when there is next to nothing to leave out."""
        columns = examples.columns
        return columns if columns.shape[1] < 0.75 * examples.batch.ids.shape[1] else None


def wide(logits: Tensor) -> Tensor:
    """Statistics are float32 at least, whatever the weights' dtype."""
    return logits if logits.dtype == torch.float64 else logits.float()


def mean_pooled(
    hidden: Float[Tensor, "batch position d_model"], examples: Examples
) -> Float[Tensor, "spot d_model"]:
    """The mean over the real tokens of each spot's row."""
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
