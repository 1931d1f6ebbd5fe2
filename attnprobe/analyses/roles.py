"""What a head looks at: scores of the classic roles, from attention weights alone.

Previous-token, duplicate-token and induction heads are those of Elhage et al., "A mathematical
framework for transformer circuits" (2021), and Olsson et al., "In-context learning and induction
heads" (2022). A score is the mean weight that a head puts on the role's target, over the queries
that have one; it is NaN where no query has a target.
"""

from collections.abc import Callable, Mapping, Sequence

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnprobe import capture
from attnprobe.analyses.sweeps import Progress, no_progress
from attnprobe.capture import AttentionCall
from attnprobe.errors import BadInput
from attnprobe.loaded import LoadedModel
from attnprobe.softmax_stats import attention_weights
from attnprobe.text import Batch

PERIOD, SEQUENCES = 50, 20

Score = Callable[[Tensor, Tensor], Tensor]


def previous_token(
    weights: Float[Tensor, "layer head query key"],
) -> Float[Tensor, "layer head"]:
    """Mean weight on the token just before the query, in [0, 1].

    The first query has no token before it and is left out.
    """
    return weights.diagonal(offset=-1, dim1=-2, dim2=-1).mean(-1)


def duplicate_token(
    weights: Float[Tensor, "layer head query key"], ids: Int[Tensor, " query"]
) -> Float[Tensor, "layer head"]:
    """Mean weight on the last earlier occurrence of the query's own token, in [0, 1]."""
    query, key = earlier_occurrence(ids)
    return weights[..., query, key].mean(-1)


def induction(
    weights: Float[Tensor, "layer head query key"], ids: Int[Tensor, " query"]
) -> Float[Tensor, "layer head"]:
    """Mean weight on the token after the last earlier occurrence of the query's, in [0, 1].

    A query whose token stood directly before it is left out: its target would be itself.
    """
    return induction_profile(weights, ids, torch.zeros(1, dtype=torch.long))[..., 0]


def induction_profile(
    weights: Float[Tensor, "layer head query key"],
    ids: Int[Tensor, " query"],
    offsets: Int[Tensor, " offset"],
) -> Float[Tensor, "layer head offset"]:
    """Mean weight on the keys at ``offsets`` from the induction target: 0 is the target itself.

    A sharp induction head has its weight at 0; a blurred one spreads it over the neighbours. A
    query counts at an offset only if that key exists and is not after the query.
    """
    query, earlier = earlier_occurrence(ids)
    apart = query - earlier > 1
    query, target = query[apart], earlier[apart] + 1
    columns = [_mean_at(weights, query, target + offset) for offset in offsets]
    return torch.stack(columns, dim=-1)


def repeated_random_tokens(
    tokens: Int[Tensor, " token"], period: int, generator: torch.Generator
) -> Int[Tensor, " query"]:
    """A random sequence of ``period`` different tokens, twice in a row: 2 × period ids.

    No statistic of a language helps in the second half, only looking back does (Olsson et al.).
    """
    once = tokens[torch.randperm(len(tokens), generator=generator)[:period]]
    return torch.cat([once, once])


def questions(
    loaded: LoadedModel, *, period: int = PERIOD, sequences: int = SEQUENCES, seed: int = 0
) -> Int[Tensor, "batch query"]:
    """Repeated random tokens as this model reads them, its special tokens around them.

    The tokens are drawn from the vocabulary without control tokens. `BadInput` where two periods do
    not fit into the model's positions or the vocabulary is smaller than a period.
    """
    reader, ordinary = loaded.reader, _ordinary(loaded)
    if not 2 <= period <= longest_period(loaded):
        raise BadInput(
            f"a period of {period} random tokens came; {loaded.name} takes 2 to "
            f"{longest_period(loaded)} ({reader.room} positions for two periods, {len(ordinary)} "
            "ordinary tokens)"
        )
    if sequences < 1:
        raise BadInput(f"{sequences} sequences came; at least 1 is needed")
    generator = torch.Generator().manual_seed(seed)
    around = [torch.tensor(part, dtype=torch.long) for part in (reader.prefix, reader.suffix)]
    rows = [repeated_random_tokens(ordinary, period, generator) for _ in range(sequences)]
    return torch.stack([torch.cat([around[0], row, around[1]]) for row in rows])


def longest_period(loaded: LoadedModel) -> int:
    """The most random tokens that can come twice in a row in this model."""
    return min(len(_ordinary(loaded)), loaded.reader.room // 2)


def _ordinary(loaded: LoadedModel) -> Int[Tensor, " token"]:
    """The vocabulary without control tokens."""
    size = min(len(loaded.reader.tokenizer), loaded.config.vocab_size)
    ordinary = torch.ones(size, dtype=torch.bool)
    ordinary[[i for i in loaded.reader.special_ids if i < size]] = False
    return ordinary.nonzero()[:, 0]


def role_table(
    loaded: LoadedModel, ids: Int[Tensor, "batch query"], *, progress: Progress = no_progress
) -> pd.DataFrame:
    """One row per head, one column per role: its score, a mean over the sequences.

    The sequences are token ids as the model is to read them, special tokens included, without
    padding; each is one forward pass, after which `progress` gets the table so far. A role that no
    query of any sequence has a target for is missing (NaN).
    """
    scores: dict[str, list[Tensor]] = {name: [] for name in ROLES}
    for done, row in enumerate(ids, start=1):
        weights = head_weights(loaded, row[None])[0]
        for name, score in ROLES.items():
            scores[name].append(score(weights, row))
        table = _table(loaded, scores)
        progress(done, len(ids), table)
    return table


def _table(loaded: LoadedModel, scores: Mapping[str, Sequence[Tensor]]) -> pd.DataFrame:
    heads = pd.MultiIndex.from_product(
        [range(loaded.n_layers), range(loaded.n_heads)], names=["layer", "head"]
    )
    means = {name: torch.stack(list(each)).nanmean(0) for name, each in scores.items()}
    columns = {name: mean.flatten().numpy() for name, mean in means.items()}
    return pd.DataFrame(columns, index=heads).reset_index()


def head_weights(
    loaded: LoadedModel, ids: Int[Tensor, "batch query"]
) -> Float[Tensor, "batch layer head query key"]:
    """The attention weights of every head, all at once: for short sequences."""
    layers: list[Tensor] = []

    def record(call: AttentionCall) -> None:
        layers.append(
            attention_weights(
                call.query, call.key, scale=call.scale, valid=call.valid, causal=call.causal
            )
        )

    batch = Batch(ids.to(loaded.device), torch.ones_like(ids, dtype=torch.bool).to(loaded.device))
    with torch.no_grad(), capture.watching(record):
        loaded.forward(batch)
    return torch.stack(layers, dim=1).cpu()


def _mean_at(
    weights: Float[Tensor, "layer head query key"],
    query: Int[Tensor, " row"],
    key: Int[Tensor, " row"],
) -> Float[Tensor, "layer head"]:
    inside = (key >= 0) & (key <= query)
    return weights[..., query[inside], key[inside]].mean(-1)


def earlier_occurrence(
    ids: Int[Tensor, " query"],
) -> tuple[Int[Tensor, " row"], Int[Tensor, " row"]]:
    """The queries whose token occurred before, and where it did so last."""
    same: Bool[Tensor, "query key"] = (ids[:, None] == ids[None, :]).tril(-1)
    query = same.any(-1).nonzero().squeeze(-1)
    position = torch.arange(len(ids), device=ids.device)
    last = torch.where(same[query], position, -1).max(-1).values
    return query, last


ROLES: Mapping[str, Score] = {
    "previous_token": lambda weights, ids: previous_token(weights),
    "duplicate_token": duplicate_token,
    "induction": induction,
}
"""Scores by the name of their column; each takes [layer head query key] and the ids."""
