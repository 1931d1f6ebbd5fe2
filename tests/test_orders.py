"""Tokens in other orders on tiny models: without positions an encoder does not know the order."""

import pytest

from attnprobe.analyses import orders
from attnprobe.errors import BadInput

TEXT = "the cat sat on the mat because it was tired"


def test_without_positions_an_encoder_does_not_know_the_order(tiny_model):
    loaded = tiny_model("bert", "float64")
    frame = orders.equivariance(loaded, loaded.read(TEXT), permutations=3)
    worst = frame.groupby("positions")["relative_difference"].max()
    assert worst["zeroed"] < 1e-12
    assert worst["as trained"] > 0.01
    assert sorted(frame["layer"].unique()) == list(range(loaded.n_layers + 1))


@pytest.mark.parametrize("kind", ["roberta", "distilbert", "electra"])
def test_the_position_vectors_of_every_encoder_are_found(kind, tiny_model):
    loaded = tiny_model(kind)
    frame = orders.equivariance(loaded, loaded.read(TEXT), permutations=2)
    worst = frame.groupby("positions")["relative_difference"].max()
    assert worst["zeroed"] < 1e-4
    assert worst["as trained"] > 0.01


def test_the_causal_mask_alone_keeps_the_order(tiny_model):
    loaded = tiny_model("gpt2")
    frame = orders.equivariance(loaded, loaded.read(TEXT), permutations=3)
    zeroed = frame[frame["positions"] == "zeroed"].groupby("layer")["relative_difference"].max()
    assert zeroed[0] < 1e-5
    assert zeroed[loaded.n_layers] > 0.01


def test_it_tells_how_far_it_is(tiny_model):
    loaded = tiny_model("bert")
    said = []
    tokens = loaded.read(TEXT)
    orders.equivariance(loaded, tokens, permutations=3, told=lambda *part: said.append(part))
    assert said == [(done, 8) for done in range(1, 9)]


def test_one_token_has_no_order(tiny_model):
    loaded = tiny_model("gpt2")
    with pytest.raises(BadInput, match="an order needs two"):
        orders.equivariance(loaded, loaded.read("a"))
