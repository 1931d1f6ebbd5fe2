"""One head of the twin, and facts about attention that a broken head must fail."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import attnprobe as ap
from attnprobe.figures import beyond_note, stage_frame, stage_map
from attnprobe.scratch.certificate import certify
from attnprobe.scratch.faults import FAULTS
from attnprobe.scratch.head import (
    difference,
    difference_frame,
    head_steps,
    properties,
    slack,
    step_frame,
)

TEXT = "the cat sat on the mat because it was tired"


@pytest.fixture(params=["bert", "gpt2"])
def setting(request, tiny_model):
    loaded = tiny_model(request.param, "float64")
    return loaded, ap.trace(loaded, TEXT)


def test_the_steps_of_a_head_are_the_captured_ones(setting):
    loaded, trace = setting
    steps = head_steps(loaded, trace.tokens, 1, 2)
    torch.testing.assert_close(steps.query, trace.queries[1, 2])
    torch.testing.assert_close(steps.raw_logits, trace.raw_logits(1, 2))
    torch.testing.assert_close(steps.scaled_logits, trace.scaled_logits(1, 2))
    torch.testing.assert_close(steps.weights, trace.weights(1, 2))
    torch.testing.assert_close(steps.context, trace.contexts[1, 2])
    assert difference(trace, steps, 1, 2).abs().max() < 1e-12


def test_the_heads_outputs_add_up_to_the_projection_without_its_bias(setting):
    loaded, trace = setting
    parts = sum(head_steps(loaded, trace.tokens, 1, h).output for h in range(loaded.n_heads))
    projection = loaded.family.output_projection(loaded.model, 1)
    with torch.no_grad():
        whole = projection(trace.contexts[1].transpose(0, 1).flatten(1)) - projection.bias
    torch.testing.assert_close(parts, whole)


def test_the_frames_of_a_head_are_its_tensors(setting):
    loaded, trace = setting
    steps = head_steps(loaded, trace.tokens, 1, 2, ["double_softmax"])
    frame = difference_frame(trace, steps, 1, 2).set_index(["query", "key"])
    assert frame.loc[(5, 3), "twin"] == steps.weights[5, 3].item()
    assert frame.loc[(5, 3), "difference"] == pytest.approx(
        (steps.weights[5, 3] - trace.weights(1, 2)[5, 3]).item()
    )
    assert frame.loc[(5, 3), "query_token"] == trace.tokens.display[5]
    values = step_frame(steps, "value").set_index(["position", "component"]).entry
    assert values[4, 1] == steps.value[4, 1].item()
    masked = step_frame(steps, "masked_logits")
    assert masked.entry.isna().sum() == int((~trace.valid()).sum())


def test_without_the_scale_the_weights_are_softmax_of_raw_logits(setting):
    loaded, trace = setting
    steps = head_steps(loaded, trace.tokens, 1, 2, ["no_scale"])
    raw = trace.raw_logits(1, 2).masked_fill(~trace.valid(), -torch.inf)
    torch.testing.assert_close(steps.weights, raw.softmax(-1))


def test_the_properties_hold_on_every_head(setting):
    loaded, trace = setting
    for layer in range(loaded.n_layers):
        for head in range(loaded.n_heads):
            assert properties(trace, layer, head).holds.all()


def test_the_properties_notice_a_context_that_is_no_average(setting):
    _, trace = setting
    wrong = replace(trace, contexts=trace.contexts * 1.5)
    holds = properties(wrong, 1, 2).set_index("property").holds
    assert not holds["Nadaraya–Watson"]
    values = trace.values[1, 2]
    beyond = replace(trace, contexts=torch.full_like(trace.contexts, values.max().item() + 1))
    assert not properties(beyond, 1, 2).set_index("property").holds["convex combination"]


def test_the_permutation_notices_a_head_that_knows_its_places(setting):
    """A context that has its query's place added is not the permuted one any more."""
    _, trace = setting
    places = torch.arange(len(trace.tokens), dtype=torch.float64)[:, None] * 1e-6
    wrong = replace(trace, contexts=trace.contexts + places)
    assert properties(trace, 1, 2).set_index("property").holds["permutation"]
    assert not properties(wrong, 1, 2).set_index("property").holds["permutation"]


def test_slack_is_one_for_a_row_that_copies_a_value_and_below_for_others(setting):
    _, trace = setting
    frame = slack(trace, 1, 2)
    assert frame.used.between(0, 1 + 1e-9).all()
    extreme = trace.values.amin(2, keepdim=True).expand_as(trace.contexts)
    if not trace.causal:
        copied = slack(replace(trace, contexts=extreme.contiguous()), 1, 2)
        assert copied.used.to_numpy() == pytest.approx(1)


def test_the_stage_map_draws_every_stage_and_crosses_the_red_ones(setting):
    loaded, _ = setting
    certificate = certify(loaded, TEXT, faults=["double_softmax"])
    frame = stage_frame(certificate)
    assert ((frame.log_ratio <= 0) == frame.ok).all()
    spec = stage_map(frame).to_dict()
    tables = [
        layer["data"].get("values") or spec["datasets"][layer["data"]["name"]]
        for layer in spec["layer"]
    ]
    cells, crosses = tables
    assert len(cells) == len(certificate)
    assert len(crosses) == int((~certificate.ok).sum()) > 0


def rows_of(spec, layer):
    data = spec["layer"][layer]["data"]
    return data.get("values") or spec["datasets"][data["name"]]


@pytest.mark.parametrize(
    ("bad", "word"), [(float("nan"), "not a number"), (float("inf"), "infinite")]
)
def test_a_stage_without_a_number_is_drawn_red_and_said_to_have_failed(
    tiny_model, monkeypatch, bad, word
):
    def broken(ops):
        return replace(ops, softmax=lambda logits: torch.full_like(ops.softmax(logits), bad))

    monkeypatch.setitem(FAULTS, "broken", replace(FAULTS["double_softmax"], inject=broken))
    certificate = certify(tiny_model("gpt2"), TEXT, faults=["broken"])
    at_weights = certificate["stage"] == "weights"
    assert not certificate[at_weights]["ok"].any()
    frame = stage_frame(certificate)
    assert ((frame.log_ratio <= 0) == frame.ok).all()
    chart = stage_map(frame)
    spec = chart.to_dict()
    cells, crosses = rows_of(spec, 0), rows_of(spec, 1)
    json.dumps(spec, allow_nan=False)
    assert len(cells) == len(certificate)
    drawn = [each for each in cells if each["stage"] == "weights"]
    assert len(drawn) == at_weights.sum() > 0
    assert {each["error"] for each in drawn} == {word}
    assert {each["exactly"] for each in drawn} == {"failed: no number to compare"}
    assert min(each["log_ratio"] for each in drawn) > 4
    assert len(crosses) == (~certificate["ok"]).sum()
    gone = int((~np.isfinite(certificate["max_abs_error"])).sum())
    assert f"In {gone} of the red stages the error is infinite" in spec["description"]
    assert beyond_note(certificate) in spec["description"]


def test_a_stage_with_no_tolerance_is_red_however_small_its_error():
    frame = pd.DataFrame(
        {"layer": [0, 1], "stage": "weights", "max_abs_error": 0.0, "ok": [False, True]}
    ).assign(tolerance=[float("inf"), 1e-7])
    assert (stage_frame(frame).log_ratio > 0).tolist() == [True, False]
    assert beyond_note(frame[frame.ok]) == ""
