"""What is kept between runs: under which digest, how much of it, and what is let go."""

import gc
import os
import threading
import weakref

import pytest

import attnprobe.ui.lock as lock
from attnprobe.errors import Stopped, UnsupportedModel
from attnprobe.ui import cached, inspector
from attnprobe.ui.cached import Store, digest_of, kept
from attnprobe.ui.view import View


@pytest.fixture(autouse=True)
def _empty_shelf(monkeypatch):
    for name, most in (("MODELS", 2), ("TRACES", 6), ("RESULTS", 96)):
        monkeypatch.setattr(cached, name, Store(most))


def view_of(loaded, text: str = "the cat sat", **reading) -> View:
    return View(loaded, loaded.read(text, **reading), 0, 1, None, "light")


def loaded_from(folder, dtype="float32"):
    return cached.model(str(folder), "cpu", dtype, None)


def test_parts_of_a_digest_do_not_run_into_each_other():
    assert digest_of("ab", "c") != digest_of("a", "bc")
    assert digest_of("ab") != digest_of("a", "b")
    assert digest_of("1") != digest_of(1)
    assert digest_of({"k": 1, "n": 2}) == digest_of({"n": 2, "k": 1})


def test_a_digest_refuses_what_it_cannot_compare():
    with pytest.raises(TypeError):
        digest_of(object())


def test_views_of_another_model_dtype_text_or_window_have_other_digests(tiny_model):
    views = [
        view_of(tiny_model("bert")),
        view_of(tiny_model("bert", "float64")),
        view_of(tiny_model("bert-mlm")),
        view_of(tiny_model("gpt2")),
        view_of(tiny_model("gpt2"), begin=True),
        view_of(tiny_model("bert"), "the cat ran"),
        view_of(tiny_model("bert"), window=(1, 2)),
        view_of(tiny_model("bert"), "cat sat"),
    ]
    assert len({view.digest for view in views}) == len(views)


def test_the_same_view_is_computed_once_and_other_parameters_again(tiny_model):
    made = []

    def make(tick):
        made.append(1)
        return len(made)

    view = view_of(tiny_model("bert"))
    assert cached.computed(view, "n", {"k": 1}, make) == 1
    assert cached.computed(view_of(tiny_model("bert")), "n", {"k": 1}, make) == 1
    assert cached.computed(view, "n", {"k": 2}, make) == 2
    assert cached.computed(view, "m", {"k": 1}, make) == 3


def test_the_result_used_longest_ago_leaves_first():
    store = Store(2)
    for digest in ("one", "two"):
        store.put(digest, digest)
    assert store.get("one") == "one"
    store.put("three", "three")
    assert [store.get(digest) for digest in ("one", "two", "three")] == ["one", None, "three"]


def test_the_third_model_frees_the_memory_of_the_first(tiny_folder):
    first = loaded_from(tiny_folder("bert"))
    view = view_of(first)
    cached.head_table(view)
    cached.certificate(first, view.tokens, view.digest)
    inspector.head_of(view, cached.trace(view), "weights")
    gone = weakref.ref(first.model)
    del first, view
    second = loaded_from(tiny_folder("gpt2"))
    assert gone() is not None
    loaded_from(tiny_folder("distilbert"))
    gc.collect()
    assert gone() is None
    assert loaded_from(tiny_folder("gpt2")) is second


def test_a_name_that_leads_nowhere_costs_no_loaded_model_its_place(tiny_folder):
    models = [loaded_from(tiny_folder(kind)) for kind in ("bert", "gpt2")]
    with pytest.raises(UnsupportedModel):
        loaded_from("no/such-model")
    assert [loaded_from(tiny_folder(kind)) for kind in ("bert", "gpt2")] == models


def test_a_folder_that_was_written_again_is_another_model(tiny_folder):
    folder = tiny_folder("bert")
    before = loaded_from(folder)
    os.utime(folder / "model.safetensors", ns=(1, 1))
    assert loaded_from(folder) is not before


def test_another_precision_is_another_model(tiny_folder):
    single, double = (loaded_from(tiny_folder("bert"), d) for d in ("float32", "float64"))
    assert (single.precision, double.precision) == ("float32", "float64")


def test_a_failure_is_not_kept():
    store = Store(2)

    def fail(tick):
        raise UnsupportedModel("no")

    with pytest.raises(UnsupportedModel):
        kept(store, "digest", fail)
    assert kept(store, "digest", lambda tick: "made") == "made"


@pytest.fixture
def held():
    """A turn that another thread has until `release` is set."""
    turn, taken, release = lock.Turn(), threading.Event(), threading.Event()

    def hold():
        with turn.taken():
            taken.set()
            release.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait(30)
    yield turn, release
    release.set()
    thread.join(30)


def test_an_outdated_script_leaves_the_queue(held, monkeypatch):
    turn, release = held

    def outdated():
        raise Stopped("a newer run exists")

    monkeypatch.setattr(lock, "tick", outdated)
    with pytest.raises(Stopped), turn.taken():
        pass
    release.set()
    monkeypatch.setattr(lock, "tick", lambda: None)
    with turn.taken():
        reached = True
    assert reached


def test_an_error_inside_gives_the_turn_back():
    turn = lock.Turn()
    with pytest.raises(Stopped), turn.taken():
        raise Stopped("in the middle")
    other = threading.Thread(target=lambda: turn.taken().__enter__())
    other.start()
    other.join(30)
    assert not other.is_alive()


def test_a_lent_turn_lets_the_waiting_thread_go_first():
    turn, order = lock.Turn(), []

    def short_work():
        with turn.taken():
            order.append("short")

    with turn.taken():
        other = threading.Thread(target=short_work)
        other.start()
        while "short" not in order:
            turn.lend()
        order.append("long")
    other.join(30)
    assert order == ["short", "long"]
