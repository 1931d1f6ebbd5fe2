"""What is chosen, and the link: pure functions, no browser."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprobe.ui import state
from attnprobe.ui.errors import plain
from attnprobe.ui.picker import Asked
from attnprobe.ui.scaling import place_of
from attnprobe.ui.show import picked_from
from attnprobe.ui.state import changed, clamped, parsed, picking_head, take_model
from attnprobe.ui.view import View

LINK = {"model": "bundled:bert", "layer": "3", "head": "7", "view": "weights"}


def test_a_link_says_the_same_choice_that_wrote_it():
    choice = {"model": "owner/name", "layer": 11, "head": 0, "view": "raw logits"}
    assert parsed({key: str(value) for key, value in choice.items()}) == choice


def test_what_the_session_wrote_itself_is_no_news():
    assert changed(LINK, LINK) == {}


def test_only_what_differs_from_what_was_written_counts():
    assert changed(LINK | {"head": "2"}, LINK) == {"head": "2"}
    assert changed(LINK, {}) == LINK


@pytest.mark.parametrize("nonsense", ["abc", "", "-1", "1e3", "٣", "9" * 7, " 1", "0x1", "1.0"])
def test_a_number_that_is_none_is_left_out(nonsense):
    assert parsed({"layer": nonsense, "head": "1"}) == {"head": 1}


def test_an_empty_model_in_the_link_is_left_out():
    assert parsed({"model": "  "}) == {}


@given(st.integers(0, 10**6), st.integers(1, 48))
def test_a_clamped_number_is_the_nearest_index(value, count):
    nearest = min(range(count), key=lambda index: abs(index - value))
    assert clamped(value, count) == nearest


@given(st.dictionaries(st.text(), st.text()))
def test_any_link_gives_words_and_whole_numbers(url):
    for key, value in parsed(url).items():
        assert isinstance(value, int if key in ("layer", "head") else str)


def test_a_revision_leaves_with_the_model_that_it_was_given_for():
    now = {"model": "owner/one", "layer": 0, "head": 0}
    take_model(now, "owner/two", "v1.0")
    assert now == {"model": "owner/two", "revision": "v1.0", "layer": 0, "head": 0}
    take_model(now, "owner/three")
    assert now == {"model": "owner/three", "layer": 0, "head": 0}


@pytest.mark.parametrize(
    ("event", "picked"),
    [
        ({"selection": {"cell": [{"layer": 2, "head": 5}]}}, {"layer": 2, "head": 5}),
        ({"selection": {"cell": []}}, None),
        ({"selection": {}}, None),
        ({}, None),
        (None, None),
    ],
)
def test_a_click_is_the_fields_of_its_mark(event, picked):
    assert picked_from(event) == picked


@pytest.fixture
def session(monkeypatch):
    """What a session has chosen, and where a callback has sent it."""
    kept = SimpleNamespace(
        session_state={state.CHOSEN: {"layer": 0, "head": 0}},
        query_params=SimpleNamespace(to_dict=dict, from_dict=lambda url: None),
        gone=[],
    )
    kept.switch_page = kept.gone.append
    monkeypatch.setattr(state, "st", kept)
    return kept


MODEL = SimpleNamespace(loaded=SimpleNamespace(n_layers=3, n_heads=5))


def test_a_mark_that_names_a_head_chooses_it_and_opens_the_page_that_was_asked_for(session):
    picking_head(MODEL)({"layer": 2, "head": 4, "query": 7})
    assert session.session_state[state.CHOSEN] == {"layer": 2, "head": 4}
    assert session.gone == []
    picking_head(MODEL, "pages/x.py")({"layer": 1, "head": 3})
    assert session.session_state[state.CHOSEN] == {"layer": 1, "head": 3}
    assert session.gone == ["pages/x.py"]


def test_a_head_beyond_the_model_is_the_nearest_one(session):
    picking_head(MODEL)({"layer": 99, "head": -4})
    assert session.session_state[state.CHOSEN] == {"layer": 2, "head": 0}


@pytest.mark.parametrize("mark", [{}, {"layer": 2}, {"layer": "2", "head": 1}, {"head": None}])
def test_a_mark_that_names_no_head_chooses_nothing(session, mark):
    picking_head(MODEL, "pages/x.py")(mark)
    assert session.session_state[state.CHOSEN] == {"layer": 0, "head": 0}
    assert session.gone == []


@pytest.mark.parametrize(
    ("head", "place"),
    [
        (3, {"layer": 1, "head": 3}),
        ("2.11", {"layer": 2, "head": 11}),
        ("2.x", {}),
        ("", {}),
        (None, {}),
        ("9" * 5000, {}),
    ],
)
def test_a_box_names_its_head_or_its_layer_and_head(head, place):
    view = View(None, None, 1, 0, None, "light")
    assert place_of(view, {"head": head}) == place


@given(st.text())
def test_markdown_signs_lose_their_meaning_and_nothing_else(text):
    escaped = plain(text)
    assert "\n" not in escaped
    unescaped = escaped
    for sign in "`*_{}[]()<>#+-!|~:$\\":
        unescaped = unescaped.replace(f"\\{sign}", sign)
    assert unescaped == " ".join(text.split())


def test_two_ways_of_asking_for_a_model_are_two_values():
    assert Asked("a", None, "cpu", "float32") != Asked("a", "v1", "cpu", "float32")
