"""Counts against torch's own layer and flop counter."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnprobe.errors import BadInput
from attnprobe.theory import cost


@pytest.mark.parametrize("heads", [1, 3, 6])
def test_parameters_are_those_of_torchs_layer(heads):
    layer = torch.nn.MultiheadAttention(12, heads)
    expected = sum(p.numel() for p in layer.parameters())
    assert cost.cost(12, (heads,), 7)["parameters"][0] == expected


@pytest.mark.parametrize("heads", [1, 3, 6])
def test_operations_are_those_that_torch_counts(heads):
    tokens, width = 7, 12
    x, w = torch.randn(tokens, width), torch.randn(width, 3 * width)
    with FlopCounterMode(display=False) as counter:
        q, k, v = (x @ w).view(tokens, 3, heads, -1).permute(1, 2, 0, 3)
        context = torch.softmax(q @ k.mT, -1) @ v
        context.transpose(0, 1).reshape(tokens, width) @ w[:, :width]
    assert cost.cost(width, (heads,), tokens)["product_flops"][0] == counter.get_total_flops()


def test_products_stay_and_the_softmax_grows():
    rows = cost.cost()
    assert rows["parameters"].nunique() == rows["product_flops"].nunique() == 1
    mib = rows.set_index("heads")["score_bytes"] / cost.MIB
    assert (mib[1], mib[12]) == (4.0, 48.0)
    assert (rows["softmax_numbers"] / rows["heads"]).nunique() == 1


def test_a_matrix_of_32768_tokens_takes_four_gibibytes():
    rows = cost.score_memory(heads=3, layers=5, d_head=7).set_index(["kept", "tokens"])["bytes"]
    assert rows["one head", 32_768] == 4 * cost.GIB
    assert rows["all heads", 128] == 15 * 128 * 128 * 4
    assert rows["queries, keys, values and contexts", 128] == 4 * 15 * 128 * 7 * 4


def test_every_step_is_timed():
    frame = cost.times(d_model=12, heads=(1, 3), tokens=9, repeats=1)
    assert frame.groupby("heads")["step"].nunique().tolist() == [3, 3]
    assert (frame["seconds"] > 0).all()


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(BadInput, match="d_model is 768, which 5 heads do not divide"):
        cost.cost(heads=(5,))


def test_the_work_against_the_length_adds_up_to_the_operations_of_the_layer():
    work = cost.against_tokens(12, 3, (5, 7)).pivot(index="tokens", columns="work", values="number")
    layer = cost.cost(12, (3,), 7)
    products = work.loc[7, "projections"] + work.loc[7, "scores and context"]
    assert products == layer["product_flops"][0]
    assert work.loc[7, "exponentials"] == layer["softmax_numbers"][0]


def test_scores_and_context_overtake_the_projections_at_twice_the_width():
    work = cost.against_tokens(12, 3, (24,)).set_index("work")["number"]
    assert work["projections"] == work["scores and context"]


def test_streamed_statistics_hold_what_they_return_and_no_matrix():
    parts = list(cost.streaming_parts(600, d_head=8, rows=250))
    assert [part["rows"] for part in parts] == [250, 500, 600]
    last = parts[-1]
    assert last["matrix_bytes"] == 4 * 600**2
    assert last["seconds"] >= parts[0]["seconds"] > 0
    context = 4 * 600 * 8
    assert last["peak_bytes"] > context
    longer = list(cost.streaming_parts(1200, d_head=8, rows=250))[-1]
    assert longer["peak_bytes"] < 2.5 * last["peak_bytes"]


def test_one_token_has_no_row_to_stream():
    with pytest.raises(BadInput, match="tokens is 1"):
        list(cost.streaming_parts(1))
