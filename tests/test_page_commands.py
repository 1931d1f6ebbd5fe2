"""`scaling`, `scratch` and `jacobian` write the frame behind every figure of their pages."""

import json

import pandas as pd
import pytest

import attnprobe as ap
from attnprobe.analyses import gradient, rescaling, saturation, scaling, sinks
from attnprobe.cli import main
from attnprobe.data import LabelledText, bundled
from attnprobe.readout import default, next_token
from attnprobe.scratch.head import difference_frame, head_steps

TEXT = "the cat sat on the mat"
HEAD = ["--layer", "1", "--head", "2"]


@pytest.fixture
def gpt2(tiny_folder):
    return str(tiny_folder("gpt2"))


@pytest.fixture
def bert(tiny_folder):
    return str(tiny_folder("bert"))


def frames_of(out, command, model, *arguments) -> dict[str, pd.DataFrame]:
    call = [command, "--model", model, "--text", TEXT, *arguments]
    assert main([*call, "--format", "csv", "--out", str(out)]) == 0
    return {path.stem: pd.read_csv(path, keep_default_na=True) for path in out.glob("*.csv")}


def same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(found, expected, check_dtype=False, rtol=1e-6, atol=1e-9)


def test_scaling_writes_a_factor_in_detail_and_a_pair(gpt2, tmp_path):
    detail = ["--factor", "4", "--pair", "5", "3", "--in-model"]
    frames = frames_of(tmp_path / "out", "scaling", gpt2, *HEAD, *detail)
    loaded = ap.load(gpt2)
    trace = ap.trace(loaded, TEXT)
    factors = rescaling.factors_for(loaded, 4.0, 1, 2)
    read = next_token(loaded)
    same(frames["histogram"], scaling.histogram(trace, 1, 2))
    same(frames["what_if_rows"], scaling.what_if_rows(trace, 1, 2, 4.0))
    same(frames["summands"], scaling.summands(loaded, trace, 1, 2, 5, 3))
    same(frames["in_model_heads"], rescaling.heads_after(loaded, trace.tokens, factors))
    answers = rescaling.top(read, read.prepare([TEXT]), factors)
    same(frames["in_model_answers"][["before", "after"]], answers[["before", "after"]])


def test_scaling_of_a_layer_alone_has_the_histogram_of_the_layer(bert, tmp_path):
    frames = frames_of(tmp_path / "out", "scaling", bert, "--layer", "1")
    same(frames["histogram"], scaling.histogram(ap.trace(ap.load(bert), TEXT), 1))
    assert "what_if" not in frames


def test_scratch_writes_the_steps_of_a_head_and_what_a_fault_does_to_it(gpt2, tmp_path):
    asked = ["--fault", "no_mask", "--step", "query", "--step", "masked_logits", "--order"]
    frames = frames_of(tmp_path / "out", "scratch", gpt2, *HEAD, *asked)
    loaded = ap.load(gpt2)
    trace = ap.trace(loaded, TEXT)
    steps = head_steps(loaded, trace.tokens, 1, 2, ["no_mask"])
    found = frames["difference"].drop(columns=["query_token", "key_token"])
    expected = difference_frame(trace, steps, 1, 2).drop(columns=["query_token", "key_token"])
    pd.testing.assert_frame_equal(found, expected, check_dtype=False, rtol=1e-4, atol=1e-7)
    assert frames["difference"].difference.abs().max() > 0.01
    assert len(frames["query"]) == len(trace.tokens) * trace.d_head
    assert frames["masked_logits"].entry.notna().all()
    assert set(frames["order"].positions) == {"as trained", "zeroed"}
    assert frames["properties"].holds.all()


def test_jacobian_writes_both_ways_without_special_tokens_and_one_row(bert, tmp_path):
    asked = ["--query", "3", "--threshold", "0.5"]
    frames = frames_of(tmp_path / "out", "jacobian", bert, *HEAD, *asked)
    trace = ap.trace(ap.load(bert), TEXT)
    same(frames["heads"], ap.head_table(trace, saturated_from=0.5))
    same(frames["jacobian"][["entry"]], saturation.jacobian_frame(trace, 1, 2, 3)[["entry"]])
    for way, part in frames["without_special"].groupby("renormalised"):
        expected = sinks.without_special(trace, renormalised=bool(way))
        same(part.drop(columns="renormalised").reset_index(drop=True), expected)


def test_jacobian_takes_the_loss_of_a_named_answer(bert, tmp_path):
    label = list(bundled("topics").sentences)[-1]
    frames = frames_of(tmp_path / "out", "jacobian", bert, "--answer", label)
    loaded = ap.load(bert)
    read = default(loaded, bundled("topics"))
    examples = read.prepare([LabelledText(TEXT, label)])
    expected = gradient.heads(gradient.rows(gradient.gradients(read, examples, "target")))
    pd.testing.assert_series_equal(
        frames["gradient_heads"].ratio, expected.ratio, rtol=1e-4, check_dtype=False
    )


def test_json_has_no_number_that_json_does_not_know(gpt2, tmp_path):
    """A text of one token has undefined statistics, which are null."""
    out = tmp_path / "out"
    call = ["jacobian", "--model", gpt2, "--text", "a", "--readout", "last-token"]
    assert main([*call, "--format", "json", "--out", str(out)]) == 0
    heads = json.loads((out / "heads.json").read_text())
    assert {row["entropy"] for row in heads} == {None}
    assert json.loads((out / "rows.json").read_text()) == []


def test_a_text_too_short_for_a_gradient_still_gets_everything_else(gpt2, tmp_path, capsys):
    out = tmp_path / "out"
    call = ["jacobian", "--model", gpt2, "--text", "a", "--format", "csv", "--out", str(out)]
    assert main(call) == 0
    assert {path.stem for path in out.glob("*.csv")} == {"heads", "rows", "sinks"}
    assert capsys.readouterr().err.startswith("attnprobe jacobian: no gradient: ")
    assert main([*call, "--loss", "target"]) == 2


@pytest.mark.parametrize(
    ("command", "arguments", "part"),
    [
        ("scaling", ["--pair", "1", "2"], "--pair came without a head"),
        ("scaling", [*HEAD, "--pair", "1", "99"], "the text has tokens 0 to"),
        ("scaling", [*HEAD, "--factor", "0"], "must be above 0"),
        ("scaling", ["--factor", "-1", "--in-model"], "must be above 0"),
        ("scaling", ["--factor", "2"], "--factor came alone"),
        ("scratch", ["--step", "query"], "--step came without a head"),
        ("jacobian", ["--query", "1"], "--query came without a head"),
        ("jacobian", [*HEAD, "--query", "99"], "the text has tokens 0 to"),
        ("jacobian", ["--threshold", "1.5"], "at most 1"),
        ("jacobian", ["--answer", "sport"], "has no classes"),
        ("jacobian", ["--readout", "last-token", "--loss", "target"], "has none"),
        ("jacobian", ["--readout", "class"], "needs a sequence classification model"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(gpt2, command, arguments, part, capsys):
    assert main([command, "--model", gpt2, "--text", TEXT, *arguments]) == 2
    printed = capsys.readouterr()
    assert part in printed.err
    assert printed.out == ""
    assert len(printed.err.strip().splitlines()) == 1
