"""A trigram model with back-off over token ids: baseline and first teacher of the bundled GPT-2."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Counts:
    """How often each n-gram was counted, and per history the total and the number of kinds."""

    keys: np.ndarray
    counts: np.ndarray
    histories: np.ndarray
    starts: np.ndarray
    totals: np.ndarray
    kinds: np.ndarray
    discount: float

    @classmethod
    def of(cls, keys: np.ndarray, counts: np.ndarray, vocabulary: int) -> Counts:
        """From sorted, distinct n-gram keys; the last token is the key modulo the vocabulary."""
        histories, start = np.unique(keys // vocabulary, return_index=True)
        totals = np.add.reduceat(counts, start)
        kinds = np.diff(np.append(start, len(keys)))
        once, twice = (counts == 1).sum(), (counts == 2).sum()
        return cls(
            keys, counts, histories, start, totals, kinds, float(once / max(once + 2 * twice, 1))
        )

    def interpolated(self, keys: np.ndarray, vocabulary: int, lower: np.ndarray) -> np.ndarray:
        """Discounted relative frequency plus the mass set free, spread as ``lower`` says."""
        count = _looked_up(self.keys, self.counts, keys)
        total = _looked_up(self.histories, self.totals, keys // vocabulary)
        kinds = _looked_up(self.histories, self.kinds, keys // vocabulary)
        seen = np.maximum(count - self.discount, 0) + self.discount * kinds * lower
        return np.where(total > 0, seen / np.maximum(total, 1), lower)

    def spread(self, histories: np.ndarray, vocabulary: int, lower: np.ndarray) -> np.ndarray:
        """The same for every possible last token: [history, token] from ``lower`` of that shape."""
        place = np.minimum(np.searchsorted(self.histories, histories), len(self.histories) - 1)
        seen = self.histories[place] == histories
        total, kinds = self.totals[place], np.where(seen, self.kinds[place], 0)
        free = np.where(seen, self.discount * kinds / total, 1)
        spread = free[:, None].astype(np.float32) * lower.astype(np.float32)
        row = np.repeat(np.arange(len(histories)), kinds)
        within = np.arange(len(row)) - np.repeat(np.cumsum(kinds) - kinds, kinds)
        entry = np.repeat(self.starts[place], kinds) + within
        spread[row, self.keys[entry] % vocabulary] += (self.counts[entry] - self.discount) / total[
            row
        ]
        return spread


def _looked_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """``values`` at the wanted keys, 0 for a key that is not there."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)


@dataclass(frozen=True)
class Trigram:
    """Interpolated Kneser-Ney trigram model, one discount per order.

    Chen and Goodman, "An empirical study of smoothing techniques for language modeling"
    (1998), section 4.1.6, with the discount n1 / (n1 + 2 n2) of Ney, Essen and Kneser (1994).
    """

    vocabulary: int
    orders: tuple[Counts, Counts, Counts]

    @classmethod
    def trained_on(cls, ids: np.ndarray, vocabulary: int) -> Trigram:
        """Counts of the trigrams; lower orders count distinct left neighbours."""
        ids = ids.astype(np.int64)
        keys = (ids[:-2] * vocabulary + ids[1:-1]) * vocabulary + ids[2:]
        three, count_three = np.unique(keys, return_counts=True)
        two, count_two = np.unique(three % vocabulary**2, return_counts=True)
        one, count_one = np.unique(two % vocabulary, return_counts=True)
        counted = ((one, count_one), (two, count_two), (three, count_three))
        return cls(vocabulary, tuple(Counts.of(*pair, vocabulary) for pair in counted))

    def probabilities(self, ids: np.ndarray) -> np.ndarray:
        """Probability of every token from the third on, given the two before it."""
        ids, size = ids.astype(np.int64), self.vocabulary
        probability = np.full(len(ids) - 2, 1 / size)
        trigrams = (ids[:-2] * size + ids[1:-1]) * size + ids[2:]
        for counts, order in zip(self.orders, (1, 2, 3), strict=True):
            probability = counts.interpolated(trigrams % size**order, size, probability)
        return probability

    def after_one(self) -> np.ndarray:
        """Distribution after every single token, [token, next token]."""
        one, two, _ = self.orders
        flat = np.full((1, self.vocabulary), 1 / self.vocabulary)
        lowest = one.spread(np.zeros(1, dtype=np.int64), self.vocabulary, flat)
        return two.spread(np.arange(self.vocabulary), self.vocabulary, lowest)

    def after_two(self, before: np.ndarray, last: np.ndarray, after_one: np.ndarray) -> np.ndarray:
        """Distribution after pairs of tokens, [pair, next token]."""
        pairs = before.astype(np.int64) * self.vocabulary + last
        return self.orders[2].spread(pairs, self.vocabulary, after_one[last])
