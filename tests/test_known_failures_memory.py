"""Little memory: the estimate refuses before the system does, and long texts stay small."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import attnprobe as ap
from attnprobe import cli, memory, models
from attnprobe.errors import TooLarge
from attnprobe.trace import bytes_for

ROOT = Path(__file__).parents[1]
CPU = torch.device("cpu")
TEXT = "the cat sat"

_FULL_LENGTH = """
import json, sys
import torch
import attnprobe as ap
torch.set_num_threads(1)

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024

found = {}
for name in ("bundled:bert", "bundled:gpt2"):
    loaded = ap.load(name, device="cpu")
    tokens = loaded.read("the cat sat on the mat and " * 400, window=(0, loaded.reader.room))
    trace = ap.trace(loaded, tokens)
    table = ap.head_table(trace)
    proof = ap.certify(loaded, tokens)
    assert trace.weights(0, 0).shape == (loaded.max_tokens, loaded.max_tokens)
    found[name] = [len(tokens), loaded.max_tokens, bool(proof["ok"].all()), peak()]
json.dump(found, sys.stdout)
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(),
    reason="the peak is read from VmHWM, which Linux alone keeps",
)
def test_texts_of_full_length_on_both_bundled_models_take_less_than_two_gigabytes():
    """Both models in one process, trace and certificate: the peak of all of it."""
    run = subprocess.run(
        [sys.executable, "-c", _FULL_LENGTH], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for length, longest, certified, peak in json.loads(run.stdout).values():
        assert length == longest
        assert certified
        assert peak < 2 * 10**9


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_the_estimate_of_a_trace_covers_what_it_keeps_and_not_three_times_that(kind, tiny_model):
    loaded = tiny_model(kind)
    trace = ap.trace(loaded, "the cat sat on the mat a dog ran then came")
    kept = [trace.queries, trace.keys, trace.values, trace.contexts, trace.output]
    kept += [tensor for tensor in vars(trace.rows).values() if isinstance(tensor, torch.Tensor)]
    held = sum(tensor.numel() * tensor.element_size() for tensor in kept)
    assert held <= bytes_for(loaded, len(trace.tokens)) < 3 * held


def test_a_text_that_does_not_fit_is_refused_before_it_is_computed(tiny_model, monkeypatch):
    loaded = tiny_model("bert")
    monkeypatch.setattr(memory, "free", lambda device: 1_000)
    monkeypatch.setattr(type(loaded), "forward", lambda *_: pytest.fail("it was computed"))
    with pytest.raises(TooLarge, match=r"a text of 5 tokens needs about .* are free; shorten it"):
        ap.trace(loaded, TEXT)


def test_a_model_that_does_not_fit_is_refused_before_a_weight_is_read(tiny_folder, monkeypatch):
    monkeypatch.setattr(memory, "free", lambda device: 1_000)
    monkeypatch.setattr(models, "_read", lambda *_: pytest.fail("weights were read"))
    with pytest.raises(TooLarge, match="choose a smaller model, bfloat16, or free some memory"):
        ap.load(str(tiny_folder("gpt2")), device="cpu")


def test_little_memory_is_one_sentence_on_the_command_line(tiny_folder, monkeypatch, capsys):
    monkeypatch.setattr(memory, "free", lambda device: 1_000)
    assert cli.main(["heads", "--model", str(tiny_folder("bert")), "--text", TEXT]) == 2
    assert "are free" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("limit", "room"),
    [("1000000", 1_000_000 - 700_000 + 50_000), ("700000", 50_000), ("max", None), (None, None)],
)
def test_in_a_container_only_its_own_limit_counts(limit, room, tmp_path, monkeypatch):
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 50000\nactive_file 7\n")
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
    monkeypatch.setattr(memory, "_CONTAINER", tmp_path)
    expected = memory.psutil.virtual_memory().available if room is None else room
    assert memory.free(CPU) == pytest.approx(expected, rel=0.5)
