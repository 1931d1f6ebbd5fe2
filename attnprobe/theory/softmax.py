"""What a factor on the scores does to a softmax and to its Jacobian.

J = diag(p) − ppᵀ is the derivative of p = softmax(s) (Bridle 1990); the division by √d_k is that of
Vaswani et al. 2017, equation 1. All values are float64.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from attnprobe.softmax_stats import statistics_of
from attnprobe.theory.claims import Check, Claim, printed
from attnprobe.theory.inputs import at_least, score_row

SIX_SCORES = (1.585, 0.554, 4.287, -0.693, -8.705, -9.108)
TOM_SCORES = (40.0, 12.0, 8.0)
MULTIPLIERS = (1.0, 2.0, 2.52, 4.0, 8.0, 16.0, 32.0)


def weights(scores: Float[np.ndarray, "... key"]) -> Float[np.ndarray, "... key"]:
    """Softmax over the last axis."""
    raised = np.exp(scores - scores.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def jacobian(p: Float[np.ndarray, "... key"]) -> Float[np.ndarray, "... key key"]:
    """diag(p) − ppᵀ: how each weight answers to each score. The diagonal is p_i Σ_{j≠i} p_j."""
    others = -p[..., :, None] * p[..., None, :]
    diagonal = np.arange(p.shape[-1])
    others[..., diagonal, diagonal] = 0.0
    others[..., diagonal, diagonal] = -others.sum(-1)
    return others


def statistics(
    scores: Float[np.ndarray, "... key"], *, spectral: bool = False
) -> dict[str, Float[np.ndarray, "..."]]:
    """Row statistics as `softmax_stats.RowStatistics` defines them, in float64.

    Keys: peak, entropy (nats), normalised_entropy, jacobian_max (largest entry of J),
    jacobian_frobenius, jacobian_trace and, if asked for, jacobian_spectral (at most ½).
    """
    rows = statistics_of(torch.from_numpy(scores), None, dtype=torch.float64, spectral=spectral)
    names = _STATISTICS + ("jacobian_spectral",) * spectral
    return {name: getattr(rows, name).numpy() for name in names}


_STATISTICS = (
    "peak",
    "entropy",
    "normalised_entropy",
    "jacobian_max",
    "jacobian_frobenius",
    "jacobian_trace",
)


def softmax(
    scores: Sequence[float | int] = SIX_SCORES,
    d_k: int = 64,
    multipliers: Sequence[float | int] = MULTIPLIERS,
) -> pd.DataFrame:
    """A row of scores divided by √d_k, then multiplied by each factor; √d_k undoes the division.

    Columns: multiplier, and those of `statistics`, jacobian_spectral included.
    """
    at_least(1, d_k=d_k)
    row = score_row(scores) / math.sqrt(d_k)
    factors = np.asarray(multipliers, dtype=float)
    return pd.DataFrame(
        {"multiplier": factors, **statistics(factors[:, None] * row, spectral=True)}
    )


def multiplier_curve(
    scores: Sequence[float | int] = SIX_SCORES, d_k: int = 64, points: int = 121
) -> pd.DataFrame:
    """`softmax` over multipliers from 2⁻³ to 2⁵, evenly spaced on a log axis."""
    return softmax(scores, d_k, list(np.logspace(-3, 5, points, base=2)))


def row_weights(scores: Sequence[float | int] = SIX_SCORES, d_k: int = 64) -> pd.DataFrame:
    """The weights of one row without and with the division.

    Columns: key, raw_logit, scaled_logit, undivided, divided.
    """
    at_least(1, d_k=d_k)
    raw = score_row(scores)
    scaled = raw / math.sqrt(d_k)
    return pd.DataFrame(
        {
            "key": np.arange(len(raw)),
            "raw_logit": raw,
            "scaled_logit": scaled,
            "undivided": weights(raw),
            "divided": weights(scaled),
        }
    )


def jacobian_map(
    scores: Sequence[float | int] = SIX_SCORES, d_k: int = 64, multiplier: float | int = 1.0
) -> pd.DataFrame:
    """J of one row, entry by entry. Columns: weight (row of J), score (column), derivative."""
    at_least(1, d_k=d_k)
    j = jacobian(weights(multiplier * score_row(scores) / math.sqrt(d_k)))
    weight, score = np.indices(j.shape)
    return pd.DataFrame({"weight": weight.ravel(), "score": score.ravel(), "derivative": j.ravel()})


def _c2() -> tuple[Check, ...]:
    rows = softmax(multipliers=(1.0, 8.0)).set_index("multiplier")
    told = {
        1.0: {"peak": "0.3066", "entropy": "1.6426", "jacobian_max": "0.212595"},
        8.0: {"peak": "0.9109", "entropy": "0.3710", "jacobian_max": "0.081198"},
    }
    words = {1.0: "divided by 8", 8.0: "undivided"}
    checks = [
        printed(f"{_WORDS[column]}, {words[factor]}", digits, rows.loc[factor, column])
        for factor, row in told.items()
        for column, digits in row.items()
    ]
    uniform = statistics(np.zeros(6))["entropy"]
    return (*checks, printed("entropy of six equal weights", "1.7918", float(uniform)))


_WORDS = {"peak": "peak", "entropy": "entropy", "jacobian_max": "largest entry of J"}

_TABLE = {
    1.0: ("0.3066", "1.643", "0.2126"),
    2.0: ("0.4417", "1.397", "0.2466"),
    2.52: ("0.5063", "1.280", "0.2500"),
    4.0: ("0.6670", "0.981", "0.2221"),
    8.0: ("0.9109", "0.371", "0.0812"),
    16.0: ("0.9949", "0.034", "0.0051"),
    32.0: ("0.99998", "0.0002", "0.0000206"),
}


def _c3() -> tuple[Check, ...]:
    rows = softmax().set_index("multiplier")
    return tuple(
        printed(f"{_WORDS[column]}, ×{factor:g}", digits, rows.loc[factor, column])
        for factor, row in _TABLE.items()
        for column, digits in zip(_WORDS, row, strict=True)
    )


def _c8() -> tuple[Check, ...]:
    rows = row_weights(TOM_SCORES)
    moved = (rows["raw_logit"].rank() != rows["scaled_logit"].rank()).sum()
    return (
        printed("40 / √64", "5", float(rows["scaled_logit"][0])),
        Check("keys that change their rank", 0.0, float(moved)),
    )


def _c9() -> tuple[Check, ...]:
    rows = row_weights(TOM_SCORES)
    return (
        Check("weight of the first key, undivided", 1.0, float(rows["undivided"][0]), 1e-9),
        Check("weight left for the others, divided", 0.01, 1 - float(rows["divided"][0]), 0.0, "≥"),
    )


CLAIMS = (
    Claim(
        id="C2",
        statement="For the scores (1.585, 0.554, 4.287, −0.693, −8.705, −9.108) the division by 8 "
        "gives peak 0.3066 and entropy 1.6426; undivided they are 0.9109 and 0.3710.",
        derivation=(
            r"\frac{p_i}{p_j} = e^{s_i - s_j}\;\Rightarrow\;"
            r"\text{a factor } c \text{ turns the ratio into } e^{c\,(s_i-s_j)}",
            r"J = \operatorname{diag}(p) - pp^{\mathsf T},\qquad J_{ij}=p_i(\delta_{ij}-p_j)",
        ),
        measurement="Softmax and Jacobian in float64.",
        checks=_c2,
        digits=True,
    ),
    Claim(
        id="C3",
        statement="Multiplying the divided scores by 1 … 32 raises the peak to 1; the largest "
        "entry of the Jacobian grows to 0.25 and then dies.",
        derivation=(
            r"\max_{ij}|J_{ij}| = m(1-m),\quad m = \max_i p_i \text{ (for } m \ge \tfrac12)",
            r"m(1-m)\le\tfrac14,\text{ with equality at } m=\tfrac12",
        ),
        measurement="The table, row by row.",
        checks=_c3,
        digits=True,
    ),
    Claim(
        id="C8",
        statement="A score of 40 at d_k = 64 becomes 5. A positive constant keeps the order of the "
        "scores, and it is not learned.",
        derivation=(r"\frac{40}{\sqrt{64}} = 5,\qquad s_i > s_j \iff c\,s_i > c\,s_j\;\;(c>0)",),
        measurement="The division, and the ranks before and after.",
        checks=_c8,
    ),
    Claim(
        id="C9",
        statement="Scores of 40, 12 and 8 put practically all weight on the first key; 5, 1.5 and "
        "1 leave some for the others.",
        derivation=(
            r"1-p_1 \approx e^{12-40}+e^{8-40} \approx 7\cdot10^{-13}",
            r"\operatorname{softmax}(5,\,1.5,\,1) \approx (0.954,\;0.029,\;0.017)",
        ),
        measurement="Softmax in float64.",
        checks=_c9,
    ),
)
