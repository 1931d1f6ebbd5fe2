"""Random features: unbiased, with the variance of the lemma, and m^(−½)."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from attnprobe.errors import BadInput
from attnprobe.theory import linear
from attnprobe.theory.allocated import peak_bytes


def _heads(tokens=9, d_k=5, d_v=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (tokens, d_k), (tokens, d_k), (tokens, d_v)
    return [0.5 * torch.randn(*shape, generator=generator).double() for shape in shapes]


def test_the_order_of_the_products_does_not_matter():
    query, key, value = _heads()
    phi_query, phi_key = linear.elu_features(query), linear.elu_features(key)
    matrix = phi_query @ phi_key.T
    expected = (matrix / matrix.sum(-1, keepdim=True)) @ value
    torch.testing.assert_close(linear.linear_attention(phi_query, phi_key, value), expected)


def test_the_kernel_is_unbiased_with_the_variance_of_the_lemma():
    query, key, _ = _heads()
    generator = torch.Generator().manual_seed(1)
    directions = torch.randn(200_000, 5, generator=generator).double()
    quarter = 5**0.25
    single_query = linear.positive_features(query / quarter, directions) * math.sqrt(200_000)
    single_key = linear.positive_features(key / quarter, directions) * math.sqrt(200_000)
    exact = torch.exp(query @ key.T / math.sqrt(5))
    for row in range(3):
        samples = single_query[row] * single_key[row] / exact[row, row]
        error = float(samples.std()) / math.sqrt(200_000)
        assert abs(float(samples.mean()) - 1) < 5 * error
        predicted = linear.kernel_relative_variance(query, key)[row, row]
        assert float(samples.var()) == pytest.approx(float(predicted), rel=0.15)


def test_the_error_falls_with_the_root_of_the_features():
    rows = linear.errors(*_heads(tokens=17), features=(16, 64, 256, 1024), repeats=12).iloc[:4]
    slope = np.polyfit(
        np.log(rows["features"].astype(float)), np.log(rows["kernel_error"].astype(float)), 1
    )[0]
    assert slope == pytest.approx(-0.5, abs=0.06)
    predicted = rows["predicted_kernel_error"].astype(float)
    np.testing.assert_allclose(predicted.iloc[:-1] / predicted.iloc[1:].to_numpy(), 2.0)
    np.testing.assert_allclose(rows["kernel_error"].astype(float), predicted, rtol=0.25)


def test_many_features_give_the_softmax_output():
    rows = linear.errors(*_heads(), features=(20_000,), repeats=1)
    assert rows["output_error"][0] < 0.02


def test_elu_features_draw_nothing_and_have_no_kernel_error():
    last = linear.linear(tokens=5, features=(4,), repeats=1).iloc[-1]
    assert last["map"] == "elu + 1"
    assert pd.isna(last["features"])
    assert pd.isna(last["kernel_error"])
    assert linear.elu_features(torch.tensor([[-2.0, 0.0, 3.0]])).tolist()[0] == pytest.approx(
        [math.exp(-2), 1.0, 4.0]
    )


def test_every_method_is_timed_at_every_length_and_counts_its_numbers():
    frame = linear.times(lengths=(8, 16), d_k=4, features=6, repeats=1)
    assert (frame["seconds"] > 0).all()
    held = frame.pivot(index="tokens", columns="method", values="extra_bytes")
    assert held["softmax, full matrix"].tolist() == [4 * 64, 4 * 256]
    # two maps T × m, one m × d, one sum of m, one product of m · … per direction matrix
    assert held["positive random features"].tolist() == [4 * 6 * (16 + 9), 4 * 6 * (32 + 9)]
    assert held["elu + 1"].tolist() == [4 * 4 * (16 + 5), 4 * 4 * (32 + 5)]


def test_all_softmax_contenders_compute_the_same():
    query, key, value = _heads()
    outputs = [
        linear.METHODS[name][0](query, key, value, None) for name in list(linear.METHODS)[:2]
    ]
    torch.testing.assert_close(outputs[0], outputs[1][0, 0])


def test_the_crossing_lies_where_the_lines_meet():
    tokens = np.array([100, 200, 400, 800])
    frame = pd.concat(
        pd.DataFrame({"tokens": tokens, "method": name, "seconds": seconds})
        for name, seconds in (("square", tokens**2 * 1e-6), ("line", tokens * 3e-4))
    )
    assert linear.crossing(frame, "line", "square") == pytest.approx(300.0)
    assert linear.crossing(frame, "square", "line") is None
    cheap = frame.assign(seconds=frame["seconds"] / np.where(frame["method"] == "line", 100, 1))
    assert linear.crossing(cheap, "line", "square") == 100.0


def test_crossings_lie_on_the_line_that_is_crossed():
    tokens = [100, 200, 400, 800]
    seconds = {"full": [n * n for n in tokens], "map": [300 * n for n in tokens]}
    frame = pd.DataFrame(
        [
            {"method": name, "tokens": n, "seconds": float(t)}
            for name, line in seconds.items()
            for n, t in zip(tokens, line, strict=True)
        ]
    )
    found = linear.crossings(frame, "full")
    assert found["method"].tolist() == ["map"]
    assert found["tokens"][0] == pytest.approx(300)
    assert found["seconds"][0] == pytest.approx(300**2)


def test_the_peak_of_a_call_is_what_it_holds_at_one_time():
    def call():
        first = torch.zeros(1000)
        second = first + 1
        del first
        return torch.cat([second, second])

    assert peak_bytes(call) == 4 * (1000 + 2000)


def test_the_full_matrix_is_allocated_and_the_feature_maps_grow_with_the_length():
    frame = linear.times(lengths=(256, 512), d_k=16, features=8, repeats=1)
    held = frame.pivot(index="tokens", columns="method", values="peak_bytes")
    assert held.loc[512, "softmax, full matrix"] >= 4 * 512**2
    growth = held.loc[512] / held.loc[256]
    assert growth["softmax, full matrix"] == pytest.approx(4, rel=0.05)
    assert growth["positive random features"] == pytest.approx(2, rel=0.1)


def test_no_features_are_refused():
    with pytest.raises(BadInput, match="features is 0"):
        linear.linear(features=(0,))
