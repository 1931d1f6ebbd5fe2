"""What the benchmarks compute from their measurements, and that each of them runs."""

import argparse
import importlib
import math
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from benchmarks import pruning, screen, soak, turns
from benchmarks.__main__ import BENCHMARKS, machine


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_says_what_it_measures_and_takes_arguments(name):
    module = importlib.import_module(f"benchmarks.{name}")
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    assert module.HELP
    assert callable(module.measure)
    assert vars(parser.parse_args([])) is not None


def test_a_token_of_the_screen_benchmark_is_a_byte():
    tokenizer = pruning.bytes_tokenizer()
    for tokens in (64, 1024):
        assert len(tokenizer(screen.words(tokens))["input_ids"]) == tokens


def test_an_act_on_the_screen_becomes_its_medians_and_its_largest_answer():
    acts = [
        screen.Act(100.0, 40.0, 2**20, 30.0, 50.0),
        screen.Act(300.0, 90.0, 2**21, 10.0, 80.0),
        screen.Act(120.0, 60.0, 0, 20.0, 70.0),
    ]
    assert screen.flat("atlas", acts) == {
        "atlas_ms": 120.0,
        "atlas_server_ms": 60.0,
        "atlas_server_cpu_ms": 20.0,
        "atlas_browser_cpu_ms": 70.0,
        "atlas_mib": 2.0,
    }


def test_the_longest_text_of_the_screen_fills_the_bundled_bert(bundled_bert):
    assert bundled_bert.reader.count(screen.LONGEST) == bundled_bert.max_tokens


def test_processor_time_is_that_of_the_children_by_what_they_are():
    busy = [sys.executable, "-c", "sum(range(10**7)); input()", "streamlit"]
    with subprocess.Popen(busy, stdin=subprocess.PIPE) as child:
        before = screen.processor_seconds()
        while (now := screen.processor_seconds())["server"] < before["server"] + 0.05:
            assert child.poll() is None
        child.communicate(b"\n")
    assert now["server"] >= before["server"] + 0.05


@pytest.mark.parametrize("name", ["screen", "soak"])
def test_without_playwright_a_benchmark_of_the_screen_ends_with_one_sentence(
    name, monkeypatch, capsys
):
    module = importlib.import_module(f"benchmarks.{name}")
    for wanted in ("playwright", "playwright.sync_api"):
        monkeypatch.setitem(sys.modules, wanted, None)
    for kept in ("tools.screenshots", "benchmarks.soak_tabs"):
        monkeypatch.delitem(sys.modules, kept, raising=False)
    with pytest.raises(SystemExit) as left:
        module.measure(Namespace(tokens=[8], rounds=1, seconds=1.0, threads=1, tabs=1, runs=1))
    assert left.value.code == screen.NO_BROWSER
    assert "is not installed, so no browser was started" in capsys.readouterr().err


def test_no_benchmark_needs_playwright_to_be_named():
    """`python -m benchmarks capture` imports all of them for its list."""
    program = (
        "import sys; sys.modules['playwright'] = None\n"
        "import importlib; from benchmarks.__main__ import BENCHMARKS\n"
        "for name in BENCHMARKS: importlib.import_module(f'benchmarks.{name}')"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[1])


def test_a_figure_is_told_as_soon_as_it_is_there(capsys):
    found = turns.Noted({"layers": 2})
    found.add({"seconds": 1.5})
    assert capsys.readouterr().err == "seconds 1.5\n"
    assert found == {"layers": 2, "seconds": 1.5}


def test_the_soak_counts_a_result_that_differs_by_one_bit_or_by_what_is_undefined():
    number = torch.tensor([1.0, math.nan])
    next_one = torch.nextafter(torch.tensor([1.0, math.nan]), torch.tensor(2.0))
    assert soak.equal(number, number.clone())
    assert not soak.equal(next_one, number)
    assert not soak.equal(torch.tensor([1.0, 0.0]), number)
    assert not soak.equal(number[:1], number)


def test_a_thread_of_the_soak_counts_every_result_unlike_its_twin():
    mixed = soak.Twin(lambda: torch.ones(3), torch.zeros(3))
    right = soak.Twin(lambda: torch.ones(3), torch.ones(3))
    counts, clock = soak.Counts(), iter(range(10))
    soak.work([mixed, right], 0, deadline=5, counts=counts, now=lambda: next(clock))
    assert (counts.done, counts.wrong) == (6, 3)


def test_every_result_says_when_and_on_what_it_was_measured():
    assert {"date", "processor", "cores", "threads", "torch", "transformers"} <= set(machine())
