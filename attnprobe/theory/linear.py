"""Attention in linear time: exp(q·k/√d_k) as a dot product of features.

Positive random features (Choromanski et al. 2021, "Rethinking Attention with Performers"):
φ(x) = exp(ωᵀx − ‖x‖²/2)/√m for m normal ω, with x = q/d_k^¼ or k/d_k^¼, so that
E φ(q)·φ(k) = exp(q·k/√d_k). The elu + 1 map (Katharopoulos et al. 2020, "Transformers are RNNs")
replaces the kernel instead of approximating it.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from attnprobe.theory.allocated import peak_bytes
from attnprobe.theory.claims import Check, Claim
from attnprobe.theory.draws import Stream
from attnprobe.theory.inputs import at_least

FEATURES = (4, 16, 64, 256, 1024, 4096)
LENGTHS = (128, 256, 512, 1024, 2048, 4096)


def positive_features(
    x: Float[Tensor, "token d_k"], directions: Float[Tensor, "feature d_k"]
) -> Float[Tensor, "token feature"]:
    """φ(x) = exp(ωᵀx − ‖x‖²/2)/√m, one column per direction ω."""
    return _log_features(x, directions).exp() / math.sqrt(len(directions))


def elu_features(x: Float[Tensor, "token d_k"]) -> Float[Tensor, "token d_k"]:
    """elu(x) + 1: x + 1 above 0, eˣ below."""
    return torch.nn.functional.elu(x) + 1


def linear_attention(
    phi_query: Float[Tensor, "query feature"],
    phi_key: Float[Tensor, "key feature"],
    value: Float[Tensor, "key d_v"],
) -> Float[Tensor, "query d_v"]:
    """φ(Q) (φ(K)ᵀV) / φ(Q) φ(K)ᵀ1: no matrix of queries × keys is ever built."""
    return (phi_query @ (phi_key.T @ value)) / (phi_query @ phi_key.sum(0))[:, None]


def softmax_attention(
    query: Float[Tensor, "query d_k"],
    key: Float[Tensor, "key d_k"],
    value: Float[Tensor, "key d_v"],
) -> Float[Tensor, "query d_v"]:
    """softmax(QKᵀ/√d_k) V with its matrix."""
    return torch.softmax(query @ key.T / math.sqrt(query.shape[-1]), -1) @ value


def kernel_relative_variance(
    query: Float[Tensor, "query d_k"], key: Float[Tensor, "key d_k"]
) -> Float[Tensor, "query key"]:
    """Var(φ(q)·φ(k)) / exp(q·k/√d_k)² for one feature: exp(‖x_q + x_k‖²) − 1 (Lemma 2 there)."""
    squares = query.square().sum(-1)[:, None] + key.square().sum(-1)[None] + 2 * query @ key.T
    return torch.expm1(squares / math.sqrt(query.shape[-1]))


def errors(
    query: Float[Tensor, "token d_k"],
    key: Float[Tensor, "token d_k"],
    value: Float[Tensor, "token d_v"],
    features: Sequence[int] = FEATURES,
    repeats: int = 8,
    seed: int = 0,
) -> pd.DataFrame:
    """How far linear attention is from softmax attention on the given heads, in float64.

    Columns: map ("positive random features", "elu + 1"), features (undefined for elu + 1, which
    draws none), repeats, kernel_error (root mean square of φ(q)·φ(k)/exp(q·k/√d_k) − 1 over all
    pairs), predicted_kernel_error (from the closed form of the variance; falls with m^(−½)),
    output_error (‖difference‖_F over ‖softmax output‖_F). elu + 1 has another kernel, so its
    kernel errors are undefined, as is whatever exceeds float64.
    """
    at_least(1, repeats=repeats, features=min(features, default=0))
    query, key, value = query.double(), key.double(), value.double()
    exact = softmax_attention(query, key, value)
    variance = float(kernel_relative_variance(query, key).mean())
    stream = Stream(seed)
    rows = []
    for count in features:
        draws = (torch.from_numpy(stream.normal(count, query.shape[-1])) for _ in range(repeats))
        found = [_random_error(query, key, value, exact, directions) for directions in draws]
        kernel, output = np.mean(found, axis=0)
        rows.append((_RANDOM, count, repeats, kernel**0.5, (variance / count) ** 0.5, output))
    plain = linear_attention(elu_features(query), elu_features(key), value)
    rows.append((_ELU, None, 1, None, None, _relative(plain, exact)))
    numbers = ["kernel_error", "predicted_kernel_error", "output_error"]
    frame = pd.DataFrame(rows, columns=["map", "features", "repeats", *numbers])
    frame[numbers] = frame[numbers].astype(float).replace(math.inf, math.nan)
    return frame.astype({"features": "Int64"})


_RANDOM, _ELU = "positive random features", "elu + 1"


def _random_error(query, key, value, exact, directions: Tensor) -> tuple[float, float]:
    """Mean square of the kernel's relative error, and relative error of the output.

    Each row of features is divided by its largest, because e^‖x‖² of a trained head overflows; the
    query's factor cancels in its row, the keys' are put to a common one.
    """
    quarter = query.shape[-1] ** 0.25
    x_query, x_key = query / quarter, key / quarter
    log_query, log_key = (_log_features(x, directions) for x in (x_query, x_key))
    top_query, top_key = (logs.amax(-1, keepdim=True) for logs in (log_query, log_key))
    phi_query, phi_key = (log_query - top_query).exp(), (log_key - top_key).exp()
    estimate = (phi_query @ phi_key.T).log() + top_query + top_key.T - math.log(len(directions))
    square = torch.expm1(estimate - x_query @ x_key.T).square().mean()
    output = linear_attention(phi_query, phi_key * (top_key - top_key.amax()).exp(), value)
    return float(square), _relative(output, exact)


def _log_features(x: Tensor, directions: Tensor) -> Tensor:
    return x @ directions.T - x.square().sum(-1, keepdim=True) / 2


def _relative(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


def linear(
    d_k: int = 64,
    tokens: int = 48,
    component_std: float = 0.4,
    features: Sequence[int] = FEATURES,
    repeats: int = 8,
    seed: int = 0,
) -> pd.DataFrame:
    """`errors` on random queries, keys and values.

    The variance grows with exp(‖x_q + x_k‖²), about exp(2 σ² √d_k) for components of standard
    deviation σ: at σ = 1 and d_k = 64 it is of the order of e¹⁶, and millions of features would be
    needed. Hence 0.4 unless chosen.
    """
    at_least(1, d_k=d_k)
    at_least(2, tokens=tokens)
    query, key, value = torch.from_numpy(Stream(seed).normal(3, tokens, d_k))
    scaled = component_std * query, component_std * key
    return errors(*scaled, value, features, repeats, seed + 1)


def time_cells(
    lengths: Sequence[int] = LENGTHS,
    d_k: int = 64,
    features: int = 128,
    repeats: int = 5,
    seed: int = 0,
) -> Iterator[dict]:
    """Seconds and memory of one head against T, contender by contender, on this machine.

    `seconds` is the median of `repeats` calls after a first one, in float32; `peak_bytes` is what
    one more call has allocated at most, as `allocated.peak_bytes` measures it; `extra_bytes` is
    what the method has to hold besides queries, keys, values and output, counted from its shapes
    (the fused kernel's blocks are not counted).

    Keys: tokens, method, d_k, features, seconds, peak_bytes, extra_bytes.
    """
    at_least(1, lengths=min(lengths, default=0), d_k=d_k, features=features, repeats=repeats)
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(features, d_k, generator=generator)
    for tokens in lengths:
        parts = torch.randn(3, tokens, d_k, generator=generator).unbind()
        for method, (attention, numbers) in METHODS.items():
            call = partial(attention, *parts, directions)
            yield {
                "tokens": tokens,
                "method": method,
                "d_k": d_k,
                "features": features,
                "seconds": median_seconds(call, repeats),
                "peak_bytes": peak_bytes(call),
                "extra_bytes": 4 * numbers(tokens, d_k, features),
            }


def times(**settings) -> pd.DataFrame:
    """All of `time_cells` as one frame."""
    return pd.DataFrame(time_cells(**settings))


def median_seconds(call: Callable[[], object], repeats: int) -> float:
    """Median duration of `repeats` calls, after one that is not counted."""
    call()
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return float(np.median(taken))


def crossing(frame: pd.DataFrame, method: str, against: str) -> float | None:
    """T from which `method` is faster than `against` for good, between two measured lengths.

    Interpolated on log axes. None if it is never so; the first length if it is always so.
    """
    wide = frame.pivot(index="tokens", columns="method", values="seconds").sort_index()
    gap = np.log(wide[method] / wide[against])
    slower = np.flatnonzero(gap > 0)
    if len(slower) == 0:
        return float(gap.index[0])
    last = slower[-1]
    if last == len(gap) - 1:
        return None
    low, high = np.log(gap.index[[last, last + 1]])
    before, after = gap.iloc[[last, last + 1]]
    return float(np.exp(low + (high - low) * before / (before - after)))


def crossings(frame: pd.DataFrame, against: str) -> pd.DataFrame:
    """Where each method of `frame` crosses `against` between two measured lengths.

    Columns: method, tokens, seconds (on the measured line of `against`, interpolated on log axes).
    """
    line = frame[frame["method"] == against].sort_values("tokens")
    first = float(line["tokens"].iloc[0])
    rows = []
    for method in dict.fromkeys(frame["method"]):
        at = None if method == against else crossing(frame, method, against)
        if at is not None and at > first:
            log_seconds = np.interp(np.log(at), np.log(line["tokens"]), np.log(line["seconds"]))
            rows.append((method, at, float(np.exp(log_seconds))))
    return pd.DataFrame(rows, columns=["method", "tokens", "seconds"])


def _fused(query, key, value, _):
    return torch.nn.functional.scaled_dot_product_attention(
        *(part[None, None] for part in (query, key, value))
    )


def _random(query, key, value, directions):
    quarter = query.shape[-1] ** 0.25
    mapped = (positive_features(x / quarter, directions) for x in (query, key))
    return linear_attention(*mapped, value)


def _elu(query, key, value, _):
    return linear_attention(elu_features(query), elu_features(key), value)


# what is run, and how many numbers it holds for T tokens, width d and m features
METHODS = {
    "softmax, full matrix": (
        lambda query, key, value, _: softmax_attention(query, key, value),
        lambda tokens, d_k, features: tokens * tokens,
    ),
    "softmax, fused": (_fused, lambda tokens, d_k, features: 0),
    "positive random features": (
        _random,
        lambda tokens, d_k, features: features * (2 * tokens + 2 * d_k + 1),
    ),
    "elu + 1": (_elu, lambda tokens, d_k, features: d_k * (2 * tokens + d_k + 1)),
}


def _c17() -> tuple[Check, ...]:
    rows = linear(features=(64, 256, 1024, 4096)).query("map == @_RANDOM")
    features = rows["features"].astype(float)
    slope = np.polyfit(np.log(features), np.log(rows["kernel_error"].astype(float)), 1)[0]
    held = {
        name: numbers(8192, 64, 128) / numbers(4096, 64, 128) for name, numbers in _HOLDS.items()
    }
    return (
        Check("slope of ln error on ln m", -0.5, float(slope), 0.1),
        Check("numbers held at twice the length, full matrix", 4.0, held["softmax, full matrix"]),
        Check("numbers held at twice the length, random features", 2.0, held[_RANDOM], 0.05),
    )


_HOLDS = {name: METHODS[name][1] for name in ("softmax, full matrix", _RANDOM)}

CLAIMS = (
    Claim(
        id="C17",
        statement="With exp(q·k) ≈ φ(q)·φ(k) the order of the products can be changed, and T² "
        "becomes T.",
        derivation=(
            r"e^{x\cdot y}=E_\omega\!\left[e^{\omega\cdot x-\lVert x\rVert^2/2}\,"
            r"e^{\omega\cdot y-\lVert y\rVert^2/2}\right],\quad\omega\sim N(0,I)",
            r"\frac{\operatorname{Var}}{e^{2x\cdot y}}=\frac1m\left(e^{\lVert x+y\rVert^2}-1\right)"
            r"\;\Rightarrow\;\text{error}\propto m^{-1/2}",
            r"\left(\phi(Q)\phi(K)^{\mathsf T}\right)V=\phi(Q)\left(\phi(K)^{\mathsf T}V\right)",
        ),
        measurement="The error against the number m of features (its slope on log axes), and what "
        "each method holds at twice the length. Seconds are measured by the button below.",
        checks=_c17,
    ),
)
