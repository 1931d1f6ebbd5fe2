"""What a model and a text will take, before it is taken."""

import sys
from pathlib import Path

import psutil
import torch
from transformers import PretrainedConfig

from attnprobe.errors import DeviceFull, TooLarge
from attnprobe.families import Family

WORKING_SPACE = 1.25
"""Loading needs this much more than the weights: conversion, tokenizer, the probe text."""
_CONTAINER = Path("/sys/fs/cgroup")
_INNER = ("intermediate_size", "n_inner", "hidden_dim")


def parameters(family: Family, config: PretrainedConfig) -> int:
    """About how many parameters a config asks for: embeddings, attention, feed-forward.

    Biases, norms and heads are left out (below 2 % of BERT and GPT-2).
    """
    n_layers, _, d_model = family.sizes(config)
    inner = next((size for name in _INNER if (size := getattr(config, name, None))), 4 * d_model)
    embeddings = (config.vocab_size + family.positions(config)) * d_model
    return embeddings + n_layers * (4 * d_model**2 + 2 * d_model * inner)


def free(device: torch.device) -> int:
    """Bytes that can still be taken on a device; in a container, of what the container may have."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min(psutil.virtual_memory().available, _container_room())


def _container_room() -> int:
    """What a container's limit leaves (Linux control groups, version 2); endless without one.

    File pages that nobody uses count as used there, and go when memory is needed.
    """
    try:
        limit = int((_CONTAINER / "memory.max").read_text())
        used = int((_CONTAINER / "memory.current").read_text())
        lines = (_CONTAINER / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):  # no such system, or the limit is the word "max"
        return sys.maxsize
    idle = sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    return max(0, limit - used + idle)


def require(what: str, needed: int, device: torch.device, remedy: str) -> None:
    """Raises `TooLarge` with both figures when `needed` bytes are not free on the device.

    On an accelerator it is a `DeviceFull`.
    """
    available = free(device)
    if needed > available:
        refusal = TooLarge if device.type == "cpu" else DeviceFull
        raise refusal(
            f"{what} needs about {size(needed)} on {device} and {size(available)} are free; "
            f"{remedy}"
        )


def require_for_model(
    name: str, family: Family, config: PretrainedConfig, dtype: torch.dtype, device: torch.device
) -> None:
    """Refuses a model whose weights would not fit, before any of them is read."""
    count = parameters(family, config)
    needed = int(count * dtype.itemsize * WORKING_SPACE)
    label = f"{name} ({count / 1e6:,.0f} million parameters in {str(dtype).removeprefix('torch.')})"
    require(label, needed, device, "choose a smaller model, bfloat16, or free some memory")


def trace_bytes(
    n_layers: int, n_heads: int, d_model: int, vocabulary: int, tokens: int, itemsize: int
) -> int:
    """What a `Trace` keeps: queries, keys, values, contexts, row statistics, and the output."""
    kept = 4 * n_layers * tokens * d_model * itemsize
    number = max(4, itemsize)
    statistics = n_layers * (n_heads * tokens * (9 * number + 16) + number)
    return kept + statistics + tokens * vocabulary * itemsize


def size(number: int) -> str:
    """Bytes for a person: 812 MiB, 1.9 GiB."""
    if number < 2**30:
        return f"{number / 2**20:,.0f} MiB"
    return f"{number / 2**30:,.1f} GiB"
