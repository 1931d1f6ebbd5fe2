"""The tables of README.md and docs/, written from benchmarks/results.

    python -m benchmarks.tables

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; what is around it is left alone.
A result that is not there leaves its column out.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = (ROOT / "README.md", ROOT / "docs" / "pruning.md", ROOT / "docs" / "perturbation.md")
MODELS = {"bert": "bundled:bert", "gpt2": "bundled:gpt2"}

Found = Mapping[str, object]
Cell = Callable[[Found], str]
Lines = Sequence[tuple[str, Cell]]


def main() -> None:
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


def filled(text: str) -> str:
    """A page's text with its tables as the results are now."""

    def fresh(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n\n{TABLES[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- table: (\w+) -->.*?<!-- end -->", fresh, text, flags=re.DOTALL)


def result(name: str) -> Found | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def study(name: str, lines: Lines) -> str:
    """A column for each bundled model, a row for each line."""
    found = {title: result(f"{name}_{model}") for model, title in MODELS.items()}
    there = {title: one for title, one in found.items() if one}
    if not there:
        return "Not measured on a quiet machine.\n"
    rows = [[label, *(cell(one) for one in there.values())] for label, cell in lines]
    return table(["", *there], rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def short(value: float) -> str:
    """Three significant digits, no exponent, a true minus; what has no number never happened."""
    if math.isnan(value):
        return "never"
    text = f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return text.replace("-", "−")


def percent(share: float) -> str:
    return "never" if math.isnan(share) else f"{100 * share:.1f} %"


def signed(value: float, digits: int = 2) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


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
    return ", ".join(f"{said} {short(found[which][edit])}" for edit, said in EDITS.items())


def _bins(found: Found) -> str:
    bins = found["tvd_median_by_peak_bin"]
    return ", ".join(f"{name}: {short(median)} (n = {n})" for name, (median, n) in bins.items())


def _quartiles(values: Sequence[float]) -> str:
    return " / ".join(map(short, values))


def _spearman(found: Found) -> str:
    names = {"permutation": "permutation TVD", "uniform": "uniform TVD", "relative_jsd": "JSD / φ"}
    return ", ".join(
        f"{said} {signed(found['spearman_with_ablation'][name])}" for name, said in names.items()
    )


def _tau(found: Found, attention: str) -> str:
    pairs = [row for row in found["agreement"] if row["attention"] == attention]
    return ", ".join(
        f"{row['importance'].replace(' × input', '')} {signed(row['tau'])}"
        for row in pairs
        if not row["importance"].endswith("token deleted")
    )


def _yardstick(found: Found) -> str:
    pairs = [row for row in found["agreement"] if row["yardstick"]]
    return ", ".join(
        f"{row['attention'].replace(' × input', '')} with {row['importance'].split(', ')[1]} "
        f"{signed(row['tau'])}"
        for row in pairs
    )


def _erased(found: Found) -> str:
    return ", ".join(
        f"{order} {percent(found['erasure'][order]['median_share_of_flipped'])}"
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
        lambda f: _quartiles(f["ratio_quartiles"]),
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
            f"{_quartiles(f['adversary']['relative_jsd_quartiles'])} "
            f"(N = {f['adversary']['texts']} text{'s' * (f['adversary']['texts'] > 1)})"
        ),
    ),
    ("Spearman ρ over heads with ablation TVD", _spearman),
    ("Kendall's τ-b, read-out row with", lambda f: _tau(f, "read-out row")),
    ("Kendall's τ-b, rollout with", lambda f: _tau(f, "rollout")),
    ("the yardstick: τ-b of", _yardstick),
    ("spread of τ-b by chance, one text (sd)", lambda f: short(f["tau_null_sd"])),
    ("keys erased in all layers where the decision flips, median", _erased),
)


def speed() -> str:
    """Every benchmark's main figures beside their aims, with where and when they were measured."""
    rows = [
        [f"`{name}`", what, said(found), aim]
        for name, what, said, aim in SPEED
        if (found := result(name)) is not None and any(map(str.isdigit, said(found)))
    ]
    return table(["benchmark", "what", "measured", "aim"], rows) + _where()


def _where() -> str:
    found = [each for name in dict.fromkeys(line[0] for line in SPEED) if (each := result(name))]
    some = found[0]
    return (
        f"\n{some['cores']} cores ({some['processor']}), shared with others; "
        f"{some['date']}; Python {some['python']}, torch {some['torch']}, transformers "
        f"{some['transformers']}; medians.\n"
    )


def _each(found: Found, key: str, lengths: Sequence[int], form: str = ".2f") -> str:
    """The figures of several lengths, with a dash for a length that was not measured."""
    values = [found.get(f"{key}_T{n}") for n in lengths]
    return " / ".join("–" if value is None else format(value, form) for value in values)


LENGTHS = (128, 512, 1024)
LONG = (4096, 8192, 16384, 32768)
SHORT = (64, 128, 256, 512)
MEMORY = ("extra_mib", "sdpa_extra_mib")
SPEED: Sequence[tuple[str, str, Callable[[Found], str], str]] = (
    (
        "capture",
        "forward pass with every statistic of every row over the plain SDPA pass, GPT-2-small's "
        "geometry, T = 128 / 512 / 1,024",
        lambda f: _each(f, "ratio_to_sdpa", LENGTHS) + " ×",
        "1.05 / 1.05 / 1.10",
    ),
    (
        "capture",
        "the same over eager attention with the same statistics: times faster",
        lambda f: _each(f, "speedup_over_eager", LENGTHS, ".1f") + " ×",
        "≥ 2 at 1,024",
    ),
    (
        "capture",
        "the same over TransformerLens with statistics: times faster",
        lambda f: _each(f, "speedup_over_transformer_lens", LENGTHS, ".1f") + " ×",
        "",
    ),
    (
        "capture",
        "memory above the loaded model, of what the SDPA pass takes, MiB",
        lambda f: " of ".join(_each(f, key, LENGTHS, ".0f") for key in MEMORY),
        "≤ SDPA",
    ),
    (
        "capture",
        "`bundled:bert` over its SDPA pass, T = 128 / 512",
        lambda f: _each(f, "bert_ratio_to_sdpa", LENGTHS[:2]) + " ×",
        "1.05",
    ),
    (
        "capture",
        "`bundled:gpt2` over its SDPA pass, T = 128 / 512",
        lambda f: _each(f, "gpt2_ratio_to_sdpa", LENGTHS[:2]) + " ×",
        "1.05",
    ),
    (
        "long",
        "two GPT-2 layers of four heads, T = 4,096 / 8,192 / 16,384 / 32,768: seconds",
        lambda f: f"{_each(f, 'gpt2_s', LONG, '.1f')}, ∝ T^{f['gpt2_slope']:.2f}",
        "",
    ),
    (
        "long",
        "the same: MiB above the model, where one head's matrix alone would take 4,096",
        lambda f: _each(f, "gpt2_extra_mib", LONG, ".0f"),
        "< 1,000",
    ),
    (
        "long",
        "two BERT layers: seconds; MiB",
        lambda f: f"{_each(f, 'bert_s', LONG, '.1f')}; {_each(f, 'bert_extra_mib', LONG, '.0f')}",
        "< 1,000",
    ),
    (
        "jacobian",
        "norms by closed forms over autograd's Jacobian, T = 64 / 128 / 256 / 512: times faster",
        lambda f: _each(f, "speedup_over_autograd", SHORT, ".1f") + " ×",
        "",
    ),
    (
        "jacobian",
        "largest relative error of a norm, float32 against float64",
        lambda f: f"{max(v for k, v in f.items() if '_error_' in k):.1e}",
        "1e-5",
    ),
    (
        "pruning",
        "all 144 heads off one by one over masked passes, 16 / 64 / 256 tokens",
        lambda f: _each(f, "speedup_over_masked", (16, 64, 256), ".1f") + " ×",
        "5 / 3 / 1.9",
    ),
    (
        "perturbation",
        "permutations of single heads over full passes, 32 tokens",
        lambda f: f"{f['speedup_over_full_passes_T32']:.1f} ×",
        "5",
    ),
)


def pruning_speed() -> str:
    found = result("pruning")
    head = ["tokens", "144 masked passes", "one batch of 144", "attnprobe", "over masked passes",
            "over one batch"]  # fmt: skip
    rows = [
        [
            str(n),
            *(f"{found[f'{way}_s_T{n}']:.1f} s" for way in ("masked", "batch", "resumed")),
            *(f"{found[f'speedup_over_{way}_T{n}']:.1f} ×" for way in ("masked", "batch")),
        ]
        for n in (16, 64, 256)
    ]
    return table(head, rows)


def perturbation_speed() -> str:
    found = result("perturbation")
    if found is None:
        return "Not measured on a quiet machine.\n"
    head = ["heads × permutations", "full passes", "one batch", "attnprobe", "over full passes",
            "over one batch"]  # fmt: skip
    ways = ("full_passes", "one_batch", "ours")
    row = [
        f"{found['heads']} × {found['permutations']}",
        *(f"{found[f'{way}_s_T32']:.1f} s" for way in ways),
        *(f"{found[f'speedup_over_{way}_T32']:.1f} ×" for way in ways[:2]),
    ]
    return table(head, [row])


TABLES: Mapping[str, Callable[[], str]] = {
    "speed": speed,
    "pruning_study": lambda: study("pruning_study", PRUNING),
    "pruning_speed": pruning_speed,
    "perturbation_study": lambda: study("perturbation_study", PERTURBATION),
    "perturbation_speed": perturbation_speed,
}


if __name__ == "__main__":
    main()
