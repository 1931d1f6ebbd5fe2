"""The tables of docs/: what the studies of pruning and of perturbation found on bundled models."""

import re
from collections.abc import Sequence

from benchmarks.cells import Found, Lines, percent, result, short, signed, table

MODELS = {"bert": "bundled:bert", "gpt2": "bundled:gpt2"}


def study(name: str, lines: Lines) -> str:
    """A column for each bundled model, a row for each line."""
    found = {title: result(f"{name}_{model}") for model, title in MODELS.items()}
    there = {title: one for title, one in found.items() if one}
    if not there:
        return "Not measured on a quiet machine.\n"
    rows = [[label, *(cell(one) for one in there.values())] for label, cell in lines]
    return table(["", *there], rows)


def _both(found: Found, score: str) -> str:
    names = (f"spearman_{score}_effect", f"spearman_{score}_effect_size")
    return " / ".join(signed(found[name]).lstrip("+") for name in names)


def _kept(found: Found) -> str:
    each = [said for name, said in found.items() if name.startswith("keep_one_layer_")]
    return ", ".join(signed(float(re.search(r"([+-][\d.]+) nats", said)[1])) for said in each)


def _orders(found: Found, what: str, orders: Sequence[str]) -> str:
    return ", ".join(
        f"{order.split(', ')[-1]} {short(found[f'{what}_{order}'])}" for order in orders
    )


def _half(found: Found) -> str:
    named = _orders(found, "half", ("importance", "importance, normalised", "effect"))
    low, high = found["half_random_band"].split(" to ")
    return f"{named}, random {short(float(low))} to {short(float(high))}"


def _speedup(found: Found) -> str:
    return " / ".join(found[f"cut_speedup_batch_{n}"].split(" ")[0] for n in (1, 4, 16))


ORDERS = ("importance", "effect", "re-scored", "random", "reverse")
PRUNING: Lines = (
    (
        "texts, scoring / evaluation",
        lambda f: f"{f['scoring_texts']} / {f['evaluation_texts']}",
    ),
    ("heads", lambda f: str(f["heads"])),
    ("metric, unpruned", lambda f: f"{f['metric']} {short(f['metric_evaluation'])}"),
    (
        "heads whose removal surely raises / lowers the loss (interval without 0)",
        lambda f: f"{f['certain_worse']} / {f['certain_better']}",
    ),
    (
        "largest single-head effect",
        lambda f: f"{f['largest_effect']}, {signed(f['largest_effect_nats'], 3)} nats",
    ),
    ("Spearman ρ of importance with effect / size of effect", lambda f: _both(f, "importance")),
    ("the same, ℓ2-normalised per layer", lambda f: _both(f, "importance_l2")),
    (
        "transfer of effects between the halves, Pearson / Spearman",
        lambda f: f"{f['transfer_pearson']:.2f} / {f['transfer_spearman']:.2f}",
    ),
    ("one head kept in a layer, change of loss, by layer (nats)", _kept),
    (
        "share of heads gone when the metric has lost a tenth",
        lambda f: _orders(f, "fall", ORDERS),
    ),
    ("metric with half of the heads gone", _half),
    (
        "half cut out: parameters / multiply–adds saved (64 tokens)",
        lambda f: f"{percent(f['cut_parameters_saved'])} / {percent(f['cut_multiply_adds_saved'])}",
    ),
    (
        "cut against masked, largest difference",
        lambda f: f"{f['cut_equality']:.1e}" if f["cut_equality"] else "0",
    ),
    ("speed-up at batch 1 / 4 / 16", _speedup),
    ("ceiling by arithmetic", lambda f: f"{f['cut_ceiling_T64']:.2f}"),
)


EDITS = {
    "permutation": "permuted",
    "zero": "ablated",
    "uniform": "uniform",
    "mean": "mean of other texts",
    "frozen": "another text's",
    "first token": "all on the first token",
}


def _tvd(found: Found, which: str) -> str:
    return ", ".join(f"{said} {short(found[f'{which}_{edit}'])}" for edit, said in EDITS.items())


def _bins(found: Found) -> str:
    return ", ".join(
        f"{name}: {short(median)} (n = {found[f'n_by_peak_bin_{name}']})"
        for name, median in _under(found, "tvd_median_by_peak_bin_")
    )


def _under(found: Found, start: str, end: str = "") -> list[tuple[str, float]]:
    """What stands under keys that begin and end so, by the rest of the key."""
    return [
        (key.removeprefix(start).removesuffix(end), value)
        for key, value in found.items()
        if key.startswith(start) and key.endswith(end)
    ]


def _quartiles(found: Found, name: str) -> str:
    return " / ".join(short(found[f"{name}_{which}"]) for which in ("low", "median", "high"))


def _spearman(found: Found) -> str:
    names = {"permutation": "permutation TVD", "uniform": "uniform TVD", "relative_jsd": "JSD / φ"}
    return ", ".join(
        f"{said} {signed(found[f'spearman_with_ablation_{name}'])}" for name, said in names.items()
    )


def _tau(found: Found, attention: str) -> str:
    return ", ".join(
        f"{name.replace(' × input', '')} {signed(tau)}"
        for name, tau in _under(found, f"agreement, {attention} with ", "_tau")
        if not name.endswith(("token deleted", "_weighted"))
    )


def _yardstick(found: Found) -> str:
    pairs = [
        (*name.split(" with "), tau)
        for name, tau in _under(found, "yardstick, ", "_tau")
        if not name.endswith("_weighted")
    ]
    return ", ".join(
        f"{one.replace(' × input', '')} with {other.split(', ')[1]} {signed(tau)}"
        for one, other, tau in pairs
    )


def _erased(found: Found) -> str:
    return ", ".join(
        f"{order} {percent(found[f'erasure_median_share_of_flipped_{order}'])}"
        for order in ("attention", "norm", "gradient", "chance")
    )


PERTURBATION: Lines = (
    ("read-out", lambda f: f["readout"]),
    ("N texts, median tokens", lambda f: f"{f['texts']}, {short(f['tokens_median'])}"),
    ("heads", lambda f: str(f["heads"])),
    ("TVD of the output, median over heads", lambda f: _tvd(f, "tvd_median_over_heads")),
    ("TVD of the output, largest head", lambda f: _tvd(f, "tvd_largest_head")),
    ("permutation TVD by the rows' peak, median (text × head)", _bins),
    (
        "permutation TVD over ablation TVD, quartiles over heads",
        lambda f: _quartiles(f, "ratio"),
    ),
    (
        "heads whose ablation moves the output (TVD ≥ 0.01)",
        lambda f: f"{f['heads_that_matter']} of {f['heads']}",
    ),
    (
        "of these, ratio below ½ / above 1",
        lambda f: f"{f['of_these_ratio_below_half']} / {f['of_these_ratio_above_1']}",
    ),
    ("decisions flipped by a permutation of one head", lambda f: percent(f["flip_share"])),
    (
        "adversary, TVD ≤ 0.01: JSD / φ, quartiles over heads",
        lambda f: (
            f"{_quartiles(f, 'relative_jsd')} "
            f"(N = {f['adversary_texts']} text{'s' * (f['adversary_texts'] > 1)})"
        ),
    ),
    ("Spearman ρ over heads with ablation TVD", _spearman),
    ("Kendall's τ-b, read-out row with", lambda f: _tau(f, "read-out row")),
    ("Kendall's τ-b, rollout with", lambda f: _tau(f, "rollout")),
    ("the yardstick: τ-b of", _yardstick),
    ("spread of τ-b by chance, one text (sd)", lambda f: short(f["tau_null_sd"])),
    ("keys erased in all layers where the decision flips, median", _erased),
)
