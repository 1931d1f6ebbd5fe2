"""A text's tokens in other orders: what a layer gives for PX against P times that for X."""

from collections.abc import Iterator

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnprobe import capture
from attnprobe.analyses.sweeps import Progress, no_progress
from attnprobe.errors import BadInput
from attnprobe.models import LoadedModel
from attnprobe.text import Tokens


def equivariance(
    loaded: LoadedModel,
    tokens: Tokens,
    permutations: int = 8,
    seed: int = 0,
    told: Progress = no_progress,
) -> pd.DataFrame:
    """The model on a text and on the same tokens in other orders, layer by layer.

    f(PX) is compared with P f(X). "zeroed" takes the position vector of each place away from the
    word vector before the model adds it; nothing of the model is changed. Special tokens move too.

    Columns: positions ("as trained", "zeroed"), layer (0: what the first layer reads; then after
    each layer), permutation (1-based), relative_difference (largest difference over the largest
    component).
    """
    if len(tokens) < 2:
        raise BadInput("the text has 1 token and an order needs two; type a longer text")
    generator = torch.Generator().manual_seed(seed)
    orders = torch.stack(
        [torch.randperm(len(tokens), generator=generator) for _ in range(permutations)]
    )
    places = loaded.family.position_vectors(loaded.model, len(tokens))
    rows = []
    for half, (name, amount) in enumerate((("as trained", 0), ("zeroed", 1))):
        straight, *others = (
            _states(loaded, tokens, order, places * amount)
            for order in _telling([torch.arange(len(tokens)), *orders], half, told)
        )
        rows += [
            (name, layer, number, _largest(before[order], after))
            for number, (order, moved) in enumerate(zip(orders, others, strict=True), 1)
            for layer, (before, after) in enumerate(zip(straight, moved, strict=True))
        ]
    return pd.DataFrame(rows, columns=["positions", "layer", "permutation", "relative_difference"])


def _telling(orders: list[Tensor], half: int, told: Progress) -> Iterator[Tensor]:
    """Each order; when the next is asked for, the one before it is done."""
    for done, order in enumerate(orders, half * len(orders) + 1):
        yield order
        told(done, 2 * len(orders))


def _states(
    loaded: LoadedModel,
    tokens: Tokens,
    order: Int[Tensor, " position"],
    taken: Float[Tensor, "position width"],
) -> list[Float[Tensor, "position d_model"]]:
    """What the layers read and give for the tokens in this order, less `taken` at each place."""
    ids = torch.tensor(tokens.ids)[order][None].to(loaded.device)
    states: list[Tensor] = []
    with torch.no_grad(), capture.watching(lambda call: None, keep=states):
        words = loaded.model.get_input_embeddings()(ids)
        with capture.every_layer_once(loaded.n_layers):
            loaded.model.base_model(inputs_embeds=words - taken, return_dict=False)
    return [state[0].double().cpu() for state in states]


def _largest(expected: Tensor, found: Tensor) -> float:
    """The largest difference over the largest component."""
    return float((found - expected).abs().max() / expected.abs().max())
