"""Choosing a model: offers, downloads with a stop, a full device, what the card says."""

import threading
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from attnprobe import hub, sources
from attnprobe.errors import DeviceFull, Stopped
from attnprobe.sources import BUNDLED
from attnprobe.ui import cached, overview, picker
from attnprobe.ui.download import Fetch

HOME = str(Path(__file__).parents[1] / "app.py")


def opened(model: str) -> AppTest:
    app = AppTest.from_file(HOME, default_timeout=120)
    app.query_params["model"] = model
    app.session_state["typed"] = "the cat sat"
    return app.run()


def labels(app) -> list[str]:
    return [button.label for button in app.button]


def test_a_model_that_is_not_here_is_offered_and_not_fetched_unasked(monkeypatch):
    monkeypatch.setattr(sources, "needs_download", lambda name, revision: True)
    monkeypatch.setattr(sources, "find", lambda *_: pytest.fail("nobody asked for it"))
    app = opened("owner/name")
    assert not app.exception
    assert not app.error
    assert "Download" in labels(app)
    assert "is not on this machine" in app.info[0].value


def test_a_download_that_was_asked_for_ends_in_the_model(monkeypatch, tiny_folder):
    folder, here = str(tiny_folder("bert")), []
    found = sources.find

    def fetch(name, revision=None, progress=None):
        if progress is not None:
            progress(3, 7)
            here.append(name)
        return found(name, revision)

    monkeypatch.setattr(sources, "needs_download", lambda name, revision: not here)
    monkeypatch.setattr(sources, "find", fetch)
    app = opened(folder)
    next(button for button in app.button if button.label == "Download").click().run()
    assert not app.exception
    assert not app.error
    assert here == [folder]
    assert app.metric[0].value == "2"


def test_a_download_leaves_at_its_next_chunk_after_a_stop():
    fetch = Fetch()
    fetch(3, 7)
    assert (fetch.done, fetch.total) == (3, 7)
    fetch.stop.set()
    failures = []

    def work():
        try:
            fetch(5, 7)
        except Stopped as stopped:
            failures.append(stopped)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert len(failures) == 1


def test_a_full_device_is_one_sentence_and_an_offer_to_go_on_on_the_cpu(monkeypatch, tiny_folder):
    def full(*_):
        raise DeviceFull("the model does not fit on cuda; choose device cpu")

    monkeypatch.setattr(cached, "model", full)
    app = opened(str(tiny_folder("bert")))
    assert [error.value for error in app.error] == [
        "the model does not fit on cuda; choose device cpu"
    ]
    monkeypatch.undo()
    app.button(key="go on on the cpu").click().run()
    assert not app.error
    assert app.session_state["device"] == "cpu"


def test_what_the_local_cache_holds_can_be_chosen(monkeypatch, tiny_folder):
    monkeypatch.setattr(hub, "cached_models", lambda: ("owner/cached",))
    picker._in_cache.clear()
    app = opened(str(tiny_folder("bert")))
    options = app.selectbox(key="model:Overview").options
    assert options[: len(BUNDLED)] == [model.title for model in BUNDLED.values()]
    assert "owner/cached" in options
    picker._in_cache.clear()


def test_an_id_with_its_revision_goes_into_the_link(monkeypatch, tiny_folder):
    monkeypatch.setattr(sources, "needs_download", lambda name, revision: True)
    app = opened(str(tiny_folder("bert")))
    app.text_input(key="hub id:Overview").set_value("owner/name")
    app.text_input(key="hub revision:Overview").set_value("v1.0")
    next(each for each in app.button if each.label == "Load from the Hub").click().run()
    assert app.query_params["model"] == "owner/name"
    assert app.query_params["revision"] == "v1.0"


@pytest.mark.parametrize("kind", ["bert", "bert-mlm", "gpt2", "bert-classifier", "bert-tagger"])
def test_every_kind_of_head_says_what_is_read_out(kind, tiny_model):
    assert overview.READS_OUT[tiny_model(kind).head_kind]


def test_a_bundled_model_that_is_incomplete_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(sources.Bundled, "path", lambda self: tmp_path)
    app = opened("bundled:gpt2")
    assert not app.exception
    assert len(app.error) == 1
    assert "config.json" in app.error[0].value
