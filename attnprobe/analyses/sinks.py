"""Where weight goes that means nothing: the first token and the special ones.

Heads park weight on such tokens when they have nothing to say (Clark et al. 2019 on [SEP]; Xiao et
al. 2024 call them attention sinks).
"""

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnprobe.errors import BadInput
from attnprobe.softmax_stats import row_statistics
from attnprobe.trace import Trace


def shares(trace: Trace) -> pd.DataFrame:
    """Mean weight of counted rows on the first token and on each special token, per head.

    Columns: layer, head, position, token, special, share. The first token is listed whether it is
    special or not.
    """
    special = [i for i, is_special in enumerate(trace.tokens.special) if is_special]
    positions = sorted({0, *special})
    keys = torch.tensor(positions, device=trace.queries.device)
    weights = weights_at(trace, keys.expand(*trace.counted.shape, -1)).double()
    shares = (
        torch.where(trace.counted[..., None], weights, 0).sum(2) / trace.counted.sum(2)[..., None]
    )
    rows = [
        (layer, head, position, shares[layer, head, place].item())
        for layer in range(trace.n_layers)
        for head in range(trace.n_heads)
        for place, position in enumerate(positions)
    ]
    frame = pd.DataFrame(rows, columns=["layer", "head", "position", "share"])
    return frame.assign(
        token=[trace.tokens.display[p] for p in frame["position"]],
        special=[trace.tokens.special[p] for p in frame["position"]],
    )


def without_special(trace: Trace, *, renormalised: bool) -> pd.DataFrame:
    """Entropy and peak of every head over the keys that are no special tokens, and their mass.

    Rows of special queries are left out, and rows that see fewer than two other keys. `mass` is
    the mean weight on ordinary keys. Renormalised: statistics of the softmax over ordinary keys
    alone. Not: the weights as they are, −Σ p ln p and the largest over ordinary keys, which sum to
    `mass`. Columns: layer, head, mass, entropy, peak, rows.
    """
    ordinary = ~torch.tensor(trace.tokens.special, device=trace.queries.device)
    if int(ordinary.sum()) < 2:
        raise BadInput("the text has fewer than two ordinary tokens; lengthen it")
    parts = [_among(trace, layer, ordinary) for layer in range(trace.n_layers)]
    entropy, peak, peak_key, keys = (torch.cat(column) for column in zip(*parts, strict=True))
    counted = ordinary & (keys >= 2)
    mass = weights_at(trace, peak_key.clamp_min(0)[..., None])[..., 0] / peak
    if not renormalised:
        entropy, peak = mass * entropy - torch.special.xlogy(mass, mass), mass * peak
    columns = {"mass": mass, "entropy": entropy, "peak": peak}
    rows = [
        {
            "layer": layer,
            "head": head,
            **{name: _mean(x[layer, head][counted[layer, head]]) for name, x in columns.items()},
            "rows": int(counted[layer, head].sum()),
        }
        for layer in range(trace.n_layers)
        for head in range(trace.n_heads)
    ]
    return pd.DataFrame(rows)


def _mean(values: Tensor) -> float:
    return values.double().mean().item()


def _among(trace: Trace, layer: int, ordinary: Bool[Tensor, " key"]) -> tuple[Tensor, ...]:
    """Entropy, peak, its key and the number of keys of every row over ordinary keys alone."""
    rows = row_statistics(
        trace.queries[layer][None], trace.keys[layer][None], scale=trace.scales[layer],
        valid=ordinary[None], causal=trace.causal, dtype=trace.rows.entropy.dtype, spectral=False,
    )  # fmt: skip
    shape = rows.entropy.shape
    return rows.entropy, rows.peak, rows.peak_key, rows.keys.expand(shape)


def weights_at(
    trace: Trace, keys: Int[Tensor, "layer head query wanted"]
) -> Float[Tensor, "layer head query wanted"]:
    """The weights of every row on some keys, without the others: 0 where the row does not see one.

    A row's weight on key j is its peak times exp(s_j − s_peak), so only these logits are needed.
    """
    dtype = trace.rows.entropy.dtype
    scales = trace.queries.new_tensor(trace.scales, dtype=dtype)[:, None, None, None]
    wanted = torch.cat([trace.rows.peak_key[..., None], keys], dim=-1)
    query, key = trace.queries.to(dtype), trace.keys.to(dtype)
    columns = [
        (query * key.gather(2, wanted[..., [place]].expand_as(key))).sum(-1)
        for place in range(wanted.shape[-1])
    ]
    logits = torch.stack(columns, dim=-1) * scales
    weights = trace.rows.peak[..., None] * (logits[..., 1:] - logits[..., :1]).exp()
    if not trace.causal:
        return weights
    position = torch.arange(keys.shape[2], device=keys.device)[:, None]
    return weights.masked_fill(keys > position, 0.0)
