"""The theory lab's page: every section opens from its link, draws, and judges its claims."""

import json
import re
import string
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from attnprobe.errors import BadInput
from attnprobe.theory import EXPERIMENTS, cost, linear
from attnprobe.ui.theory import SECTIONS, freezing, lab
from attnprobe.ui.theory import cost as cost_panels
from attnprobe.ui.theory.scores import parsed
from attnprobe.ui.view import View

PAGE = Path(__file__).parents[1] / "pages" / "7_Theory_lab.py"


def opened(section, model, **query):
    app = AppTest.from_file(str(PAGE), default_timeout=300)
    for key, value in {"section": section, "model": model, **query}.items():
        app.query_params[key] = value
    return app.run()


def charts(app):
    return len(app.get("vega_lite_chart"))


@pytest.fixture(scope="module")
def bert(tiny_folder):
    return str(tiny_folder("bert"))


@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_opens_from_its_link_and_judges_its_claims(section, bert):
    app = opened(section, bert)
    assert not app.exception
    assert not app.error
    assert charts(app) >= 1
    shown = " ".join(each.value for each in app.markdown)
    for claim in EXPERIMENTS[section].claims:
        assert re.search(rf"{claim.id} (reproduced|right|wrong as written)", shown)


@pytest.mark.parametrize(
    "section", ["variance", "exponent", "freezing", "meaning", "linear", "equivariance"]
)
def test_the_switch_adds_the_loaded_models_heads(section, bert):
    app = opened(section, bert)
    before = charts(app)
    for switch in [each for each in app.toggle if "own heads" in each.label]:
        switch.set_value(True)
    app.run()
    assert not app.exception
    assert not app.error
    assert charts(app) > before


def hues(app):
    """The colours of all series of all charts of a page, by what each series is called."""
    found = {}
    for each in app.get("vega_lite_chart"):
        spec = json.loads(each.proto.spec)
        for unit in spec.get("layer", [spec]):
            scale = unit.get("encoding", {}).get("color", {}).get("scale") or {}
            for name, hue in zip(scale.get("domain", []), scale.get("range", []), strict=False):
                found.setdefault(name, set()).add(hue)
    return found


def test_what_is_divided_has_one_colour_in_every_section(bert):
    first, second = hues(opened("softmax", bert)), hues(opened("freezing", bert))
    assert len(first["undivided"]) == len(first["divided"]) == 1
    assert second["not divided"] == first["undivided"]
    assert second["divided by √d_k"] == first["divided"]
    assert first["divided"] != first["undivided"]


def test_wrong_claims_are_shown_as_wrong_with_the_reason(bert):
    app = opened("exponent", bert)
    shown = " ".join(each.value for each in app.markdown)
    assert "C11 wrong as written" in shown
    assert "upper bound" in shown
    table = next(each.value for each in app.dataframe if "right value" in each.value)
    assert "20.06" in set(table["right value"])


def test_a_section_that_is_none_opens_the_first(bert):
    app = opened("nonsense", bert)
    assert not app.exception
    assert any("C1 reproduced" in each.value for each in app.markdown)


def test_the_page_works_without_a_model():
    app = opened("softmax", "no/such-folder")
    assert not app.exception
    assert charts(app) >= 3


def test_own_scores_are_drawn_and_nonsense_is_one_sentence(bert):
    app = opened("softmax", bert)
    preset = next(each for each in app.get("button_group") if each.key == "theory:preset")
    preset.set_value("own scores").run()
    assert not app.error
    app.text_input(key="theory:scores").set_value("1, two").run()
    assert not app.exception
    assert "two" in app.error[0].value


def test_a_row_of_the_loaded_head_is_divided_and_can_be_edited(bert):
    app = opened("softmax", bert)
    preset = next(each for each in app.get("button_group") if each.key == "theory:preset")
    preset.set_value("a row of the loaded head").run()
    assert not app.exception
    assert not app.error
    numbers = {each.label: each.value for each in app.metric}
    app.button(key="theory:edit").click().run()
    assert not app.exception
    assert app.session_state["theory:preset"] == "own scores"
    typed = parsed(app.text_input(key="theory:scores").value)
    assert f"{max(typed):.4g}" == numbers["Largest score"]


def test_without_a_model_there_is_no_row_of_a_head():
    app = opened("softmax", "no/such-folder")
    preset = next(each for each in app.get("button_group") if each.key == "theory:preset")
    assert "a row of the loaded head" not in preset.options


@pytest.mark.parametrize(
    ("text", "numbers"), [("1, 2;-3", (1, 2, -3)), (" 0.5  1e1 ", (0.5, 10.0))]
)
def test_scores_are_read_as_typed(text, numbers):
    assert parsed(text) == numbers


@pytest.mark.parametrize("text", ["", "1", "nan, 1", "1, 2, x", "inf 3", "1 " * 25])
def test_what_is_no_row_of_scores_is_refused(text):
    with pytest.raises(BadInput):
        parsed(text)


@pytest.mark.parametrize("language", lab.LANGUAGES)
@pytest.mark.parametrize("section", SECTIONS)
def test_each_language_has_a_text_for_every_part(language, section):
    introduction, parts = lab.texts(section, language)
    assert introduction
    assert len(parts) == len(SECTIONS[section])
    assert all(title and text for title, text in parts)


def test_every_claim_belongs_to_one_part_of_its_own_section():
    for name, parts in SECTIONS.items():
        listed = [claim for part in parts for claim in part.claims]
        assert sorted(listed) == sorted(claim.id for claim in EXPERIMENTS[name].claims)
    assert list(SECTIONS) == list(EXPERIMENTS)


def test_the_scores_of_the_second_preset_are_named(bert):
    app = opened("softmax", bert)
    preset = next(each for each in app.get("button_group") if each.key == "theory:preset")
    preset.set_value("Tom, New York, lives").run()
    assert not app.exception
    assert not app.error
    assert {each.value for each in app.metric} >= {"40", "8", "5", "0.9537"}


def test_play_moves_the_step_on(bert):
    app = opened("freezing", bert)
    assert app.slider(key="theory:step").value == 0
    app.button(key="theory:play").click().run()
    assert not app.exception
    assert app.slider(key="theory:step").value > 0


@pytest.mark.parametrize(
    ("section", "module", "name", "values", "key", "added"),
    [
        ("linear", linear, "LENGTHS", (64, 128), "theory linear time:start", 2),
        ("cost", cost, "HEADS", (1, 3), "theory head time:start", 1),
    ],
)
def test_measured_times_are_drawn_when_they_were_asked_for(
    section, module, name, values, key, added, bert, monkeypatch
):
    monkeypatch.setattr(module, name, values)
    app = opened(section, bert)
    before = charts(app)
    app.button(key=key).click().run()
    assert not app.exception
    assert not app.error
    assert charts(app) == before + added


def test_a_run_that_was_started_ends_with_its_figures(bert, monkeypatch):
    monkeypatch.setattr(freezing, "DIMS", (4, 8))
    monkeypatch.setattr(freezing, "RATES", (0.5,))
    app = opened("freezing", bert)
    before = charts(app)
    app.button(key="theory phase:start").click().run()
    assert not app.exception
    assert charts(app) == before + 2


def test_the_korean_claims_are_all_there_and_give_the_same_reasons():
    words = lab.claim_words("ko")
    assert set(words) == set(lab.CLAIMS)
    for key, claim in lab.CLAIMS.items():
        assert ("reason" in words[key]) == bool(claim.reason)
        assert {"statement", "measurement"} <= set(words[key])


def test_the_language_switch_changes_texts_and_claims(bert):
    app = opened("cost", bert, lang="ko")
    assert not app.exception
    assert not app.error
    shown = " ".join(each.value for each in app.markdown)
    assert "파라미터와 연산은" in shown
    assert "Splitting one wide head" not in shown


def test_the_score_slider_and_d_k_divide_as_they_say(bert):
    app = opened("softmax", bert)
    preset = next(each for each in app.get("button_group") if each.key == "theory:preset")
    preset.set_value("Tom, New York, lives").run()
    score = next(each for each in app.slider if each.label == "Largest score")
    assert score.value == 40
    score.set_value(20.0).run()
    assert {each.value for each in app.metric} >= {"20", "8", "2.5"}
    app.select_slider(key="theory:row_d_k").set_value(16).run()
    assert {each.value for each in app.metric} >= {"20", "4", "5"}
    assert not app.error


def test_the_division_alone_takes_the_width_out_of_the_spread(bert):
    app = opened("variance", bert)

    def growth():
        return float(app.metric[-1].value.removeprefix("× "))

    assert growth() == pytest.approx(128**0.5, rel=0.1)
    app.toggle(key="theory:division").set_value(True).run()
    assert growth() == pytest.approx(1, rel=0.1)
    app.toggle(key="theory:init").set_value(False)
    app.toggle(key="theory:norm").set_value(False).run()
    assert growth() == pytest.approx(1, rel=0.1)


def test_the_streamed_statistics_are_measured_when_asked_for_and_kept_after_a_stop(
    bert, monkeypatch
):
    monkeypatch.setattr(cost_panels, "STREAMED_LENGTHS", (16, 32, 64, 128))
    app = opened("cost", bert)
    before = charts(app)
    app.button(key="theory streaming:start").click().run()
    assert not app.exception
    assert not app.error
    assert charts(app) == before + 1


HANGUL = re.compile("[가-힣]")
SYMBOLS = {"d_k", "d_model", "√d_k", "LayerNorm", "Language · 언어"}


@pytest.mark.parametrize("section", SECTIONS)
def test_no_label_title_or_caption_of_the_page_stays_english_under_korean(section, bert):
    app = opened(section, bert, lang="ko")
    for switch in app.main.toggle:
        switch.set_value(True)
    app.run()
    assert not app.exception
    kinds = ("slider", "select_slider", "number_input", "selectbox", "toggle", "text_input")
    shown = [each.label for kind in kinds for each in app.main.get(kind)]
    shown += [each.label for each in app.main.get("button_group")]
    shown += [each.label for each in app.metric]
    shown += [each.value for each in app.main.caption if each.value]
    shown += [each.value for each in app.main.markdown if each.value.startswith("**")]
    english = [text for text in shown if text not in SYMBOLS and not HANGUL.search(text)]
    assert english == []


def test_a_run_and_its_buttons_speak_korean(bert, monkeypatch):
    monkeypatch.setattr(cost, "HEADS", (1,))
    app = opened("cost", bert, lang="ko")
    assert {each.label for each in app.main.button} == {"재기"}
    shown = " ".join(each.value for each in app.main.caption)
    assert "글꼴에 한글이 없기" in shown


@pytest.mark.parametrize("section", SECTIONS)
def test_every_checked_number_has_a_korean_name_and_keeps_its_own_numbers(section):
    visit = lab.Lab(View(None, None, None, None, None, "light"), "ko")
    for quantity in EXPERIMENTS[section].parts["claims"]()["quantity"]:
        name = lab.named(visit, quantity)
        assert HANGUL.search(name) or not re.search("[a-z]", quantity)
        assert sorted(lab._NUMBER.findall(name)) == sorted(lab._NUMBER.findall(quantity))


def test_a_translation_is_filled_with_what_the_english_is_filled_with():
    def fields(text):
        return sorted({(name, form) for _, name, form, _ in string.Formatter().parse(text) if name})

    for english, korean in lab.words("ko").items():
        assert fields(english) == fields(korean)


def test_a_language_that_is_none_shows_english(bert):
    app = opened("order", bert, lang="../../..")
    assert not app.exception
    assert any("Every claim is derived" in each.value for each in app.caption)


def test_what_is_exported_is_in_english_with_the_numbers_of_its_settings(bert, monkeypatch):
    made = []
    monkeypatch.setattr(lab, "draw", lambda view, figure, key: made.append(figure))
    opened("variance", bert, lang="ko")
    captions = {figure.name: figure.caption for figure in made}
    assert captions["theory-histogram"].startswith("Components: normal; 4,000 draws, seed 7")
    assert not any("{" in caption for caption in captions.values())
