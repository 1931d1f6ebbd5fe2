"""What contenders in tests build. Their processes import this file, so it imports little."""

import math

import torch

from benchmarks.turns import Absent, Run


def nothing(reason: str) -> Run:
    raise Absent(reason)


def steps(step: float) -> Run:
    """Multiples of a step from 0 on, in a matrix of the shape asked for."""
    return lambda shape: step * torch.arange(math.prod(shape)).reshape(shape)


def number_of_variants(way: str, _: int) -> Run:
    """How many variants were asked for, and half of one more where the way is ours."""
    return lambda work: torch.tensor([work[1] + (0.5 if way == "ours" else 0.0)])


def length(*_: object) -> Run:
    """How long the text was that work begins with."""
    return lambda work: torch.tensor([float(work if isinstance(work, int) else work[0])])
