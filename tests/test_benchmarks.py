"""What the benchmarks compute from their measurements, and that each of them runs."""

import argparse
import importlib
import math
from argparse import Namespace

import pytest
import torch

from benchmarks import capture, geometries, gpu, jacobian, long, pruning, screen, turns
from benchmarks.__main__ import BENCHMARKS, machine
from benchmarks.turns import Absent, Contender, Tally, Turn


def tally(*seconds: float, memory: float = 0.0) -> Tally:
    return Tally(tuple(Turn(some, 2 * some, memory) for some in seconds))


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_says_what_it_measures_and_takes_arguments(name):
    module = importlib.import_module(f"benchmarks.{name}")
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    assert module.HELP
    assert callable(module.measure)
    assert vars(parser.parse_args([])) is not None


def test_a_ratio_is_the_median_over_rounds_not_the_ratio_of_medians():
    ours, theirs = tally(2.0, 30.0, 6.0), tally(1.0, 10.0, 5.0)
    assert ours.over(theirs) == 2.0
    assert ours.seconds / theirs.seconds == 6.0 / 5.0


def test_a_ratio_of_processor_seconds_reads_those():
    ours = Tally((Turn(9.0, 3.0, 0.0),))
    assert ours.over(Tally((Turn(1.0, 2.0, 0.0),)), "processor") == 1.5


def test_memory_is_the_largest_of_all_turns():
    both = Tally((Turn(1.0, 1.0, 7.0), Turn(1.0, 1.0, 3.0)))
    assert both.extra_mib == 7.0


def test_a_run_that_fills_memory_is_seen_with_what_it_has_given_back():
    size = 64 * turns.MIB
    resident = turns.psutil.Process().memory_info().rss
    taken = turns.turn(lambda _: bytes(size).replace(b"\0", b"\1"), 1, resident)
    again = turns.turn(lambda _: None, 1, resident)
    assert taken.extra_mib > 60
    assert again.extra_mib < taken.extra_mib - 32


def test_the_rows_of_a_length_have_flat_keys_and_contenders_may_be_missing():
    found = {"sdpa": tally(1.0, memory=5.0), "capture": tally(1.1, memory=4.0), "eager": tally(3.3)}
    flat = capture.rows(found, "bert_", 128)
    assert flat["bert_ratio_to_sdpa_T128"] == pytest.approx(1.1)
    assert flat["bert_speedup_over_eager_T128"] == pytest.approx(3.0)
    assert flat["bert_extra_mib_T128"] == 4.0
    assert flat["bert_sdpa_extra_mib_T128"] == 5.0
    assert not any("bertviz" in key for key in flat)
    assert all(isinstance(value, float | int | str) for value in flat.values())


def test_textbook_statistics_are_those_of_a_row_of_equal_weights():
    found = capture.textbook(torch.full((1, 1, 1, 8), 1 / 8))
    expected = {
        "entropy": math.log(8),
        "peak": 1 / 8,
        "jacobian_frobenius": math.sqrt(7) / 8,
        "jacobian_max": 7 / 64,
        "jacobian_trace": 7 / 8,
    }
    for name, number in expected.items():
        assert found[name].item() == pytest.approx(number, rel=1e-6)


def test_our_contender_leaves_statistics_of_every_layer_of_the_geometry():
    model = geometries.layer_pair("gpt2", 48, 3, capture.capture.IMPLEMENTATION)
    with torch.no_grad():
        found = capture.watched(model)(48)
    assert [rows.entropy.shape for rows in found] == [(1, 3, 48)] * 2
    assert all(rows.jacobian_spectral is not None for rows in found)


@pytest.mark.parametrize("kind", long.KINDS)
def test_our_layer_pair_computes_what_the_plain_one_computes(kind):
    plain = geometries.layer_pair(kind, 40, 2, "sdpa")
    ours = geometries.layer_pair(kind, 40, 2, capture.capture.IMPLEMENTATION)
    with torch.no_grad():
        expected = geometries.forward(plain)(40)[0]
        got = geometries.forward(ours)(40)[0]
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("power", [1.0, 1.5, 2.0])
def test_the_slope_of_a_power_is_its_exponent(power):
    lengths = [4096, 8192, 32768]
    assert long.slope(lengths, [3e-9 * n**power for n in lengths]) == pytest.approx(power)


def test_closed_forms_agree_with_the_jacobian_that_autograd_builds():
    logits = 3 * torch.randn(5, 17, generator=torch.Generator().manual_seed(2))
    assert set(jacobian.errors(logits)) == set(jacobian.NAMES)
    assert max(jacobian.errors(logits).values()) < 1e-5


def test_the_jacobian_benchmark_runs_in_miniature():
    args = Namespace(tokens=[16], rows=3, rounds=1, deviations=[1.0])
    found = jacobian.measure(args)
    assert found["jacobian_trace_error_std1_T16"] < 1e-5
    assert found["speedup_over_autograd_T16"] > 0


def build_nothing(reason: str):
    raise Absent(reason)


def build_sum(start: int):
    return lambda tokens: sum(range(start, tokens))


def test_contenders_run_in_processes_of_their_own_and_one_that_is_absent_says_why():
    with Contender(build_sum, 3) as there, Contender(build_nothing, "no such library") as missing:
        assert missing.absent == "no such library"
        assert there.absent is None
        found = turns.tallies({"there": there}, 100, 3)
    assert len(found["there"].turns) == 3
    assert found["there"].seconds > 0


def test_turns_go_forwards_and_backwards(monkeypatch):
    order = []

    class Fake:
        def __init__(self, name):
            self.name = name

        def run(self, tokens):
            order.append(self.name)
            return Turn(1.0, 1.0, 0.0)

    turns.tallies({name: Fake(name) for name in "abc"}, 7, 2)
    assert "".join(order) == "abccba"


def test_without_a_gpu_there_is_one_sentence_and_status_two(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as left:
        gpu.measure(Namespace(tokens=[16], rounds=1))
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "no CUDA device" in said


def test_a_token_of_the_screen_benchmark_is_a_byte():
    tokenizer = pruning.bytes_tokenizer()
    for tokens in (64, 1024):
        assert len(tokenizer(screen.words(tokens))["input_ids"]) == tokens


def test_an_act_on_the_screen_becomes_its_median_and_its_largest_answer():
    acts = [screen.Act(100.0, 2**20), screen.Act(300.0, 2**21), screen.Act(120.0, 0)]
    assert screen.flat("atlas", acts) == {"atlas_ms": 120.0, "atlas_mib": 2.0}


def test_every_result_says_when_and_on_what_it_was_measured():
    assert {"date", "processor", "cores", "threads", "torch", "transformers"} <= set(machine())
