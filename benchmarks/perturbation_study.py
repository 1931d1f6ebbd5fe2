"""Perturbation tests of every head of a model on the bundled texts: what docs/perturbation.md says.

    python -m benchmarks perturbation_study --model bundled:bert --json

One free core takes about nine minutes for the encoder's 72 heads and three for the GPT-2's 20; the
settings are in the result.
"""

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import stats

import attnprobe as ap
from attnprobe import data, readout
from attnprobe.analyses.perturbation import adversary, erasure, experiments, importance, permutation
from attnprobe.analyses.perturbation.edits import Scope
from attnprobe.analyses.perturbation.runs import CleanRun
from attnprobe.loaded import LoadedModel

HELP = "perturbation tests of every head on the bundled topics"
DRAWS = permutation.Draws(number=40)
MATTERS = 0.01
"""Ablation TVD from which on a head counts as one that matters."""
SEARCH = adversary.Settings(epsilon=0.01, restarts=2, steps=40, rate=0.2)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--model", default="bundled:bert")
    parser.add_argument("--texts", type=int, default=10, help="two of every topic")
    parser.add_argument("--search-texts", type=int, default=1)


def measure(args: Namespace) -> dict[str, object]:
    loaded = ap.load(args.model)
    runs = experiments.clean_runs(reader(loaded), texts_for(args.texts))
    started = time.process_time()
    return {
        "model": loaded.key,
        "readout": runs[0].readout.statement,
        "texts": len(runs),
        "tokens_median": float(np.median([run.length for run in runs])),
        "rows": "all valid rows",
        "permutations": DRAWS.statement,
        **heads(loaded, runs, runs[: args.search_texts]),
        **agreement(loaded, runs),
        **erased(runs),
        "processor_seconds": time.process_time() - started,
    }


def reader(loaded: LoadedModel) -> readout.ReadOut:
    if loaded.causal:
        return readout.next_token(loaded, where="last")
    return readout.default(loaded, data.bundled("topics"))


def texts_for(number: int) -> Sequence[data.LabelledText]:
    return data.bundled("topics").first(number).texts


def heads(
    loaded: LoadedModel, runs: Sequence[CleanRun], searched: Sequence[CleanRun]
) -> dict[str, object]:
    """Permutation, replacement and adversary of every head."""
    scopes = [Scope(layer, h) for layer in range(loaded.n_layers) for h in range(loaded.n_heads)]
    units = experiments.permutation_units(runs, scopes, DRAWS)
    frames = experiments.joined(experiments.in_turn(units, told("permutation")))
    summary = permutation.per_text(frames["draws"])
    ranked = permutation.ratios(summary, frames["replaced"])
    by_edit = frames["replaced"].pivot_table("tvd", ["layer", "head"], "edit")
    found = [
        experiments.joined(
            experiments.in_turn(experiments.adversary_units(searched, scope, SEARCH), silent)
        )["adversaries"]
        for scope in scopes
        if told("adversary")(scopes.index(scope), len(scopes), ()) is None
    ]
    adversaries = pd.concat(found).groupby(["layer", "head"]).mean(numeric_only=True)
    table = ranked.set_index(["layer", "head"]).join(
        adversaries[["relative_jsd", "max_jsd", "feasible_share"]]
    )
    return {
        "heads": len(table),
        "tvd_median_over_heads": {
            "permutation": float(table["permutation"].median()),
            **{edit: float(by_edit[edit].median()) for edit in by_edit},
        },
        "tvd_largest_head": {
            "permutation": float(table["permutation"].max()),
            **{edit: float(by_edit[edit].max()) for edit in by_edit},
        },
        "ratio_quartiles": quartiles(table["ratio"]),
        "heads_with_ratio_above_1": int((table["ratio"] > 1).sum()),
        **those_that_matter(table),
        "flip_share": float(frames["draws"]["flips"].mean()),
        "tvd_median_by_peak_bin": {
            name: [float(group["median"].median()), len(group)]
            for name, group in summary.sort_values("peak").groupby("peak_bin", sort=False)
        },
        "adversary": {
            "texts": len(searched),
            "epsilon": SEARCH.epsilon,
            "restarts": SEARCH.restarts,
            "steps": SEARCH.steps,
            "relative_jsd_quartiles": quartiles(table["relative_jsd"]),
            "relative_jsd_smallest": float(table["relative_jsd"].min()),
            "feasible_share_smallest": float(table["feasible_share"].min()),
        },
        "spearman_with_ablation": {
            name: float(stats.spearmanr(table["ablation"], table[name], nan_policy="omit")[0])
            for name in ("permutation", "uniform", "relative_jsd", "max_jsd")
        },
        "table": table.reset_index().round(5).to_dict("records"),
    }


def those_that_matter(table: pd.DataFrame) -> dict[str, float]:
    """Heads whose ablation moves the output, and what wrong weights do to them."""
    ratio = table.loc[table["ablation"] >= MATTERS, "ratio"]
    return {
        "matters_from_ablation_tvd": MATTERS,
        "heads_that_matter": len(ratio),
        "of_these_ratio_below_half": int((ratio < 0.5).sum()),
        "of_these_ratio_above_1": int((ratio > 1).sum()),
    }


def agreement(loaded: LoadedModel, runs: Sequence[CleanRun]) -> dict[str, object]:
    """Attention's τ with gradients and with leaving out, over all heads and texts."""
    frames = []
    for number, run in enumerate(runs):
        told("agreement")(number, len(runs), ())
        *_, others = importance.importances(run)
        frames += [
            importance.agreements(run, Scope(layer, head), others).assign(layer=layer, head=head)
            for layer in range(loaded.n_layers)
            for head in range(loaded.n_heads)
        ]
    frame = pd.concat(frames)
    keys = ["yardstick", "attention", "importance"]
    means = frame.groupby(keys)[["tau", "weighted_tau", "top_overlap", "top_chance"]].mean()
    best = frame[~frame["yardstick"]].groupby([*keys, "layer", "head"])["tau"].mean()
    return {
        "agreement": means.round(4).reset_index().to_dict("records"),
        "agreement_best_head": best.groupby(keys).max().round(4).reset_index().to_dict("records"),
        "tau_null_sd": float(frame["null_sd"].mean()),
    }


def erased(runs: Sequence[CleanRun]) -> dict[str, object]:
    """Keys erased in all layers until the decision flips."""
    units = experiments.erasure_units(runs, Scope(), erasure.Erasing(random_orders=20))
    frame = experiments.joined(experiments.in_turn(units, told("erasure")))["erasure"]
    points = erasure.flip_points(frame)
    return {
        "erasure": {
            order: {
                "flipped": float(group["flipped"].mean()),
                "median_share_of_flipped": float(group["share"].median()),
            }
            for order, group in points.groupby("order")
        }
    }


def quartiles(values: pd.Series) -> list[float]:
    return [round(float(v), 4) for v in values.quantile([0.25, 0.5, 0.75])]


def told(name: str) -> experiments.Report:
    def report(done: int, total: int, parts: tuple) -> None:
        print(f"\r{name} {done}/{total} ", end="", file=sys.stderr, flush=True)

    return report


def silent(done: int, total: int, parts: tuple) -> None:
    """One head's search is not worth a line."""
