"""Where weight goes that means nothing: the first token and the special ones.

Heads park weight on such tokens when they have nothing to say (Clark et al. 2019 on [SEP]; Xiao et
al. 2024 call them attention sinks).
"""

import pandas as pd
import torch
from torch import Tensor

from attnprobe.errors import BadInput
from attnprobe.softmax_stats import statistics_of
from attnprobe.trace import Trace


def shares(trace: Trace) -> pd.DataFrame:
    """Mean weight of counted rows on the first token and on each special token, per head.

    Columns: layer, head, position, token, special, share. The first token is listed whether it is
    special or not.
    """
    special = [i for i, is_special in enumerate(trace.tokens.special) if is_special]
    positions = sorted({0, *special})
    rows = []
    for layer in range(trace.n_layers):
        for head in range(trace.n_heads):
            counted = trace.counted[layer, head]
            weights = trace.weights(layer, head)[counted][:, positions].double()
            for position, share in zip(positions, weights.mean(0).tolist(), strict=True):
                rows.append((layer, head, position, share))
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
    seen = trace.valid() & ordinary
    counted = ordinary & (seen.sum(-1) >= 2)
    rows = []
    for layer in range(trace.n_layers):
        for head in range(trace.n_heads):
            weights = trace.weights(layer, head).masked_fill(~seen, 0.0)[counted]
            entropy, peak = (
                _renormalised(trace, layer, head, seen, counted)
                if renormalised
                else (torch.special.entr(weights).sum(-1), weights.amax(-1))
            )
            rows.append(
                {
                    "layer": layer,
                    "head": head,
                    "mass": weights.sum(-1).mean().item(),
                    "entropy": entropy.mean().item(),
                    "peak": peak.mean().item(),
                    "rows": int(counted.sum()),
                }
            )
    return pd.DataFrame(rows)


def _renormalised(
    trace: Trace, layer: int, head: int, seen: Tensor, counted: Tensor
) -> tuple[Tensor, Tensor]:
    logits = trace.scaled_logits(layer, head)[counted]
    rows = statistics_of(logits, seen[counted], dtype=logits.dtype, spectral=False)
    return rows.entropy, rows.peak
