"""Tensors over heads as tidy frames."""

from collections.abc import Mapping

import pandas as pd
import torch
from jaxtyping import Shaped
from torch import Tensor


def by_head(columns: Mapping[str, Shaped[Tensor, "layer head"]]) -> pd.DataFrame:
    """One row per head: `layer`, `head`, and a column per tensor [layer head]."""
    layers, heads = next(iter(columns.values())).shape
    grid = torch.cartesian_prod(torch.arange(layers), torch.arange(heads)).reshape(-1, 2)
    frame = {"layer": grid[:, 0].numpy(), "head": grid[:, 1].numpy()}
    return pd.DataFrame(frame | {n: v.detach().cpu().flatten().numpy() for n, v in columns.items()})


def heads_as_tensor(frame: pd.DataFrame, column: str) -> Shaped[Tensor, "layer head"]:
    """A column of a frame with one row per head, as a tensor [layer head]."""
    table = frame.pivot(index="layer", columns="head", values=column)
    return torch.tensor(table.to_numpy())
