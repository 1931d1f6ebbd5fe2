"""Head pruning of a bundled model on the bundled texts: what docs/pruning.md says."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

import pandas as pd

import attnprobe as ap
from attnprobe import cut_models, data, readout
from attnprobe.analyses.pruning import curve, effects, importance, ranking, savings

HELP = "importance, effects, curves and cutting on a bundled model and the bundled texts"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--model", default="bundled:bert")
    parser.add_argument("--texts", type=int, default=130)
    parser.add_argument("--random", type=int, default=curve.RANDOM_ORDERS)
    parser.add_argument("--frames", type=Path, help="also write the frames as CSV into this folder")


def measure(args: Namespace) -> dict[str, object]:
    """The study's numbers, flat."""
    loaded = ap.load(args.model, device="cpu")
    texts = data.bundled("prose" if loaded.causal else "topics").first(args.texts)
    read = readout.default(loaded, texts)
    scoring, evaluation = texts.split()
    scores = importance.importance(read, scoring)
    first = effects.one_head_off(read, scoring)
    second = effects.one_head_off(read, evaluation)
    heads = ranking.table(scores, first.frame())
    kept = effects.best_to_keep(
        effects.all_but_one(read, scoring), effects.all_but_one(read, evaluation)
    )
    found: dict[str, object] = {
        "model": args.model,
        "read_out": read.statement,
        "scoring_texts": len(scoring),
        "evaluation_texts": len(evaluation),
        "heads": len(heads),
        "metric": first.metric_name,
        "metric_scoring": first.base_metric,
        "metric_evaluation": second.base_metric,
        "loss_evaluation": float(second.base_loss.mean()),
    }
    found |= _heads(heads, first, second) | _kept(kept)
    lines, frame = _curve(read, heads, scoring, evaluation, args.random)
    found |= lines | _cut(loaded, heads)
    if args.frames:
        args.frames.mkdir(parents=True, exist_ok=True)
        for name, each in {"heads": heads, "kept": kept, "curve": frame}.items():
            each.to_csv(args.frames / f"{name}.csv", index=False)
    return found


def _heads(heads: pd.DataFrame, first: effects.Effects, second: effects.Effects) -> dict:
    certain = effects.significant(heads)
    worst = heads.loc[heads["loss_change"].idxmax()]
    agreement = {
        f"spearman_{score}_{name}": ranking.agreement(heads, score, size=size)
        for score in ranking.SCORES
        for name, size in (("effect", False), ("effect_size", True))
    }
    _, carried = effects.transfer(first, second)
    return {
        "certain_worse": int((certain & (heads["loss_change"] > 0)).sum()),
        "certain_better": int((certain & (heads["loss_change"] < 0)).sum()),
        "largest_effect": f"L{worst['layer']:.0f}.H{worst['head']:.0f}",
        "largest_effect_nats": float(worst["loss_change"]),
        "transfer_pearson": carried["pearson"],
        "transfer_spearman": carried["spearman"],
    } | agreement


def _kept(kept: pd.DataFrame) -> dict[str, object]:
    return {
        f"keep_one_layer_{row.layer}": f"H{row.head}: {row.loss_change:+.3f} nats "
        f"[{row.loss_low:+.3f}, {row.loss_high:+.3f}], metric {row.metric_change:+.3f}"
        for row in kept.itertuples()
    }


def _curve(read, heads, scoring, evaluation, random: int) -> tuple[dict, pd.DataFrame]:
    at = curve.steps(len(heads))
    orders = ranking.orders(heads, random=random)
    orders["importance, normalised"] = ranking.orders(heads, "importance_l2", random=1)[
        "importance"
    ]
    orders["re-scored"] = [curve.rescored_order(read, scoring, at)]
    frame = curve.curve(read, evaluation, orders, at)
    falls = curve.first_fall(frame).groupby("order", sort=False)["share"].median()
    bands = curve.bands(frame)
    half = at[len(at) // 2]
    lines: dict[str, object] = {}
    for order in orders:
        row = bands[(bands["order"] == order) & (bands["removed"] == half)].iloc[0]
        lines[f"fall_{order}"] = float(falls[order])
        lines[f"half_{order}"] = float(row["value"])
    row = bands[(bands["order"] == "random") & (bands["removed"] == half)].iloc[0]
    lines["half_random_band"] = f"{row['value_low']:.3f} to {row['value_high']:.3f}"
    return lines, frame


def _cut(loaded, heads: pd.DataFrame) -> dict[str, object]:
    least = heads.nsmallest(len(heads) // 2, "importance")
    cut = cut_models.cut(loaded, zip(least["layer"], least["head"], strict=True))
    saved = savings.saved(loaded, cut, 64).set_index("what")["saved"]
    latency = savings.latency(loaded, cut, 64, repetitions=7)
    texts = [text.text for text in data.bundled("topics").texts[:8]]
    lines: dict[str, object] = {
        "cut_heads": len(least),
        "cut_equality": savings.equality(loaded, cut, texts),
        "cut_parameters_saved": float(saved["parameters"]),
        "cut_multiply_adds_saved": float(saved["multiply–adds"]),
        "cut_ceiling_T64": savings.ceiling(loaded, cut, 64),
    }
    for row in latency.itertuples():
        lines[f"cut_speedup_batch_{row.batch}"] = (
            f"{row.speedup:.2f} [{row.speedup_low:.2f}, {row.speedup_high:.2f}]"
        )
    return lines
