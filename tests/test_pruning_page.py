"""The pruning page without a browser: scores, curve, other panels, and what a person may type."""

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

PAGE = Path(__file__).parents[1] / "pages" / "5_Pruning.py"
TYPED = "the cat sat\na dog ran and came\nit was tired\nzebra apple mango\nthe mat\na tired dog"
SENTENCES = "pets = the cat and a dog\nfruit = a mango and an apple"


def opened(model: str, typed: str = TYPED, sentences: str | None = None) -> AppTest:
    app = AppTest.from_file(str(PAGE), default_timeout=120)
    app.query_params["model"] = model
    app.session_state["typed"] = "the cat sat"
    app.session_state["experiment_source:4"] = "Typed"
    app.session_state["experiment_typed"] = typed
    if sentences is not None:
        app.session_state["experiment_sentences:[]"] = sentences
    return app.run()


def press(app: AppTest, key: str) -> AppTest:
    app.button(key=key).click()
    return app.run()


def quiet(app: AppTest) -> bool:
    return not app.exception and not app.error


@pytest.mark.parametrize(
    ("kind", "sentences"), [("bert-classifier", None), ("gpt2", None), ("bert", SENTENCES)]
)
def test_every_head_is_scored_and_every_panel_runs(tiny_folder, kind, sentences):
    app = opened(str(tiny_folder(kind)), sentences=sentences)
    assert quiet(app)
    assert any("forward passes of each of 3 texts" in c.value for c in app.caption)
    app = press(app, "heads:start")
    assert quiet(app)
    labels = {metric.label: metric.value for metric in app.metric}
    assert labels["Heads"] == ("15" if kind == "gpt2" else "6")
    for key in ("curve:start", "keep one:start", "transfer:start", "cut:start"):
        app = press(app, key)
        assert quiet(app), key
    labels = {metric.label: metric.value for metric in app.metric}
    assert float(labels["Cut against masked"]) <= 1e-5
    text = " ".join(caption.value for caption in app.caption)
    assert "5–95 % band of 20 orders" in text
    assert "Pearson" in text


def test_a_bare_encoder_without_label_sentences_asks_for_them(tiny_folder):
    app = opened(str(tiny_folder("bert")), sentences="")
    assert not app.exception
    assert "label sentence" in app.error[0].value


@pytest.mark.parametrize("typed", ["", "the cat", "\x00\n\u200b", "word " * 600])
def test_texts_that_cannot_be_used_give_one_sentence(tiny_folder, typed):
    app = opened(str(tiny_folder("bert-classifier")), typed)
    assert not app.exception
    assert len(app.error) == 1
