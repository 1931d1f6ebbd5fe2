"""Rows against their Jacobian norms, and the exact bounds between them."""

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from attnprobe.errors import BadInput
from attnprobe.trace import Trace

NORMS = ("jacobian_frobenius", "jacobian_spectral", "jacobian_max", "jacobian_trace")


def rows(trace: Trace) -> pd.DataFrame:
    """Every counted row of every head.

    Columns: layer, head, query, peak, complement (1 − peak), entropy, normalised_entropy and the
    four norms of J = diag(p) − ppᵀ.
    """
    layer, head, query = trace.counted.nonzero(as_tuple=True)
    names = ("peak", "complement", "entropy", "normalised_entropy", *NORMS)
    columns = {name: getattr(trace.rows, name)[layer, head, query].double() for name in names}
    index = {"layer": layer, "head": head, "query": query}
    return pd.DataFrame({n: v.cpu().numpy() for n, v in (index | columns).items()})


def bounds(norm: str, points: int = 101) -> pd.DataFrame:
    """What a norm of J can be at a given peak m = 1 − ε. Columns: peak, the norm, bound.

    Largest entry: m(1 − m), attained by every row. Frobenius: at least m(1 − m), its largest entry,
    at most ½, and for ε ≤ ½ at most 2ε(1 − ε), attained by rows of two keys; ½, because with
    s = Σp² and s² ≤ Σp³ (Cauchy–Schwarz) ‖J‖² = s − 2Σp³ + s² ≤ s(1 − s) ≤ ¼. Spectral: at least
    m(1 − m), and below the same two, since it never exceeds Frobenius. Trace: between 1 − m and
    1 − m², since m² ≤ Σp² ≤ m.
    """
    if norm not in NORMS:
        raise BadInput(f"norm {norm!r} is not known; choose one of {', '.join(NORMS)}")
    peak = np.linspace(0, 1, points)
    rest = 1 - peak
    saturated = np.where(peak >= 0.5, 2 * rest * peak, np.nan)
    curves = {
        "jacobian_max": {"m(1 − m)": peak * rest},
        "jacobian_frobenius": {
            "m(1 − m)": peak * rest,
            "2ε(1 − ε)": saturated,
            "½": np.full(points, 0.5),
        },
        "jacobian_spectral": {
            "m(1 − m)": peak * rest,
            "2ε(1 − ε)": saturated,
            "½": np.full(points, 0.5),
        },
        "jacobian_trace": {"1 − m": rest, "1 − m²": 1 - peak**2},
    }[norm]
    frames = [pd.DataFrame({"peak": peak, norm: y, "bound": name}) for name, y in curves.items()]
    return pd.concat(frames, ignore_index=True).dropna(ignore_index=True)


def jacobian(trace: Trace, layer: int, head: int, query: int) -> Float[Tensor, "key key_again"]:
    """J = diag(p) − ppᵀ of one row over its valid keys: ∂p_i/∂s_j, in float64."""
    if not 0 <= query < len(trace.tokens):
        raise BadInput(
            f"query {query} came and the text has tokens 0 to {len(trace.tokens) - 1}; choose one"
        )
    seen = trace.valid()[query]
    p = trace.weights(layer, head)[query][seen].double()
    return torch.diag(p) - torch.outer(p, p)


def jacobian_frame(trace: Trace, layer: int, head: int, query: int) -> pd.DataFrame:
    """`jacobian` with a line for each entry: key_i, key_j, their tokens, and entry ∂p_i/∂s_j."""
    matrix = jacobian(trace, layer, head, query).cpu().numpy()
    keys = trace.valid()[query].nonzero()[:, 0].cpu().numpy()
    tokens = np.array(trace.tokens.display, dtype=object)
    i, j = (keys[index.ravel()] for index in np.indices(matrix.shape))
    return pd.DataFrame(
        {
            "key_i": i,
            "key_j": j,
            "key_i_token": tokens[i],
            "key_j_token": tokens[j],
            "entry": matrix.ravel(),
        }
    )
