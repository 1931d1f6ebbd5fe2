"""Many at once on shared models: nothing mixes, nothing grows, whoever leaves leaves nothing."""

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import pandas as pd
import psutil
import pytest
import torch
from streamlit.runtime.scriptrunner import get_script_run_ctx
from streamlit.testing.v1 import AppTest

import attnprobe as ap
from attnprobe import capture, readout
from attnprobe.analyses.pruning import effects, importance
from attnprobe.data import LabelledText, TextSet
from attnprobe.errors import Stopped
from attnprobe.trace import bytes_for
from attnprobe.ui import cached
from attnprobe.ui.cached import Store
from attnprobe.ui.view import View

# The package publishes a function of the same name.
runs = import_module("attnprobe.ui.run")
THREADS = 8
KINDS = ("bert", "bert-mlm", "gpt2", "roberta")
WORDS = (
    "the cat sat on the mat because it was tired",
    "a dog ran",
    "zebra apple mango and then it ran",
    "it was the dog",
    "then came the zebra on a mat",
)
TEXTS = TextSet("three", tuple(map(LabelledText, WORDS[:3])))
STEADY = 15
RUNS = 40


def heads(loaded, text: str) -> pd.DataFrame:
    return ap.head_table(ap.trace(loaded, text))


def gated(loaded, text: str) -> torch.Tensor:
    batch = loaded.batch(loaded.read(text))
    with torch.no_grad(), capture.watching(capture.gate({(1, 1): 0.0})):
        return loaded.forward(batch)


def swept(loaded, text: str) -> pd.DataFrame:
    read = readout.default(loaded)
    return effects.one_head_off(read, [LabelledText(text)]).frame(draws=5)


def weighed(loaded, text: str) -> pd.DataFrame:
    return importance.importance(readout.default(loaded), TEXTS, draws=5)


def certified(loaded, text: str) -> pd.DataFrame:
    return ap.certify(loaded, loaded.read(text))


WORK: tuple[Callable, ...] = (heads, gated, swept, weighed, certified)


def jobs() -> list[tuple[Callable, str, str]]:
    """Every kind of work on every model that can do it, with another text each time."""
    able = [(work, kind) for work in WORK for kind in KINDS]
    able = [(w, k) for w, k in able if not (k == "bert" and w in (swept, weighed))]
    return [(work, kind, WORDS[i % len(WORDS)]) for i, (work, kind) in enumerate(able * 2)]


def equal(first: pd.DataFrame | torch.Tensor, second: pd.DataFrame | torch.Tensor) -> bool:
    return torch.equal(first, second) if isinstance(first, torch.Tensor) else first.equals(second)


def logits(loaded) -> torch.Tensor:
    with torch.no_grad():
        return loaded.forward(loaded.batch(loaded.read(WORDS[0])))


def test_eight_threads_with_sweeps_and_traces_give_what_each_gives_alone(tiny_model):
    asked = jobs()
    models = {kind: tiny_model(kind) for kind in KINDS}
    before = {kind: logits(model) for kind, model in models.items()}
    alone = [work(models[kind], text) for work, kind, text in asked]
    torch.set_num_threads(1)
    with ThreadPoolExecutor(THREADS) as pool:
        together = list(pool.map(lambda job: job[0](models[job[1]], job[2]), asked))
    wrong = [job for job, a, b in zip(asked, alone, together, strict=True) if not equal(a, b)]
    assert len(asked) > 4 * THREADS
    assert not wrong
    for kind, model in models.items():
        assert torch.equal(logits(model), before[kind])
        assert not any(p.requires_grad or p.grad is not None for p in model.model.parameters())


def test_loading_a_model_again_never_disturbs_a_run_on_the_first(tiny_folder, tiny_model):
    """The proof at load switches the backend of the new model: it must be of that one alone."""
    loaded, stop, wrong = tiny_model("bert"), threading.Event(), []
    expected = heads(loaded, WORDS[0])

    def trace_all_the_time():
        while not stop.is_set():
            if not heads(loaded, WORDS[0]).equals(expected):
                wrong.append(1)

    worker = threading.Thread(target=trace_all_the_time)
    worker.start()
    for _ in range(4):
        ap.load(str(tiny_folder("bert")), device="cpu")
    stop.set()
    worker.join()
    assert not wrong


def test_a_sweep_that_is_stopped_in_one_thread_goes_on_in_the_others(tiny_model):
    loaded = tiny_model("gpt2")
    read, before = readout.default(loaded), logits(loaded)
    expected = swept(loaded, WORDS[0])

    def stopped(_):
        def progress(done, total, partial=None):
            raise Stopped("somebody left")

        try:
            effects.one_head_off(read, TEXTS, progress=progress)
        except Stopped:
            return "left"
        return "went on"

    with ThreadPoolExecutor(THREADS) as pool:
        leaving = [pool.submit(stopped, i) for i in range(THREADS)]
        staying = [pool.submit(swept, loaded, WORDS[0]) for _ in range(THREADS)]
        assert {job.result() for job in leaving} <= {"left", "went on"}
        assert all(job.result().equals(expected) for job in staying)
    assert torch.equal(logits(loaded), before)
    assert not capture.is_watched()


def script():
    import streamlit as st

    from attnprobe.ui.run import run

    run(st.session_state["view"], "sweep", {}, st.session_state["steps"], cost="nine batches")


def test_a_closed_session_ends_its_run_and_leaves_model_and_turn_free(tiny_model, monkeypatch):
    """What Streamlit does when a tab is gone: it asks the running script to stop."""
    store = Store(96)
    monkeypatch.setattr(cached, "RESULTS", store)
    monkeypatch.setattr(runs, "RESULTS", store)
    loaded, computed = tiny_model("bert"), []
    before = logits(loaded)

    def steps(progress):
        for number in range(9):
            gated(loaded, WORDS[1])
            computed.append(number)
            if number == 2:
                get_script_run_ctx().script_requests.request_stop()
            progress(number + 1, 9, list(computed))
        return computed

    app = AppTest.from_function(script, default_timeout=300)
    app.session_state["view"] = View(loaded, loaded.read(WORDS[1]), 0, 0, None, "light")
    app.session_state["steps"] = steps
    app.run().button(key="sweep:start").click().run()
    assert computed == [0, 1, 2]
    assert torch.equal(logits(loaded), before)
    with ThreadPoolExecutor(1) as other:
        assert other.submit(turn_is_free).result()


def turn_is_free() -> bool:
    lock = runs.TORCH._lock
    taken = lock.acquire(timeout=1)
    if taken:
        lock.release()
    return taken


def tensor_bytes() -> int:
    gc.collect()
    alive = (x for x in gc.get_objects() if isinstance(x, torch.Tensor))
    return sum(x.numel() * x.element_size() for x in alive)


def slope(values: list[int]) -> float:
    """The least-squares growth from one value to the next."""
    at = torch.arange(len(values), dtype=torch.float64)
    y = torch.tensor(values, dtype=torch.float64)
    return float(((at - at.mean()) * (y - y.mean())).sum() / (at - at.mean()).square().sum())


def test_memory_does_not_grow_with_the_number_of_runs(tiny_model, record_property):
    """A kept trace would add its size each time; the slope has to be far below that."""
    loaded, process = tiny_model("gpt2"), psutil.Process()
    text = "the cat sat on the mat because it was tired and then a dog ran"[: loaded.max_tokens]
    one_trace = bytes_for(loaded, len(loaded.read(text)))
    resident, tensors = [], []
    for number in range(STEADY + RUNS):
        heads(loaded, text)
        gated(loaded, text[: 1 + number % len(text)])
        if number == STEADY:
            tensors.append(tensor_bytes())
        if number >= STEADY:
            resident.append(process.memory_info().rss)
    tensors.append(tensor_bytes())
    found = slope(resident)
    record_property("resident_bytes_per_run", found)
    assert tensors[0] == tensors[1]
    assert found < one_trace / 4


@pytest.mark.parametrize("values", [[3, 3, 3], [0, 2, 4], [5, 3, 1]])
def test_the_slope_is_the_growth_per_step(values):
    assert slope(values) == pytest.approx(values[1] - values[0])
