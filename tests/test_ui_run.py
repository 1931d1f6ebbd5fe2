"""A long run that is cut off, stopped or failing: what is kept, and what became of the model."""

from importlib import import_module

import pytest
import torch
from streamlit.runtime.scriptrunner import StopException
from streamlit.testing.v1 import AppTest

from attnprobe import capture
from attnprobe.errors import Stopped
from attnprobe.ui import cached
from attnprobe.ui.cached import Store
from attnprobe.ui.view import View

# The package publishes a function of the same name.
runs = import_module("attnprobe.ui.run")
BATCHES = 5


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch):
    store = Store(96)
    monkeypatch.setattr(cached, "RESULTS", store)
    monkeypatch.setattr(runs, "RESULTS", store)


def script():
    import streamlit as st

    from attnprobe.ui.run import run

    outcome = run(
        st.session_state["view"],
        "sweep",
        {"k": st.session_state["k"]},
        st.session_state["steps"],
        cost="five batches",
    )
    st.session_state["outcome"] = outcome


class Sweep:
    """Ablates everything in each batch and notes which batches it computed."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.computed: list[int] = []

    def __call__(self, progress) -> list[int]:
        finished = list(progress.partial or [])
        batch = self.view.loaded.batch(self.view.tokens)
        for number in range(len(finished), BATCHES):
            with torch.no_grad(), capture.watching(ablated):
                self.view.loaded.forward(batch)
            self.computed.append(number)
            finished = [*finished, number]
            progress(number + 1, BATCHES, finished)
        return finished


def ablated(call):
    return torch.zeros_like(call.value)


@pytest.fixture
def app(tiny_model):
    loaded = tiny_model("bert")
    view = View(loaded, loaded.read("the cat sat"), 0, 0, None, "light")
    app = AppTest.from_function(script, default_timeout=120)
    app.session_state["view"] = view
    app.session_state["steps"] = Sweep(view)
    app.session_state["k"] = 1
    return app


def cut_after(monkeypatch, batches: int) -> None:
    """Streamlit ends the script at the yield point after so many batches."""
    calls = []

    def tick():
        calls.append(1)
        if len(calls) == batches:
            raise StopException

    monkeypatch.setattr(runs, "tick", tick)


def logits(app) -> torch.Tensor:
    view = app.session_state["view"]
    with torch.no_grad():
        return view.loaded.forward(view.loaded.batch(view.tokens))


def test_nothing_runs_before_the_button_and_the_cost_stands_beside_it(app):
    app.run()
    assert app.session_state["steps"].computed == []
    assert app.session_state["outcome"] is None
    assert "five batches" in [caption.value for caption in app.caption]


def test_a_started_run_is_whole_and_kept(app):
    app.run().button(key="sweep:start").click().run()
    outcome = app.session_state["outcome"]
    assert outcome.value == [0, 1, 2, 3, 4]
    assert outcome.complete
    app.run()
    assert app.session_state["steps"].computed == [0, 1, 2, 3, 4]


def test_a_button_pressed_before_the_page_followed_a_widget_starts_what_the_widget_says(app):
    app.run()
    app.session_state["k"] = 2
    app.button(key="sweep:start").click().run()
    assert app.session_state["outcome"].complete
    assert app.session_state["steps"].computed == [0, 1, 2, 3, 4]


def test_a_start_is_used_up_by_the_settings_that_it_met(app):
    app.run().button(key="sweep:start").click().run()
    app.session_state["k"] = 2
    app.run()
    app.session_state["k"] = 1
    app.button(key="sweep:start").click().run()
    assert app.session_state["outcome"].complete
    app.session_state["k"] = 3
    app.run()
    assert app.session_state["outcome"] is None
    assert app.session_state["steps"].computed == [0, 1, 2, 3, 4]


def test_a_run_that_was_cut_off_goes_on_where_it_was(app, monkeypatch):
    app.run()
    cut_after(monkeypatch, 3)
    app.button(key="sweep:start").click().run()
    assert app.session_state["steps"].computed == [0, 1, 2]
    app.run()
    assert app.session_state["outcome"].value == [0, 1, 2, 3, 4]
    assert app.session_state["steps"].computed == [0, 1, 2, 3, 4]


def test_stop_keeps_what_is_finished_and_offers_to_go_on(app, monkeypatch):
    app.run()
    cut_after(monkeypatch, 2)
    app.button(key="sweep:start").click().run()
    app.button(key="sweep:stop").click().run()
    outcome = app.session_state["outcome"]
    assert (outcome.value, outcome.done, outcome.total) == ([0, 1], 2, BATCHES)
    assert not outcome.complete
    assert app.session_state["steps"].computed == [0, 1]
    assert app.button(key="sweep:start").label == "Go on"
    app.button(key="sweep:start").click().run()
    assert app.session_state["outcome"].value == [0, 1, 2, 3, 4]


def test_a_run_that_was_cut_off_leaves_the_model_bit_equal(app, monkeypatch):
    before = logits(app)
    app.run()
    cut_after(monkeypatch, 2)
    app.button(key="sweep:start").click().run()
    assert torch.equal(logits(app), before)
    view = app.session_state["view"]
    assert not any(weight.requires_grad for weight in view.loaded.model.parameters())


def test_a_failing_run_is_not_started_again_by_itself(app):
    sweep = app.session_state["steps"]

    def failing(progress):
        sweep.computed.append(0)
        raise Stopped("in the middle of the work")

    app.session_state["steps"] = failing
    app.run().button(key="sweep:start").click().run()
    app.run()
    assert sweep.computed == [0]


def test_the_turn_is_free_after_a_run_that_was_cut_off(app, monkeypatch):
    app.run()
    cut_after(monkeypatch, 1)
    app.button(key="sweep:start").click().run()
    monkeypatch.setattr(runs, "tick", lambda: None)
    with runs.TORCH.taken():
        free = True
    assert free
