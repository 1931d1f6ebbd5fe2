"""Every head of a 12 × 12 model switched off by itself: three ways to the same 144 distributions.

GPT-2-small's geometry with random weights, one text, the next token after it. Every way computes
vocabulary logits at that one position, in a process of its own. The ways take turns; a ratio is the
median over rounds. What importance of all heads costs is told in plain forward passes.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from jaxtyping import Float
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from attnprobe import capture
from attnprobe.analyses import ablation, sweeps
from attnprobe.analyses.pruning import importance
from attnprobe.families import FAMILIES
from attnprobe.loaded import LoadedModel
from attnprobe.readout import Examples, ReadOut, next_token
from attnprobe.text import Batch, Reader
from benchmarks.turns import Noted, Run, Tally, largest_difference, started, tallies

HELP = "144 single-head ablations: masked passes, one batch, and resumed sweeps"
LAYERS, HEADS, WIDTH = 12, 12, 768
WARM = (16, (LAYERS - 1,))
"""(tokens, layers) that a contender runs once before its memory is read."""
IMPORTANCE_ROUNDS = 5


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--rounds", type=int, nargs="+", default=[5, 3, 1], help="one per length")
    parser.add_argument(
        "--layers",
        type=int,
        nargs="+",
        default=list(range(LAYERS)),
        help="ablate the heads of these layers alone; pairs that add up to 11 keep the ratio fair",
    )


def small_geometry() -> LoadedModel:
    """GPT-2 small with seeded random weights and a byte-level tokenizer."""
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=LAYERS, n_head=HEADS, n_embd=WIDTH, attn_implementation=capture.IMPLEMENTATION
    )
    model = GPT2LMHeadModel(config).eval().requires_grad_(False)
    family = FAMILIES["gpt2"]
    capture.wrap_layers(family.layer_list(model), family)
    return LoadedModel(
        "GPT-2-small geometry", None, "random weights", None, Path(), model,
        Reader(bytes_tokenizer(), config.n_positions), family, "causal LM", LAYERS, HEADS, WIDTH,
        config.n_positions,
    )  # fmt: skip


def bytes_tokenizer() -> PreTrainedTokenizerFast:
    """Every byte is a token."""
    vocabulary = {piece: i for i, piece in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def one_text(tokens: int, device: torch.device | str = "cpu") -> Examples:
    """Random ids; the read-out looks at the last position."""
    ids = torch.randint(256, (1, tokens), generator=torch.Generator().manual_seed(1)).to(device)
    zero = torch.zeros(1, dtype=torch.long, device=device)
    return Examples(Batch(ids, ids >= 0), zero, zero + tokens - 1, zero, None, 1)


def after_text(loaded: LoadedModel, batch: Batch) -> Float[Tensor, "variant class"]:
    """Log-probabilities after the text, vocabulary logits at that position alone."""
    hidden = loaded.hidden(batch)[:, -1]
    return loaded.family.vocabulary_logits(loaded.model, hidden).log_softmax(-1)


def masked_passes(read: ReadOut, examples: Examples, layers: Sequence[int]) -> Tensor:
    """A full pass for each head, with that head gated to 0."""
    rows = []
    for layer in layers:
        for head in range(HEADS):
            with capture.watching(capture.gate({(layer, head): 0.0})):
                rows.append(after_text(read.loaded, examples.batch))
    return torch.cat(rows)


def one_batch(read: ReadOut, examples: Examples, layers: Sequence[int]) -> Tensor:
    """All heads in one batch of full passes."""
    each = torch.eye(LAYERS * HEADS).reshape(LAYERS, HEADS, LAYERS, HEADS)[list(layers)]
    gates = (1 - each.flatten(0, 1)).transpose(0, 1).to(read.loaded.device)
    with capture.watching(capture.gate(gates)):
        return after_text(read.loaded, examples.batch.repeat(gates.shape[1]))


def resumed(read: ReadOut, examples: Examples, layers: Sequence[int]) -> Tensor:
    """attnprobe's sweep: each layer's twelve from that layer on."""
    base = sweeps.unedited(read, examples)
    gates = 1 - torch.eye(HEADS, device=read.loaded.device)
    rows = []
    for layer in layers:
        own = base.calls[layer].edited

        def contexts(some: Tensor, own: Tensor = own) -> Tensor:
            return ablation.blend(gates[some][:, None, :, None, None], own, torch.zeros_like(own))

        rows += [found[:, 0] for _, found in sweeps.variants(base, layer, contexts, HEADS)]
    return torch.cat(rows)


def plain(read: ReadOut, examples: Examples, layers: Sequence[int]) -> Tensor:
    """One forward pass as it is."""
    return after_text(read.loaded, examples.batch)


def gradient(read: ReadOut, examples: Examples, layers: Sequence[int]) -> Tensor:
    """Importance of all 144 heads."""
    return importance.gate_gradients(read, examples)


Way = Callable[[ReadOut, Examples, Sequence[int]], Tensor]
SWEEPS: dict[str, Way] = {"masked": masked_passes, "batch": one_batch, "resumed": resumed}
IMPORTANCE: dict[str, Way] = {"plain": plain, "gradient": gradient}
WAYS = SWEEPS | IMPORTANCE


def contender(way: str, device: str = "cpu") -> Run:
    """One of the ways; work is the number of tokens and the layers whose heads are switched off."""
    loaded = small_geometry()
    loaded.model.to(device)
    read = next_token(loaded, where="last")

    def outputs(work: tuple[int, Sequence[int]]) -> Tensor:
        tokens, layers = work
        return WAYS[way](read, one_text(tokens, device), layers)

    return outputs


def measure(args: Namespace) -> dict[str, object]:
    """Seconds, ratios and memory per length, and the largest difference between the results."""
    found = Noted({"heads": len(args.layers) * HEADS})
    with ExitStack() as stack:
        there, _ = started(stack, {name: (contender, name) for name in WAYS}, warm=WARM)
        sweeps_there = {name: there[name] for name in SWEEPS}
        importance_there = {name: there[name] for name in IMPORTANCE}
        for tokens, rounds in zip(args.tokens, args.rounds, strict=True):
            work = (tokens, args.layers)
            found.add(rows(tallies(sweeps_there, work, rounds), tokens))
            gap = largest_difference(sweeps_there, "masked")
            found.add({f"largest_difference_T{tokens}": gap})
            found.add(forwards(tallies(importance_there, work, IMPORTANCE_ROUNDS), tokens))
    return found


def rows(found: Mapping[str, Tally], tokens: int) -> dict[str, float]:
    """Medians, ratios of turns of the same round, and memory, as flat keys."""
    flat: dict[str, float] = {}
    for name, tally in found.items():
        flat[f"{name}_s"] = tally.seconds
        flat[f"{name}_cpu_s"] = tally.processor
        flat[f"{name}_extra_mib"] = tally.extra_mib
        if name != "resumed":
            flat[f"speedup_over_{name}"] = tally.over(found["resumed"])
            flat[f"cpu_speedup_over_{name}"] = tally.over(found["resumed"], "processor")
    flat["rounds"] = len(found["resumed"].turns)
    return {f"{key}_T{tokens}": figure for key, figure in flat.items()}


def forwards(found: Mapping[str, Tally], tokens: int) -> dict[str, float]:
    """What importance of all heads costs in forward passes of the same round, and its memory."""
    ratio = found["gradient"].over(found["plain"], "processor")
    return {
        f"importance_in_forwards_T{tokens}": ratio,
        f"importance_extra_mib_T{tokens}": found["gradient"].extra_mib,
        f"plain_extra_mib_T{tokens}": found["plain"].extra_mib,
    }
