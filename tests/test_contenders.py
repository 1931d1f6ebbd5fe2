"""Contenders: their processes and turns, that they do the same work, and what is told of them."""

import math
from argparse import Namespace
from contextlib import ExitStack

import builds
import pytest
import torch

from attnprobe.analyses.perturbation.edits import Scope
from attnprobe.analyses.perturbation.runs import clean_run
from attnprobe.readout import next_token
from attnprobe.softmax_stats import tiles
from benchmarks import (
    capture,
    capture_kernel,
    geometries,
    gpu,
    jacobian,
    long,
    perturbation,
    pruning,
    turns,
)
from benchmarks.geometries import Geometry
from benchmarks.turns import Contender, Tally, Turn


def tally(*seconds: float, memory: float = 0.0) -> Tally:
    return Tally(tuple(Turn(some, 2 * some, memory) for some in seconds))


class Here:
    """A contender in this process."""

    absent = None

    def __init__(self, build, *arguments, warm=16, gauge=turns.RESIDENT):
        self._stand = turns.Stand(build(*arguments), warm, gauge)
        self.run, self.result = self._stand.turn, self._stand.result

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.fixture
def here(monkeypatch):
    """Benchmarks whose contenders are in this process."""
    monkeypatch.setattr(turns, "Contender", Here)


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
    stand = turns.Stand(lambda some: bytes(some).replace(b"\0", b"\1"), 1)
    taken = stand.turn(size)
    again = stand.turn(0)
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


def test_contenders_run_in_processes_of_their_own_and_one_that_is_absent_says_why():
    with Contender(builds.nothing, "no such library") as missing:
        assert missing.absent == "no such library"
    each = {"own": (builds.steps, 2.0), "near": (builds.steps, 2.25)}
    with ExitStack() as stack:
        there, absent = turns.started(stack, each, warm=(1, 1))
        rounds = turns.in_turn(there, [(2, 3), (5, 2)])
        found = [(turns.largest_difference(there, "own"), list(made)) for made in rounds]
        assert there["near"].result().tolist() == [[4.5 * n, 4.5 * n + 2.25] for n in range(5)]
    assert not absent
    assert found == [(0.25 * 5, ["own", "near"]), (0.25 * 9, ["own", "near"])]


def test_a_result_that_is_no_number_is_no_small_difference():
    sound, broken = (Here(builds.steps, step, warm=(1, 2)) for step in (1.0, math.nan))
    for who in (sound, broken):
        who.run((1, 2))
    assert math.isnan(turns.largest_difference({"sound": sound, "broken": broken}, "sound"))


def test_the_jacobian_benchmark_runs_in_miniature(here):
    found = jacobian.measure(Namespace(tokens=[16, 11], rows=3, rounds=2, deviations=[1.0]))
    assert found["jacobian_trace_error_std1_T16"] < 1e-5
    assert found["speedup_over_autograd_T11"] > 0
    assert found["closed_extra_mib_T16"] >= 0


def test_both_ways_to_the_norms_are_given_the_same_rows():
    closed, autograd = (jacobian.contender(way, 3, [7])(7) for way in ("closed", "autograd"))
    for name, norm in autograd.items():
        torch.testing.assert_close(getattr(closed, name), norm)


def test_the_ratio_to_autograd_is_of_turns_of_the_same_round():
    flat = jacobian.rows({"closed": tally(1.0, 9.0, 2.0), "autograd": tally(5.0, 9.0, 8.0)}, 64)
    assert flat["speedup_over_autograd_T64"] == flat["cpu_speedup_over_autograd_T64"] == 4.0
    assert (flat["closed_ms_T64"], flat["autograd_ms_T64"]) == (2000.0, 8000.0)


def test_a_turn_waits_for_its_device_and_counts_memory_from_the_warm_model():
    done = []
    peaks = iter([(7 + 3) * turns.MIB])
    gauge = turns.Gauge(
        now=lambda: 7 * turns.MIB,
        peak=lambda: done.append("peak") or next(peaks),
        forget=lambda: done.append("forget"),
        wait=lambda: done.append("wait"),
    )
    stand = turns.Stand(done.append, "warm", gauge)
    assert stand.turn("work").extra_mib == 3.0
    assert done == ["warm", "wait", "forget", "work", "wait", "peak"]


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


def test_a_length_of_the_long_benchmark_becomes_flat_keys_with_ratios_of_the_same_round():
    ours = Tally((Turn(6.0, 5.0, 30.0), Turn(9.0, 8.0, 40.0)))
    sdpa = Tally((Turn(2.0, 1.0, 10.0), Turn(3.0, 2.0, 20.0)))
    found = long.rows("gpt2", 4096, {"sdpa": sdpa, "capture": ours})
    assert found["gpt2_s_T4096"] == 7.5
    assert found["gpt2_ratio_to_sdpa_T4096"] == 3.0
    assert found["gpt2_cpu_ratio_to_sdpa_T4096"] == 4.5
    assert found["gpt2_extra_mib_T4096"] == 40.0
    assert found["gpt2_rounds_T4096"] == 2


def test_every_way_to_permute_a_heads_weights_ends_in_the_same_outputs(tiny_model):
    run = clean_run(next_token(tiny_model("gpt2"), where="last"), "the cat sat on the mat")
    scope = Scope(1, 2)
    new = perturbation._permutations(run, scope, 7)
    full, batch, ours = (way(run, scope, new) for way in perturbation.WAYS.values())
    moved = (full - run.outcome).abs().max()
    assert full.shape == (7, run.outcome.shape[-1])
    assert (batch - full).abs().max() < 1e-3 * moved
    assert (ours - full).abs().max() < 1e-3 * moved


def test_a_perturbations_ratio_is_of_sums_over_heads_and_its_memory_the_largest():
    found = {
        "full_passes": Tally((Turn(60.0, 50.0, 3.0), Turn(40.0, 30.0, 9.0))),
        "ours": Tally((Turn(18.0, 15.0, 80.0), Turn(2.0, 1.0, 70.0))),
    }
    flat = perturbation.rows(found, 32)
    assert flat["speedup_over_full_passes_T32"] == 5.0
    assert flat["cpu_speedup_over_full_passes_T32"] == 5.0
    assert (flat["full_passes_s_T32"], flat["ours_cpu_s_T32"]) == (100.0, 16.0)
    assert (flat["full_passes_extra_mib_T32"], flat["ours_extra_mib_T32"]) == (9.0, 80.0)


def test_the_perturbation_benchmark_asks_each_way_for_every_head_in_turn(here, monkeypatch, capsys):
    monkeypatch.setattr(perturbation, "contender", builds.number_of_variants)
    args = Namespace(tokens=5, permutations=3, every_head=False, against=["one_batch"])
    found = perturbation.measure(args)
    assert (found["heads"], found["permutations"]) == (6, 3)
    assert found["largest_difference_T5"] == 0.5
    assert found["speedup_over_one_batch_T5"] > 0
    assert "one_batch_extra_mib_T5" in found
    assert not any("full_passes" in key for key in found)
    assert capsys.readouterr().err.startswith("1 of 6 heads: one_batch ")


def test_every_way_to_switch_heads_off_gives_the_same_distributions(tiny_model, monkeypatch):
    loaded = tiny_model("gpt2")
    monkeypatch.setattr(pruning, "LAYERS", loaded.n_layers)
    monkeypatch.setattr(pruning, "HEADS", loaded.n_heads)
    read = next_token(loaded, where="last")
    examples = read.prepare(["the cat sat on the mat"])
    with torch.no_grad():
        full, batch, ours = (way(read, examples, (0, 2)) for way in pruning.SWEEPS.values())
        moved = (full - pruning.plain(read, examples, ())).abs().amax(-1)
    assert full.shape == (2 * loaded.n_heads, loaded.config.vocab_size)
    assert moved.min() > 1e-4
    assert (batch - full).abs().max() < 1e-2 * moved.min()
    assert (ours - full).abs().max() < 1e-2 * moved.min()


def test_the_pruning_benchmark_has_flat_keys_for_every_length(here, monkeypatch):
    monkeypatch.setattr(pruning, "contender", builds.length)
    found = pruning.measure(Namespace(tokens=[5, 9], rounds=[3, 1], layers=[4, 7]))
    assert found["heads"] == 24
    assert (found["rounds_T5"], found["rounds_T9"]) == (3, 1)
    assert found["largest_difference_T9"] == 0.0
    for key in ("speedup_over_masked", "cpu_speedup_over_batch", "importance_in_forwards"):
        assert found[f"{key}_T5"] > 0
    assert all(isinstance(value, float | int) for value in found.values())


def test_a_pruning_ratio_is_the_median_over_rounds():
    found = {"masked": tally(6.0, 80.0, 12.0), "resumed": tally(1.0, 20.0, 4.0)}
    flat = pruning.rows(found, 16)
    assert flat["speedup_over_masked_T16"] == flat["cpu_speedup_over_masked_T16"] == 4.0
    assert (flat["masked_s_T16"], flat["resumed_cpu_s_T16"]) == (12.0, 8.0)
    forwards = pruning.forwards(
        {"plain": tally(1.0, 9.0, 2.0), "gradient": tally(3.0, 9.0, 4.0)}, 16
    )
    assert forwards["importance_in_forwards_T16"] == 2.0


@pytest.mark.parametrize("causal", [True, False])
def test_all_that_attend_to_one_layer_have_the_same_contexts(causal):
    found = [
        capture_kernel.contender(way, [13], "cpu")((13, causal)) for way in capture_kernel.WAYS
    ]
    expected, *others = (given if isinstance(given, torch.Tensor) else given[0] for given in found)
    for context in others:
        torch.testing.assert_close(context, expected)


def test_the_kernel_benchmark_runs_in_miniature_with_tiles_of_another_size(here, monkeypatch):
    monkeypatch.setattr(tiles, "_ELEMENTS_PER_THREAD", tiles._ELEMENTS_PER_THREAD)
    args = Namespace(tokens=[13], repetitions=2, device="cpu", elements=[512])
    found = capture_kernel.measure(args)
    assert tiles._ELEMENTS_PER_THREAD == 512
    assert found["sdpa_ms_causal_T13"] > 0
    for name in ("rows", "rows_spectral", "textbook", "rows_spectral_elements512"):
        assert found[f"ratio_{name}_bidirectional_T13"] > 0


def test_on_a_gpu_the_keys_are_those_of_capture_and_of_pruning(here, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    monkeypatch.setattr(gpu, "DEVICE", "cpu")
    monkeypatch.setattr(pruning, "contender", builds.length)
    for name in gpu.CONTENDERS:
        monkeypatch.setitem(capture.BUILDS, name, builds.length)
    found = gpu.measure(Namespace(tokens=[7], rounds=2))
    assert found["device"] == "a card"
    assert (found["rounds_T7"], found["pruning_rounds_T256"]) == (2, 2)
    wanted = {"ratio_to_sdpa_T7", "speedup_over_eager_T7", "extra_mib_T7", "eager_extra_mib_T7"}
    assert wanted | {"pruning_speedup_over_masked_T16", "pruning_batch_s_T64"} <= set(found)


def test_a_lengthened_model_reads_a_short_text_as_before_and_begins_its_positions_again():
    short, long = (Geometry(geometries.BERT, longest).model("sdpa") for longest in (0, 531))
    with torch.no_grad():
        expected = geometries.forward(short)(29)[0]
        assert torch.equal(geometries.forward(long)(29)[0], expected)
        assert geometries.forward(long)(531)[0].shape == (1, 531, short.config.hidden_size)
    table = long.embeddings.position_embeddings.weight
    assert torch.equal(table[512:], short.embeddings.position_embeddings.weight[:19])


def test_a_trace_of_a_lengthened_model_goes_beyond_its_positions():
    table = capture.whole_trace(Geometry(geometries.GPT2, 520))(520)
    assert table["entropy"].max() > 0


def test_a_length_beyond_a_models_positions_is_measured_and_said(here, monkeypatch):
    monkeypatch.setattr(capture, "BUILDS", dict.fromkeys(("sdpa", "capture"), builds.length))
    args = Namespace(
        models=[geometries.SMALL, geometries.GPT2],
        tokens=[600, 512],
        rounds=1,
        contenders=["capture"],
    )
    found = capture.measure(args)
    assert found["gpt2_ratio_to_sdpa_T512"] > 0
    assert found["gpt2_ratio_to_sdpa_T600"] > 0
    said = [key for key in found if "positions_repeated" in key]
    assert said == ["gpt2_positions_repeated_T600"]
