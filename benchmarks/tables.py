"""The tables of README.md and docs/, written from benchmarks/results.

    python -m benchmarks.tables

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; what is around it is left alone.
A result that is not there leaves its column out.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.cells import Found, result, table
from benchmarks.study_tables import PERTURBATION, PRUNING, study

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "pruning.md", ROOT / "docs" / "perturbation.md")


def main() -> None:
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


def filled(text: str) -> str:
    """A page's text with its tables as the results are now."""

    def fresh(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n\n{TABLES[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- table: (\w+) -->.*?<!-- end -->", fresh, text, flags=re.DOTALL)


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
MOVES = (16, 128, 512)
MEMORY = ("extra_mib", "sdpa_extra_mib", "eager_extra_mib", "transformer_lens_extra_mib")
TILES = (
    "_elements65536",
    "_elements131072",
    "_elements262144",
    "",
    "_elements1048576",
)
VIEWS = (64, 256, 512, 1024)
WARM = ("atlas", "overview_head_change", "scale_slider")
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
        "the same over eager attention with the same statistics of its weights: times faster",
        lambda f: _each(f, "speedup_over_eager", LENGTHS, ".1f") + " ×",
        "≥ 2 at 1,024",
    ),
    (
        "capture",
        "the same over TransformerLens with statistics, T = 128 / 512 / 1,024, and over BertViz's "
        "data without any, T = 128: times faster",
        lambda f: (
            f"{_each(f, 'speedup_over_transformer_lens', LENGTHS, '.1f')} ×; "
            f"{_each(f, 'speedup_over_bertviz', LENGTHS[:1], '.1f')} ×"
        ),
        "",
    ),
    (
        "capture",
        "memory above the loaded model, MiB; of the SDPA pass; of eager; of TransformerLens",
        lambda f: "; ".join(_each(f, key, LENGTHS, ".0f") for key in MEMORY),
        "≤ SDPA",
    ),
    (
        "capture",
        "`bundled:bert` over its SDPA pass, T = 128 / 512 / 1,024 (its 512 positions twice)",
        lambda f: _each(f, "bert_ratio_to_sdpa", LENGTHS) + " ×",
        "1.05 / 1.05 / 1.10",
    ),
    (
        "capture",
        "`bundled:gpt2` over its SDPA pass, T = 128 / 512 / 1,024 (its 512 positions twice)",
        lambda f: _each(f, "gpt2_ratio_to_sdpa", LENGTHS) + " ×",
        "1.05 / 1.05 / 1.10",
    ),
    (
        "capture_kernel",
        "one layer's attention with statistics over SDPA, causal, 1,024 tokens, by the logits of a "
        "tile for each thread: 65,536 / 131,072 / 262,144 / 524,288 (used) / 1,048,576",
        lambda f: (
            " / ".join(f"{f[f'ratio_rows_spectral{size}_causal_T1024']:.1f}" for size in TILES)
            + " ×"
        ),
        "",
    ),
    (
        "long",
        "two GPT-2 layers of four heads, T = 4,096 / 8,192 / 16,384 / 32,768: seconds",
        lambda f: (
            f"{_each(f, 'gpt2_s', LONG, '.1f')}, ∝ T^{f['gpt2_slope']:.2f}; threads: {f['threads']}"
        ),
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
        "norms by closed forms over autograd's Jacobian, T = 64 / 128 / 256 / 512: times less "
        "processor time; MiB of autograd, of ours",
        lambda f: (
            f"{_each(f, 'cpu_speedup_over_autograd', SHORT, '.1f')} ×; "
            f"{_each(f, 'autograd_extra_mib', SHORT, '.1f')}; "
            f"{_each(f, 'closed_extra_mib', SHORT, '.1f')}"
        ),
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
        "all 144 heads off one by one over masked passes, 16 / 64 / 256 tokens: times less "
        "processor time",
        lambda f: (
            f"{_each(f, 'cpu_speedup_over_masked', (16, 64, 256), '.1f')} ×; "
            f"threads: {f['threads']}"
        ),
        "5 / 3 / 1.9",
    ),
    (
        "perturbation",
        "100 permutations of each of 144 heads over full passes, 32 tokens, one thread: times less "
        "processor time",
        lambda f: f"{f['cpu_speedup_over_full_passes_T32']:.1f} ×",
        "5",
    ),
    (
        "interaction",
        "all that the server does for a move without a forward pass, pages 1 to 4, `bundled:bert`, "
        "16 / 128 / 512 tokens: processor time of the median move, of the slowest, ms",
        lambda f: "; ".join(
            _each(f, f"{which}_move_cpu_ms", MOVES, ".0f") for which in ("median", "slowest")
        ),
        "≤ 300",
    ),
    (
        "screen",
        "click to drawn in Chromium: another colour of the atlas / another head / one step of the "
        "scale, ms; processor time of server + browser, ms",
        lambda f: _drawn(f, WARM),
        "≤ 300",
    ),
    (
        "screen",
        "token map of another head, 64 / 256 / 512 / 1,024 tokens: ms; processor time, ms",
        lambda f: _drawn(f, [f"token_map_T{n}" for n in VIEWS]),
        "≤ 300",
    ),
    (
        "screen",
        "the most that one view sends; the page's program, once: MiB",
        lambda f: f"{f['largest_view_mib']:.2f}; {f['program_mib']:.1f}",
        "≤ 2",
    ),
    (
        "screen",
        "first visit to a server just started; a new browser's first visit to a warm one: s",
        lambda f: " / ".join(f"{f[f'{name}_visit_ms'] / 1000:.1f}" for name in ("first", "second")),
        "",
    ),
    (
        "soak",
        "8 threads and 4 tabs for two minutes: results unlike their serial twins",
        lambda f: (
            f"{f['thread_results_unlike_serial']} of {f['thread_results']}; on the screen "
            f"{f['tab_results_unlike_serial']} of {f['tab_results']}"
        ),
        "0",
    ),
    (
        "soak",
        "growth of resident memory over 200 runs, KiB a run",
        lambda f: f"{f['kib_per_run']:.2f}",
        "0",
    ),
    (
        "mutation",
        "small faults (mutants) that the tests notice, a sample of each of `softmax_stats` / "
        "`capture` / `readout` / `analyses` (`--sample 25`)",
        lambda f: _killed(f),
        "",
    ),
)


def _drawn(found: Found, acts: Sequence[str]) -> str:
    """Medians from click to drawn, and the processor time of server and browser."""
    drawn = " / ".join(f"{found[f'{act}_ms']:.0f}" for act in acts)
    used = " / ".join(
        f"{found[f'{act}_server_cpu_ms']:.0f} + {found[f'{act}_browser_cpu_ms']:.0f}"
        for act in acts
    )
    return f"{drawn}; {used}"


def _killed(found: Found) -> str:
    """The share of mutants killed in each package, and how many of how many were run."""
    each = [key.removeprefix("score_") for key in found if key.startswith("score_")]
    shares = " / ".join(f"{100 * found[f'score_{name}']:.0f}" for name in each)
    made = sum(found[f"mutants_{name}"] for name in each)
    return f"{shares} %; {found['sample']:,} of {made:,} run"


def pruning_speed() -> str:
    found = result("pruning")
    head = ["tokens", "144 masked passes", "one batch of 144", "attnprobe", "over masked passes",
            "over one batch", "MiB of the three"]  # fmt: skip
    ways = ("masked", "batch", "resumed")
    rows = [
        [
            str(n),
            *(f"{found[f'{way}_cpu_s_T{n}']:.1f} s" for way in ways),
            *(f"{found[f'cpu_speedup_over_{way}_T{n}']:.1f} ×" for way in ways[:2]),
            " / ".join(f"{found[f'{way}_extra_mib_T{n}']:,.0f}" for way in ways),
        ]
        for n in (16, 64, 256)
    ]
    return table(head, rows)


def perturbation_speed() -> str:
    found = result("perturbation")
    if found is None:
        return "Not measured on a quiet machine.\n"
    ways = ("full_passes", "ours")
    head = ["heads × permutations", "full passes", "attnprobe", "over full passes",
            "MiB of the two", "largest difference"]  # fmt: skip
    row = [
        f"{found['heads']} × {found['permutations']}",
        *(f"{found[f'{way}_cpu_s_T32']:,.0f} s" for way in ways),
        f"{found['cpu_speedup_over_full_passes_T32']:.1f} ×",
        " / ".join(f"{found[f'{way}_extra_mib_T32']:,.0f}" for way in ways),
        f"{found['largest_difference_T32']:.1e}",
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
