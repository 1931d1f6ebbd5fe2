"""Many edits of one model, each computed from the layer that it edits, several in one batch.

`unedited` runs a batch once and keeps what every layer got and what its heads gave. `variants`
resumes from there with edited contexts of one layer: no lower layer is computed again, nor the
edited layer's own queries, keys and attention, and the last layer only where the read-out looks.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnprobe import capture
from attnprobe.capture import AttentionCall
from attnprobe.data import LabelledText, TextSet
from attnprobe.readout import Examples, ReadOut

TOKENS = 768
"""Tokens (variants × texts × positions) of one batch: enough for the cores, few for the caches."""
TEXT_TOKENS = 256
"""Tokens (texts × positions) of one batch before variants: small, so that a stop keeps much."""

Contexts = Callable[[Int[Tensor, " variant"]], Float[Tensor, "variant batch head query d_head"]]
"""The edited contexts of one layer for some of the variants, by their numbers."""


Progress = Callable[..., None]
"""Called as (done, total) after every step, now and then with the result so far as the third.

It may raise, `Stopped` for one, to end the run.
"""


def no_progress(done: int, total: int, partial: Any = None) -> None:
    """For callers that show none."""


@dataclass(frozen=True, eq=False)
class Base:
    """A batch of examples through the model as it is.

    `hidden` is the input of every layer; `calls` are what each layer attended with, their `edited`
    being the contexts that it gave.
    """

    readout: ReadOut
    examples: Examples
    hidden: tuple[Float[Tensor, "batch position d_model"], ...]
    calls: tuple[AttentionCall, ...]
    log_probabilities: Float[Tensor, "spot class"]


def batches(
    readout: ReadOut,
    texts: TextSet | Sequence[LabelledText],
    known: Collection[int] = (),
) -> list[tuple[list[int], Examples]]:
    """Texts in batches of similar length of about `TEXT_TOKENS` at most, with their numbers.

    Texts whose number is in `known` are left out.
    """
    items = list(texts.texts if isinstance(texts, TextSet) else texts)
    shapes = [readout.prepare([item]).batch.ids.shape for item in items]
    wanted = [number for number in range(len(items)) if number not in known]
    groups: list[list[int]] = []
    rows = 0
    for number in sorted(wanted, key=lambda i: shapes[i][1]):
        rows += shapes[number][0]
        if not groups or rows * shapes[number][1] > TEXT_TOKENS:
            groups.append([])
            rows = shapes[number][0]
        groups[-1].append(number)
    return [(group, readout.prepare([items[i] for i in group])) for group in groups]


def unedited(
    readout: ReadOut, examples: Examples, *, tick: Callable[[], None] | None = None
) -> Base:
    """The model as it is on these examples, and what later edits start from."""
    hidden: list[Tensor] = []
    calls: list[AttentionCall] = []

    def record(call: AttentionCall) -> Tensor:
        context = call.context()
        calls.append(replace(call, edited=context))
        return context

    with torch.no_grad(), capture.watching(record, keep=hidden, tick=tick):
        log_probabilities = readout.log_probabilities(examples)
    return Base(readout, examples, tuple(hidden[:-1]), tuple(calls), log_probabilities)


def per_batch(examples: Examples) -> int:
    """How many variants of these examples make one batch."""
    return max(1, TOKENS // examples.batch.ids.numel())


def variants(
    base: Base,
    layer: int,
    contexts: Contexts,
    count: int,
    *,
    tick: Callable[[], None] | None = None,
) -> Iterator[tuple[Int[Tensor, " variant"], Float[Tensor, "variant spot class"]]]:
    """The read-out's log-probabilities under `count` edits of one layer, some at a time.

    Yields the numbers of the variants and their log-probabilities, in order.
    """
    numbers = torch.arange(count, device=base.log_probabilities.device)
    for some in numbers.split(per_batch(base.examples)):
        yield some, _resumed(base, layer, contexts(some), tick)


def _resumed(base: Base, layer: int, contexts: Tensor, tick: Callable[[], None] | None) -> Tensor:
    times = len(contexts)
    with (
        torch.no_grad(),
        capture.watching(
            start=layer,
            hidden=base.hidden[layer].repeat(times, 1, 1),
            contexts=contexts.flatten(0, 1).transpose(1, 2).flatten(2),
            tick=tick,
        ),
    ):
        read = base.readout.log_probabilities(base.examples.repeat(times))
    return read.unflatten(0, (times, -1))


def edited(
    base: Base,
    watcher: capture.Watcher,
    times: int,
    *,
    start: int = 0,
    tick: Callable[[], None] | None = None,
) -> Float[Tensor, "variant spot class"]:
    """Log-probabilities of `times` copies of the examples under a watcher, from layer `start` on.

    For edits of several layers: the watcher sees all copies in one batch, variant by variant.
    """
    with (
        torch.no_grad(),
        capture.watching(
            watcher, start=start, hidden=base.hidden[start].repeat(times, 1, 1), tick=tick
        ),
    ):
        read = base.readout.log_probabilities(base.examples.repeat(times))
    return read.unflatten(0, (times, -1))
