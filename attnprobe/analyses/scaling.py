"""What √d_k does in a trained head: the spread of its logits, where it comes from, and what if.

Under the textbook assumption (independent components with mean 0 and variance 1) Var(q·k) = d_k
(Vaswani et al. 2017, footnote 4). Trained queries and keys have other variances, means that do not
vanish, and correlated components; `causes` says how much each adds.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnprobe.errors import BadInput
from attnprobe.loaded import LoadedModel
from attnprobe.softmax_stats import RowStatistics, row_statistics
from attnprobe.trace import Trace

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
FACTORS = tuple(float(2.0**exponent) for exponent in np.arange(-3, 5.01, 0.25))
"""The multipliers of the scale that a curve shows: 2^−3 … 2^5."""

_SHOWN = ("peak", "entropy", "jacobian_frobenius", "jacobian_max")


def heads(trace: Trace) -> list[tuple[int, int]]:
    return [(layer, head) for layer in range(trace.n_layers) for head in range(trace.n_heads)]


def cells(trace: Trace, layer: int, head: int) -> Float[Tensor, " cell"]:
    """The raw logits of all valid keys of all rows of one head."""
    return trace.raw_logits(layer, head)[trace.valid()]


def histogram(
    trace: Trace, layer: int, head: int | None = None, bins: int | None = None
) -> pd.DataFrame:
    """How the logits of a head (or of a whole layer) are spread: density of valid cells per bin.

    The square root of the number of cells is how many bins there are, at least 8 and at most 60,
    unless given. Columns: kind (raw logits, scaled logits), left, right, centre, density (per unit
    of logit).
    """
    chosen = range(trace.n_heads) if head is None else [head]
    raw = torch.cat([cells(trace, layer, h) for h in chosen]).double().cpu().numpy()
    bins = bins or min(60, max(8, math.isqrt(len(raw))))
    frames = []
    for kind, factor in (("raw logits", 1.0), ("scaled logits", trace.scales[layer])):
        density, edges = np.histogram(raw * factor, bins=bins, density=True)
        bars = {"left": edges[:-1], "right": edges[1:], "centre": (edges[:-1] + edges[1:]) / 2}
        frames.append(pd.DataFrame({"kind": kind, **bars, "density": density}))
    return pd.concat(frames, ignore_index=True)


def spread(trace: Trace, layer: int | None = None) -> pd.DataFrame:
    """Quantiles, mean and standard deviation of every head's logits over all valid cells.

    Of one layer's heads if it is given.
    Columns: layer, head, kind, q0 … q100, mean, std, sqrt_d_head: the standard deviation of raw
    logits that the textbook assumption gives.
    """
    rows = []
    chosen = heads(trace) if layer is None else [(layer, h) for h in range(trace.n_heads)]
    for layer, head in chosen:
        raw = cells(trace, layer, head).cpu().numpy()
        quantiles = np.quantile(raw, QUANTILES, overwrite_input=True)
        moments = [raw.mean(dtype=np.float64), raw.std(dtype=np.float64)]
        for kind, factor in (("raw logits", 1.0), ("scaled logits", trace.scales[layer])):
            numbers = (*(quantiles * factor), *(factor * moment for moment in moments))
            rows.append((layer, head, kind, *numbers))
    named = [f"q{round(100 * q)}" for q in QUANTILES]
    frame = pd.DataFrame(rows, columns=["layer", "head", "kind", *named, "mean", "std"])
    return frame.assign(sqrt_d_head=trace.d_head**0.5)


def causes(trace: Trace) -> pd.DataFrame:
    """Var(q·k) of every head, measured, and predicted from the moments of q and k with its parts.

    For a query and a key drawn independently, with means μ and covariances Σ,
    Var(q·k) = tr(Σ_q Σ_k) + μ_qᵀ Σ_k μ_q + μ_kᵀ Σ_q μ_k. The parts: `from_variances` Σ_c σ²_q,c
    σ²_k,c, `from_correlation` the rest of tr(Σ_q Σ_k), `from_means` the two terms with means; they
    add up to `predicted`. `measured_all` is over all query × key pairs, where the prediction is an
    identity; `measured` over the valid pairs only, which in a causal model are not independent.
    `textbook` is d_k.
    """
    rows, valid = [], trace.valid() if trace.causal else None
    for layer, head in heads(trace):
        query, key = (x[layer, head].double() for x in (trace.queries, trace.keys))
        (mean_q, cov_q), (mean_k, cov_k) = _moments(query), _moments(key)
        variances = (cov_q.diagonal() * cov_k.diagonal()).sum()
        together = (cov_q * cov_k).sum()
        means = mean_q @ cov_k @ mean_q + mean_k @ cov_q @ mean_k
        logits = query @ key.T
        rows.append(
            {
                "layer": layer,
                "head": head,
                "measured": _variance(logits, valid),
                "measured_all": _variance(logits, None),
                "predicted": (together + means).item(),
                "from_variances": variances.item(),
                "from_correlation": (together - variances).item(),
                "from_means": means.item(),
                "textbook": float(trace.d_head),
            }
        )
    return pd.DataFrame(rows)


def _variance(logits: Float[Tensor, "query key"], valid: Tensor | None) -> float:
    """Var over the valid pairs, all where `valid` is None; centred first, so nothing cancels."""
    centred = logits - logits.mean()
    if valid is None:
        return centred.square().mean().item()
    count, centred = valid.sum(), centred * valid
    return (centred.square().sum() / count - (centred.sum() / count).square()).item()


def _moments(x: Float[Tensor, "position d_head"]) -> tuple[Tensor, Tensor]:
    mean = x.mean(0)
    centred = x - mean
    return mean, centred.T @ centred / len(x)


def asymmetry(trace: Trace) -> pd.DataFrame:
    """‖S − Sᵀ‖ / (‖S‖ + ‖Sᵀ‖) of every head's raw logits over all pairs, valid or not.

    0: the head scores both directions alike (tied W_Q and W_K would do that); 1: antisymmetric.
    A head whose logits are all zero has none. Frobenius norms.
    """
    rows = [
        {"layer": layer, "head": head, "asymmetry": directedness(trace.raw_logits(layer, head))}
        for layer, head in heads(trace)
    ]
    return pd.DataFrame(rows)


def directedness(logits: Float[Tensor, "query key"]) -> float:
    """‖S − Sᵀ‖ / (‖S‖ + ‖Sᵀ‖), Frobenius; undefined (NaN) for logits that are all zero."""
    logits = logits.double()
    whole = 2 * logits.norm()
    return ((logits - logits.T).norm() / whole).item() if whole > 0 else float("nan")


def factors_of(trace: Trace, layer: int) -> tuple[float, ...]:
    """The multipliers of a curve, among them the one that undoes the layer's own scale.

    1/scale, which is √d_k where the scale is 1/√d_k, belongs to logits that were not divided.
    """
    undone = 1 / trace.scales[layer]
    near = any(math.isclose(undone, factor, rel_tol=1e-3) for factor in FACTORS)
    inside = FACTORS[0] < undone < FACTORS[-1]
    return tuple(sorted({*FACTORS, undone})) if inside and not near else FACTORS


def what_if(
    trace: Trace, layer: int, head: int, factors: Sequence[float] | None = None
) -> pd.DataFrame:
    """The head's rows if its scale were multiplied by each factor: means over counted rows.

    Columns: factor, scale, peak, entropy, jacobian_frobenius, jacobian_max, saturated (share of
    rows with peak ≥ 0.9). No forward pass: the captured logits are rescaled. Factors are those of
    `factors_of` unless given.
    """
    factors = factors_of(trace, layer) if factors is None else tuple(factors)
    statistics = rescaled(trace, layer, head, factors)
    rows = {name: getattr(statistics, name)[0, :, _counted(statistics)] for name in _SHOWN}
    means = {name: numbers.double().mean(-1).cpu().numpy() for name, numbers in rows.items()}
    saturated = (rows["peak"] >= 0.9).double().mean(-1).cpu().numpy()
    scale = np.array(factors) * trace.scales[layer]
    return pd.DataFrame({"factor": factors, "scale": scale, **means, "saturated": saturated})


def rescaled(trace: Trace, layer: int, head: int, factors: Sequence[float]) -> RowStatistics:
    """Row statistics [1 factor query] of one head with its scaled logits times each factor.

    All factors are one batch, whose queries carry them: tiles stay in cache and no [query key]
    matrix is built.
    """
    for factor in factors:
        require_factor(factor)
    dtype = trace.rows.entropy.dtype
    query, key = (x[layer, head].to(dtype) for x in (trace.queries, trace.keys))
    times = torch.tensor(factors, dtype=dtype, device=query.device)[None, :, None, None]
    return row_statistics(
        query * times, key.expand(1, len(factors), *key.shape),
        scale=trace.scales[layer], valid=None, causal=trace.causal, dtype=dtype, spectral=False,
    )  # fmt: skip


def _counted(statistics: RowStatistics) -> Int[Tensor, " row"]:
    """The queries that see at least two keys, whatever the factor."""
    return (statistics.keys[0, 0] >= 2).nonzero()[:, 0]


def require_factor(factor: float) -> None:
    """A scale of 0 or below has no meaning here, and at infinity the softmax has no value."""
    if not 0 < factor < math.inf:
        raise BadInput(f"the factor on the scale is {factor:g} and must be above 0 and finite")


def what_if_rows(trace: Trace, layer: int, head: int, factor: float) -> pd.DataFrame:
    """Every counted row of the head, as it is and with the scale multiplied by a factor.

    Columns: query, token, factor, peak, entropy, jacobian_frobenius, jacobian_max.
    """
    factors = (1.0, factor) if factor != 1.0 else (1.0,)
    statistics = rescaled(trace, layer, head, factors)
    counted = _counted(statistics)
    places = counted.cpu().numpy()
    tokens = [trace.tokens.display[i] for i in places]
    frames = []
    for i, one in enumerate(factors):
        columns = {
            name: getattr(statistics, name)[0, i, counted].double().cpu().numpy() for name in _SHOWN
        }
        frames.append(pd.DataFrame({"query": places, "token": tokens, "factor": one, **columns}))
    return pd.concat(frames, ignore_index=True)


def summands(
    loaded: LoadedModel, trace: Trace, layer: int, head: int, query: int, key: int
) -> pd.DataFrame:
    """The raw logit of one query–key pair as its d_k summands q_c·k_c, largest magnitude first.

    With q = q̂ + b_q and k = k̂ + b_k (b: the projections' biases) each summand has four parts:
    `bias_only` b_q·b_k, `query_only` q̂·b_k, `key_only` b_q·k̂, `both` q̂·k̂. `cumulative` sums the
    summands in the order shown; its last entry is the raw logit.
    """
    length = len(trace.tokens)
    if not (0 <= query < length and 0 <= key < length):
        raise BadInput(f"pair ({query}, {key}) came and the text has tokens 0 to {length - 1}")
    bias_q, bias_k = loaded.family.query_key_bias(loaded.model, layer, trace.d_head, head).double()
    q, k = trace.queries[layer, head, query].double(), trace.keys[layer, head, key].double()
    own_q, own_k = q - bias_q, k - bias_k
    frame = pd.DataFrame(
        {
            "component": np.arange(trace.d_head),
            "summand": (q * k).cpu().numpy(),
            "bias_only": (bias_q * bias_k).cpu().numpy(),
            "query_only": (own_q * bias_k).cpu().numpy(),
            "key_only": (bias_q * own_k).cpu().numpy(),
            "both": (own_q * own_k).cpu().numpy(),
        }
    )
    order = frame["summand"].abs().sort_values(ascending=False, kind="stable").index
    frame = frame.loc[order].reset_index(drop=True)
    return frame.assign(cumulative=frame["summand"].cumsum())
