"""The door: what a watcher sees and may change, resuming at a layer, and who sees whose run."""

import itertools
import math
import threading
from dataclasses import replace

import pytest
import tiny
import torch
from transformers import AutoModel, GPT2Model

from attnprobe import capture, load
from attnprobe.capture import AttentionCall, every_layer_once, gate, watching
from attnprobe.errors import CaptureFailed, UnsupportedModel
from attnprobe.families import FAMILIES
from attnprobe.text import Batch

KINDS = ["bert", "bert-mlm", "bert-classifier", "gpt2", "roberta", "distilbert", "electra"]
TEXT = "the cat sat on the mat"


def record(calls):
    def watcher(call):
        calls.append(call)

    return watcher


@torch.no_grad()
def run(loaded, batch, watcher=None, **options):
    with watching(watcher, **options):
        return loaded.forward(batch)


def padded(loaded, side="right"):
    texts = [loaded.read(TEXT), loaded.read("a dog ran"), loaded.read("it was tired and then")]
    return loaded.reader.batch(texts, side=side), texts


@pytest.mark.parametrize("kind", KINDS)
def test_a_watcher_sees_every_layer_once_with_the_family_s_sizes(tiny_model, kind):
    loaded, calls = tiny_model(kind), []
    batch, _ = padded(loaded)
    run(loaded, batch, record(calls))
    assert [call.layer for call in calls] == list(range(loaded.n_layers))
    for call in calls:
        assert call.query.shape == (3, loaded.n_heads, batch.ids.shape[1], loaded.d_head)
        assert call.scale == pytest.approx(loaded.d_head**-0.5)
        assert call.causal == loaded.causal
        assert torch.equal(call.valid, batch.mask)


@pytest.mark.parametrize("kind", KINDS)
def test_captured_logits_give_the_weights_of_transformers_eager_attention(tiny_folder, kind):
    folder = tiny_folder(kind)
    loaded = load(str(folder), device="cpu")
    eager = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokens, calls = loaded.read(TEXT), []
    batch = loaded.batch(tokens)
    run(loaded, batch, record(calls))
    with torch.no_grad():
        theirs = eager(
            input_ids=batch.ids, attention_mask=batch.mask.long(), output_attentions=True
        ).attentions
    length = len(tokens)
    seen = (
        torch.ones(length, length).tril().bool()
        if loaded.causal
        else torch.ones(length, length).bool()
    )
    for call, weights in zip(calls, theirs, strict=True):
        logits = (call.query @ call.key.mT * call.scale).masked_fill(~seen, -torch.inf)
        torch.testing.assert_close(logits.softmax(-1), weights, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("kind", "side"), [*((kind, "right") for kind in KINDS), ("gpt2", "left")])
def test_padding_changes_no_real_position(tiny_model, kind, side):
    loaded = tiny_model(kind)
    batch, texts = padded(loaded, side)
    with torch.no_grad():
        together = loaded.hidden(batch)
        for row, tokens in enumerate(texts):
            alone = loaded.hidden(loaded.batch(tokens))[0]
            torch.testing.assert_close(together[row][batch.mask[row]], alone, atol=3e-5, rtol=1e-4)


@pytest.mark.parametrize("unseen", [slice(0, 2), slice(1, 2), slice(3, None), slice(0, 0)])
@pytest.mark.parametrize("length", [5, 300])
def test_padded_causal_context_equals_a_dense_masked_softmax(length, unseen):
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 3, length, 4, generator=generator).unbind(0)
    valid = torch.ones(2, length, dtype=torch.bool)
    valid[1, unseen] = False
    call = AttentionCall(0, query, key, value, 0.3, valid, True)
    position = torch.arange(length)
    mask = valid[:, None, None, :] & (position <= position[:, None])
    logits = (query @ key.mT * 0.3).masked_fill(~mask, -torch.inf)
    expected = logits.softmax(-1) @ value
    rows = (mask.any(-1) & valid[:, None]).expand(2, 3, length)
    torch.testing.assert_close(call.context()[rows], expected[rows], atol=1e-5, rtol=1e-5)


def test_without_a_scale_of_the_model_s_own_it_is_one_over_the_root_of_d_head():
    query, key, value = torch.randn(3, 2, 3, 5, 7, generator=torch.Generator().manual_seed(0))
    context, _ = capture.attend(torch.nn.Module(), query, key, value, None, is_causal=False)
    expected = (query @ key.mT / math.sqrt(7)).softmax(-1) @ value
    torch.testing.assert_close(context, expected.transpose(1, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_gates_of_one_change_nothing_and_gates_of_zero_change_the_output(tiny_model, kind):
    loaded = tiny_model(kind)
    batch, _ = padded(loaded)
    plain = run(loaded, batch)
    ones = torch.ones(loaded.n_layers, loaded.n_heads)
    assert torch.equal(run(loaded, batch, gate(ones)), plain)
    for layer in range(loaded.n_layers):
        assert not torch.equal(run(loaded, batch, gate({(layer, 1): 0.0})), plain)


@pytest.mark.parametrize("kind", ["bert", "gpt2", "distilbert"])
def test_a_gate_equals_zeroing_the_head_s_slice_before_the_output_projection(tiny_model, kind):
    loaded = tiny_model(kind)
    batch = loaded.batch(loaded.read(TEXT))
    projection = loaded.family.output_projection(loaded.model, 1)
    head = slice(2 * loaded.d_head, 3 * loaded.d_head)

    def zero_slice(module, inputs):
        context = inputs[0].clone()
        context[..., head] = 0
        return (context,)

    handle = projection.register_forward_pre_hook(zero_slice)
    expected = run(loaded, batch)
    handle.remove()
    torch.testing.assert_close(run(loaded, batch, gate({(1, 2): 0.0})), expected)


def test_all_heads_off_leaves_the_projection_bias(tiny_model):
    loaded, kept = tiny_model("gpt2"), []
    batch = loaded.batch(loaded.read(TEXT))
    gates = {(0, head): 0.0 for head in range(loaded.n_heads)}
    block = loaded.family.layer_list(loaded.model)[0]
    run(loaded, batch, gate(gates), keep=kept)
    with torch.no_grad():
        middle = kept[0] + block.attn.c_proj.bias
        expected = middle + block.mlp(block.ln_2(middle))
    torch.testing.assert_close(kept[1], expected)


def test_gates_per_example_act_on_their_own_example(tiny_model):
    loaded = tiny_model("bert-classifier")
    batch, _ = padded(loaded)
    gates = torch.ones(loaded.n_layers, 3, loaded.n_heads)
    gates[0, 1, 2] = 0
    plain, edited = run(loaded, batch), run(loaded, batch, gate(gates))
    assert torch.equal(edited[[0, 2]], plain[[0, 2]])
    assert not torch.equal(edited[1], plain[1])


def test_the_gradient_of_a_gate_is_its_central_difference(tiny_model):
    loaded = tiny_model("bert-classifier", "float64")
    batch, _ = padded(loaded)
    gates = torch.ones(loaded.n_layers, loaded.n_heads, dtype=torch.float64, requires_grad=True)

    def loss(gates):
        with watching(gate(gates)):
            return loaded.forward(batch).square().sum()

    (gradient,) = torch.autograd.grad(loss(gates), gates)
    step = 1e-5
    for layer, head in [(0, 0), (0, 2), (1, 1)]:
        shift = torch.zeros_like(gates)
        shift[layer, head] = step
        with torch.no_grad():
            difference = (loss(gates + shift) - loss(gates - shift)) / (2 * step)
        assert gradient[layer, head].item() == pytest.approx(difference.item(), rel=1e-6)


def test_edits_compose_from_the_outside_in(tiny_model):
    loaded = tiny_model("bert")
    batch = loaded.batch(loaded.read(TEXT))
    with watching(gate({(0, 0): 0.5})):
        nested = run(loaded, batch, gate({(0, 0): 0.5, (1, 2): 0.0}))
    torch.testing.assert_close(nested, run(loaded, batch, gate({(0, 0): 0.25, (1, 2): 0.0})))


def test_a_replaced_scale_reaches_the_model(tiny_model):
    loaded = tiny_model("gpt2")
    batch = loaded.batch(loaded.read(TEXT))

    def uniform(call):
        return replace(call, scale=1e-12)

    def running_mean(call):
        steps = torch.arange(1, call.value.shape[2] + 1)[:, None]
        return call.value.cumsum(2) / steps

    torch.testing.assert_close(
        run(loaded, batch, uniform), run(loaded, batch, running_mean), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("kind", KINDS)
def test_resuming_at_a_layer_gives_the_full_run_for_every_variant(tiny_model, kind):
    loaded, kept = tiny_model(kind), []
    batch, _ = padded(loaded)
    full = run(loaded, batch, keep=kept)
    assert len(kept) == loaded.n_layers + 1
    for start in range(loaded.n_layers):
        hidden = kept[start].repeat(5, 1, 1)
        resumed = run(loaded, batch.repeat(5), start=start, hidden=hidden)
        torch.testing.assert_close(resumed, full.repeat(5, *[1] * (full.ndim - 1)))


def test_the_tick_is_asked_before_every_layer_and_may_end_the_run(tiny_model):
    loaded, ticks = tiny_model("gpt2"), []
    batch = loaded.batch(loaded.read(TEXT))
    baseline = run(loaded, batch)

    class Enough(BaseException):
        pass

    def tick():
        ticks.append(1)
        if len(ticks) == 2:
            raise Enough

    with pytest.raises(Enough):
        run(loaded, batch, tick=tick)
    assert len(ticks) == 2
    assert torch.equal(run(loaded, batch), baseline)


def test_an_error_in_a_watcher_leaves_nothing_behind(tiny_model):
    loaded = tiny_model("bert")
    batch = loaded.batch(loaded.read(TEXT))
    baseline = run(loaded, batch)

    def broken(call):
        if call.layer == 1:
            raise RuntimeError("broken watcher")
        return torch.zeros_like(call.value)

    with pytest.raises(RuntimeError, match="broken watcher"):
        run(loaded, batch, broken)
    assert torch.equal(run(loaded, batch), baseline)
    assert capture._RUN.get() is None


def test_a_run_is_watched_within_and_not_before_or_after():
    before = capture.is_watched()
    with watching(lambda call: None):
        within = capture.is_watched()
    assert (before, within, capture.is_watched()) == (False, True, False)


def test_threads_that_share_a_model_never_see_each_other(tiny_model):
    loaded = tiny_model("bert")
    texts = ["a dog ran", "the cat sat on the mat because it was tired"]
    wrong = []

    def work(text):
        tokens = loaded.read(text)
        for _ in range(40):
            calls = []
            run(loaded, loaded.batch(tokens), record(calls))
            if [call.query.shape[2] for call in calls] != [len(tokens)] * loaded.n_layers:
                wrong.append(text)

    threads = [threading.Thread(target=work, args=(text,)) for text in texts * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_model_that_skips_the_door_is_noticed(tiny_model):
    with (
        pytest.raises(CaptureFailed, match="layers 0 to 1 were expected"),
        watching(lambda call: None),
        every_layer_once(2),
    ):
        pass


def test_a_query_by_key_mask_never_reaches_the_model(tiny_model):
    """The mask function hands on nothing larger than batch × key, whatever the padding."""
    loaded, calls = tiny_model("gpt2"), []
    run(loaded, loaded.batch(loaded.read(TEXT)), record(calls))
    assert all(call.valid is None for call in calls)
    batch, _ = padded(loaded, "left")
    run(loaded, batch, record(calls))
    assert all(call.valid.ndim == 2 for call in calls[loaded.n_layers :])


def test_only_a_text_with_its_padding_behind_it_takes_the_fast_causal_path():
    """Of all masks of four keys those where no key that counts follows one that does not."""
    masks = list(itertools.product([True, False], repeat=4))
    found = {mask for mask in masks if capture._right_padded(torch.tensor([mask]))}
    assert found == {tuple(position < length for position in range(4)) for length in range(5)}
    both = torch.tensor([[True, True, False, False], [False, True, True, True]])
    assert not capture._right_padded(both)


@pytest.mark.parametrize("option", ["softcap", "position_bias", "s_aux", "sliding_window"])
def test_whatever_changes_the_softmax_is_refused(option):
    q = torch.zeros(1, 2, 3, 4)
    with pytest.raises(UnsupportedModel, match=option):
        capture.attend(torch.nn.Identity(), q, q, q, None, is_causal=False, **{option: 1.0})


def test_dropout_grouped_keys_and_dense_masks_are_refused():
    q, k = torch.zeros(1, 4, 3, 2), torch.zeros(1, 2, 3, 2)
    with pytest.raises(UnsupportedModel, match="dropout"):
        capture.attend(torch.nn.Identity(), q, q, q, None, dropout=0.1, is_causal=False)
    with pytest.raises(UnsupportedModel, match="grouped-query"):
        capture.attend(torch.nn.Identity(), q, k, k, None, is_causal=False)
    with pytest.raises(UnsupportedModel, match="mask of shape"):
        capture.attend(torch.nn.Identity(), q, q, q, torch.ones(1, 1, 3, 3).bool(), is_causal=False)


def test_a_sliding_window_mask_rule_is_refused():
    def sliding_window_causal_mask_function():
        """Only its name matters."""

    with pytest.raises(UnsupportedModel, match="sliding_window_causal_mask_function"):
        capture._valid_keys(1, 3, 3, mask_function=sliding_window_causal_mask_function)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("by_layer", [True, False])
@pytest.mark.parametrize("reordered", [True, False])
def test_gpt2_s_three_flags_reach_the_captured_scale(scaled, by_layer, reordered):
    config = tiny.gpt2_config(
        scale_attn_weights=scaled,
        scale_attn_by_inverse_layer_idx=by_layer,
        reorder_and_upcast_attn=reordered,
        attn_implementation=capture.IMPLEMENTATION,
    )
    model, calls = GPT2Model(config).eval(), []
    capture.wrap_layers(model.h, FAMILIES["gpt2"])
    batch = Batch(torch.tensor([[1, 2, 3]]), torch.ones(1, 3, dtype=torch.bool))
    with watching(record(calls)), torch.no_grad():
        model(batch.ids, attention_mask=batch.mask, use_cache=False)
    expected = [(0.5 if scaled else 1.0) / (layer + 1 if by_layer else 1.0) for layer in range(3)]
    assert [call.scale for call in calls] == pytest.approx(expected)
