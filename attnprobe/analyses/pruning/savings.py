"""What cutting heads out saves: parameters and multiply–adds by arithmetic, time by the clock."""

import time
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from attnprobe import capture
from attnprobe.analyses.sweeps import Progress, no_progress
from attnprobe.cutting import Projection
from attnprobe.loaded import LoadedModel
from attnprobe.text import Batch

BATCHES = (1, 4, 16)
REPETITIONS = 11
_MATRICES = (nn.Linear, Conv1D, Projection)


def multiply_adds(loaded: LoadedModel, tokens: int) -> int:
    """Multiply–adds of one text of this many tokens: layers, attention and vocabulary head.

    Per layer, tokens times the entries of every weight matrix, and 2·tokens²·d_head for each head
    that is there (QKᵀ and A·V, the whole square also in causal models). Embeddings, norms, poolers
    and classifiers are left out.
    """
    heads = loaded.n_layers * loaded.n_heads - len(loaded.removed)
    matrices = sum(map(_entries, loaded.family.layer_list(loaded.model)))
    if loaded.head_kind in ("causal LM", "masked LM"):
        matrices += sum(_entries(module) for module in loaded.family.language_modules(loaded.model))
    return tokens * matrices + heads * 2 * tokens**2 * loaded.d_head


def _entries(module: nn.Module) -> int:
    return sum(m.weight.numel() for m in module.modules() if isinstance(m, _MATRICES))


def ceiling(before: LoadedModel, after: LoadedModel, tokens: int) -> float:
    """How much faster the cut model can be if time is proportional to multiply–adds."""
    return multiply_adds(before, tokens) / multiply_adds(after, tokens)


def saved(before: LoadedModel, after: LoadedModel, tokens: int) -> pd.DataFrame:
    """Parameters and multiply–adds (at this many tokens) before and after, and the share saved."""
    rows = [
        ("heads", *(heads_left(loaded) for loaded in (before, after))),
        ("parameters", before.parameters, after.parameters),
        ("multiply–adds", multiply_adds(before, tokens), multiply_adds(after, tokens)),
    ]
    frame = pd.DataFrame(rows, columns=["what", "before", "after"])
    return frame.assign(saved=1 - frame["after"] / frame["before"], tokens=tokens)


def heads_left(loaded: LoadedModel) -> int:
    """How many heads a model has left."""
    return loaded.n_layers * loaded.n_heads - len(loaded.removed)


def latency(
    before: LoadedModel,
    after: LoadedModel,
    tokens: int,
    *,
    batches: Sequence[int] = BATCHES,
    repetitions: int = REPETITIONS,
    progress: Progress = no_progress,
) -> pd.DataFrame:
    """Measured time of a forward pass before and after, the two taking turns.

    One row per batch size: medians in milliseconds, the median of the paired ratios with their
    5–95 % range, and the arithmetic ceiling. Random token ids; both models are warmed up.
    """
    rows = []
    for done, size in enumerate(batches):
        progress(done, len(batches))
        batch = _random_batch(before, size, tokens)
        times = np.array(_taking_turns([before, after], batch, repetitions))
        ratios = times[:, 0] / times[:, 1]
        low, high = np.quantile(ratios, (0.05, 0.95))
        rows.append(
            {
                "batch": size,
                "tokens": tokens,
                "before_ms": 1e3 * np.median(times[:, 0]),
                "after_ms": 1e3 * np.median(times[:, 1]),
                "speedup": np.median(ratios),
                "speedup_low": low,
                "speedup_high": high,
                "ceiling": ceiling(before, after, tokens),
                "repetitions": repetitions,
            }
        )
    progress(len(batches), len(batches))
    return pd.DataFrame(rows)


def _random_batch(loaded: LoadedModel, size: int, tokens: int) -> Batch:
    vocabulary = loaded.model.get_input_embeddings().weight.shape[0]
    ids = torch.randint(vocabulary, (size, tokens), generator=torch.Generator().manual_seed(0))
    return Batch(ids.to(loaded.device), torch.ones_like(ids, dtype=torch.bool).to(loaded.device))


def _taking_turns(
    models: Sequence[LoadedModel], batch: Batch, repetitions: int
) -> list[list[float]]:
    """Seconds per repetition and model; every other repetition starts with the other model."""
    order = list(range(len(models)))
    for loaded in models:
        _seconds(loaded, batch)
    rows = []
    for repetition in range(repetitions):
        row = [0.0] * len(models)
        for index in order if repetition % 2 else order[::-1]:
            row[index] = _seconds(models[index], batch)
        rows.append(row)
    return rows


@torch.no_grad()
def _seconds(loaded: LoadedModel, batch: Batch) -> float:
    wait: Callable[[], None] = (
        torch.cuda.synchronize if loaded.device.type == "cuda" else lambda: None
    )
    wait()
    begin = time.perf_counter()
    loaded.forward(batch)
    wait()
    return time.perf_counter() - begin


@torch.no_grad()
def equality(before: LoadedModel, after: LoadedModel, texts: Sequence[str]) -> float:
    """Largest difference in the last hidden states between masking heads and cutting them out.

    The heads that `after` lacks are gated to 0 in `before`; only real tokens are compared.
    """
    batch = before.batch([before.read(text) for text in texts])
    gone = after.removed - before.removed
    with capture.watching(capture.gate(dict.fromkeys(gone, 0.0))):
        masked = before.hidden(batch)
    return float((masked - after.hidden(batch))[batch.mask].abs().max())
