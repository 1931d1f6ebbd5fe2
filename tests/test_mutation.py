"""The mutation score: what is drawn, what counts as killed, and how it is summed."""

import importlib.util
import tomllib
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks import mutation, tables

ROOT = Path(__file__).parents[1]
EVERY = {
    "softmax_stats": [f"attnprobe.softmax_stats.rows.x_stream__mutmut_{n}" for n in range(11)],
    "capture": [f"attnprobe.capture.x_gate__mutmut_{n}" for n in range(3)],
    "readout": [f"attnprobe.readout.kinds.x_last__mutmut_{n}" for n in range(5)],
    "analyses": [f"attnprobe.analyses.pruning.curve.x_curve__mutmut_{n}" for n in range(97)],
}


def test_each_package_gives_its_share_of_the_sample_or_all_that_it_has():
    drawn = mutation.sample(EVERY, 7, seed=1)
    assert {each: len(names) for each, names in drawn.items()} == {
        "softmax_stats": 7, "capture": 3, "readout": 5, "analyses": 7,
    }  # fmt: skip
    assert all(set(names) <= set(EVERY[each]) for each, names in drawn.items())
    assert all(len(set(names)) == len(names) for names in drawn.values())


def test_a_seed_determines_the_sample():
    assert mutation.sample(EVERY, 7, seed=1) == mutation.sample(EVERY, 7, seed=1)
    assert mutation.sample(EVERY, 7, seed=1) != mutation.sample(EVERY, 7, seed=2)


def test_a_mutant_belongs_to_the_package_that_its_name_begins_with():
    names = [name for some in EVERY.values() for name in reversed(some)]
    sorted_names = {each: sorted(some) for each, some in EVERY.items()}
    assert mutation.by_package(names) == sorted_names
    assert mutation.by_package(["attnprobe.analyses.sinks.x_mean__mutmut_1"])["capture"] == []


def test_statuses_are_read_from_the_lines_that_mutmut_prints():
    listed = (
        "    attnprobe.capture.x_gate__mutmut_1: killed\n"
        "    attnprobe.readout.kinds.xǁReadOutǁhead__mutmut_12: no tests\n"
        "\n"
    )
    assert mutation.statuses(listed) == {
        "attnprobe.capture.x_gate__mutmut_1": "killed",
        "attnprobe.readout.kinds.xǁReadOutǁhead__mutmut_12": "no tests",
    }


def test_the_score_weighs_each_package_by_its_mutants_and_what_no_test_reaches_survives():
    drawn = {
        "softmax_stats": EVERY["softmax_stats"][:4],
        "capture": EVERY["capture"],
        "readout": EVERY["readout"][:2],
        "analyses": EVERY["analyses"][:5],
    }
    status = {name: "killed" for names in drawn.values() for name in names}
    alive = [drawn["softmax_stats"][2], drawn["analyses"][0], drawn["analyses"][4]]
    status |= {alive[0]: "survived", alive[1]: "no tests", alive[2]: "suspicious"}
    status[drawn["readout"][1]] = "timeout"
    found = mutation.scores(EVERY, drawn, status)
    assert [found[f"killed_{each}"] for each in mutation.PACKAGES] == [3, 3, 2, 3]
    assert [found[f"score_{each}"] for each in mutation.PACKAGES] == [0.75, 1.0, 1.0, 0.6]
    assert [found[f"mutants_{each}"] for each in mutation.PACKAGES] == [11, 3, 5, 97]
    assert found["score"] == pytest.approx((11 * 0.75 + 3 + 5 + 97 * 0.6) / 116)
    assert (found["sample"], found["timeouts"]) == (14, 1)
    assert found["survivors"].split() == alive
    assert all(isinstance(value, float | int | str) for value in found.values())


def test_the_table_s_cell_names_shares_and_how_many_were_run():
    drawn = {each: names[:4] for each, names in EVERY.items()}
    status = {name: "killed" for names in drawn.values() for name in names}
    found = mutation.scores(EVERY, drawn, status | {drawn["readout"][3]: "survived"})
    assert tables._killed(found) == "100 / 100 / 75 / 100 %; 15 of 116 run"


def test_without_mutmut_one_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        SystemExit, match=r"^mutmut is not installed; `pip install mutmut==3"
    ) as told:
        mutation.measure(Namespace(sample=1, seed=0, workers=1))
    assert "\n" not in str(told.value)


def test_a_run_that_fails_gives_no_score():
    with pytest.raises(SystemExit, match="mutmut came to no end"):
        mutation._python(["raise SystemExit(3)"])


def test_what_mutmut_is_told_to_change_and_to_run_exists():
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutmut"]
    changed = [path for pattern in told["only_mutate"] for path in ROOT.glob(pattern)]
    rooms = {path.relative_to(ROOT / "attnprobe").parts[0].removesuffix(".py") for path in changed}
    assert rooms == set(mutation.PACKAGES)
    paths = told["source_paths"] + told["also_copy"] + told["pytest_add_cli_args_test_selection"]
    assert [path for path in paths if not (ROOT / path).exists()] == []
