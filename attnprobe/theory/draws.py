"""Random numbers that anyone can draw again: the stream of Python's `random`, in blocks.

`random.seed(7)` followed by calls of `random.gauss(0, 1)` gives the same numbers on every machine.
Calling it thirty million times takes half a minute; the Mersenne Twister behind it is also NumPy's
`RandomState`, so a block of the same numbers costs a vectorised Box–Muller step.
"""

import math
import random

import numpy as np
from jaxtyping import Float


class Stream:
    """The numbers that `random.Random(seed)` would yield, in its order, as arrays."""

    def __init__(self, seed: int):
        *key, position = random.Random(seed).getstate()[1]
        self._twister = np.random.RandomState()
        self._twister.set_state(("MT19937", key, position))
        self._kept = np.empty(0)

    def uniform(self, *shape: int) -> Float[np.ndarray, "..."]:
        """Uniform on [0, 1), as `random.random()`."""
        return self._twister.random_sample(shape)

    def normal(self, *shape: int) -> Float[np.ndarray, "..."]:
        """Standard normal, as `random.gauss(0, 1)`: Box–Muller, the second of each pair kept."""
        count = math.prod(shape)
        fresh = self._pairs(max(0, count - len(self._kept) + 1) // 2)
        ready = np.concatenate([self._kept, fresh])
        self._kept = ready[count:]
        return ready[:count].reshape(shape)

    def _pairs(self, pairs: int) -> Float[np.ndarray, " numbers"]:
        turn, height = self.uniform(pairs, 2).T
        radius = np.sqrt(-2.0 * np.log(1.0 - height))
        angle = 2.0 * np.pi * turn
        return np.stack([np.cos(angle) * radius, np.sin(angle) * radius], axis=-1).ravel()
