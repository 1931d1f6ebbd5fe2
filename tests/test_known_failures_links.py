"""Whatever a link says: the page, clamped to what there is, or one sentence."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from streamlit.testing.v1 import AppTest

from attnprobe import sources
from attnprobe.errors import AttnprobeError
from attnprobe.ui import cached

ROOT = Path(__file__).parents[1]
INSPECTOR = str(ROOT / "pages" / "1_Head_inspector.py")
NO_MODEL = [
    "a\x00b", "~nosuchuser", "~nosuchuser/x", "x" * 5_000, "../..", "/proc", "/dev/null", "/",
    "<img src=x onerror=alert(1)>", "[a](javascript:alert(1))", "bundled:", "\u202egpj",
]  # fmt: skip


def opened(page: str = INSPECTOR, **query: str) -> AppTest:
    app = AppTest.from_file(page, default_timeout=300)
    for key, value in query.items():
        app.query_params[key] = value
    app.session_state["typed"] = "the cat sat"
    return app.run()


@pytest.mark.parametrize("name", NO_MODEL, ids=lambda name: ascii(name)[:24])
def test_a_name_that_is_no_model_is_one_sentence_on_the_page(name):
    app = opened(model=name)
    assert not app.exception
    (error,) = app.error
    assert "defect" not in error.value
    assert len(error.value) < 700
    assert not app.main.get("vega_lite_chart")


LINKS = [
    {"layer": "9" * 400, "head": "-1"},
    {"layer": "\u0663", "head": "1e3"},
    {"layer": "0x1", "head": " 1"},
    {"layer": "", "head": "\x00"},
    {"chosen": "x", "written": "y", "runs": "z", "typed": "w", "text form": "v"},
    {"revision": "../../x"},
    {"revision": "\x00"},
    {"view": "nothing", "device": "cuda", "precision": "float8"},
    {"x" * 3_000: "y" * 3_000},
    {"<script>": "</script><img src=x onerror=alert(1)>"},
]


@pytest.mark.parametrize("link", LINKS, ids=lambda link: ascii(link)[:40])
def test_a_nonsense_link_is_the_page_clamped_to_the_model(link, tiny_folder):
    app = opened(model=str(tiny_folder("bert")), **link)
    assert not app.exception
    assert not app.error
    for name, count in (("Layer", 2), ("Head", 3)):
        (place,) = [box for box in app.sidebar.number_input if box.label == name]
        assert 0 <= place.value < count


LINKED = st.dictionaries(
    st.sampled_from(["layer", "head", "view", "part", "revision", "lang", "chosen", "written"])
    | st.text(max_size=9),
    st.text(max_size=12) | st.integers().map(str),
    max_size=5,
)


@given(link=LINKED)
@settings(max_examples=8, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_link_is_the_page_or_one_sentence(link, tiny_folder):
    app = opened(**link | {"model": str(tiny_folder("bert"))})
    assert not app.exception
    assert len(app.error) <= 1
    assert not any("defect" in error.value for error in app.error)


def test_markup_in_the_name_of_a_model_s_folder_is_shown_letter_by_letter(tiny_folder, tmp_path):
    folder = tmp_path / "<b>x [a](http:evil) :red[y] $z$"
    folder.symlink_to(tiny_folder("bert"))
    app = opened(model=str(folder))
    assert not app.exception
    assert not app.error
    shown = [element.value for element in (*app.markdown, *app.caption)]
    assert not any(sign in each for each in shown for sign in ("<b>", "[a](", ":red[", "$z$"))


@given(name=st.text(max_size=40))
@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_name_is_looked_for_without_an_error_of_the_system(name):
    """What the page does with a name before anything is loaded."""
    assert cached._stamp(name) is not None
    try:
        sources.needs_download(name)
        sources.find(name)
    except AttnprobeError as error:
        sentence = str(error)
    else:
        sentence = "found"
    assert sentence
