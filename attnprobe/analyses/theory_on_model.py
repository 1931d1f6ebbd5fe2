"""The theory lab's experiments on the heads of a loaded model instead of random numbers.

Wherever a law is about pairs of queries and keys, all pairs count, also those that a causal mask
hides: the mask has no part in the law. Logits are scaled as the model scales them.
"""

import math
from collections.abc import Iterator, Sequence

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnprobe import capture
from attnprobe.analyses.scaling import directedness
from attnprobe.errors import BadInput
from attnprobe.models import LoadedModel
from attnprobe.text import Tokens
from attnprobe.theory import linear
from attnprobe.trace import Trace


def _heads(trace: Trace) -> Iterator[tuple[int, int]]:
    yield from ((layer, head) for layer in range(trace.n_layers) for head in range(trace.n_heads))


def _per_head(trace: Trace, numbers) -> pd.DataFrame:
    """One row per head: layer, head, and what `numbers(layer, head)` returns as a dict."""
    rows = [{"layer": layer, "head": head, **numbers(layer, head)} for layer, head in _heads(trace)]
    return pd.DataFrame(rows)


def variance(trace: Trace) -> pd.DataFrame:
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

    return _per_head(trace, numbers)


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


def asymmetry(trace: Trace) -> pd.DataFrame:
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

    return _per_head(trace, numbers)


def kernels(trace: Trace) -> pd.DataFrame:
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

    return _per_head(trace, numbers)


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

    Columns: those of `theory.linear.errors`.
    """
    stretch = math.sqrt(trace.scales[layer] * math.sqrt(trace.d_head))
    query, key = (
        part[layer, head].double().cpu() * stretch for part in (trace.queries, trace.keys)
    )
    value = trace.values[layer, head].double().cpu()
    return linear.errors(query, key, value, features, repeats, seed)


def equivariance(
    loaded: LoadedModel, tokens: Tokens, permutations: int = 8, seed: int = 0
) -> pd.DataFrame:
    """The model on a text and on the same tokens in other orders, layer by layer.

    f(PX) is compared with P f(X). "zeroed" takes the position vector of each place away from the
    word vector before the model adds it; nothing of the model is changed. Special tokens move too.

    Columns: positions ("as trained", "zeroed"), layer (0: what the first layer reads; then after
    each layer), permutation (1-based), relative_difference (largest difference over the largest
    component).
    """
    if len(tokens) < 2:
        raise BadInput("the text has 1 token and an order needs two; type a longer text")
    generator = torch.Generator().manual_seed(seed)
    orders = torch.stack(
        [torch.randperm(len(tokens), generator=generator) for _ in range(permutations)]
    )
    places = loaded.family.position_vectors(loaded.model, len(tokens))
    frames = [
        _moved(loaded, tokens, orders, places * amount).assign(positions=name)
        for name, amount in (("as trained", 0), ("zeroed", 1))
    ]
    columns = ["positions", "layer", "permutation", "relative_difference"]
    return pd.concat(frames, ignore_index=True)[columns]


def _moved(
    loaded: LoadedModel,
    tokens: Tokens,
    orders: Int[Tensor, "permutation position"],
    taken: Float[Tensor, "position width"],
) -> pd.DataFrame:
    straight = torch.arange(len(tokens))[None]
    ids = torch.tensor(tokens.ids)[torch.cat([straight, orders])].to(loaded.device)
    states: list[Tensor] = []
    with torch.no_grad(), capture.watching(lambda call: None, keep=states):
        words = loaded.model.get_input_embeddings()(ids)
        with capture.every_layer_once(loaded.n_layers):
            loaded.model.base_model(inputs_embeds=words - taken, return_dict=False)
    rows = []
    for layer, state in enumerate(states):
        first, *others = state.double().cpu().unbind()
        size = float(first.abs().max())
        for number, (order, other) in enumerate(zip(orders, others, strict=True), 1):
            error = float((other - first[order]).abs().max())
            rows.append((layer, number, error / size))
    return pd.DataFrame(rows, columns=["layer", "permutation", "relative_difference"])
