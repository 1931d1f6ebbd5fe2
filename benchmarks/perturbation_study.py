"""Perturbation tests of every head of a model on the bundled texts: what docs/perturbation.md says.

    python -m benchmarks perturbation_study --model bundled:bert --json

One free core takes about nine minutes for the encoder's 72 heads and three for the GPT-2's 20; the
settings are in the result.
"""

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from pandas.core.groupby import SeriesGroupBy
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
        **named("tvd_median_over_heads", by_edit.assign(permutation=table["permutation"]).median()),
        **named("tvd_largest_head", by_edit.assign(permutation=table["permutation"]).max()),
        **named("ratio", quartiles(table["ratio"])),
        "heads_with_ratio_above_1": int((table["ratio"] > 1).sum()),
        **those_that_matter(table),
        "flip_share": float(frames["draws"]["flips"].mean()),
        **binned(summary.sort_values("peak").groupby("peak_bin", sort=False)["median"]),
        "adversary_texts": len(searched),
        "adversary_epsilon": SEARCH.epsilon,
        "adversary_restarts": SEARCH.restarts,
        "adversary_steps": SEARCH.steps,
        **named("relative_jsd", quartiles(table["relative_jsd"])),
        "relative_jsd_smallest": float(table["relative_jsd"].min()),
        "feasible_share_smallest": float(table["feasible_share"].min()),
        **{
            f"spearman_with_ablation_{name}": float(
                stats.spearmanr(table["ablation"], table[name], nan_policy="omit")[0]
            )
            for name in ("permutation", "uniform", "relative_jsd", "max_jsd")
        },
        **rows(table.round(5), "L{}.H{}"),
    }


def named(name: str, numbers: Mapping[str, float]) -> dict[str, float]:
    """Flat keys: a result is one flat object."""
    return {f"{name}_{what}": float(number) for what, number in numbers.items()}


def rows(frame: pd.DataFrame, name: str) -> dict[str, float]:
    """Every number of a frame under the name that its row's index fills in."""
    return {
        f"{name.format(*index)}_{column}": value
        for column in frame
        for index, value in frame[column].to_dict().items()
    }


def binned(medians: SeriesGroupBy) -> dict[str, float]:
    """Of each bin of the rows' peak: the median, and over how many heads and texts."""
    return {
        **named("tvd_median_by_peak_bin", medians.median()),
        **{f"n_by_peak_bin_{name}": int(n) for name, n in medians.count().items()},
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
    keys = ["attention", "importance"]
    means = frame.groupby(["yardstick", *keys])[
        ["tau", "weighted_tau", "top_overlap", "top_chance"]
    ].mean()
    best = frame[~frame["yardstick"]].groupby([*keys, "layer", "head"])["tau"].mean()
    return {
        **rows(means.loc[False].round(4), "agreement, {} with {}"),
        **rows(means.loc[True].round(4), "yardstick, {} with {}"),
        **rows(
            best.groupby(keys).max().round(4).to_frame(), "agreement of the best head, {} with {}"
        ),
        "tau_null_sd": float(frame["null_sd"].mean()),
    }


def erased(runs: Sequence[CleanRun]) -> dict[str, object]:
    """Keys erased in all layers until the decision flips."""
    units = experiments.erasure_units(runs, Scope(), erasure.Erasing(random_orders=20))
    frame = experiments.joined(experiments.in_turn(units, told("erasure")))["erasure"]
    points = erasure.flip_points(frame)
    by_order = points.groupby("order")
    return {
        **named("erasure_flipped", by_order["flipped"].mean()),
        **named("erasure_median_share_of_flipped", by_order["share"].median()),
    }


def quartiles(values: pd.Series) -> pd.Series:
    return values.quantile([0.25, 0.5, 0.75]).round(4).set_axis(["low", "median", "high"])


def told(name: str) -> experiments.Report:
    def report(done: int, total: int, parts: tuple) -> None:
        print(f"\r{name} {done}/{total} ", end="", file=sys.stderr, flush=True)

    return report


def silent(done: int, total: int, parts: tuple) -> None:
    """One head's search is not worth a line."""
