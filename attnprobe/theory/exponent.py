"""Why the exponent is ½, and how large the largest of T logits really is."""

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from attnprobe.theory.claims import Check, Claim, printed
from attnprobe.theory.draws import Stream
from attnprobe.theory.inputs import at_least
from attnprobe.theory.softmax import statistics

ROWS_AT_ONCE = 64


def exponent(
    d_k: int = 64,
    exponents: Sequence[float | int] = tuple(round(0.05 * i, 2) for i in range(21)),
    keys: int = 100,
    draws: int = 200,
    seed: int = 0,
) -> pd.DataFrame:
    """Scores q·k / d_k^α over α: only α = ½ has a spread that does not depend on d_k.

    From Var(q·k) = d_k (Vaswani et al. 2017, footnote 4): Var(q·k / d_k^α) = d_k^(1 − 2α).

    Each draw is one query against `keys` keys with independent standard normal components; the
    standard deviation d_k^(½ − α) is over queries and keys.

    Columns: exponent, d_k, std, predicted_std, peak, normalised_entropy, saturated (share of rows
    with peak ≥ 0.9), jacobian_frobenius; the middle ones are means over rows.
    """
    at_least(2, d_k=d_k, keys=keys, draws=draws)
    raw = _rows(Stream(seed), draws, keys, d_k)
    return pd.DataFrame([_at(float(power), raw, d_k) for power in exponents])


def _rows(stream: Stream, draws: int, keys: int, d_k: int) -> Float[np.ndarray, "draw key"]:
    def block(count: int) -> Float[np.ndarray, "draw key"]:
        query, key = stream.normal(count, d_k), stream.normal(count, keys, d_k)
        return np.einsum("nd,nkd->nk", query, key)

    starts = range(0, draws, ROWS_AT_ONCE)
    return np.concatenate([block(min(ROWS_AT_ONCE, draws - start)) for start in starts])


def _at(power: float, raw: Float[np.ndarray, "draw key"], d_k: int) -> dict[str, float]:
    scores = raw / d_k**power
    rows = statistics(scores)
    return {
        "exponent": power,
        "d_k": d_k,
        "std": float(scores.std()),
        "predicted_std": d_k ** (0.5 - power),
        "peak": float(rows["peak"].mean()),
        "normalised_entropy": float(rows["normalised_entropy"].mean()),
        "saturated": float((rows["peak"] >= 0.9).mean()),
        "jacobian_frobenius": float(rows["jacobian_frobenius"].mean()),
    }


def extremes(
    stds: Sequence[float | int] = (1.0, 2.0, 4.0, 8.0),
    keys: Sequence[int] = (10, 30, 100, 300, 1000),
    draws: int = 4_000,
    seed: int = 0,
) -> pd.DataFrame:
    """The largest of T normal logits and the peak of their softmax, against T.

    `asymptote` is σ√(2 ln T), which bounds the mean of the maximum from above and is approached
    only as T grows without limit (Boucheron, Lugosi & Massart 2013, section 2.5);
    `expected_largest` and `expected_peak` are the exact means, by quadrature.

    Columns: std, keys, draws, largest (mean), largest_error (its standard error),
    expected_largest, asymptote, peak (mean), peak_median, peak_error, expected_peak.
    """
    at_least(2, draws=draws, keys=min(keys, default=0))
    stream = Stream(seed)
    return pd.DataFrame([row for count in keys for row in _extreme(stream, count, stds, draws)])


def _extreme(stream: Stream, keys: int, stds: Sequence[float | int], draws: int) -> list[dict]:
    per_block = max(1, 2**20 // keys)
    largest, peaks = [], {std: [] for std in stds}
    for start in range(0, draws, per_block):
        logits = stream.normal(min(per_block, draws - start), keys)
        largest.append(logits.max(-1))
        for std, found in peaks.items():
            found.append(1 / np.exp(std * (logits - logits.max(-1, keepdims=True))).sum(-1))
    tops = np.concatenate(largest)
    exact = expected_largest(keys)
    root = math.sqrt(draws)
    rows = []
    for std, found in peaks.items():
        peak = np.concatenate(found)
        rows.append(
            {
                "std": float(std),
                "keys": keys,
                "draws": draws,
                "largest": float(std * tops.mean()),
                "largest_error": float(std * tops.std() / root),
                "expected_largest": std * exact,
                "asymptote": std * math.sqrt(2 * math.log(keys)),
                "peak": float(peak.mean()),
                "peak_median": float(np.median(peak)),
                "peak_error": float(peak.std() / root),
                "expected_peak": expected_peak(std, keys),
            }
        )
    return rows


def expected_largest(keys: int) -> float:
    """Mean of the maximum of n independent standard normals: ∫₀^a dx − ∫_{−a}^a Φ(x)ⁿ dx.

    Beyond a = 12 nothing is left. Trapezoids of width 0.001; the integrand is smooth, the error far
    below 1e-9.
    """
    reach = 12.0
    x = torch.linspace(-reach, reach, 24_001, dtype=torch.float64)
    return reach - float(torch.trapezoid(torch.special.ndtr(x) ** keys, x))


def expected_peak(std: float | int, keys: int) -> float:
    """Mean of the largest weight of the softmax over T independent normals of spread σ.

    With m the largest of T standard normals the peak is 1/(1 + S), S = Σ e^{σ(x_j − m)} over the
    others, and 1/(1 + S) = ∫₀^∞ e^{−t(1 + S)} dt, so the mean is
    T ∫ φ(m) ∫₀^∞ e^{−t} (∫_{−∞}^m φ(x) exp(−t e^{σ(x − m)}) dx)^{T−1} dt dm.

    The innermost integral by Gauss–Legendre, the other two by trapezoids in m and ln t, where the
    integrand dies away at both ends; what is cut off is below 1e-6.
    """
    top = np.linspace(-8.0, 8.0, 65)
    log_t = np.linspace(-14.0, 3.5, 61)
    node, share = np.polynomial.legendre.leggauss(64)
    reach = top[:, None, None] + 9.0
    x = top[:, None, None] + (node - 1) / 2 * reach
    others = np.exp(-np.exp(log_t)[:, None] * np.exp(std * (x - top[:, None, None])))
    seen = (share * reach / 2 * _density(x) * others).sum(-1)
    over_t = np.trapezoid(seen ** (keys - 1) * np.exp(log_t - np.exp(log_t)), log_t)
    return float(np.trapezoid(keys * _density(top) * over_t, top))


def _density(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    return np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def _c10() -> tuple[Check, ...]:
    powers = (0.25, 0.5, 0.75)
    tables = {d_k: exponent(d_k, powers).set_index("exponent") for d_k in (16, 64, 256)}
    middle = [float(table.loc[0.5, "std"]) for table in tables.values()]
    at_64 = tables[64]
    checks = [
        Check(f"standard deviation at α = ½, d_k = {d_k}", 1.0, std, 0.05)
        for d_k, std in zip(tables, middle, strict=True)
    ]
    return (
        *checks,
        Check("peak at α = ¼ over peak at α = ½", 1.0, _ratio(at_64["peak"], 0.25), 0.0, "≥"),
        Check("peak at α = ¾ over peak at α = ½", 1.0, _ratio(at_64["peak"], 0.75), 0.0, "≤"),
        Check(
            "normalised entropy at α = ¾, d_k = 64",
            0.95,
            float(at_64.loc[0.75, "normalised_entropy"]),
            0.0,
            "≥",
        ),
    )


def _ratio(column: pd.Series, power: float) -> float:
    return float(column[power] / column[0.5])


@cache
def _hundred_keys() -> pd.DataFrame:
    """Drawn once for both claims about 100 keys."""
    return extremes((1.0, 8.0), (100,), draws=100_000).set_index("std")


def _c11() -> tuple[Check, ...]:
    row = _hundred_keys().loc[8.0]
    return (
        printed(
            "mean of the largest of 100 logits", "24", row["largest"], 8 * expected_largest(100)
        ),
        printed("mean peak", "1.0", row["peak"], expected_peak(8.0, 100)),
        printed("median peak", "1.0", row["peak_median"], row["peak_median"]),
    )


def _c12() -> tuple[Check, ...]:
    row = _hundred_keys().loc[1.0]
    return (
        printed("mean of the largest of 100 logits", "3.0", row["largest"], expected_largest(100)),
        printed("mean peak", "0.17", row["peak"], expected_peak(1.0, 100)),
    )


CLAIMS = (
    Claim(
        id="C10",
        statement="Dividing by d_k^α keeps the variance at 1 for α = ½ only; a smaller α saturates "
        "the softmax, a larger one makes it uniform.",
        derivation=(
            r"\operatorname{Var}\!\left(q\cdot k/d_k^{\alpha}\right)=d_k^{\,1-2\alpha}",
            r"d_k^{\,1-2\alpha}=1 \text{ for every } d_k \iff \alpha=\tfrac12",
        ),
        measurement="A sweep over α at d_k = 16, 64 and 256, with 100 keys.",
        checks=_c10,
    ),
    Claim(
        id="C11",
        statement="With standard deviation 8 and 100 keys the largest logit is about 24 and the "
        "softmax peak is practically 1.0.",
        derivation=(
            r"E\!\left[\max_{j\le T}s_j\right]\le\sigma\sqrt{2\ln T}"
            r"\;\;(=24.3\text{ for }\sigma=8,\;T=100)",
            r"E\!\left[\max_j s_j\right]=\sigma\!\left(\int_0^\infty\!\!\left(1-\Phi^T\right)dx"
            r"-\int_{-\infty}^0\!\!\Phi^T dx\right)=20.1",
        ),
        measurement="100,000 rows of 100 normal logits.",
        checks=_c11,
        reason="σ√(2 ln T) is an upper bound that is reached only as T grows without limit. The "
        "mean of the maximum is 20.1, and the runner-up is often close behind it: the mean peak "
        "is 0.78, its median 0.84. Saturated often, not always.",
    ),
    Claim(
        id="C12",
        statement="With standard deviation 1 the largest of 100 logits is about 3.0 and the peak "
        "0.17.",
        derivation=(
            r"\sqrt{2\ln 100}=3.03,\qquad \frac{e^3}{e^3+99}=0.169",
            r"E\Big[\sum_j e^{s_j}\Big]=100\,e^{1/2}=165\;>\;e^3+99=119",
        ),
        measurement="100,000 rows of 100 normal logits.",
        checks=_c12,
        reason="The bound was taken for the mean again, which is 2.51, and 0.17 takes all other "
        "logits as 0, while half of them are above it. The mean peak is 0.081.",
    ),
)
