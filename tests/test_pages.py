"""Every page alone, without a browser: it opens, it reacts, it never shows a traceback."""

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "app.py", *sorted((ROOT / "pages").glob("[0-9]*.py"))]
NASTY = [
    "\ufffe",
    "a\u0301",
    "\u00e1",
    "\U0001f600\U0001f600",
    "\u4e2d\u6587 \u6a21\u578b",
    "\u05e9\u05dc\u05d5\u05dd world",
    "the cat the dog",
    "1 2 3 4 5 6 7 8 9 10 11",
    "[SEP] hello [MASK]",
    "<|endoftext|>x",
    "<img src=x onerror=alert(1)>",
    "</script>",
    "$5 and $6",
    "*a* _b_ :red[x] # h",
    "a\x00b",
    "\x1b[31m",
    "word " * 600,
]
BLANK = ["", " ", "\n", "\u200b", "\x00"]


def opened(page: Path, model: str, text: str | None = None, **query: str) -> AppTest:
    app = AppTest.from_file(str(page), default_timeout=120)
    for key, value in {"model": model, **query}.items():
        app.query_params[key] = value
    if text is not None:
        app.session_state["typed"] = text
    return app.run()


@pytest.fixture(scope="module")
def bert(tiny_folder):
    return str(tiny_folder("bert"))


@pytest.fixture(scope="module")
def gpt2(tiny_folder):
    return str(tiny_folder("gpt2"))


def nothing_broke(app: AppTest) -> bool:
    return not app.exception and not app.error


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_opens_alone_with_a_bert(page, bert):
    assert nothing_broke(opened(page, bert, "the cat sat"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_opens_alone_with_a_gpt2(page, gpt2):
    assert nothing_broke(opened(page, gpt2, "the cat sat"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_takes_the_shortest_text_or_says_what_it_needs(page, gpt2):
    app = opened(page, gpt2, "a")
    assert not app.exception
    assert all("2 to 64 tokens" in error.value for error in app.error)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_says_in_one_sentence_that_a_folder_is_no_model(page, tmp_path):
    app = opened(page, str(tmp_path), "the cat sat")
    said = [error.value for error in app.error] + [caption.value for caption in app.caption]
    assert not app.exception
    assert any("config" in each for each in said)


@pytest.mark.parametrize("text", NASTY, ids=ascii)
@pytest.mark.parametrize("page", PAGES[:2], ids=lambda page: page.stem)
def test_a_strange_text_gives_a_page_or_one_sentence(page, text, gpt2):
    app = opened(page, gpt2, text)
    assert not app.exception
    assert not any("defect" in error.value for error in app.error)
    assert len(app.error) <= 1


@pytest.mark.parametrize("text", BLANK, ids=ascii)
def test_a_text_without_content_asks_for_a_word(text, bert):
    app = opened(PAGES[0], bert, text)
    assert not app.exception
    assert len(app.error) == 1
    assert "empty" in app.error[0].value


def test_markdown_in_a_text_is_shown_letter_by_letter(gpt2):
    app = opened(PAGES[1], gpt2, ":red[x] $a$ *b* <b>")
    shown = [element.value for element in (*app.markdown, *app.caption)]
    assert not any(":red[" in each or "<b>" in each for each in shown)


def test_a_long_text_offers_a_window_and_says_so(bert):
    app = opened(PAGES[0], bert, "the cat sat on the mat " * 60)
    assert nothing_broke(app)
    assert any("window of it is shown" in caption.value for caption in app.caption)
    app.number_input(key="window_start").set_value(12).run()
    assert nothing_broke(app)


def test_the_link_chooses_layer_and_head(bert):
    app = opened(PAGES[1], bert, "the cat sat", layer="1", head="2")
    assert app.session_state["chosen"] == {"model": bert, "layer": 1, "head": 2, "view": "weights"}
    assert any("Layer 1, head 2" in each.value for each in app.markdown)


@pytest.mark.parametrize(
    ("layer", "head", "expected"), [("99", "abc", (1, 0)), ("-1", "1e3", (0, 0)), ("", "٣", (0, 0))]
)
def test_nonsense_in_the_link_is_clamped_or_ignored(layer, head, expected, bert):
    app = opened(PAGES[1], bert, "the cat sat", layer=layer, head=head)
    assert nothing_broke(app)
    chosen = app.session_state["chosen"]
    assert (chosen["layer"], chosen["head"]) == expected


def test_a_stepper_moves_the_head_and_the_link(bert):
    app = opened(PAGES[1], bert, "the cat sat")
    app.number_input(key="head:Head inspector").set_value(2).run()
    assert nothing_broke(app)
    assert app.query_params["head"] == "2"
    assert any("Layer 0, head 2" in each.value for each in app.markdown)


def test_another_model_with_fewer_heads_clamps_the_head(bert, tiny_folder):
    app = opened(PAGES[0], bert, "the cat sat", layer="1", head="2")
    app.selectbox(key="model:Overview").set_value("bundled:bert").run()
    assert nothing_broke(app)
    assert app.session_state["chosen"]["model"] == "bundled:bert"


def test_the_three_kinds_of_numbers_are_shown_on_request(gpt2):
    app = opened(PAGES[1], gpt2, "the cat sat", view="raw logits")
    assert nothing_broke(app)
    assert any("raw logit" in each.value for each in app.markdown)


def test_a_red_certificate_draws_nothing(bert, monkeypatch):
    import attnprobe.ui.cached as cached
    from attnprobe.scratch.certificate import certify

    def broken(loaded, tokens, tick=None):
        return certify(loaded, tokens, faults=["no_scale"], tick=tick)

    monkeypatch.setattr(cached, "certify", broken)
    app = opened(PAGES[1], bert, "a text for the red certificate")
    assert not app.exception
    assert len(app.error) == 1
    assert "nothing can be shown" in app.error[0].value
    assert not app.get("vega_lite_chart")
    assert not app.metric


def test_home_asks_the_heads_for_their_roles_on_demand(gpt2):
    app = opened(PAGES[0], gpt2, "the cat sat")
    before = len(app.get("vega_lite_chart"))
    app.button(key="roles:start").click().run()
    assert nothing_broke(app)
    assert len(app.get("vega_lite_chart")) == before + 3


def test_a_head_that_the_model_does_not_have_is_said_to_be_another(gpt2):
    app = opened(PAGES[1], gpt2, "the cat sat", layer="99", head="1")
    assert nothing_broke(app)
    assert any("no layer 99 in this model of 3 layers of 5" in each.value for each in app.caption)
    assert not any("There is no" in each.value for each in app.run().caption)
