"""What attention is: a convex combination, a directed relation, a kernel regression.

Attention and its projections as in Vaswani et al. 2017, section 3.2; the regression is that of
Nadaraya 1964 and Watson 1964, seen in attention by Tsai et al. 2019, "Transformer Dissection".
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float

from attnprobe.errors import BadInput
from attnprobe.theory.claims import Check, Claim
from attnprobe.theory.draws import Stream
from attnprobe.theory.inputs import at_least, score_row
from attnprobe.theory.softmax import statistics, weights

EPSILONS = tuple(float(x) for x in np.logspace(-6, -0.31, 40))
TRIANGLE = ((0.0, 0.0), (4.0, 0.5), (3.0, 3.5), (1.0, 3.0), (2.0, 1.5))


def meaning(
    epsilons: Sequence[float] = EPSILONS, keys: int = 12, draws: int = 200, seed: int = 0
) -> pd.DataFrame:
    """‖J‖_F of a row whose peak is 1 − ε, for three ways to share out ε, and its bound.

    ‖J‖_F² = μ²ε² + r(1 + 2μ² + r) − 2c with μ = 1 − ε and r, c the sums of the squares and cubes of
    the other weights. It is largest when one rival takes all of ε: then ‖J‖_F = 2ε(1 − ε).

    Columns: epsilon, arrangement ("one rival", "evenly", "at random": the largest of `draws`
    Dirichlet draws), keys, jacobian_frobenius, bound, share (of the bound).
    """
    at_least(2, keys=keys)
    at_least(1, draws=draws)
    if not all(0 < epsilon < 0.5 for epsilon in epsilons):
        raise BadInput("an ε lies outside (0, ½); the peak 1 − ε must be the largest weight")
    spread = -np.log(1 - Stream(seed).uniform(draws, keys - 1))  # Dirichlet(1): exponentials
    shares = {
        "one rival": np.eye(1, keys - 1),
        "evenly": np.full((1, keys - 1), 1 / (keys - 1)),
        "at random": spread / spread.sum(-1, keepdims=True),
    }
    rows = [
        (epsilon, name, keys, _frobenius(epsilon, share), 2 * epsilon * (1 - epsilon))
        for name, share in shares.items()
        for epsilon in epsilons
    ]
    columns = ["epsilon", "arrangement", "keys", "jacobian_frobenius", "bound"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.assign(share=frame["jacobian_frobenius"] / frame["bound"])


def _frobenius(epsilon: float, share: Float[np.ndarray, "draw other"]) -> float:
    with np.errstate(divide="ignore"):
        scores = np.log(np.c_[np.full(len(share), 1 - epsilon), epsilon * share])
    return float(statistics(np.maximum(scores, -700.0))["jacobian_frobenius"].max())


def convex_hull(
    values: Sequence[Sequence[float | int]] = TRIANGLE,
    scores: Sequence[float | int] = (0.5, 1.0, 0.0, -0.5, 1.5),
) -> pd.DataFrame:
    """Value vectors in the plane, their weights, and the output Σ p_j v_j that lies among them.

    Columns: point ("value", "output"), key (undefined for the output), x, y, weight, on_hull
    (whether the point is a corner of the convex hull of the values).
    """
    points = np.asarray(values, dtype=float)
    row = score_row(scores)
    if points.shape != (len(row), 2):
        raise BadInput(f"{len(points)} points for {len(row)} scores; give one pair x, y per score")
    p = weights(row)
    frame = pd.DataFrame(points, columns=["x", "y"]).assign(point="value", weight=p)
    frame["key"] = np.arange(len(row))
    corners = set(hull_corners(points))
    frame["on_hull"] = [i in corners for i in range(len(row))]
    x, y = p @ points
    output = {"point": "output", "key": None, "x": x, "y": y, "weight": 1.0, "on_hull": False}
    columns = ["point", "key", "x", "y", "weight", "on_hull"]
    whole = pd.concat([frame, pd.DataFrame([output])], ignore_index=True)[columns]
    return whole.astype({"key": "Int64"})


def hull_corners(points: Float[np.ndarray, "point 2"]) -> list[int]:
    """Corners of the convex hull, counter-clockwise from the lowest x (Andrew's monotone chain)."""
    order = np.lexsort((points[:, 1], points[:, 0])).tolist()

    def half(indices: list[int]) -> list[int]:
        chain: list[int] = []
        for index in indices:
            while len(chain) > 1 and _turn(points[[*chain[-2:], index]]) <= 0:
                chain.pop()
            chain.append(index)
        return chain

    lower, upper = half(order), half(order[::-1])
    return lower[:-1] + upper[:-1] if len(lower) > 1 else lower


def _turn(corner: Float[np.ndarray, "three 2"]) -> float:
    """Twice the signed area of a triangle: positive for a left turn."""
    (ax, ay), (bx, by) = corner[1:] - corner[0]
    return float(ax * by - ay * bx)


def contraction(
    tokens: int = 12, d_v: int = 16, stds: Sequence[float | int] = (0.25, 1, 2, 4, 8), seed: int = 0
) -> pd.DataFrame:
    """How far inside its bound an output stays: ‖out‖_∞ / max_j ‖v_j‖_∞ over random rows.

    Columns: std (of the scores), largest_ratio, mean_ratio (over rows); never above 1.
    """
    at_least(2, tokens=tokens, d_v=d_v)
    stream = Stream(seed)
    scores, values = stream.normal(tokens, tokens), stream.normal(tokens, d_v)
    bound = np.abs(values).max()
    rows = []
    for std in stds:
        ratio = np.abs(weights(std * scores) @ values).max(-1) / bound
        rows.append((float(std), float(ratio.max()), float(ratio.mean())))
    return pd.DataFrame(rows, columns=["std", "largest_ratio", "mean_ratio"])


def asymmetry_of(scores: Float[np.ndarray, "query key"]) -> float:
    """‖S − Sᵀ‖_F / (‖S‖_F + ‖Sᵀ‖_F): 0 when S is symmetric, 1 when Sᵀ = −S."""
    return float(np.linalg.norm(scores - scores.T) / (2 * np.linalg.norm(scores)))


def asymmetry(tokens: int = 12, d_model: int = 32, d_k: int = 8, seed: int = 0) -> pd.DataFrame:
    """Scores of random tokens with separate W_Q and W_K, with W_Q = W_K, and with W_K = −W_Q·R.

    With tied projections S = X W Wᵀ Xᵀ is symmetric: i asks j exactly as much as j asks i.
    R = −Rᵀ (a turn by a quarter in each pair of components) makes S antisymmetric.

    Columns: projections, query, key, scaled_logit, asymmetry.
    """
    at_least(2, tokens=tokens, d_model=d_model, d_k=d_k)
    stream = Stream(seed)
    x = stream.normal(tokens, d_model)
    to_query, to_key = stream.normal(2, d_model, d_k) / math.sqrt(d_model)
    quarter = np.zeros((d_k, d_k))
    quarter[range(0, d_k - 1, 2), range(1, d_k, 2)] = 1.0
    kinds = {
        "separate": to_key,
        "tied": to_query,
        "turned by a quarter": to_query @ (quarter - quarter.T),
    }
    query, key = np.indices((tokens, tokens))
    parts = []
    for name, projection in kinds.items():
        scores = (x @ to_query) @ (x @ projection).T / math.sqrt(d_k)
        columns = {"query": query.ravel(), "key": key.ravel(), "scaled_logit": scores.ravel()}
        parts.append(pd.DataFrame(columns).assign(projections=name, asymmetry=asymmetry_of(scores)))
    columns = ["projections", "query", "key", "scaled_logit", "asymmetry"]
    return pd.concat(parts, ignore_index=True)[columns]


def kernel_regression(
    query: Float[np.ndarray, "query d_k"],
    key: Float[np.ndarray, "key d_k"],
    value: Float[np.ndarray, "key d_v"],
    kernel: str = "exponential",
) -> Float[np.ndarray, "query d_v"]:
    """Nadaraya–Watson: Σ_j κ(q, k_j) v_j / Σ_j κ(q, k_j), without a softmax.

    `kernel`: "exponential" κ = exp(q·k/√d_k), or "rbf" κ = exp(−‖q − k‖² / 2√d_k). Their quotient
    is exp(‖q‖²/2√d_k) exp(‖k‖²/2√d_k); the first factor cancels in the row, the second only if all
    keys have one norm. Each row is divided by its largest κ, which cancels too.
    """
    root = math.sqrt(query.shape[-1])
    exponents = KERNELS[kernel](query, key) / root
    heights = np.exp(exponents - exponents.max(-1, keepdims=True))
    return (heights @ value) / heights.sum(-1, keepdims=True)


def _half_squared_distance(query, key):
    return ((query[:, None] - key[None]) ** 2).sum(-1) / 2


KERNELS = {
    "exponential": lambda query, key: query @ key.T,
    "rbf": lambda query, key: -_half_squared_distance(query, key),
}


def kernels(
    spreads: Sequence[float | int] = (0, 0.01, 0.03, 0.1, 0.3, 1),
    tokens: int = 12,
    d_k: int = 16,
    d_v: int = 5,
    seed: int = 0,
) -> pd.DataFrame:
    """Softmax attention against the kernel forms while the norms of the keys drift apart.

    Keys have norm √d_k · exp(spread · z) with standard normal z. The queries' norms differ
    throughout and do no harm.

    Columns: spread, kernel, max_abs_difference (of the outputs).
    """
    at_least(2, tokens=tokens, d_k=d_k, d_v=d_v)
    stream = Stream(seed)
    query, direction = stream.normal(tokens, d_k), stream.normal(tokens, d_k)
    drift, value = stream.normal(tokens, 1), stream.normal(tokens, d_v)
    unit = direction / np.linalg.norm(direction, axis=-1, keepdims=True)
    rows = []
    for spread in spreads:
        key = math.sqrt(d_k) * np.exp(spread * drift) * unit
        softmaxed = weights(query @ key.T / math.sqrt(d_k)) @ value
        for kernel in KERNELS:
            error = np.abs(kernel_regression(query, key, value, kernel) - softmaxed).max()
            rows.append((float(spread), kernel, float(error)))
    return pd.DataFrame(rows, columns=["spread", "kernel", "max_abs_difference"])


def _c13() -> tuple[Check, ...]:
    rows = meaning()
    small = rows[(rows["arrangement"] == "one rival") & (rows["epsilon"] < 1e-3)]
    slope = np.polyfit(np.log(small["epsilon"]), np.log(small["jacobian_frobenius"]), 1)[0]
    return (
        Check("slope of ln ‖J‖_F on ln ε for ε < 0.001", 1.0, float(slope), 1e-3),
        Check("largest ‖J‖_F / 2ε(1 − ε)", 1.0, float(rows["share"].max()), 1e-9, "≤"),
    )


def _c14() -> tuple[Check, ...]:
    largest = contraction()["largest_ratio"].max()
    return (Check("largest ‖out‖_∞ / max ‖v‖_∞", 1.0, float(largest), 0.0, "≤"),)


def _c15() -> tuple[Check, ...]:
    found = asymmetry().groupby("projections")["asymmetry"].first()
    return (
        Check("asymmetry of S with W_Q = W_K", 0.0, float(found["tied"]), 1e-12),
        Check("asymmetry of S with separate W_Q and W_K", 0.5, float(found["separate"]), 0.0, "≥"),
    )


def _c16() -> tuple[Check, ...]:
    found = kernels().set_index(["kernel", "spread"])["max_abs_difference"]
    return (
        Check("kernel form against softmax form", 0.0, float(found["exponential"].max()), 1e-12),
        Check("RBF against softmax, equal key norms", 0.0, float(found["rbf", 0.0]), 1e-12),
        Check("RBF against softmax, key norms ×e^±1", 0.1, float(found["rbf", 1.0]), 0.0, "≥"),
    )


CLAIMS = (
    Claim(
        id="C13",
        statement="A saturated row with peak 1 − ε has a Jacobian of size O(ε).",
        derivation=(
            r"\lVert J\rVert_F^2=\mu^2\varepsilon^2+r(1+2\mu^2+r)-2c,\quad \mu=1-\varepsilon,\;"
            r"r=\sum_{j\ne\max}p_j^2,\;c=\sum_{j\ne\max}p_j^3",
            r"\text{largest at } r=\varepsilon^2,\,c=\varepsilon^3:\quad"
            r"\lVert J\rVert_F\le 2\varepsilon(1-\varepsilon)",
        ),
        measurement="The slope on log axes, and the largest quotient with the bound.",
        checks=_c13,
    ),
    Claim(
        id="C14",
        statement="Each output is a convex combination of the values, so no component leaves their "
        "range.",
        derivation=(
            r"o=\sum_j p_j v_j,\quad p_j\ge0,\ \sum_j p_j=1",
            r"\lVert o\rVert_\infty\le\sum_j p_j\lVert v_j\rVert_\infty\le"
            r"\max_j\lVert v_j\rVert_\infty",
        ),
        measurement="Random scores of standard deviation 0.25 to 8.",
        checks=_c14,
    ),
    Claim(
        id="C15",
        statement="Separate W_Q and W_K make attention directional; with W_Q = W_K the scores are "
        "symmetric.",
        derivation=(
            r"S=X W_Q W_K^{\mathsf T}X^{\mathsf T},\qquad "
            r"W_Q=W_K\;\Rightarrow\;S^{\mathsf T}=S",
            r"\text{independent random entries: } E\lVert S-S^{\mathsf T}\rVert^2"
            r"\approx 2E\lVert S\rVert^2\;\Rightarrow\;\text{asymmetry}\to 1/\sqrt2",
        ),
        measurement="‖S − Sᵀ‖ / (‖S‖ + ‖Sᵀ‖) of random tokens.",
        checks=_c15,
    ),
    Claim(
        id="C16",
        statement="Attention is a Nadaraya–Watson estimator with the kernel exp(q·k/√d_k); for "
        "unit vectors it is the RBF kernel up to a constant.",
        derivation=(
            r"e^{q\cdot k/\sqrt{d_k}}=e^{-\lVert q-k\rVert^2/2\sqrt{d_k}}\;"
            r"e^{\lVert q\rVert^2/2\sqrt{d_k}}\;e^{\lVert k\rVert^2/2\sqrt{d_k}}",
            r"\text{the factor of } q \text{ cancels in its row; that of } k "
            r"\text{ only if all } \lVert k_j\rVert \text{ are equal}",
        ),
        measurement="Outputs of both kernel forms against the softmax form; only the norms of the "
        "keys have to be equal.",
        checks=_c16,
    ),
)
