"""Experiments over texts: stopped and gone on with, joined, and the same from the command line."""

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from attnprobe import readout
from attnprobe.analyses.perturbation import (
    adversary,
    distances,
    erasure,
    experiments,
    permutation,
    replacement,
)
from attnprobe.analyses.perturbation import runs as runs_module
from attnprobe.analyses.perturbation.edits import Scope
from attnprobe.analyses.perturbation.replacement import EDITS
from attnprobe.cli import main
from attnprobe.data import LabelledText
from attnprobe.errors import BadInput, Stopped, TextTooLong
from attnprobe.readout import ReadOut

TEXTS = ["the cat sat on the mat", "a dog ran and then it was tired", "zebra came"]
DRAWS = permutation.Draws(number=6)
QUICK = adversary.Settings(restarts=2, steps=4, rate=0.5, epsilon=0.2)


@pytest.fixture(scope="module")
def runs(tiny_model):
    return experiments.clean_runs(readout.classes(tiny_model("bert-classifier")), TEXTS)


def no_report(done, total, parts):
    """Nobody watches."""


def test_a_stopped_experiment_goes_on_from_what_is_kept(runs):
    units = experiments.permutation_units(runs, [Scope(0, 1), Scope(1, 2)], DRAWS)
    kept = []

    def stop_after_four(done, total, parts):
        kept.append(parts)
        if done == 4:
            raise Stopped("stopped")

    with pytest.raises(Stopped):
        experiments.in_turn(units, stop_after_four)
    assert [len(parts) for parts in kept] == [1, 2, 3, 4]
    late = experiments.in_turn(units, no_report, kept=kept[-1])
    whole = experiments.in_turn(units, no_report)
    assert late[:4] == kept[-1]
    for name, frame in experiments.joined(whole).items():
        pd.testing.assert_frame_equal(frame, experiments.joined(late)[name])


def test_permutation_frames_name_text_scope_and_rows(runs):
    units = experiments.permutation_units(runs, [Scope(0, 1), Scope(1)], DRAWS)
    frames = experiments.joined(experiments.in_turn(units, no_report))
    assert len(frames["draws"]) == 3 * 2 * 6
    assert len(frames["replaced"]) == 3 * 2 * len(EDITS)
    assert frames["draws"]["tokens"].unique().tolist() == [8, 10, 4]
    assert frames["draws"]["head"].isna().sum() == 18
    summary = permutation.per_text(frames["draws"])
    one = frames["draws"].query("text == 1 and head == 1")["tvd"]
    row = summary.query("text == 1 and head == 1").iloc[0]
    assert row["median"] == pytest.approx(np.median(one))
    assert row["q75"] == pytest.approx(np.quantile(one, 0.75))
    assert row["draws"] == 6


def test_a_text_that_comes_twice_is_permuted_in_two_ways(runs):
    frames = experiments.joined(
        experiments.in_turn(
            experiments.permutation_units([runs[0], runs[0]], [Scope(0, 1)], DRAWS), no_report
        )
    )
    first, second = (part["tvd"].tolist() for _, part in frames["draws"].groupby("text"))
    assert first != second


def test_ratios_of_every_head_come_from_the_same_frames(runs):
    scopes = [Scope(0, head) for head in range(3)]
    frames = experiments.joined(
        experiments.in_turn(experiments.permutation_units(runs, scopes, DRAWS), no_report)
    )
    ratios = permutation.ratios(permutation.per_text(frames["draws"]), frames["replaced"])
    zero = frames["replaced"].query("edit == 'zero' and head == 2")["tvd"].mean()
    medians = frames["draws"].query("head == 2").groupby("text")["tvd"].median().mean()
    row = ratios.set_index("head").loc[2]
    assert row["ratio"] == pytest.approx(medians / zero, rel=1e-5)
    assert row["null_scopes"] == 2


def test_violins_count_every_permutation_once(runs):
    units = experiments.permutation_units(runs, [Scope(0, 1)], DRAWS)
    frame = permutation.violins(experiments.joined(experiments.in_turn(units, no_report))["draws"])
    assert frame.groupby("peak_bin")["share"].sum().to_numpy() == pytest.approx(1)
    assert frame.groupby("peak_bin")["n"].first().sum() == 18


def stopping_after(steps, signal):
    """The search, ended from outside once so many steps are made."""
    whole = adversary.adversarial

    def stopped(run, scope, settings, tick):
        for found in whole(run, scope, settings, tick):
            if found.steps > steps:
                raise signal
            yield found

    return stopped


def test_a_stopped_adversary_keeps_what_a_search_of_so_few_steps_finds(runs, monkeypatch):
    units = experiments.adversary_units(runs[:1], Scope(1, 2), QUICK)
    few = experiments.adversary_units(runs[:1], Scope(1, 2), replace(QUICK, steps=2))
    reports = []
    monkeypatch.setattr(experiments, "EARLY", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(experiments, "adversarial", stopping_after(2, Stopped("stopped")))
        with pytest.raises(Stopped):
            experiments.in_turn(units, lambda *told: reports.append(told))
    done, total, parts = reports[-1]
    assert (done, total) == (0.5, 1)
    expected = experiments.joined(experiments.in_turn(few, no_report))
    found = experiments.joined(parts)
    assert found["adversaries"]["steps"].tolist() == [2]
    for name, frame in expected.items():
        pd.testing.assert_frame_equal(found[name], frame)
    later = experiments.joined(experiments.in_turn(units, no_report))["adversaries"]
    assert later["steps"].tolist() == [QUICK.steps]
    assert later["max_jsd"].item() >= found["adversaries"]["max_jsd"].item()


def stopped_within(units, done):
    """What a run that is ended within its only unit has reported."""
    reports = []

    def report(*told):
        reports.append(told)
        if told[0] >= done:
            raise Stopped("stopped")

    with pytest.raises(Stopped):
        experiments.in_turn(units, report)
    assert reports[-1][:2] == (done, 1)
    return experiments.joined(reports[-1][2])


def test_a_stopped_agreement_keeps_the_importances_that_are_known(runs):
    units = experiments.agreement_units(runs[:1], Scope(0, 1))
    found = stopped_within(units, 0.75)
    whole = experiments.joined(experiments.in_turn(units, no_report))
    known = whole["agreement"]
    known = known[known["importance"] != "leave one out, token deleted"].reset_index(drop=True)
    pd.testing.assert_frame_equal(found["agreement"], known)
    assert "leave one out, token hidden" in found["importances"]
    assert "leave one out, token deleted" not in found["importances"]
    pd.testing.assert_frame_equal(found["replaced"], whole["replaced"])


def test_a_stopped_erasure_keeps_the_finished_orders(runs, monkeypatch):
    monkeypatch.setattr(runs_module, "TOKENS", 3 * runs[0].length)
    units = experiments.erasure_units(runs[:1], Scope(0, 1), erasure.Erasing(random_orders=1))
    found = stopped_within(units, 0.5)
    assert found["erasure"]["order"].unique().tolist() == ["attention", "norm"]
    whole = experiments.joined(experiments.in_turn(units, no_report))
    pd.testing.assert_frame_equal(
        erasure.survival(found["erasure"]),
        erasure.survival(whole["erasure"]).query("order in ('attention', 'norm')"),
    )


def test_a_search_that_takes_no_time_reports_once(runs):
    reports = []
    units = experiments.adversary_units(runs[:2], Scope(1, 2), QUICK)
    experiments.in_turn(units, lambda *told: reports.append(told))
    assert [(done, len(parts)) for done, _, parts in reports] == [(1, 1), (2, 2)]


@pytest.mark.parametrize("scope", [Scope(1, 2), Scope(0), Scope()])
def test_adversary_frames_hold_weights_and_outputs_that_belong_together(runs, scope):
    units = experiments.adversary_units(runs[:1], scope, QUICK)
    frames = experiments.joined(experiments.in_turn(units, no_report))
    row = frames["adversaries"].iloc[0]
    outputs = frames["outputs"]
    difference = 0.5 * (outputs["real"] - outputs["adversarial"]).abs().sum()
    assert difference == pytest.approx(row["tvd"], abs=1e-5)
    assert outputs["real"].sum() == pytest.approx(1)
    by_row = frames["weights"].groupby("query")[["real", "adversarial"]].sum()
    assert by_row.to_numpy() == pytest.approx(1, abs=1e-5)
    assert row["max_jsd"] <= row["attainable_jsd"] <= distances.LN2 + 1e-6


def test_every_experiment_carries_the_plain_replacements(runs):
    for units in (
        experiments.adversary_units(runs[:1], Scope(0, 1), QUICK),
        experiments.agreement_units(runs[:1], Scope(0, 1)),
        experiments.erasure_units(runs[:1], Scope(0, 1), erasure.Erasing(random_orders=1)),
    ):
        frames = experiments.joined(experiments.in_turn(units, no_report))
        assert frames["replaced"]["edit"].tolist() == list(EDITS)


def test_importances_are_given_token_by_token(runs):
    units = experiments.agreement_units(runs[:1], Scope(0, 1))
    frame = experiments.joined(experiments.in_turn(units, no_report))["importances"]
    assert frame["token"].tolist() == ["[CLS]", *TEXTS[0].split(), "[SEP]"]
    assert frame["special"].tolist() == [True, *[False] * 6, True]
    assert frame["leave one out, token hidden"].isna().tolist() == frame["special"].tolist()


def test_texts_beyond_the_models_length_are_left_out(tiny_model):
    reader = readout.classes(tiny_model("bert-classifier"))
    long = "cat " * 70
    assert len(experiments.clean_runs(reader, [long, "the cat"])) == 1
    with pytest.raises(TextTooLong, match="all 1 texts"):
        experiments.clean_runs(reader, [long])


def test_costs_count_the_runs_that_are_made(runs, monkeypatch):
    """Counted where the runs are made."""
    made = []
    real = runs_module.outcomes

    def counted(run, scope, rule, variants, tick):
        made.append(variants + 1)
        return real(run, scope, rule, variants, tick)

    monkeypatch.setattr(runs_module, "outcomes", counted)
    lengths = [run.length for run in runs[:1]]
    erasing = erasure.Erasing(random_orders=2)
    experiments.in_turn(experiments.permutation_units(runs[:1], [Scope(1, 0)], DRAWS), no_report)
    cost = experiments.permutation_cost(lengths, 2, [Scope(1, 0)], DRAWS)
    assert abs(sum(made) - cost.runs) <= 3
    made.clear()
    list(erasure.erasure(runs[0], Scope(), erasing))
    at_most = experiments.erasure_cost(lengths, 2, Scope(), erasing).runs
    assert 0.5 * at_most <= sum(made) <= at_most


def test_the_cost_of_agreement_counts_every_text_that_is_read(runs, monkeypatch):
    """Those of leaving out and of replacing here; a gradient is taken for three runs beside."""
    read = []
    real = ReadOut.distribution

    def counted(reader, examples):
        read.append(len(examples.batch.ids))
        return real(reader, examples)

    monkeypatch.setattr(ReadOut, "distribution", counted)
    experiments.in_turn(experiments.agreement_units(runs[:1], Scope(0, 1)), no_report)
    cost = experiments.agreement_cost([runs[0].length], 2)
    specials = 2
    assert sum(read) == pytest.approx(cost.runs - 6 - 2 * specials, abs=2)


def test_a_cost_is_a_sentence():
    said = experiments.Cost(1234, 10**6).statement(5e-5)
    assert said == "About 1,234 runs of a text from the edited layer on, about 50 s."
    assert "17 min" in experiments.Cost(1, 2 * 10**7).statement(5e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: permutation.Draws(number=0),
        lambda: adversary.Settings(epsilon=0.0),
        lambda: adversary.Settings(restarts=0),
        lambda: erasure.Erasing(random_orders=0),
    ],
)
def test_settings_that_make_no_sense_are_refused(make):
    with pytest.raises(BadInput):
        make()


def perturb(*arguments, capsys):
    status = main(["perturb", "--device", "cpu", "--format", "json", *arguments])
    out = capsys.readouterr().out
    frames = {}
    for block in out.split("# ")[1:]:
        name, _, body = block.partition("\n")
        frames[name] = json.loads(body)
    return status, frames


def test_the_command_line_gives_the_same_frames(tiny_folder, tmp_path, runs, capsys):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS))
    status, frames = perturb(
        "--model", str(tiny_folder("bert-classifier")), "--data", str(texts),
        "--layer", "1", "--head", "2", "--permutations", "6", "--others", "2",
        capsys=capsys,
    )  # fmt: skip
    assert status == 0
    units = experiments.permutation_units(runs, [Scope(1, 2)], DRAWS)
    expected = experiments.joined(experiments.in_turn(units, no_report))["draws"]
    found = [row for row in frames["draws"] if (row["layer"], row["head"]) == (1, 2)]
    assert [row["tvd"] for row in found] == pytest.approx(expected["tvd"].tolist(), abs=1e-6)
    assert len(frames["ratios"]) == 3


def interrupted(tiny_folder, monkeypatch, early):
    stop = stopping_after(3, KeyboardInterrupt)
    monkeypatch.setattr(experiments, "EARLY", early)
    monkeypatch.setattr(experiments, "adversarial", stop)
    return (
        "--model", str(tiny_folder("bert-classifier")), "--text", TEXTS[0], "--layer", "1",
        "--experiment", "permutation", "--permutations", "2", "--others", "0",
        "--experiment", "adversary", "--steps", "10", "--experiment", "erasure",
    )  # fmt: skip


def test_an_interrupted_command_gives_what_it_found_and_says_so(tiny_folder, monkeypatch, capsys):
    status = main(["perturb", "--format", "json", *interrupted(tiny_folder, monkeypatch, 0.0)])
    out, error = capsys.readouterr()
    frames = {
        name: json.loads(body)
        for name, _, body in (block.partition("\n") for block in out.split("# ")[1:])
    }
    assert status == 2
    assert "adversary was stopped after 0.3 of 1 parts" in error
    assert frames["stopped"] == [{"experiment": "adversary", "done": 0.3, "total": 1}]
    assert frames["adversaries"][0]["steps"] == 3
    assert len(frames["draws"]) == 2
    assert "erasure" not in frames


def test_a_command_interrupted_at_once_is_one_sentence(tiny_folder, monkeypatch, capsys):
    arguments = [*interrupted(tiny_folder, monkeypatch, 1e9)]
    del arguments[6:12]
    assert main(["perturb", *arguments]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.endswith("attnprobe perturb: stopped before anything was found\n")


def test_every_experiment_runs_from_the_command_line_on_a_causal_model(tiny_folder, capsys):
    experiments_asked = [
        word for name in ("adversary", "agreement", "erasure") for word in ("--experiment", name)
    ]
    status, frames = perturb(
        "--model", str(tiny_folder("gpt2")), "--text", "a cat ran", "--layer", "0",
        "--rows", "read-out", "--steps", "2", "--restarts", "2", "--random-orders", "2",
        "--checkpoint", str(tiny_folder("gpt2")), *experiments_asked,
        capsys=capsys,
    )  # fmt: skip
    assert status == 0
    assert {"adversaries", "agreement", "flips", "checkpoints"} <= set(frames)
    assert all(row["jsd"] == 0 for row in frames["checkpoints"])
    assert "not a score" in frames["adversaries"][0]["note"]


def test_a_text_that_is_alone_takes_its_baselines_from_bundled_texts_as_long(tiny_model):
    loaded = tiny_model("gpt2")
    one = experiments.clean_runs(readout.next_token(loaded, where="last"), ["the cat sat"])[0]
    strangers = one.strangers
    assert 0 < len(strangers) <= 8
    assert all(one.length <= other.length <= loaded.max_tokens for other in strangers)
    found = experiments.baselines([one], 0, Scope(1, 2), 0, experiments.no_tick)
    expected = replacement.replacements(one, Scope(1, 2), strangers)
    assert found["tvd"].notna().all()
    assert found["tvd"].tolist() == pytest.approx(expected["tvd"].tolist(), rel=1e-9)


def test_a_head_that_is_not_there_is_one_sentence(tiny_folder, capsys):
    arguments = ["perturb", "--model", str(tiny_folder("gpt2")), "--text", "a cat", "--layer", "7"]
    assert main(arguments) == 2
    assert "layer 7 came" in capsys.readouterr().err


def test_a_readout_without_a_row_is_refused_before_anything_is_announced(tiny_folder, capsys):
    arguments = ["--model", str(tiny_folder("bert")), "--text", "a cat", "--rows", "read-out"]
    assert main(["perturb", *arguments]) == 2
    printed = capsys.readouterr().err
    assert "no row of its own" in printed
    assert printed.count("\n") == 1


def test_undefined_numbers_are_missing_in_the_frames(tiny_model):
    one = experiments.clean_runs(readout.next_token(tiny_model("gpt2"), where="last"), ["a"])
    units = experiments.permutation_units(one, [Scope(0, 0)], DRAWS)
    frames = experiments.joined(experiments.in_turn(units, no_report))
    summary = permutation.per_text(frames["draws"])
    assert math.isnan(summary["median"].item())
    assert summary["peak_bin"].item() == "undefined"
    assert permutation.violins(frames["draws"]).empty


def test_an_outcome_is_named_by_its_class_or_as_its_token(tiny_model):
    sentences = {"pets": "the cat and a dog", "fruit": "a mango and an apple"}
    named = readout.label_sentences(tiny_model("bert"), sentences)
    spelt = readout.next_token(tiny_model("gpt2"), where="last")
    texts = [LabelledText("the cat sat")]
    (classes,), (tokens,) = (experiments.clean_runs(read, texts) for read in (named, spelt))
    assert experiments.outcome_name(classes, 1) == "fruit"
    (letter,) = tiny_model("gpt2").read("z").ids
    assert experiments.outcome_name(tokens, letter) == "z"
