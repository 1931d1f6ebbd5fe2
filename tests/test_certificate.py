"""The certificate is green for models that are right, and red at the right stage for mistakes."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import tiny
import torch
from transformers import (
    BertForPreTraining,
    BertLMHeadModel,
    GPT2ForSequenceClassification,
    GPT2ForTokenClassification,
    GPT2LMHeadModel,
    GPT2Model,
)

import attnprobe as ap
from attnprobe import capture, trace
from attnprobe.errors import BadInput, CertificateFailed, Stopped
from attnprobe.scratch.certificate import ATTENTION_STAGES, STAGES, certify, require, summary
from attnprobe.scratch.faults import FAULTS
from attnprobe.scratch.twin import TWINS

TEXT = "the cat sat on a mat because it was tired."
IN_LAYER = STAGES[1:10]
DTYPES = ("float32", "float64", "bfloat16")


@pytest.fixture(scope="module")
def special_model(tmp_path_factory):
    """A tiny model of a kind that the shared fixtures do not have, by kind and dtype."""
    made = {}

    def gpt2(model_class, **changes):
        sizes = {"n_embd": 20, "n_head": 4} | changes
        return model_class(tiny.gpt2_config(**sizes)), tiny.byte_level()

    def bert(model_class, **changes):
        return model_class(tiny.bert_config(**changes)), tiny.wordpiece()

    kinds = {
        "bert-causal": lambda: bert(BertLMHeadModel, is_decoder=True),
        "bert-pretraining": lambda: bert(BertForPreTraining, hidden_act="relu"),
        "gpt2-5": lambda: gpt2(GPT2LMHeadModel),
        "gpt2-bare": lambda: gpt2(GPT2Model, activation_function="gelu"),
        "gpt2-classifier": lambda: gpt2(GPT2ForSequenceClassification, num_labels=4),
        "gpt2-tagger": lambda: gpt2(GPT2ForTokenClassification, num_labels=6),
    }

    def model(kind, dtype="float32"):
        if kind not in made:
            torch.manual_seed(5)
            made[kind] = tiny.save_model(tmp_path_factory.mktemp(kind) / kind, *kinds[kind]())
        if (kind, dtype) not in made:
            made[kind, dtype] = ap.load(str(made[kind]), device="cpu", dtype=dtype)
        return made[kind, dtype]

    return model


def red(frame):
    """Stages that are red, in the order of computation."""
    return [(row.layer, row.stage) for row in frame[~frame["ok"]].itertuples()]


def of(frame, stage):
    return frame[frame["stage"] == stage]


# Green


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["bert", "bert-mlm", "bert-classifier", "bert-tagger", "gpt2"])
def test_a_model_that_is_right_is_green_at_every_stage(kind, dtype, tiny_model):
    loaded = tiny_model(kind, dtype)
    frame = certify(loaded, TEXT, end_to_end=True)
    assert list(frame.columns) == ["layer", "stage", "max_abs_error", "tolerance", "ok"]
    assert red(frame) == []
    assert list(frame["stage"]) == ["embeddings", *IN_LAYER * loaded.n_layers, *STAGES[-2:]]
    layers = frame["layer"].dropna().tolist()
    assert layers == [layer for layer in range(loaded.n_layers) for _ in IN_LAYER]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "kind",
    ["bert-causal", "bert-pretraining", "gpt2-5", "gpt2-bare", "gpt2-classifier", "gpt2-tagger"],
)
def test_every_kind_of_head_that_loads_is_certified(kind, dtype, special_model):
    assert red(certify(special_model(kind, dtype), TEXT, end_to_end=True)) == []


@pytest.mark.parametrize("flags", itertools.product([True, False], repeat=3))
def test_all_eight_combinations_of_gpt2s_flags_are_green(flags, tmp_path):
    names = ("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn")
    torch.manual_seed(7)
    config = tiny.gpt2_config(n_embd=20, n_head=4, **dict(zip(names, flags, strict=True)))
    tiny.save_model(tmp_path / "model", GPT2LMHeadModel(config), tiny.byte_level())
    for dtype in ("float32", "bfloat16") if flags[2] else ("float32",):
        loaded = ap.load(str(tmp_path / "model"), device="cpu", dtype=dtype)
        assert red(certify(loaded, TEXT)) == []


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bundled_bert_is_green_on_real_text_with_room_to_spare(dtype):
    loaded = ap.load("bundled:bert", device="cpu", dtype=dtype)
    frame = certify(loaded, "The cat sat on the mat because it was tired.", end_to_end=True)
    short = require(frame)
    assert short.stages == 9 * loaded.n_layers + 3
    # Measured over seven texts: at most 0.52 in float32, 0.43 in float64, 0.20 in bfloat16.
    assert short.worst < 0.8


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_one_token_of_content_and_a_full_text_are_green(kind, tiny_model):
    loaded = tiny_model(kind)
    assert red(certify(loaded, "m")) == []
    assert red(certify(loaded, "cat " * 15)) == []


def test_no_error_at_all_has_no_minus_sign(tiny_model):
    """A bare encoder's final output is its last layer's, entry for entry."""
    error = certify(tiny_model("bert"), TEXT)["max_abs_error"].to_numpy()
    assert (error == 0).any()
    assert not np.signbit(error).any()


def test_tokens_are_taken_as_they_are(tiny_model):
    loaded = tiny_model("gpt2")
    tokens = loaded.read("cat", begin=True)
    assert len(tokens) == 4
    pd.testing.assert_frame_equal(certify(loaded, tokens), certify(loaded, tokens))
    assert certify(loaded, tokens)["max_abs_error"].tolist() != (
        certify(loaded, "cat")["max_abs_error"].tolist()
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["roberta", "distilbert", "electra"])
def test_a_family_without_a_twin_has_its_attention_certified(kind, dtype, tiny_model):
    loaded = tiny_model(kind, dtype)
    frame = certify(loaded, TEXT)
    assert list(frame["stage"]) == [*ATTENTION_STAGES] * loaded.n_layers
    assert require(frame).attention_only


# Tolerances


def test_the_tolerance_follows_the_precision(tiny_model):
    """float64 errs 2⁻²⁹ of what float32 errs, but on both sides; bfloat16 errs 2¹⁶ as much."""
    single, double, half = (
        certify(tiny_model("bert-mlm", dtype), TEXT)["tolerance"] for dtype in DTYPES
    )
    assert (double / single * 2**28).between(0.25, 4).all()
    assert (half / single / 2**16).between(0.05, 20).all()


def test_the_tolerance_is_a_small_multiple_of_rounding(tiny_model):
    """Of the largest entry of each stage, of order 1 to 30 here, a few dozen roundings at most."""
    loaded = tiny_model("bert")
    frame = certify(loaded, TEXT)
    shown = trace(loaded, TEXT)
    for layer in range(loaded.n_layers):
        largest = max(float(shown.raw_logits(layer, head).abs().max()) for head in range(3))
        [tolerance] = of(frame, "raw logits").query("layer == @layer")["tolerance"]
        assert tolerance < 50 * torch.finfo(torch.float32).eps * largest


def test_a_fault_leaves_the_tolerance_that_of_the_right_arithmetic(tiny_model):
    loaded = tiny_model("gpt2")
    plain, faulty = certify(loaded, TEXT), certify(loaded, TEXT, faults=["no_scale"])
    pd.testing.assert_series_equal(plain["tolerance"], faulty["tolerance"])


# Red by faults in the twin


CASES = [
    (name, kind)
    for name, fault in FAULTS.items()
    for kind in ("bert-causal", "gpt2-5")
    if kind.split("-")[0] in fault.first_stage
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_fault_turns_its_own_stage_red_and_nothing_before_it(name, kind, dtype, special_model):
    loaded = special_model(kind, dtype)
    frame = certify(loaded, TEXT, faults=[name])
    first = FAULTS[name].first_stage[loaded.family.model_type]
    assert not of(frame, first)["ok"].any()
    before = STAGES[: STAGES.index(first)]
    assert frame[frame["stage"].isin(before)]["ok"].all()
    assert summary(frame).stage == first
    assert not of(frame, "layer output")["ok"].any()


# A wrong epsilon is below bfloat16's rounding, as it should be: the model could not tell either.
@pytest.mark.parametrize(
    "name", ["no_scale", "no_mask", "head_layout", "softmax_over_queries", "double_softmax"]
)
@pytest.mark.parametrize("kind", ["bert-causal", "gpt2-5"])
def test_faults_show_in_bfloat16_too(name, kind, special_model):
    frame = certify(special_model(kind, "bfloat16"), TEXT, faults=[name])
    first = FAULTS[name].first_stage[kind.split("-")[0]]
    assert not of(frame, first)["ok"].any()
    assert frame[frame["stage"].isin(STAGES[: STAGES.index(first)])]["ok"].all()


@pytest.mark.parametrize("name", ["head_layout", "no_bias"])
def test_a_fault_before_the_heads_shows_in_keys_and_values_as_well(name, tiny_model):
    frame = certify(tiny_model("gpt2"), TEXT, faults=[name])
    assert not frame[frame["stage"].isin(["query", "key", "value"])]["ok"].any()


def test_a_wrong_epsilon_leaves_berts_attention_green_and_its_layers_red(tiny_model):
    frame = certify(tiny_model("bert"), TEXT, faults=["layer_norm_epsilon"])
    assert set(frame[~frame["ok"]]["stage"]) == {"embeddings", "layer output"}


def test_a_missing_mask_makes_no_difference_where_there_is_none(tiny_model):
    loaded = tiny_model("bert")
    pd.testing.assert_frame_equal(certify(loaded, TEXT, faults=["no_mask"]), certify(loaded, TEXT))


@pytest.mark.parametrize(("kind", "idle"), [("bert", {"no_mask"}), ("gpt2", set())])
def test_a_fault_that_has_nothing_to_get_wrong_says_so(kind, idle, tiny_model):
    loaded = tiny_model(kind)
    settings = TWINS[kind].settings(loaded.config)
    assert {name for name, fault in FAULTS.items() if fault.idle(settings)} == idle


def test_one_head_and_a_scale_of_one_leave_nothing_to_get_wrong(tiny_model):
    settings = TWINS["bert"].settings(tiny_model("bert").config)
    bare = replace(settings, n_heads=1, scales=(1.0, 1.0))
    assert "one head" in FAULTS["head_layout"].idle(bare)
    assert "no scale" in FAULTS["no_scale"].idle(bare)


def test_two_faults_are_both_seen(tiny_model):
    frame = certify(tiny_model("gpt2"), TEXT, faults=["no_scale", "no_bias"])
    assert not of(frame, "query")["ok"].any()
    assert not of(frame, "scaled logits")["ok"].any()


def test_a_fault_shows_end_to_end(tiny_model):
    frame = certify(tiny_model("gpt2"), TEXT, faults=["no_scale"], end_to_end=True)
    assert of(frame, "final output")["ok"].all()
    assert not of(frame, "end to end")["ok"].any()


def test_faults_of_attention_show_without_a_twin(tiny_model):
    frame = certify(tiny_model("roberta"), TEXT, faults=["softmax_over_queries"])
    assert set(frame[~frame["ok"]]["stage"]) == {"weights", "context"}


def test_an_unknown_fault_is_refused_with_the_list(tiny_model):
    with pytest.raises(BadInput, match=r"fault 'typo' is not known; choose from no_scale, no_mask"):
        certify(tiny_model("bert"), TEXT, faults=["typo"])


# Red by mistakes in the running model


def edited(loaded, change, **options):
    """The certificate of a model whose attention is edited at layer 1."""

    def watcher(call):
        return change(call) if call.layer == 1 else None

    with ap.watching(watcher):
        return certify(loaded, TEXT, **options)


def test_a_model_that_scales_by_a_thousandth_more_is_red_at_its_scaled_logits(tiny_model):
    frame = edited(tiny_model("gpt2"), lambda call: replace(call, scale=call.scale * 1.001))
    assert red(frame)[0] == (1, "scaled logits")
    assert frame[frame["layer"] != 1]["ok"].all()


def test_a_model_with_another_context_is_red_from_there_to_the_end_of_its_layer(tiny_model):
    frame = edited(tiny_model("bert"), lambda call: call.context() * 1.0001)
    assert red(frame) == [(1, stage) for stage in ("context", "layer output")] or (
        red(frame) == [(1, stage) for stage in ("context", "attention output", "layer output")]
    )


def test_a_model_that_swaps_two_heads_is_red_at_the_query(tiny_model):
    frame = edited(tiny_model("bert"), lambda call: replace(call, query=call.query.flip(1)))
    assert red(frame)[0] == (1, "query")


def test_a_model_that_computes_a_nan_is_red_and_says_so(tiny_model):
    frame = edited(tiny_model("gpt2"), lambda call: call.context() * math.nan)
    assert red(frame)[0] == (1, "context")
    with pytest.raises(CertificateFailed, match="differ by nan at layer 1, context"):
        require(frame)


def test_a_tolerance_without_bound_proves_nothing(special_model):
    """Weights that overflow in the twin's plain arithmetic must not make everything allowed."""
    loaded = special_model("gpt2-5")
    weight = loaded.model.transformer.h[2].mlp.c_proj.weight
    kept = weight.clone()
    try:
        weight.copy_(kept.sign() * 3e38)
        frame = certify(loaded, TEXT)
    finally:
        weight.copy_(kept)
    assert not np.isfinite(frame["tolerance"]).all()
    assert (2, "layer output") in red(frame)


def test_a_model_that_lets_one_query_see_the_future_is_red(tiny_model):
    frame = edited(tiny_model("gpt2"), lambda call: replace(call, causal=False))
    assert (1, "context") in red(frame)
    assert red(frame)[0] in {(1, "weights"), (1, "context")}


def test_a_changed_weight_of_the_model_is_noticed_by_a_twin_of_the_old_state(special_model):
    """The twin reads the state dict once; a module that does not compute with it is found out."""
    loaded = special_model("bert-causal", "float64")
    dense = loaded.family.output_projection(loaded.model, 0)
    hook = dense.register_forward_hook(lambda module, inputs, output: output * (1 + 1e-9))
    try:
        assert red(certify(loaded, TEXT))[0] == (0, "attention output")
    finally:
        hook.remove()
    assert red(certify(loaded, TEXT)) == []


# Stopping, leaving nothing behind


def test_a_tick_between_layers_ends_the_run(tiny_model):
    ticks = itertools.count()

    def tick():
        if next(ticks) > 5:
            raise Stopped("enough")

    with pytest.raises(Stopped):
        certify(tiny_model("gpt2"), TEXT, tick=tick)
    assert next(ticks) == 7


def test_certifying_leaves_the_model_bit_equal(tiny_model):
    loaded = tiny_model("gpt2")
    batch = loaded.batch(loaded.read(TEXT))
    before = loaded.forward(batch)
    certify(loaded, TEXT, faults=["no_scale"], end_to_end=True)
    assert torch.equal(loaded.forward(batch), before)
    assert capture._RUN.get() is None


# The summary


def frame_of(*rows):
    columns = ["layer", "stage", "max_abs_error", "tolerance"]
    frame = pd.DataFrame(rows, columns=columns).astype({"layer": "Int64"})
    return frame.assign(ok=frame["max_abs_error"] <= frame["tolerance"])


def test_the_summary_of_a_green_certificate_names_its_worst_stage():
    short = summary(
        frame_of(
            (None, "embeddings", 0.0, 0.0), (3, "weights", 3.1e-7, 2.4e-6), (4, "query", 1.0, 99.0)
        )
    )
    assert str(short) == (
        "green: 3 stages, worst error 3.1e-07 of 2.4e-06 allowed (layer 3, weights)"
    )
    assert (short.ok, short.layer, short.stage, short.failed) == (True, 3, "weights", 0)
    assert short.worst == pytest.approx(31 / 240)


def test_the_summary_of_a_red_certificate_names_the_first_red_stage_and_not_the_worst():
    short = summary(
        frame_of((None, "embeddings", 0.1, 1.0), (0, "key", 2.0, 1.0), (0, "context", 9.0, 1.0))
    )
    assert str(short) == "red: 2 of 3 stages, worst error 2 of 1 allowed (layer 0, key)"
    assert not short.ok


def test_requiring_a_red_certificate_is_one_sentence():
    with pytest.raises(CertificateFailed, match="differ by 2 at embeddings, where rounding expl"):
        require(frame_of((None, "embeddings", 2.0, 1.0)))


def test_an_error_that_is_no_number_is_not_taken_for_zero():
    short = summary(frame_of((None, "embeddings", 0.5, 1.0), (0, "query", np.nan, 1.0)))
    assert not short.ok
    assert short.stage == "query"
    assert math.isnan(short.worst)


def test_the_stages_are_documented_in_the_order_of_computation(tiny_model):
    frame = certify(tiny_model("gpt2"), TEXT, end_to_end=True)
    assert tuple(dict.fromkeys(frame["stage"])) == STAGES
