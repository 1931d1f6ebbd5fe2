"""One text's clean run, and the outputs of its edited variants, from the edited layer on.

Every batch carries the clean run as variant 0: what edited variants are compared with has been
computed in the same batch, by the same arithmetic.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnprobe import capture
from attnprobe.analyses.perturbation.distances import decision_flips, tvd
from attnprobe.analyses.perturbation.edits import (
    READOUT_ROW,
    Rule,
    Scope,
    contexts,
    differing,
    rewritten,
    valid_keys,
    weights_of,
)
from attnprobe.analyses.sweeps import unedited
from attnprobe.capture import AttentionCall
from attnprobe.data import LabelledText, bundled
from attnprobe.errors import BadInput
from attnprobe.loaded import LoadedModel
from attnprobe.readout import Examples, ReadOut

STRANGERS = 8
TOKENS = 1664
"""Tokens (variants × positions) of one batch. Each holds a clean run that teaches nothing new:
of a text of 400 tokens it is one of four, of 32 tokens one of 51, where size hardly matters."""


def require_row(readout: ReadOut, scope: Scope) -> None:
    """Raises `BadInput` where the scope is the read-out's row and the read-out has none."""
    if scope.rows == READOUT_ROW and readout.pooled:
        raise BadInput(
            f"the read-out '{readout.name}' is a mean over all tokens and has no row of its own; "
            "edit all valid rows, or choose another read-out"
        )


@dataclass(frozen=True, eq=False)
class CleanRun:
    """One text through the unedited model: the input of every layer, its attention, the output.

    `hidden` are the layers' inputs [1 position d_model], `calls` what each layer attended with,
    its context included, `outcome` the read-out's distribution at each spot.
    """

    readout: ReadOut
    text: str
    examples: Examples
    hidden: tuple[Float[Tensor, "1 position d_model"], ...]
    calls: tuple[AttentionCall, ...]
    outcome: Float[Tensor, "spot outcome"]

    @property
    def loaded(self) -> LoadedModel:
        return self.readout.loaded

    @property
    def ids(self) -> Int[Tensor, " position"]:
        return self.examples.batch.ids[0]

    @property
    def length(self) -> int:
        return len(self.ids)

    @property
    def n_layers(self) -> int:
        return len(self.calls)

    def weights(self, layer: int) -> Float[Tensor, "head query key"]:
        """A of all heads of a layer, computed when asked for."""
        call = self.calls[layer]
        return weights_of(call, range(call.query.shape[1]))[0]

    @cached_property
    def valid(self) -> Bool[Tensor, "query key"]:
        """Which key a query may see."""
        return valid_keys(self.length, self.loaded.causal, self.ids.device)

    @cached_property
    def content(self) -> Bool[Tensor, " position"]:
        """Tokens that the person wrote: no special token and no mask."""
        special = torch.tensor(sorted(self.loaded.reader.special_ids), device=self.ids.device)
        return ~torch.isin(self.ids, special)

    @cached_property
    def tokens(self) -> list[str]:
        """The tokens as a person reads them."""
        return [self.loaded.reader.label(index) for index in self.ids.tolist()]

    @cached_property
    def strangers(self) -> tuple["CleanRun", ...]:
        """Bundled texts' clean runs, for a text that is alone: the shortest that are as long.

        At most `STRANGERS`, and none where the model or the bundled texts end before.
        """
        reader, most = self.loaded.reader, self.loaded.max_tokens
        texts = [item.text for name in ("topics", "prose") for item in bundled(name).texts]
        lengths = sorted(
            (count, number)
            for number, count in enumerate(map(reader.count, texts))
            if self.length <= count <= most and texts[number] != self.text
        )
        return tuple(clean_run(self.readout, texts[n]) for _, n in lengths[:STRANGERS])

    @property
    def spots(self) -> list[int] | None:
        """The query positions that the read-out watches; None where it pools over all."""
        return None if self.readout.pooled else sorted(set(self.examples.column.tolist()))

    def rows(self, scope: Scope) -> Bool[Tensor, " query"]:
        """The query rows that an edit in this scope may touch."""
        require_row(self.readout, scope)
        if scope.rows != READOUT_ROW:
            return torch.ones(self.length, dtype=torch.bool, device=self.ids.device)
        only = torch.zeros(self.length, dtype=torch.bool, device=self.ids.device)
        only[self.spots] = True
        return only

    def watched_row(self, weights: Float[Tensor, "*head query key"]) -> Tensor:
        """A head's weights at the read-out's row, or their mean over rows where it pools."""
        rows = slice(None) if self.spots is None else self.spots
        return weights[..., rows, :].mean(-2)


def clean_run(readout: ReadOut, text: str | LabelledText) -> CleanRun:
    """Runs one text once and keeps what edits start from; its label, if it has one, plays no part.

    Raises `BadInput` for a read-out that runs a text several times (masked one token at a time):
    an edit there would have no single output to be compared with.
    """
    words = text if isinstance(text, str) else text.text
    examples = readout.prepare([words])
    if len(examples.batch.ids) != 1:
        raise BadInput(
            f"the read-out '{readout.statement}' runs a text {len(examples.batch.ids)} times and "
            "a perturbation needs one run; mask all chosen tokens at once"
        )
    base = unedited(readout, examples)
    return CleanRun(readout, words, examples, base.hidden, base.calls, base.log_probabilities.exp())


@dataclass(frozen=True, eq=False)
class Effects:
    """What edits did to the output: mean TVD over the text's spots, share of flipped decisions,
    and the edited distributions themselves."""

    tvd: Float[Tensor, " variant"]
    flips: Float[Tensor, " variant"]
    outcome: Float[Tensor, "variant spot outcome"]


def outcomes(
    run: CleanRun,
    scope: Scope,
    rule: Rule,
    variants: int,
    tick: Callable[[], None] | None = None,
) -> Float[Tensor, "clean_and_variant spot outcome"]:
    """Output distributions of the clean run and of `variants` edited ones, in one batch.

    The layers below the scope are not computed, nor the first edited layer's queries, keys and
    attention. A variant whose contexts no edit has moved has the clean output to the last bit:
    matrix products may round equal rows of a batch differently. Gradients flow to whatever the
    rule brings in. `tick` is called before every layer and may raise to end the run.
    """
    start, chosen = scope.first_layer, run.rows(scope)
    examples = run.examples.repeat(variants + 1)
    hidden = run.hidden[start].expand(variants + 1, -1, -1)
    edited = contexts(run.calls[start], scope, rule, chosen, variants)
    changed = differing(edited, edited[:1])[1:]
    higher = rewritten(scope, rule, chosen, changed) if scope.layer is None else None
    with capture.watching(higher, start=start, hidden=hidden, contexts=edited, tick=tick):
        distribution = run.readout.distribution(examples)
    found = distribution.unflatten(0, (variants + 1, -1))
    kept = torch.cat([torch.ones_like(changed[:1]), changed])[:, None, None]
    return torch.where(kept, found, found[:1])


def effects(
    run: CleanRun,
    scope: Scope,
    rule_for: Callable[[slice], Rule],
    variants: int,
    tick: Callable[[], None] | None = None,
) -> Effects:
    """Runs `variants` edits of a scope in batches; `rule_for` gives the rule of a slice of them."""
    return joined([part for _, part in effects_in_turn(run, scope, rule_for, variants, tick)])


def effects_in_turn(
    run: CleanRun,
    scope: Scope,
    rule_for: Callable[[slice], Rule],
    variants: int,
    tick: Callable[[], None] | None = None,
) -> Iterator[tuple[slice, Effects]]:
    """The same batch by batch: which variants, and what they did."""
    for part in batches(variants, run.length):
        with torch.no_grad():
            found = outcomes(run, scope, rule_for(part), part.stop - part.start, tick)
        yield part, _compared(found[1:], found[:1])


def joined(parts: Sequence[Effects]) -> Effects:
    """The effects of several batches as one."""
    return Effects(*(torch.cat([getattr(p, name) for p in parts]) for name in _FIELDS))


_FIELDS = ("tvd", "flips", "outcome")


def _compared(edited: Tensor, clean: Tensor) -> Effects:
    flips = decision_flips(edited, clean.expand_as(edited)).double()
    return Effects(tvd(edited, clean).double().mean(-1), flips.mean(-1), edited)


def batches(variants: int, length: int) -> Iterator[slice]:
    """Slices of the variants, alike in size, each of at most `TOKENS` tokens with its clean run.

    A text too long for that goes one variant at a time.
    """
    number = ceil(variants / max(1, TOKENS // length - 1))
    for part in range(number):
        yield slice(variants * part // number, variants * (part + 1) // number)


def passes(variants: int, length: int) -> int:
    """How many runs of the text `variants` edits cost, the clean ones in each batch included."""
    return variants + sum(1 for _ in batches(variants, length))
