"""Any text at all: numbers or one sentence, nothing undefined drawn, nothing left on the model."""

import io
import json
import sys

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import attnprobe as ap
from attnprobe import capture, cli, figures
from attnprobe.errors import BadInput, BadText, TextTooLong
from attnprobe.export import Figure, Provenance
from attnprobe.export.render import spec_of
from attnprobe.figures.labels import safe_label

SPLIT = "Seán 😀 中文 שלום é e\u0301 👩‍👩‍👧"
NASTY = [
    "", " ", "\n", "a", "\u200b", "\x00", "a\x00b", "\x1b[31m", "\ufffe", "a\u0301", "\u00e1",
    "\U0001f600\U0001f600", "中文 模型", "שלום world", "the cat the dog", "zebra apple mango",
    "1 2 3 4 5 6 7 8 9 10 11", "[SEP] hello [MASK]", "<|endoftext|>x",
    "<img src=x onerror=alert(1)>", "</script>", "$5 and $6", "*a* _b_ :red[x] # h", "\ud83d",
    "\x0b\x0c", "\uffff", "\u202eevil", "=1+1", "word " * 600,
]  # fmt: skip
BLANK = ["", "   ", "\n", "\u200b", "\x00", "\ufeff"]


@pytest.fixture(scope="module", params=["bert", "gpt2"])
def model(request, tiny_model):
    return tiny_model(request.param)


def logits(loaded) -> torch.Tensor:
    with torch.no_grad():
        return loaded.forward(loaded.batch(loaded.read("the cat sat")))


def left_on(loaded) -> list[str]:
    """What a run may have forgotten on the model: hooks, gradients, training mode, a watcher."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    found = [f"{n}{h}" for n, m in loaded.model.named_modules() for h in hooks if getattr(m, h)]
    found += [
        name for name, p in loaded.model.named_parameters() if p.requires_grad or p.grad is not None
    ]
    found += ["training"] * loaded.model.training + ["watcher"] * capture.is_watched()
    return found


def drawn(loaded, text: str) -> None:
    """What a page draws of a text, proved to hold no NaN and no label that XML cannot bear."""
    trace = ap.trace(loaded, text)
    frame = figures.matrix_frame(
        trace.weights(1, 1).double().numpy(), trace.tokens.display, "weight",
        valid=trace.valid().numpy(),
    )  # fmt: skip
    for chart in (figures.head_map(ap.head_table(trace), "entropy"), figures.token_map(frame)):
        json.dumps(chart.to_dict(validate=False), allow_nan=False)
    assert all(label.strip() for label in trace.tokens.display)
    assert all(safe_label(label, 10**7) == label for label in trace.tokens.display)


def drawn_or_said(loaded, text: str) -> str:
    """Bytes give the stranger labels, so those of GPT-2 are drawn and BERT's text is traced."""
    try:
        drawn(loaded, text) if loaded.causal else ap.head_table(ap.trace(loaded, text))
    except BadText as error:
        return str(error)
    return "drawn"


@pytest.mark.parametrize("text", NASTY, ids=lambda text: ascii(text)[:24])
def test_a_nasty_text_is_drawn_or_one_sentence_and_leaves_nothing_behind(model, text):
    before = logits(model)
    said = drawn_or_said(model, text)
    assert "\n" not in said
    assert torch.equal(logits(model), before)
    assert not left_on(model)


@given(text=st.text(st.characters(codec=None), max_size=40))
@settings(max_examples=10, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_text_is_drawn_or_one_sentence_and_leaves_nothing_behind(model, text):
    before = logits(model)
    assert drawn_or_said(model, text)
    assert torch.equal(logits(model), before)
    assert not left_on(model)


def test_a_megabyte_of_text_is_refused_with_its_length_and_can_be_windowed(model):
    long = "the cat " * 2**17
    with pytest.raises(TextTooLong, match="reads at most 64"):
        model.read(long)
    tokens = model.read(long, window=(100_000, 9))
    assert len(tokens) == 9 + len(model.reader.prefix) + len(model.reader.suffix)
    assert ap.head_table(ap.trace(model, tokens))["entropy"].notna().all()


def test_a_megabyte_without_a_space_is_tokens_or_one_sentence(model):
    assert "at most" in drawn_or_said(model, "a" * 2**20) or model.reader.count("a" * 2**20) < 64


@pytest.mark.parametrize("text", BLANK, ids=ascii)
def test_a_text_without_content_never_reaches_bert(text, tiny_model):
    with pytest.raises(BadText, match="0 tokens of content"):
        tiny_model("bert").read(text)


def test_a_file_of_no_bytes_is_one_sentence_on_the_command_line(tiny_folder, tmp_path, capsys):
    (tmp_path / "empty.txt").touch()
    where = ["--model", str(tiny_folder("gpt2")), "--file", str(tmp_path / "empty.txt")]
    assert cli.main(["heads", *where]) == 2
    assert "type a word" in capsys.readouterr().err


def test_a_megabyte_from_standard_input_is_one_sentence(tiny_folder, monkeypatch, capsys):
    class Stdin:
        buffer = io.BytesIO(b"the cat " * 2**17)

    monkeypatch.setattr(sys, "stdin", Stdin)
    assert cli.main(["heads", "--model", str(tiny_folder("bert")), "--file", "-"]) == 2
    assert "reads at most 64" in capsys.readouterr().err


def test_no_piece_of_a_character_is_shown_as_a_replacement_box(tiny_model):
    trace = ap.trace(tiny_model("gpt2"), SPLIT)
    frame = figures.matrix_frame(
        trace.weights(0, 1).double().numpy(), trace.tokens.display, "weight"
    )
    spec = json.dumps(figures.token_map(frame).to_dict(), ensure_ascii=False)
    assert "\ufffd" not in spec
    assert "‹F0›" in set(frame["query_token"])
    typed = tiny_model("gpt2").read("\ufffd")
    assert typed.display != tiny_model("gpt2").read("😀").display


def test_ten_tokens_and_more_stand_in_text_order_and_equal_ones_apart():
    words = ["the", "cat", "the", "dog", "zebra", "apple", "the", "mango", "cat", "a", "the", "dog"]
    n = len(words)
    frame = figures.matrix_frame(torch.eye(n).numpy(), words, "weight")
    spec = figures.token_map(frame).to_dict()
    cells = max(spec["datasets"].values(), key=len)
    assert len({(cell["query"], cell["key"]) for cell in cells}) == n * n
    assert frame["query_token"].tolist()[::n] == words


def test_a_map_of_more_than_five_thousand_cells_is_the_same_on_screen_and_in_the_file():
    n = 72
    frame = figures.matrix_frame(torch.eye(n).numpy(), [f"t{i}" for i in range(n)], "weight")
    on_screen = figures.token_map(frame).to_dict()
    figure = figure_of(frame)
    assert max(map(len, on_screen["datasets"].values())) == n * n
    assert max(map(len, spec_of(figure)["datasets"].values())) == n * n


def figure_of(frame) -> Figure:
    return Figure(
        "map", lambda mode: figures.token_map(frame, mode=mode), frame, "A map.", "A map.",
        Provenance("some model"),
    )  # fmt: skip


@pytest.mark.parametrize("window", [(-2, 1), (0, 0), (0, -1), (-1, -1)])
def test_a_window_that_is_none_is_refused_and_not_counted_from_the_end(window, model):
    with pytest.raises(BadText, match="choose a start from 0 on and a length of at least 1"):
        model.read("the cat sat", window=window)


@pytest.mark.parametrize("peak", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_threshold_of_saturation_that_no_peak_can_have_is_refused(peak, tiny_model):
    with pytest.raises(BadInput, match="choose a peak in 0 … 1"):
        ap.head_table(ap.trace(tiny_model("bert"), "the cat sat"), saturated_from=peak)
