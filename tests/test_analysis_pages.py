"""Every section of the pages on logits, re-implementation and Jacobian, at both ends of length."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from attnprobe.analyses import scaling
from attnprobe.scratch.faults import FAULTS
from attnprobe.ui.scaling import with_deviations, without
from attnprobe.ui.show import NO_ROW

PAGES = Path(__file__).parents[1] / "pages"
SECTIONS = {
    "2_Logits_and_scaling.py": ("spread", "captured", "model", "pairs"),
    "3_From_scratch.py": ("certificate", "faults", "steps", "facts"),
    "4_Saturation_and_Jacobian.py": ("heads", "bounds", "row", "gradient", "sinks"),
}
ALL = [(page, section) for page, sections in SECTIONS.items() for section in sections]
NEEDS_TWO_TOKENS = {"model", "gradient"}


def opened(page: str, section: str, model, text: str) -> AppTest:
    app = AppTest.from_file(str(PAGES / page), default_timeout=120)
    asked = {"model": str(model), "layer": "1", "head": "1"} | (
        {"part": section} if section else {}
    )
    for name, value in asked.items():
        app.query_params[name] = value
    app.session_state["typed"] = text
    return app.run()


def charts(app: AppTest) -> int:
    return len(app.get("vega_lite_chart"))


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
@pytest.mark.parametrize(("page", "section"), ALL)
def test_a_section_draws_for_a_text_of_the_model_s_full_length(page, section, kind, tiny_folder):
    text = "a" * 64 if kind == "gpt2" else "cat " * 62
    app = opened(page, section, tiny_folder(kind), text)
    assert not app.exception
    assert not app.error
    assert charts(app) >= 1


@pytest.mark.parametrize(("page", "section"), ALL)
def test_a_section_of_a_single_token_draws_or_says_why_not(page, section, tiny_folder):
    app = opened(page, section, tiny_folder("gpt2"), "a")
    assert not app.exception
    assert [("single token" in error.value) for error in app.error] == (
        [True] if section in NEEDS_TWO_TOKENS else []
    )


BUNDLED = {"bundled:bert": ("a", "cat " * 510), "bundled:gpt2": ("a", " the" * 512)}


@pytest.mark.parametrize("model", list(BUNDLED))
@pytest.mark.parametrize("page", list(SECTIONS))
def test_the_bundled_models_draw_from_one_token_to_their_limit(page, model):
    """Through every section in one session, as a person would, with the shortest text and the
    longest."""
    for text in BUNDLED[model]:
        for section in SECTIONS[page]:
            app = opened(page, section, model, text)
            assert not app.exception
            single = model == "bundled:gpt2" and text == "a" and section in NEEDS_TWO_TOKENS
            assert bool(app.error) == single
            assert charts(app) >= 1 or single or NO_ROW in captions(app)


def test_the_missing_mask_of_a_bidirectional_model_says_that_it_changes_nothing(tiny_folder):
    app = opened("3_From_scratch.py", "faults", tiny_folder("bert"), "the cat sat")
    app.multiselect(key="scratch:faults").set_value(["no_mask"]).run()
    assert not app.exception
    assert "changes nothing here" in app.info[0].value
    red = next(metric for metric in app.metric if metric.label == "Red stages")
    assert red.value.startswith("0 of")


def test_the_missing_mask_of_a_causal_model_turns_weights_red(tiny_folder):
    app = opened("3_From_scratch.py", "faults", tiny_folder("gpt2"), "abcdef")
    app.multiselect(key="scratch:faults").set_value(["no_mask"]).run()
    assert not app.info
    first = next(metric for metric in app.metric if metric.label == "First red stage")
    assert first.value == "weights"


def test_a_chosen_answer_is_another_loss(tiny_folder):
    app = opened("4_Saturation_and_Jacobian.py", "gradient", tiny_folder("bert"), "the cat sat")
    loss = next(box for box in app.selectbox if box.label == "Loss")
    said = loss.options[-1]
    loss.select(said).run()
    assert not app.exception
    assert not app.error
    assert any(f"Loss: {said}".split("'")[0] in caption.value for caption in app.caption)


@pytest.mark.parametrize(
    ("page", "section"),
    [
        ("4_Saturation_and_Jacobian.py", "heads"),
        ("4_Saturation_and_Jacobian.py", "bounds"),
        ("3_From_scratch.py", "facts"),
    ],
)
def test_where_no_row_counts_a_sentence_stands_instead_of_empty_axes(page, section, tiny_folder):
    app = opened(page, section, tiny_folder("gpt2"), "a")
    assert NO_ROW in captions(app)
    assert NO_ROW not in captions(opened(page, section, tiny_folder("gpt2"), "ab"))


def test_a_single_token_has_a_gradient_by_what_comes_after_it(tiny_folder):
    app = opened("4_Saturation_and_Jacobian.py", "gradient", tiny_folder("gpt2"), "a")
    box = next(box for box in app.selectbox if box.label == "Read-out")
    box.select("next token, after the text").run()
    assert not app.exception
    assert not app.error


def captions(app: AppTest) -> str:
    return " ".join(each.value for each in app.caption).replace("\\", "")


def test_the_map_of_one_row_says_how_its_colours_bend_and_can_be_linear(tiny_folder):
    app = opened("4_Saturation_and_Jacobian.py", "row", tiny_folder("bert"), "the cat sat")
    assert "follow the logarithm of the magnitude" in captions(app)
    assert scales(app) == ["symlog"]
    buttons = next(e for e in app.get("button_group") if e.key == "jacobian_colours")
    app = buttons.set_value("linear").run()
    assert "logarithm" not in captions(app)
    assert scales(app) == ["linear"]


def scales(app: AppTest) -> list[str]:
    """The types of the colour scales of all maps of cells."""
    drawn = [json.loads(each.proto.spec) for each in app.get("vega_lite_chart")]
    layers = [layer for spec in drawn for layer in spec.get("layer", [])]
    return [
        layer["encoding"]["color"]["scale"]["type"]
        for layer in layers
        if layer["mark"]["type"] == "rect" and "scale" in layer["encoding"].get("color", {})
    ]


def test_heads_without_any_spread_are_counted_where_a_logarithm_leaves_them_out():
    measured, predicted = [4.0, 0.0, 9.0, 1e-16, 1.0], [4.0, 0.0, 8.0, 3.0, -1e-18]
    frame = pd.DataFrame({"measured": measured, "predicted": predicted, "textbook": 7.0})
    drawn = with_deviations(frame)
    assert drawn["drawn"].tolist() == [True, False, True, False, False]
    assert drawn["measured_std"].tolist() == [2, 0, 3, 1e-8, 1]
    assert np.isfinite(drawn["predicted_std"]).all()
    assert without(3).startswith("Not drawn: 3 heads whose")
    assert without(1).startswith("Not drawn: 1 head whose")
    assert without(0) == ""


def test_a_head_whose_keys_are_all_zero_is_left_out_of_the_deviations_and_named(
    tiny_folder, monkeypatch
):
    true = scaling.causes

    def with_a_flat_head(trace):
        key = trace.keys.clone()
        key[0, 1] = 0
        return true(replace(trace, keys=key))

    monkeypatch.setattr("attnprobe.ui.scaling.scaling.causes", with_a_flat_head)
    app = opened("2_Logits_and_scaling.py", "spread", tiny_folder("gpt2"), "a flat head")
    assert not app.exception
    assert "Not drawn: 1 head whose logits are all alike" in captions(app)
    app = opened("2_Logits_and_scaling.py", "spread", tiny_folder("gpt2"), "a")
    assert "no deviation to compare" in captions(app)


def test_the_histogram_takes_the_whole_layer(tiny_folder):
    app = opened("2_Logits_and_scaling.py", "spread", tiny_folder("bert"), "the cat sat")
    scope = next(each for each in app.get("button_group") if each.key == "scaling_histogram")
    scope.set_value("this layer").run()
    assert not app.exception
    assert any("Logits of all heads of layer 1" in text.value for text in app.markdown)


@pytest.mark.parametrize("section", ["faults", "steps"])
def test_a_family_without_a_twin_says_so(section, tiny_folder):
    app = opened("3_From_scratch.py", section, tiny_folder("distilbert"), "the cat sat")
    assert not app.exception
    assert "no from-scratch twin" in app.info[0].value


def test_the_slider_moves_the_numbers_and_runs_no_model(tiny_folder, monkeypatch):
    app = opened("2_Logits_and_scaling.py", "captured", tiny_folder("gpt2"), "abcdef")
    before = [metric.value for metric in app.metric]

    def forbidden(*args, **options):
        raise RuntimeError("a forward pass")

    monkeypatch.setattr("attnprobe.loaded.LoadedModel.forward", forbidden)
    app.select_slider(key="scaling:factor").set_value(8.0).run()
    assert not app.exception
    after = [metric.value for metric in app.metric]
    assert after != before
    assert float(after[0]) > float(before[0])


def test_a_mistake_turns_stages_red_and_none_is_red_without(tiny_folder):
    app = opened("3_From_scratch.py", "faults", tiny_folder("bert"), "the cat sat")
    red = next(metric for metric in app.metric if metric.label == "Red stages")
    assert not red.value.startswith("0 of")
    first = next(metric for metric in app.metric if metric.label == "First red stage")
    assert first.value == "scaled logits"


def test_the_sweep_in_the_model_runs_on_a_click(tiny_folder):
    app = opened("2_Logits_and_scaling.py", "model", tiny_folder("gpt2"), "abcdef")
    before = charts(app)
    app.button(key="rescaling:sweep:start").click().run()
    assert not app.exception
    assert not app.error
    assert charts(app) == before + 3


def test_the_threshold_of_saturation_is_printed(tiny_folder):
    app = opened("4_Saturation_and_Jacobian.py", "heads", tiny_folder("bert"), "the cat sat")
    app.slider(key="jacobian:threshold").set_value(0.5).run()
    assert not app.exception
    assert any("peak ≥ 0.500" in caption.value for caption in app.caption)


@pytest.mark.parametrize("model", list(BUNDLED))
def test_the_inspector_of_a_bundled_model_draws_from_one_token_to_its_limit(model):
    for text in BUNDLED[model]:
        app = opened("1_Head_inspector.py", "", model, text)
        assert not app.exception
        assert not app.error
        told = [caption.value for caption in app.caption]
        alone = model == "bundled:gpt2" and text == "a"
        assert any("No row counts" in each for each in told) == alone


def test_the_inspector_says_why_fewer_rows_count_than_there_are_tokens(tiny_folder):
    app = opened("1_Head_inspector.py", "", tiny_folder("gpt2"), "abcdef")
    told = [caption.value for caption in app.caption]
    n = int(next(each for each in told if "of at most" in each).split()[0])
    assert any(f"{n - 1} rows of {n}: the first token sees only itself" in each for each in told)


def test_another_head_of_the_same_layer_is_taken_apart_without_a_forward_pass(
    tiny_folder, monkeypatch
):
    app = opened("3_From_scratch.py", "steps", tiny_folder("bert"), "the cat sat")

    def forbidden(*args, **options):
        raise RuntimeError("a forward pass")

    monkeypatch.setattr("attnprobe.loaded.LoadedModel.hidden", forbidden)
    app.number_input(key="head:From scratch").set_value(2).run()
    assert not app.exception
    assert charts(app) == 1


def test_the_page_says_of_the_certificate_what_the_sidebar_says(tiny_folder):
    app = opened("3_From_scratch.py", "certificate", tiny_folder("bert"), "the cat sat")
    assert any("**Certificate holds**] in all" in each.value for each in app.markdown)


def test_every_figure_with_mistakes_says_which_in_its_files(tiny_folder, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "attnprobe.ui.scratch.show", lambda view, figure, *given, **options: drawn.append(figure)
    )
    app = opened("3_From_scratch.py", "faults", tiny_folder("bert"), "the cat sat")
    assert not app.exception
    assert len(drawn) == 3
    assert all("Faults: no_scale" in figure.provenance.lines() for figure in drawn)
    assert "with mistakes put in (no 1/√d_k)" in drawn[0].caption


def test_a_mistake_that_leaves_no_number_is_told_in_words(tiny_folder, monkeypatch):
    def broken(ops):
        return replace(ops, softmax=lambda logits: ops.softmax(logits) * float("nan"))

    monkeypatch.setitem(FAULTS, "no_scale", replace(FAULTS["no_scale"], inject=broken))
    app = opened("3_From_scratch.py", "faults", tiny_folder("gpt2"), "no number at all")
    assert not app.exception
    assert "of the red stages the error is infinite or not a number." in captions(app)
    assert charts(app) == 3
