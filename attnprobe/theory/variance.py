"""Why √d_k: the variance of a dot product, counted.

For q and k with independent components of mean 0 and variance 1, Var(q·k) = d_k (Vaswani et al.
2017, footnote 4). With covariances Σ_q and Σ_k and mean 0 it is tr(Σ_q Σ_k) in general.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float

from attnprobe.errors import BadInput
from attnprobe.theory.claims import Check, Claim, printed
from attnprobe.theory.draws import Stream
from attnprobe.theory.inputs import at_least, listed

BLOCK = 2**21  # numbers drawn at a time: 16 MiB

Vectors = Float[np.ndarray, "draw two d_k"]


@dataclass(frozen=True)
class Components:
    """How the components of a vector are drawn, and what Var(q·k) then is."""

    draw: Callable[[Stream, tuple[int, ...], float], Float[np.ndarray, "..."]]
    predicted_variance: Callable[[int, float], float]


def _layer_normed(x: Float[np.ndarray, "... d_k"]) -> Float[np.ndarray, "... d_k"]:
    return (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)


def _equicorrelated(stream: Stream, shape: tuple[int, ...], rho: float):
    shared, own = stream.normal(*shape[:-1], 1), stream.normal(*shape)
    return math.sqrt(rho) * shared + math.sqrt(1 - rho) * own


COMPONENTS = {
    "normal": Components(lambda stream, shape, _: stream.normal(*shape), lambda d, _: float(d)),
    "uniform": Components(
        lambda stream, shape, _: math.sqrt(12) * (stream.uniform(*shape) - 0.5),
        lambda d, _: float(d),
    ),
    "rademacher": Components(
        lambda stream, shape, _: np.where(stream.uniform(*shape) < 0.5, -1.0, 1.0),
        lambda d, _: float(d),
    ),
    "layer-normed": Components(
        lambda stream, shape, _: _layer_normed(stream.normal(*shape)),
        lambda d, _: d * d / (d - 1),
    ),
    "correlated": Components(_equicorrelated, lambda d, rho: d * (1 + (d - 1) * rho * rho)),
}


def variance(
    dims: Sequence[int] = (8, 64, 128, 512),
    components: str = "normal",
    draws: int = 20_000,
    seed: int = 7,
    correlation: float = 0.1,
) -> pd.DataFrame:
    """Spread of q·k over independent draws of q and k, against √Var(q·k) as predicted.

    `components`: "normal", "uniform" (on ±√3), "rademacher" (±1), "layer-normed" (mean 0, variance
    1 within each vector: Var = d²/(d − 1)) or "correlated" (every two components of a vector
    correlate by `correlation` = ρ: Var = d (1 + (d − 1) ρ²)). One random stream runs through all
    `dims`, so the defaults are the numbers of Python's `random.seed(7)` and `random.gauss`.

    Columns: d_k, components, draws, mean, std, std_error (of std), predicted_std, scaled_std
    (std / √d_k).
    """
    at_least(2, draws=draws, smallest_d_k=min(dims, default=0))
    listed("components", components, list(COMPONENTS))
    _correlates(correlation)
    stream = Stream(seed)
    kind = COMPONENTS[components]
    rows = []
    for d_k in dims:
        products = _dot_products(kind, stream, draws, d_k, correlation)
        predicted = math.sqrt(kind.predicted_variance(d_k, correlation))
        rows.append({"d_k": d_k, "components": components, "draws": draws, **_spread(products)})
        rows[-1] |= {"predicted_std": predicted, "scaled_std": rows[-1]["std"] / math.sqrt(d_k)}
    return pd.DataFrame(rows)


def _correlates(correlation: float) -> None:
    if not 0 <= correlation <= 1:
        raise BadInput(f"the correlation is {correlation}; it must lie between 0 and 1")


def _dot_products(
    kind: Components, stream: Stream, draws: int, d_k: int, correlation: float
) -> Float[np.ndarray, " draw"]:
    at_once = max(1, BLOCK // (2 * d_k))
    blocks = []
    for start in range(0, draws, at_once):
        count = min(at_once, draws - start)
        pair = kind.draw(stream, (count, 2, d_k), correlation)
        blocks.append(np.einsum("nd,nd->n", pair[:, 0], pair[:, 1]))
    return np.concatenate(blocks)


def _spread(products: Float[np.ndarray, " draw"]) -> dict[str, float]:
    """Mean and standard deviation (divisor n), and the standard error of the latter."""
    centred = products - products.mean()
    second = float(np.mean(centred**2))
    fourth = float(np.mean(centred**4))
    std = math.sqrt(second)
    error = math.sqrt(max(fourth - second**2, 0.0) / len(products)) / (2 * std)
    return {"mean": float(products.mean()), "std": std, "std_error": error}


def histogram(
    d_k: int = 64,
    components: str = "normal",
    draws: int = 20_000,
    seed: int = 7,
    bins: int = 60,
    correlation: float = 0.1,
) -> pd.DataFrame:
    """Densities of q·k and of q·k/√d_k on one axis, components as in `variance`.

    Columns: score ("raw logit", "scaled logit"), value (bin middle), density.
    """
    at_least(2, draws=draws, d_k=d_k, bins=bins)
    listed("components", components, list(COMPONENTS))
    _correlates(correlation)
    raw = _dot_products(COMPONENTS[components], Stream(seed), draws, d_k, correlation)
    reach = float(np.abs(raw).max())
    edges = np.linspace(-reach, reach, bins + 1)
    middles = (edges[:-1] + edges[1:]) / 2
    return pd.concat(
        pd.DataFrame(
            {"score": name, "value": middles, "density": np.histogram(x, edges, density=True)[0]}
        )
        for name, x in (("raw logit", raw), ("scaled logit", raw / math.sqrt(d_k)))
    ).reset_index(drop=True)


def devices(
    d_k: int = 64,
    d_model: int = 256,
    draws: int = 4_000,
    seed: int = 7,
    hidden_std: float = 3.0,
    growth: float = 1.0,
) -> pd.DataFrame:
    """Three devices that set a scale, each on and off: which of them removes the d_k?

    Hidden states with standard deviation `hidden_std` pass (or not) a LayerNorm, then W_Q and W_K
    with entries of variance 1/d_model (initialisation on) or 1 (off), then a division by √d_k (or
    not). `growth` multiplies the weights afterwards, as training may: the scores grow by its
    square in all eight rows, for none of the three devices answers that.

    Columns: layer_norm, initialisation, division, std, predicted_std.
    """
    at_least(2, d_k=d_k, d_model=d_model, draws=draws)
    stream = Stream(seed)
    hidden = hidden_std * stream.normal(draws, 2, d_model)
    to_query, to_key = growth * stream.normal(2, d_model, d_k)
    states = {True: _layer_normed(hidden), False: hidden}
    rows = []
    for norm, init, division in itertools.product((False, True), repeat=3):
        factor = (1 / d_model if init else 1.0) * (1 / math.sqrt(d_k) if division else 1.0)
        query, key = states[norm][:, 0] @ to_query, states[norm][:, 1] @ to_key
        scores = factor * np.einsum("nd,nd->n", query, key)
        spread = 1.0 if norm else hidden_std
        predicted = factor * growth**2 * spread**2 * d_model * math.sqrt(d_k)
        rows.append((norm, init, division, float(scores.std()), predicted))
    columns = ["layer_norm", "initialisation", "division", "std", "predicted_std"]
    return pd.DataFrame(rows, columns=columns)


def quarter_root(d_k: int = 64, draws: int = 100_000, seed: int = 7) -> pd.DataFrame:
    """The factor d_k^(−1/4) put on the variance of the weights, and on the weights themselves.

    Components of variance v give Var(q·k) = d_k v². The factor on the variance, v = d_k^(−1/4),
    leaves √d_k; the factor on each weight, v = d_k^(−1/2), leaves 1.

    Columns: factor_on ("nothing", "variance", "standard deviation"), d_k, variance,
    predicted_variance.
    """
    at_least(2, d_k=d_k, draws=draws)
    products = _dot_products(COMPONENTS["normal"], Stream(seed), draws, d_k, 0.0)
    root = d_k**-0.25
    on = {"nothing": 1.0, "variance": root, "standard deviation": root**2}
    return pd.DataFrame(
        {
            "factor_on": list(on),
            "d_k": d_k,
            "variance": [float(np.var(v * products)) for v in on.values()],
            "predicted_variance": [d_k * v * v for v in on.values()],
        }
    )


def _c1() -> tuple[Check, ...]:
    told = {8: ("+0.012", "2.829"), 64: ("-0.061", "7.964")}
    told |= {128: ("+0.029", "11.397"), 512: ("+0.198", "22.669")}
    rows = variance().set_index("d_k")
    return tuple(
        printed(f"{word} of q·k, d_k = {d_k}", digits, rows.loc[d_k, column])
        for d_k, pair in told.items()
        for word, column, digits in zip(
            ("mean", "standard deviation"), ("mean", "std"), pair, strict=True
        )
    )


def _c6() -> tuple[Check, ...]:
    normed = variance((64,), "layer-normed").iloc[0]
    table = devices().set_index(["layer_norm", "initialisation", "division"])["std"]
    return (
        Check(
            "standard deviation of q·k, LayerNormed q and k, d_k = 64, against √64",
            8.0,
            normed["std"],
            # LayerNorm's own d/√(d − 1) instead of √d, and four standard errors
            64 / math.sqrt(63) - 8 + 4 * normed["std_error"],
        ),
        Check("the same spread divided by √64", 1.0, normed["scaled_std"], 0.05),
        Check(
            "LayerNorm and initialisation on, no division: spread over that with division",
            8.0,
            float(table[True, True, False] / table[True, True, True]),
            1e-9,
        ),
    )


def _c7() -> tuple[Check, ...]:
    rows = quarter_root().set_index("factor_on")["variance"]
    return (
        Check(
            "variance of the score, factor on the variance of the weights, d_k = 64",
            1.0,
            float(rows["variance"]),
            0.05,
            right=8.0,
        ),
        Check(
            "variance of the score, factor on each weight, d_k = 64",
            1.0,
            float(rows["standard deviation"]),
            0.05,
        ),
    )


CLAIMS = (
    Claim(
        id="C1",
        statement="The standard deviation of q·k is √d_k: counted over 20,000 draws it is 2.829, "
        "7.964, 11.397 and 22.669 for d_k = 8, 64, 128 and 512.",
        derivation=(
            r"\operatorname{Var}(q_i k_i) = E[q_i^2]\,E[k_i^2] - (E[q_i]\,E[k_i])^2 = 1",
            r"\operatorname{Var}(q\cdot k) = \sum_{i=1}^{d_k}\operatorname{Var}(q_i k_i) = d_k",
            r"\operatorname{Var}\!\left(q\cdot k/\sqrt{d_k}\right) = 1",
        ),
        measurement="Python's random with seed 7, the same order of draws.",
        checks=_c1,
        digits=True,
    ),
    Claim(
        id="C6",
        statement="Initialisation, LayerNorm and the division by √d_k are three different devices; "
        "the first two do not make the third unnecessary.",
        derivation=(
            r"\lVert\mathrm{LN}(x)\rVert^2 = d,\quad "
            r"E\!\left[(q\cdot k)^2\right] = d^2\,E[\cos^2\theta] = \frac{d^2}{d-1}\approx d",
            r"\text{so LayerNormed vectors still have } \operatorname{sd}(q\cdot k)\approx\sqrt{d}",
        ),
        measurement="The spread of the scores with each device on and off.",
        checks=_c6,
    ),
    Claim(
        id="C7",
        statement="Reducing the variance of W_Q and W_K by d_k^(−1/4) makes the variance of the "
        "first scores 1.",
        derivation=(
            r"\operatorname{Var}(q_i)=\operatorname{Var}(k_i)=v"
            r"\;\Rightarrow\;\operatorname{Var}(q\cdot k)=d_k\,v^2",
            r"v=d_k^{-1/4}\;\Rightarrow\;\operatorname{Var}(q\cdot k)=\sqrt{d_k}",
            r"v=d_k^{-1/2}\;\Rightarrow\;\operatorname{Var}(q\cdot k)=1",
        ),
        measurement="100,000 draws at d_k = 64 with the factor on the variance and on the weights.",
        checks=_c7,
        reason="The factor d_k^(−1/4) belongs on each weight, that is on the standard deviation. "
        "Put on the variance it leaves √d_k, which is 8 at d_k = 64.",
    ),
)
