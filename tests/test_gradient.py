"""Gradients through the softmax: finite differences, the chain rule, bounds; sinks by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import GPT2LMHeadModel

import attnprobe as ap
from attnprobe import memory
from attnprobe.analyses import gradient, sinks
from attnprobe.capture import AttentionCall
from attnprobe.data import LabelledText
from attnprobe.errors import BadInput, TooLarge
from attnprobe.readout import classes, next_token

TEXTS = ["the cat sat on a mat", "a dog ran"]


@pytest.fixture(params=["gpt2", "bert-classifier"])
def setting(request, tiny_model):
    loaded = tiny_model(request.param, "float64")
    readout = next_token(loaded) if loaded.causal else classes(loaded)
    label = None if loaded.causal else "1"
    return loaded, readout, readout.prepare([LabelledText(text, label) for text in TEXTS])


def loss_with(readout, examples, kind, layer, head, shift, *, before_softmax):
    """The loss with `shift` [query key] added to one head's logits or weights, by hand."""

    def bent(call: AttentionCall):
        logits = call.query @ call.key.mT * call.scale
        seen = torch.ones(logits.shape[-2:], dtype=torch.bool)
        seen = (seen.tril() if call.causal else seen).expand(logits.shape)
        if call.valid is not None:
            seen = seen & call.valid[:, None, None, :]
        if call.layer == layer and before_softmax:
            logits = logits.clone()
            logits[0, head] += shift
        weights = logits.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num()
        if call.layer == layer and not before_softmax:
            weights[0, head] += shift
        return weights @ call.value

    with torch.no_grad(), ap.watching(bent):
        logs = readout.log_probabilities(examples)
    return gradient._loss(readout, examples, logs, kind).item()


@pytest.mark.parametrize("kind", gradient.LOSSES)
@pytest.mark.parametrize("before_softmax", [True, False])
def test_the_gradients_are_central_differences_of_the_whole_model(setting, kind, before_softmax):
    _, readout, examples = setting
    found = gradient.gradients(readout, examples, kind)
    ours = found.logits if before_softmax else found.weights
    step = 1e-5
    length = examples.batch.ids.shape[1]
    for layer, head, query, key in [(0, 1, 3, 2), (1, 2, 2, 0), (1, 0, 0, 0)]:
        shift = torch.zeros(length, length, dtype=torch.float64)
        shift[query, key] = step
        up, down = (
            loss_with(readout, examples, kind, layer, head, s, before_softmax=before_softmax)
            for s in (shift, -shift)
        )
        expected = (up - down) / (2 * step)
        assert ours[layer][0, head, query, key].item() == pytest.approx(
            expected, abs=1e-8, rel=1e-5
        )


def test_the_gradient_on_logits_is_the_softmax_jacobian_times_that_on_weights(setting):
    loaded, readout, examples = setting
    found = gradient.gradients(readout, examples)
    trace = ap.trace(loaded, TEXTS[0])
    length = len(trace.tokens)
    for layer in range(loaded.n_layers):
        for head in range(loaded.n_heads):
            for query in range(length):
                p = trace.weights(layer, head)[query]
                jacobian = torch.diag(p) - torch.outer(p, p)
                expected = jacobian @ found.weights[layer][0, head, query, :length]
                torch.testing.assert_close(found.logits[layer][0, head, query, :length], expected)


def test_keys_that_a_row_may_not_see_have_no_gradient_and_enter_no_norm(tiny_model):
    """Against transformers' eager attention: its weights' gradient, cut to the causal triangle."""
    loaded = tiny_model("gpt2", "float64")
    eager = GPT2LMHeadModel.from_pretrained(
        loaded.folder, attn_implementation="eager", dtype=torch.float64
    ).eval()
    ids = torch.tensor([loaded.read(TEXTS[0]).ids])
    output = eager(ids, output_attentions=True)
    logs = output.logits[0].log_softmax(-1)
    loss = -logs[torch.arange(ids.shape[1] - 1), ids[0, 1:]].mean()
    theirs = torch.autograd.grad(loss, output.attentions)
    readout = next_token(loaded)
    found = gradient.gradients(readout, readout.prepare(TEXTS[:1]))
    frame = gradient.rows(found)
    for layer, whole in enumerate(theirs):
        seen = whole.tril()
        assert (whole - seen).abs().max() > 0
        torch.testing.assert_close(found.weights[layer], seen)
        mine = frame[frame["layer"] == layer].sort_values(["head", "query"])["on_weights"]
        expected = seen[0, :, 1:].norm(dim=-1).flatten()
        torch.testing.assert_close(torch.tensor(mine.to_numpy()), expected)


def test_no_row_lets_through_more_than_its_spectral_norm(setting):
    _, readout, examples = setting
    frame = gradient.rows(gradient.gradients(readout, examples))
    known = frame.dropna(subset="ratio")
    assert (known.ratio <= known.jacobian_spectral * (1 + 1e-9) + 1e-12).all()
    assert (known.jacobian_spectral <= 0.5).all()


def test_padding_and_one_key_rows_are_left_out(setting):
    loaded, readout, examples = setting
    frame = gradient.rows(gradient.gradients(readout, examples))
    lengths = examples.batch.mask.sum(1).tolist()
    first = 1 if loaded.causal else 0
    counts = frame[(frame.layer == 0) & (frame["head"] == 0)].groupby("text").size().tolist()
    assert counts == [length - first for length in lengths]
    assert frame.index.is_unique


def test_each_row_stands_beside_what_its_weights_amount_to(setting):
    _, readout, examples = setting
    found = gradient.gradients(readout, examples)
    frame = gradient.rows(found)
    row = frame[frame.layer == 1].iloc[-1]
    at = tuple(int(row[name]) for name in ("text", "head", "query"))
    statistics = found.statistics[1]
    assert row["peak"] == pytest.approx(statistics.peak[at].item())
    assert row["jacobian_frobenius"] == pytest.approx(statistics.jacobian_frobenius[at].item())


def test_without_a_choice_the_loss_is_that_of_the_targets_where_there_are_any(setting):
    _, readout, examples = setting
    free, target, top = (
        gradient.gradients(readout, examples, kind).loss for kind in (None, *gradient.LOSSES)
    )
    assert target != top
    assert free == (top if examples.target is None else target)


def test_in_the_last_layer_of_a_classifier_only_the_read_row_has_a_gradient(tiny_model):
    loaded = tiny_model("bert-classifier", "float64")
    readout = classes(loaded)
    frame = gradient.rows(gradient.gradients(readout, readout.prepare(TEXTS)))
    last = frame[frame.layer == loaded.n_layers - 1]
    assert (last[last["query"] > 0].on_weights == 0).all()
    assert last[last["query"] > 0].ratio.isna().all()
    assert (last[last["query"] == 0].on_weights > 0).all()


def test_a_head_s_figures_are_root_sums_of_squares_of_its_rows(setting):
    _, readout, examples = setting
    rows = gradient.rows(gradient.gradients(readout, examples))
    heads = gradient.heads(rows).set_index(["layer", "head"])
    mine = rows[(rows.layer == 1) & (rows["head"] == 2)]
    assert heads.loc[(1, 2), "on_logits"] == pytest.approx(np.linalg.norm(mine.on_logits))
    assert heads.loc[(1, 2), "ratio"] == pytest.approx(
        np.linalg.norm(mine.on_logits) / np.linalg.norm(mine.on_weights)
    )
    for column, source in (
        ("row_on_weights", "on_weights"),
        ("row_on_logits", "on_logits"),
        ("jacobian_spectral", "jacobian_spectral"),
    ):
        assert heads.loc[(1, 2), column] == pytest.approx(math.fsum(mine[source]) / len(mine))
    assert not heads.starved.all()


def test_a_saturated_head_is_starved(tiny_model):
    loaded = tiny_model("gpt2", "float64")
    readout = next_token(loaded)
    examples = readout.prepare(TEXTS)

    def sharpen(call):
        query = call.query.clone()
        query[:, 1] *= 1e4
        return replace(call, query=query)

    with ap.watching(sharpen):
        heads = gradient.heads(gradient.rows(gradient.gradients(readout, examples)))
    assert heads[heads["head"] == 1].starved.all()


def test_a_gradient_that_would_not_fit_is_refused(setting, monkeypatch):
    _, readout, examples = setting
    monkeypatch.setattr(memory, "free", lambda device: 10)
    with pytest.raises(TooLarge, match="choose a shorter text"):
        gradient.gradients(readout, examples)


def test_a_loss_without_its_target_and_an_unknown_loss_are_one_sentence(tiny_model):
    readout = classes(tiny_model("bert-classifier", "float64"))
    unlabelled = readout.prepare(TEXTS)
    with pytest.raises(BadInput, match="has none"):
        gradient.gradients(readout, unlabelled, "target")
    with pytest.raises(BadInput, match="choose 'target' or 'top answer'"):
        gradient.gradients(readout, unlabelled, "typo")
    auto, chosen = (gradient.gradients(readout, unlabelled, loss) for loss in (None, "top answer"))
    assert auto.loss == chosen.loss


def test_nothing_is_left_on_the_model(setting):
    loaded, readout, examples = setting
    before = readout.log_probabilities(examples)
    gradient.gradients(readout, examples)
    assert torch.equal(readout.log_probabilities(examples), before)
    assert all(p.grad is None for p in loaded.model.parameters())


def test_shares_are_mean_columns_of_the_weights(tiny_model):
    trace = ap.trace(tiny_model("bert", "float64"), TEXTS[0])
    frame = sinks.shares(trace)
    assert frame.groupby(["layer", "head"]).size().eq(2).all()
    cls = frame[(frame.layer == 1) & (frame["head"] == 2) & (frame.position == 0)].iloc[0]
    assert cls.token == "[CLS]"
    assert cls.share == pytest.approx(trace.weights(1, 2)[:, 0].mean().item())


def test_the_first_token_is_listed_though_it_is_not_special(tiny_model):
    frame = sinks.shares(ap.trace(tiny_model("gpt2", "float64"), "abc"))
    assert (frame.position == 0).all()
    assert not frame.special.any()


def test_without_special_tokens_renormalised_is_a_softmax_over_the_others(tiny_model):
    trace = ap.trace(tiny_model("bert", "float64"), TEXTS[0])
    frame = sinks.without_special(trace, renormalised=True).set_index(["layer", "head"])
    logits = trace.scaled_logits(1, 0)[1:-1, 1:-1]
    entropy = torch.special.entr(logits.softmax(-1)).sum(-1).mean().item()
    assert frame.loc[(1, 0), "entropy"] == pytest.approx(entropy)
    assert frame.loc[(1, 0), "rows"] == len(trace.tokens) - 2


def test_without_special_tokens_as_they_are_sums_to_the_mass(tiny_model):
    trace = ap.trace(tiny_model("bert", "float64"), TEXTS[0])
    frame = sinks.without_special(trace, renormalised=False).set_index(["layer", "head"])
    weights = trace.weights(0, 1)[1:-1, 1:-1]
    assert frame.loc[(0, 1), "mass"] == pytest.approx(weights.sum(-1).mean().item())
    assert frame.loc[(0, 1), "peak"] == pytest.approx(weights.amax(-1).mean().item())
    assert (frame.peak <= frame.mass).all()


@pytest.mark.parametrize("renormalised", [True, False])
def test_a_causal_head_without_its_begin_token_is_the_sums_by_hand(tiny_model, renormalised):
    loaded = tiny_model("gpt2", "float64")
    trace = ap.trace(loaded, loaded.read("abcdef", begin=True))
    assert trace.tokens.special[0]
    frame = sinks.without_special(trace, renormalised=renormalised).set_index(["layer", "head"])
    weights = trace.weights(1, 2)[2:, 1:]
    mass = weights.sum(-1)
    left = weights / mass[:, None] if renormalised else weights
    row = frame.loc[(1, 2)]
    assert row.rows == len(trace.tokens) - 2
    assert row.mass == pytest.approx(mass.mean().item())
    assert row.peak == pytest.approx(left.amax(-1).mean().item())
    assert row.entropy == pytest.approx(torch.special.entr(left).sum(-1).mean().item())


def test_single_weights_are_those_of_the_whole_matrix_and_zero_where_unseen(tiny_model):
    trace = ap.trace(tiny_model("gpt2", "float64"), "abcdef")
    wanted = torch.tensor([0, 3]).expand(*trace.counted.shape, -1)
    found = sinks.weights_at(trace, wanted)
    torch.testing.assert_close(found[1, 2], trace.weights(1, 2)[:, [0, 3]])
    assert (found[1, 2, :3, 1] == 0).all()


def test_a_text_of_special_tokens_only_is_one_sentence(tiny_model):
    with pytest.raises(BadInput, match="fewer than two ordinary tokens"):
        sinks.without_special(ap.trace(tiny_model("bert"), "cat"), renormalised=True)
