"""What h heads cost, and what T tokens cost.

Matrix products of one attention layer with width d = d_model and heads of width d/h, a
multiply–add counted as two operations: the four projections take 8 T d², scores and context
2 T² d each, whatever h is (Vaswani et al. 2017, section 3.2.2). The softmax works on h T² numbers.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from functools import partial

import pandas as pd
import torch
from torch import Tensor

from attnprobe.errors import BadInput
from attnprobe.softmax_stats import attention_rows
from attnprobe.theory.allocated import peak_bytes
from attnprobe.theory.claims import Check, Claim, printed
from attnprobe.theory.inputs import at_least
from attnprobe.theory.linear import median_seconds

HEADS = (1, 2, 3, 4, 6, 8, 12)
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)
ROWS_AT_ONCE = 1024
MIB, GIB = 2**20, 2**30


def cost(
    d_model: int = 768, heads: Sequence[int] = HEADS, tokens: int = 1024, bytes_per_number: int = 4
) -> pd.DataFrame:
    """Parameters, operations, softmax work and score memory of one layer against the heads.

    Columns: heads, d_head, tokens, parameters (four d × d matrices and their biases),
    product_flops, softmax_numbers (exponentials), score_bytes (all heads' T × T matrices).
    """
    at_least(1, tokens=tokens, bytes_per_number=bytes_per_number)
    _divides(d_model, heads)
    return pd.DataFrame(
        {
            "heads": count,
            "d_head": d_model // count,
            "tokens": tokens,
            "parameters": 4 * d_model * (d_model + 1),
            "product_flops": 8 * tokens * d_model**2 + 4 * tokens**2 * d_model,
            "softmax_numbers": count * tokens**2,
            "score_bytes": count * tokens**2 * bytes_per_number,
        }
        for count in heads
    )


def _divides(d_model: int, heads: Sequence[int]) -> None:
    at_least(1, d_model=d_model, heads=min(heads, default=0))
    odd = [count for count in heads if d_model % count]
    if odd:
        raise BadInput(
            f"d_model is {d_model}, which {odd[0]} heads do not divide; choose a divisor"
        )


def score_memory(
    lengths: Sequence[int] = LENGTHS, heads: int = 12, layers: int = 12, d_head: int = 64
) -> pd.DataFrame:
    """Bytes of attention matrices against T in float32, beside what stays of each token otherwise.

    "one head" is one T × T matrix, "all heads" those of every layer; "queries, keys, values and
    contexts" are 4 T h d_head numbers per layer, which is what a trace keeps in their place.

    Columns: tokens, kept, bytes.
    """
    at_least(1, lengths=min(lengths, default=0), heads=heads, layers=layers, d_head=d_head)
    kept = {
        "one head": lambda tokens: tokens**2,
        "all heads": lambda tokens: layers * heads * tokens**2,
        "queries, keys, values and contexts": lambda tokens: 4 * layers * heads * tokens * d_head,
    }
    return pd.DataFrame(
        {"tokens": tokens, "kept": name, "bytes": 4 * numbers(tokens)}
        for name, numbers in kept.items()
        for tokens in lengths
    )


def against_tokens(
    d_model: int = 768, heads: int = 12, lengths: Sequence[int] = LENGTHS
) -> pd.DataFrame:
    """Work of one layer against T: what grows with T, and what with T².

    Projections take 8 T d² operations, scores and context 4 T² d, whatever h is; the softmax takes
    h T² exponentials. Scores and context overtake the projections at T = 2 d.

    Columns: tokens, work ("projections", "scores and context", "exponentials"), number.
    """
    at_least(1, lengths=min(lengths, default=0))
    _divides(d_model, (heads,))
    work = {
        "projections": lambda tokens: 8 * tokens * d_model**2,
        "scores and context": lambda tokens: 4 * tokens**2 * d_model,
        "exponentials": lambda tokens: heads * tokens**2,
    }
    return pd.DataFrame(
        {"tokens": tokens, "work": name, "number": float(number(tokens))}
        for name, number in work.items()
        for tokens in lengths
    )


def streaming_parts(
    tokens: int, d_head: int = 64, seed: int = 0, rows: int = ROWS_AT_ONCE
) -> Iterator[dict]:
    """Measures the statistics of one head's T rows with no T × T matrix, some rows at a time.

    Random queries, keys and values in float32, every key seen; the statistics are those of
    `softmax_stats.attention_rows`, spectral norm included, and the context with them. `seconds` and
    `rows` are what is done so far; `peak_bytes` is the most that was allocated at one time: the
    results of all rows and the working memory of a part (measured, `allocated.peak_bytes`).

    Keys: tokens, d_head, rows, seconds, peak_bytes, matrix_bytes (the matrix that is not built).
    """
    at_least(2, tokens=tokens, d_head=d_head, rows=rows)
    generator = torch.Generator().manual_seed(seed)
    query, key, value = torch.randn(3, 1, 1, tokens, d_head, generator=generator).unbind()
    parts = [partial(_statistics, part, key, value) for part in query.split(rows, dim=2)]
    working = peak_bytes(parts[0]) - _bytes_of(parts[0]())
    seconds, done, results = 0.0, 0, 0
    for part in parts:
        began = time.perf_counter()
        found = part()
        seconds += time.perf_counter() - began
        done = min(tokens, done + rows)
        results += _bytes_of(found)
        yield {
            "tokens": tokens,
            "d_head": d_head,
            "rows": done,
            "seconds": seconds,
            "peak_bytes": working + results,
            "matrix_bytes": 4 * tokens**2,
        }


def _statistics(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    scale = query.shape[-1] ** -0.5
    with torch.no_grad():
        context, rows = attention_rows(query, key, value, scale=scale, valid=None, causal=False)
    kept = (getattr(rows, each.name) for each in fields(rows))
    return (context, *(number for number in kept if isinstance(number, Tensor)))


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def streaming(lengths: Sequence[int] = (1024, 2048, 4096)) -> pd.DataFrame:
    """The last of `streaming_parts` for each length: one measured row per T."""
    at_least(2, lengths=min(lengths, default=0))
    return pd.DataFrame([list(streaming_parts(tokens))[-1] for tokens in lengths])


def time_cells(
    d_model: int = 768,
    heads: Sequence[int] = HEADS,
    tokens: int = 512,
    repeats: int = 5,
    seed: int = 0,
) -> Iterator[dict]:
    """Measured seconds of one layer (projections, plain softmax attention) against the heads.

    Keys: heads, tokens, d_model, step ("projections", "scores and context", "softmax"), seconds
    (median of `repeats`, float32, this machine).
    """
    at_least(1, tokens=tokens, repeats=repeats)
    _divides(d_model, heads)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, d_model, generator=generator)
    matrix = torch.randn(d_model, 4 * d_model, generator=generator) / d_model**0.5
    for count in heads:
        d_head = d_model // count
        split = (x @ matrix[:, : 3 * d_model]).view(tokens, 3, count, d_head)
        query, key, value = split.permute(1, 2, 0, 3).contiguous().unbind()
        logits = query @ key.mT / d_head**0.5
        weights = torch.softmax(logits, -1)
        steps = {
            "projections": lambda: x @ matrix,
            "scores and context": lambda q=query, k=key, v=value, w=weights: (q @ k.mT, w @ v),
            "softmax": lambda s=logits: torch.softmax(s, -1),
        }
        for step, call in steps.items():
            yield {
                "heads": count,
                "tokens": tokens,
                "d_model": d_model,
                "step": step,
                "seconds": median_seconds(call, repeats),
            }


def times(**settings) -> pd.DataFrame:
    """All of `time_cells` as one frame."""
    return pd.DataFrame(time_cells(**settings))


def _c18() -> tuple[Check, ...]:
    rows = cost().set_index("heads")
    return (
        Check("parameters, 12 heads over 1", 1.0, _over_one(rows["parameters"])),
        Check("operations of the products, 12 heads over 1", 1.0, _over_one(rows["product_flops"])),
    )


def _over_one(column: pd.Series) -> float:
    return float(column[12] / column[1])


def _c19() -> tuple[Check, ...]:
    one = score_memory((32_768,)).set_index("kept").loc["one head", "bytes"]
    return (printed("GiB of one matrix, T = 32,768, float32", "4.00", one / GIB),)


CLAIMS = (
    Claim(
        id="C18",
        statement="h heads of width d/h have the parameters and the operations of one head of "
        "width d.",
        derivation=(
            r"h\cdot 2T^2\frac dh\cdot 2=4T^2d,\qquad "
            r"4\cdot h\cdot d\cdot\frac dh=4d^2\text{ weights}",
            r"\text{softmax, however: } h\,T^2 \text{ exponentials and } 4\,h\,T^2 "
            r"\text{ bytes of scores}",
        ),
        measurement="Counted for d = 768. The claim holds for the products; softmax work and score "
        "memory grow with h, from 4 MiB to 48 MiB at T = 1024.",
        checks=_c18,
    ),
    Claim(
        id="C19",
        statement="At T = 32,768 one attention matrix in float32 takes 4 GB.",
        derivation=(
            r"4\cdot 32768^2 = 2^2\cdot2^{30}=2^{32}\text{ bytes}=4.00\text{ GiB}"
            r"\;(4.29\cdot10^9\text{ bytes})",
        ),
        measurement="Counted; for every head of every layer.",
        checks=_c19,
    ),
)
