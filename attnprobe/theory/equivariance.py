"""Attention without positions does not know the order of its tokens: f(PX) = P f(X).

One self-attention layer with random weights is run on tokens and on the same tokens permuted; the
second result is put back into the first order and compared. The property is the ground of Lee et
al. 2019, "Set Transformer"; sinusoids are those of Vaswani et al. 2017, section 3.5.
"""

import math

import numpy as np
import pandas as pd
from jaxtyping import Float

from attnprobe.theory.claims import Check, Claim
from attnprobe.theory.draws import Stream
from attnprobe.theory.inputs import at_least
from attnprobe.theory.softmax import weights


def equivariance(
    tokens: int = 11, d_model: int = 24, permutations: int = 20, seed: int = 0
) -> pd.DataFrame:
    """Largest difference between f(PX) and P f(X) over random permutations P.

    `positions`: "none"; "sinusoidal" (Vaswani et al. 2017, section 3.5), added to the tokens by
    place; "causal mask only", no position vectors, but each token sees only those before it.

    Columns: positions, permutation (1-based), max_abs_difference, relative_difference (over the
    largest component of f(X)).
    """
    at_least(2, tokens=tokens, d_model=d_model)
    at_least(1, permutations=permutations)
    stream = Stream(seed)
    x = stream.normal(tokens, d_model)
    matrices = stream.normal(3, d_model, d_model) / math.sqrt(d_model)
    orders = stream.uniform(permutations, tokens).argsort(-1)
    rows = []
    for name, (places, causal) in _kinds(tokens, d_model).items():
        straight = _attention(x + places, matrices, causal)
        for number, order in enumerate(orders, 1):
            moved = _attention(x[order] + places, matrices, causal)
            error = float(np.abs(moved - straight[order]).max())
            rows.append((name, number, error, error / float(np.abs(straight).max())))
    columns = ["positions", "permutation", "max_abs_difference", "relative_difference"]
    return pd.DataFrame(rows, columns=columns)


def _kinds(tokens: int, d_model: int) -> dict:
    return {
        "none": (np.zeros((tokens, d_model)), False),
        "sinusoidal": (sinusoids(tokens, d_model), False),
        "causal mask only": (np.zeros((tokens, d_model)), True),
    }


def sinusoids(tokens: int, d_model: int) -> Float[np.ndarray, "token d_model"]:
    """sin and cos of t / 10000^(2i/d) in turns (Vaswani et al. 2017, section 3.5)."""
    component = np.arange(d_model)
    angle = np.arange(tokens)[:, None] / 10_000.0 ** (2 * (component // 2) / d_model)
    return np.where(component % 2 == 0, np.sin(angle), np.cos(angle))


def _attention(
    x: Float[np.ndarray, "token d_model"],
    matrices: Float[np.ndarray, "3 d_model d_model"],
    causal: bool,
) -> Float[np.ndarray, "token d_model"]:
    query, key, value = (x @ matrix for matrix in matrices)
    scores = query @ key.T / math.sqrt(x.shape[-1])
    if causal:
        scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
    return weights(scores) @ value


def _c20() -> tuple[Check, ...]:
    worst = equivariance().groupby("positions")["relative_difference"].max()
    return (
        Check("f(PX) against P f(X), no positions", 0.0, float(worst["none"]), 1e-12),
        Check("f(PX) against P f(X), sinusoids", 0.01, float(worst["sinusoidal"]), 0.0, "≥"),
    )


CLAIMS = (
    Claim(
        id="C20",
        statement="Attention without position information is permutation-equivariant.",
        derivation=(
            r"\operatorname{softmax}\!\left(PQK^{\mathsf T}P^{\mathsf T}\right)PV"
            r"=P\operatorname{softmax}\!\left(QK^{\mathsf T}\right)P^{\mathsf T}PV",
            r"P^{\mathsf T}P=I\;\Rightarrow\;f(PX)=P\,f(X)",
        ),
        measurement="Twenty random permutations of eleven random tokens, with and without position "
        "vectors; a causal mask alone breaks it as well.",
        checks=_c20,
    ),
)
