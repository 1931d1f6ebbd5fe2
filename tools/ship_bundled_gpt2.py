"""Measure the trained GPT-2 and write the folder that ships: weights, tokenizer, card, licences.

Everything is measured on the float16 weights that ship, read back by attnprobe itself::

    PYTHONPATH=. python tools/ship_bundled_gpt2.py --sources runs/sources --runs runs/bundled_gpt2
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import train_bundled_gpt2 as recipe
from bundled_text import SOURCES
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast
from trigram import Trigram

import attnprobe as ap
from attnprobe.analyses.roles import repeated_random_tokens, role_table
from attnprobe.text import Batch

PERIOD, SEQUENCES, SEED = 50, 20, 1
HERE = Path(__file__).parent


def main() -> None:
    """Write the weights, measure them, write the figures and the card."""
    parser = argparse.ArgumentParser(description="Measure and ship the trained GPT-2.")
    parser.add_argument("--sources", type=Path, required=True, help="folder with the text")
    parser.add_argument("--runs", type=Path, required=True, help="folder with the checkpoint")
    parser.add_argument("--out", type=Path, default=HERE.parent / "attnprobe/bundled/gpt2")
    args = parser.parse_args()
    state = torch.load(args.runs / "state.pt", weights_only=True)
    write_model(state["model"], args.runs, args.out)
    loaded = ap.load(str(args.out), device="cpu")
    trained = {key: state[key] for key in ("step", "tokens", "seconds")}
    figures = {"training": trained, "text": text_figures(loaded, args), "heads": heads(loaded)}
    (args.out / "metrics.json").write_text(json.dumps(figures, indent=1) + "\n")
    (args.out / "CARD.md").write_text(card(loaded, figures))


def write_model(state: dict[str, Tensor], runs: Path, out: Path) -> None:
    """The folder as transformers reads it, weights in float16, the activation by GPT-2's name."""
    out.mkdir(parents=True, exist_ok=True)
    model = recipe.fresh_model()
    model.load_state_dict(state)
    model.config.activation_function = "gelu_new"
    model.config.dtype = "float16"
    model.config.architectures = ["GPT2LMHeadModel"]
    model.config.save_pretrained(out)
    tensors = {n: p.detach().half().contiguous() for n, p in model.named_parameters()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    PreTrainedTokenizerFast.from_pretrained(runs / "tokenizer").save_pretrained(out)


# --- text -------------------------------------------------------------------------------------


def text_figures(loaded: ap.LoadedModel, args: argparse.Namespace) -> dict[str, float]:
    """Loss on the held-out text, the model's and the trigram model's, on the same tokens."""
    ids = np.load(args.runs / "held_out.npy", allow_pickle=False).astype(np.int64)
    figures = baseline(args, ids)
    losses = held_out_losses(loaded, torch.from_numpy(ids)).double().numpy()
    return figures | _loss_figures("model", losses, figures["held_out_bytes"])


def baseline(args: argparse.Namespace, ids: np.ndarray) -> dict[str, float]:
    """The trigram model's loss and the sizes of the text; kept beside the checkpoint."""
    kept = args.runs / "baseline.json"
    if not kept.exists():
        _, held_out = recipe.documents(args.sources)
        size = sum(len(document.text.encode()) for document in held_out)
        seen = np.load(args.runs / "train.npy", allow_pickle=False)
        losses = -np.log(Trigram.trained_on(seen, recipe.VOCABULARY).probabilities(ids))
        figures = {"train_tokens": len(seen), "held_out_tokens": len(ids), "held_out_bytes": size}
        kept.write_text(json.dumps(figures | _loss_figures("trigram", losses, size)))
    return json.loads(kept.read_text())


def _loss_figures(name: str, losses: np.ndarray, size: int) -> dict[str, float]:
    return {
        f"{name}_nats_per_token": float(losses.mean()),
        f"{name}_bits_per_byte": float(losses.sum() / math.log(2) / size),
    }


def held_out_losses(loaded: ap.LoadedModel, ids: Tensor, batch: int = 8) -> Tensor:
    """Loss in nats of every token from the third on, each with at least half a context before it.

    Windows of the model's full length move on by half of it.
    """
    length, half = loaded.max_tokens, loaded.max_tokens // 2
    padded = F.pad(ids, (0, -len(ids) % half + half))
    windows = padded.unfold(0, length, half)
    losses = torch.cat([_next_token_losses(loaded, part) for part in windows.split(batch)])
    first, later = losses[0], losses[1:, half - 1 :]
    return torch.cat([first, later.flatten()])[1 : len(ids) - 1]


def _next_token_losses(loaded: ap.LoadedModel, ids: Tensor) -> Tensor:
    with torch.no_grad():
        logits = loaded.forward(Batch(ids, torch.ones_like(ids, dtype=torch.bool)))
    wanted = ids[:, 1:]
    losses = F.cross_entropy(logits[:, :-1].flatten(0, 1), wanted.flatten(), reduction="none")
    return losses.view_as(wanted)


# --- heads ------------------------------------------------------------------------------------


def repeats(loaded: ap.LoadedModel) -> Tensor:
    """Fresh sequences of random tokens, each twice in a row; none is a special token."""
    generator = torch.Generator().manual_seed(SEED)
    tokens = torch.arange(1, loaded.config.vocab_size)
    rows = [repeated_random_tokens(tokens, PERIOD, generator) for _ in range(SEQUENCES)]
    return torch.stack(rows)


def copying_loss(loaded: ap.LoadedModel, ids: Tensor) -> float:
    """Mean loss in nats on the second half of the repeats."""
    return _next_token_losses(loaded, ids)[:, PERIOD:].mean().item()


def heads(loaded: ap.LoadedModel) -> dict:
    """Role scores of every head on repeats, and what ablating it does to the copying loss."""
    ids = repeats(loaded)
    table = role_table(loaded, ids)
    whole = copying_loss(loaded, ids)
    rise = []
    for layer, head in zip(table["layer"], table["head"], strict=True):
        with ap.watching(ap.gate({(layer, head): 0.0})):
            rise.append(copying_loss(loaded, ids) - whole)
    table["rise_when_ablated"] = rise
    return {
        "period": PERIOD,
        "sequences": SEQUENCES,
        "seed": SEED,
        "copying_loss": whole,
        "uniform_loss": math.log(loaded.config.vocab_size),
        "table": table.to_dict(orient="records"),
    }


# --- card -------------------------------------------------------------------------------------


def card(loaded: ap.LoadedModel, figures: dict) -> str:
    """The model card, every figure from the measurement."""
    training, text, head_figures = (figures[key] for key in ("training", "text", "heads"))
    table = head_figures["table"]
    previous = max(table, key=lambda row: row["previous_token"])
    copying = max(table, key=lambda row: row["induction"])
    median = float(np.median([row["rise_when_ablated"] for row in table]))
    return (
        (HERE / "bundled_gpt2_card.md")
        .read_text()
        .format(
            layers=loaded.n_layers,
            heads=loaded.n_heads,
            d_model=loaded.d_model,
            d_head=loaded.d_head,
            vocabulary=loaded.config.vocab_size,
            positions=loaded.max_tokens,
            parameters=loaded.parameters,
            megabytes=(loaded.folder / "model.safetensors").stat().st_size / 1e6,
            sources="\n".join(f"| {s.name} | {s.package} | {s.licence} |" for s in SOURCES),
            phases="\n".join(_phase_row(phase) for phase in recipe.PHASES),
            million_tokens=training["tokens"] / 1e6,
            hours=training["seconds"] / 3600,
            previous=previous,
            copying=copying,
            median=median,
            median_ratio=_ratio(copying["rise_when_ablated"], median),
            held_steps=recipe.HELD_STEPS,
            table="\n".join(_head_row(row) for row in table),
            **training,
            **text,
            **{key: value for key, value in head_figures.items() if key != "table"},
        )
    )


def _ratio(rise: float, median: float) -> str:
    return f"{rise / median:,.0f} times" if median > 0 else "the median being no rise at all,"


def _phase_row(phase: recipe.Phase) -> str:
    period = f"{phase.shortest_period} to {phase.longest_period}"
    share = phase.repeats / phase.batch
    return (
        f"| {phase.steps:,} | {phase.batch} × {phase.length} | {share:.0%} | {period} "
        f"| {phase.taught:.0%} |"
    )


def _head_row(row: dict) -> str:
    scores = (row["previous_token"], row["duplicate_token"], row["induction"])
    cells = " | ".join(f"{score:.2f}" for score in scores)
    return f"| {row['layer']}.{row['head']} | {cells} | {row['rise_when_ablated']:+.3f} |"


if __name__ == "__main__":
    main()
