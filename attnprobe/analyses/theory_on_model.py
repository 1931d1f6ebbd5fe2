"""The theory lab's experiments on the heads of a loaded model instead of random numbers.

Wherever a law is about pairs of queries and keys, all pairs count, also those that a causal mask
hides: the mask has no part in the law. Logits are scaled as the model scales them.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from attnprobe.analyses.scaling import directedness
from attnprobe.analyses.sweeps import Progress, no_progress
from attnprobe.errors import BadInput
from attnprobe.softmax_stats import row_statistics
from attnprobe.theory import freezing as descents
from attnprobe.theory import linear
from attnprobe.theory.draws import Stream
from attnprobe.trace import SATURATED_FROM, Trace

MOST_KEYS = 24
MOST_PAIRS = 128
MOST_RUNS = 16
MOST_TOKENS = 192
EXPONENTS = tuple(round(0.05 * i, 2) for i in range(21))


def _per_head(trace: Trace, numbers, told: Progress = no_progress) -> pd.DataFrame:
    """One row per head: layer, head, and what `numbers(layer, head)` returns as a dict."""
    rows = []
    for layer in range(trace.n_layers):
        rows += [
            {"layer": layer, "head": head, **numbers(layer, head)} for head in range(trace.n_heads)
        ]
        told(layer + 1, trace.n_layers)
    return pd.DataFrame(rows)


def variance(trace: Trace, told: Progress = no_progress) -> pd.DataFrame:
    """The spread of q·k in every head against what the theory predicts from less and less.

    For independent query and key, E (q·k)² = tr(M_q M_k) with the second moments M = E xxᵀ, and
    over all pairs of the text this is an identity: `moments_std` uses all of M, `component_std`
    only the variance of the components, √(d_k s_q² s_k²), and `textbook_std` = √d_k takes that to
    be 1.

    Columns: layer, head, raw_std (over all pairs), moments_std, component_std, textbook_std.
    """

    def numbers(layer: int, head: int) -> dict[str, float]:
        query, key = (part[layer, head].double() for part in (trace.queries, trace.keys))
        moment_q, moment_k = (x.T @ x / len(x) for x in (query, key))
        mean = float(query.mean(0) @ key.mean(0))
        spreads = [float(x.var(0, correction=0).mean()) for x in (query, key)]
        return {
            "raw_std": float((query @ key.T).std(correction=0)),
            "moments_std": math.sqrt(max(float((moment_q * moment_k).sum()) - mean**2, 0.0)),
            "component_std": math.sqrt(trace.d_head * spreads[0] * spreads[1]),
            "textbook_std": math.sqrt(trace.d_head),
        }

    return _per_head(trace, numbers, told)


def row_of_scores(
    trace: Trace, layer: int, head: int, query: int, most: int = MOST_KEYS
) -> pd.DataFrame:
    """One row of a head as scores to be divided by √d_head: what the model scales, times √d_head.

    Where a model divides by √d_head, as most do, these are its q·k. Of a row that sees more keys
    only the `most` with the largest scores are there, in the order of the text.

    Columns: key (position), score, weight (in the whole row).
    """
    if not bool(trace.counted[layer, head, query]):
        raise BadInput(f"query {query} sees fewer than two keys; choose a later one")
    logits = trace.scaled_logits(layer, head)[query].masked_fill(~trace.valid()[query], -math.inf)
    seen = min(most, int(trace.valid()[query].sum()))
    keys = logits.topk(seen).indices.sort().values
    return pd.DataFrame(
        {
            "key": keys.cpu().numpy(),
            "score": (logits[keys].double() * math.sqrt(trace.d_head)).cpu().numpy(),
            "weight": logits.double().softmax(-1)[keys].cpu().numpy(),
        }
    )


def exponent(
    trace: Trace, layer: int, head: int, exponents: Sequence[float | int] = EXPONENTS
) -> pd.DataFrame:
    """A head's own q·k divided by d_k^α instead of what the model divides by, over α.

    Over the keys that each query sees, rows that see two or more. `predicted_std` = d_k^(½ − α) is
    for independent components of variance 1.

    Columns: exponent, d_k, std (over all seen keys), predicted_std, peak, normalised_entropy,
    saturated (share of rows with peak ≥ 0.9), jacobian_frobenius; the last four are means over
    rows.
    """
    counted, width = trace.counted[layer, head], trace.d_head
    if not bool(counted.any()):
        raise BadInput("no row of this text sees two keys; type a longer text")
    pair = [part[layer, head][None, None] for part in (trace.queries, trace.keys)]
    raw = (pair[0][0, 0].double() @ pair[1][0, 0].double().T)[counted]
    std = float(raw[trace.valid()[counted]].std(correction=0))
    rows = []
    for power in exponents:
        row = row_statistics(
            *pair, scale=float(width) ** -power, valid=None, causal=trace.causal,
            dtype=torch.float64, spectral=False,
        )  # fmt: skip
        peak, entropy, norm = (
            x[0, 0][counted] for x in (row.peak, row.normalised_entropy, row.jacobian_frobenius)
        )
        rows.append(
            {
                "exponent": float(power),
                "d_k": width,
                "std": std / width**power,
                "predicted_std": width ** (0.5 - power),
                "peak": float(peak.mean()),
                "normalised_entropy": float(entropy.mean()),
                "saturated": float((peak >= SATURATED_FROM).double().mean()),
                "jacobian_frobenius": float(norm.mean()),
            }
        )
    return pd.DataFrame(rows)


def freezing(
    trace: Trace, layer: int, head: int, rate: float = 0.5, seed: int = 0, steps: int = 400
) -> pd.DataFrame:
    """The descent of `theory.freezing` with a head's own keys, values and queries.

    At most 16 queries, evenly over the text, learn one by one to return the value of a key that is
    drawn for each; every query sees every key, of a long text the first 128. With the factor that
    the model puts on its scores ("1/√d_k") and without ("none").

    Columns: division, step, query, target (positions), loss, target_weight, gradient_norm.
    """
    pairs = min(len(trace.tokens), MOST_PAIRS)
    if pairs < 2:
        raise BadInput("the text has 1 token and a choice needs two; type a longer text")
    starts = np.unique(np.linspace(0, pairs - 1, min(pairs, MOST_RUNS)).astype(int))
    target = (Stream(seed).uniform(len(starts)) * pairs).astype(int)
    query, key, value = (
        part[layer, head, :pairs].double().cpu().numpy()
        for part in (trace.queries, trace.keys, trace.values)
    )
    fixed = (np.broadcast_to(part, (len(starts), *part.shape)) for part in (key, value))
    runs = descents.Runs(*fixed, query[starts], trace.scales[layer], target)
    names = ["loss", "target_weight", "gradient_norm"]
    parts = []
    for division, factor in zip(descents.DIVISIONS, (runs.factor, 1.0), strict=True):
        moves = list(descents.descent(replace(runs, factor=factor), rate, steps))
        told = {name: np.concatenate([now[name] for now in moves]) for name in names}
        each = {"query": np.tile(starts, steps), "target": np.tile(target, steps)}
        step = np.repeat(np.arange(steps), len(starts))
        parts.append(pd.DataFrame({"division": division, "step": step} | each | told))
    return pd.concat(parts, ignore_index=True)


def jacobian_rows(trace: Trace, layer: int, head: int) -> pd.DataFrame:
    """‖J‖_F of every counted row of a head against ε = 1 − peak and the bound 2ε(1 − ε).

    The bound is for ε ≤ ½; other rows have none (undefined). Columns: query, epsilon,
    jacobian_frobenius, bound.
    """
    counted = trace.counted[layer, head]
    epsilon = trace.rows.complement[layer, head][counted].double()
    bound = torch.where(epsilon <= 0.5, 2 * epsilon * (1 - epsilon), math.nan)
    return pd.DataFrame(
        {
            "query": counted.nonzero()[:, 0].cpu().numpy(),
            "epsilon": epsilon.cpu().numpy(),
            "jacobian_frobenius": trace.rows.jacobian_frobenius[layer, head][counted].cpu().numpy(),
            "bound": bound.cpu().numpy(),
        }
    )


def contraction(trace: Trace) -> pd.DataFrame:
    """How far inside the range of its values every head's output stays.

    Columns: layer, head, largest_ratio and mean_ratio (over queries) of ‖out‖_∞ to the largest
    ‖v‖_∞ of the keys that the query sees.
    """
    values = trace.values.abs().amax(-1)
    bound = values.cummax(-1).values if trace.causal else values.amax(-1, keepdim=True)
    ratio = trace.contexts.abs().amax(-1) / bound
    return _per_head(
        trace,
        lambda layer, head: {
            "largest_ratio": float(ratio[layer, head].max()),
            "mean_ratio": float(ratio[layer, head].mean()),
        },
    )


def asymmetry(trace: Trace, told: Progress = no_progress) -> pd.DataFrame:
    """How directed every head is, and what would become of it with keys equal to its queries.

    Columns: layer, head, asymmetry = ‖S − Sᵀ‖/(‖S‖ + ‖Sᵀ‖) of its raw logits (0 symmetric, 1
    antisymmetric), self_weight (mean weight of a token on itself over counted rows), and
    tied_self_weight (the same with K = Q, whose logits are symmetric).
    """

    def numbers(layer: int, head: int) -> dict[str, float]:
        query, key = (part[layer, head].double() for part in (trace.queries, trace.keys))
        raw = query @ key.T
        counted, hidden = trace.counted[layer, head], ~trace.valid()

        def on_itself(logits: Tensor) -> float:
            weights = (logits * trace.scales[layer]).masked_fill(hidden, -math.inf).softmax(-1)
            return float(weights.diagonal()[counted].mean())

        return {
            "asymmetry": directedness(raw),
            "self_weight": on_itself(raw),
            "tied_self_weight": on_itself(query @ query.T),
        }

    return _per_head(trace, numbers, told)


def kernels(trace: Trace, told: Progress = no_progress) -> pd.DataFrame:
    """Nadaraya–Watson on every head: which kernel gives the context that the model computed?

    The exponential kernel exp(q·k · scale) always does. The Gaussian one, exp(−‖q − k‖² · scale/2),
    does where the keys of a head have one norm, and drifts away with their spread.

    Columns: layer, head, key_norm_spread (standard deviation of ‖k‖ over its mean),
    exponential_difference, rbf_difference (relative: ‖difference‖_F over ‖context‖_F).
    """
    hidden = ~trace.valid()

    def numbers(layer: int, head: int) -> dict[str, float]:
        query, key, value, context = (
            part[layer, head].double()
            for part in (trace.queries, trace.keys, trace.values, trace.contexts)
        )
        norms = key.norm(dim=-1)
        exponents = {
            "exponential_difference": query @ key.T,
            "rbf_difference": -torch.cdist(query, key).square() / 2,
        }
        spread = float(norms.std(correction=0) / norms.mean())
        return {"key_norm_spread": spread} | {
            name: _relative(_regression(x * trace.scales[layer], value, hidden), context)
            for name, x in exponents.items()
        }

    return _per_head(trace, numbers, told)


def _regression(
    exponents: Float[Tensor, "query key"], value: Float[Tensor, "key d_head"], hidden: Tensor
) -> Float[Tensor, "query d_head"]:
    """Σ κ v / Σ κ, each row of κ over its largest, without a softmax."""
    seen = exponents.masked_fill(hidden, -math.inf)
    heights = (seen - seen.amax(-1, keepdim=True)).exp()
    return (heights @ value) / heights.sum(-1, keepdim=True)


def _relative(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


def linear_errors(
    trace: Trace,
    layer: int,
    head: int,
    features: Sequence[int] = linear.FEATURES,
    repeats: int = 4,
    seed: int = 0,
) -> pd.DataFrame:
    """Linear attention on a head's own queries, keys and values, all keys seen by all queries.

    Of a long text the first 192 tokens.

    Columns: those of `theory.linear.errors`.
    """
    stretch = math.sqrt(trace.scales[layer] * math.sqrt(trace.d_head))
    query, key = (
        part[layer, head, :MOST_TOKENS].double().cpu() * stretch
        for part in (trace.queries, trace.keys)
    )
    value = trace.values[layer, head, :MOST_TOKENS].double().cpu()
    return linear.errors(query, key, value, features, repeats, seed)
