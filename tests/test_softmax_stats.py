"""Row statistics against closed forms, fifty-digit arithmetic, autograd and dense float64."""

import math

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from attnprobe.errors import BadInput
from attnprobe.softmax_stats import (
    attention_rows,
    attention_weights,
    row_statistics,
    spectral_norm,
    statistics_of,
    tiles,
)

# What is promised of float32: relative, for every row with 1 − peak ≥ 1e-12, absolute below.
RELATIVE, FLOOR = 1e-5, 1e-12
NORMS = ("entropy", "jacobian_frobenius", "jacobian_max", "jacobian_trace", "jacobian_spectral")
NUMBERS = ("peak", "complement", *NORMS)


def fifty_digits(logits) -> dict[str, float]:
    """The textbook definitions of one row, with digits enough for their cancellation."""
    with mpmath.workdps(50):
        exact = [mpmath.exp(mpmath.mpf(float(s))) for s in logits]
        p = [e / mpmath.fsum(exact) for e in exact]
        jacobian = mpmath.matrix(len(p), len(p))
        for i, a in enumerate(p):
            for j, b in enumerate(p):
                jacobian[i, j] = a * (i == j) - a * b
        return {
            "entropy": float(-mpmath.fsum(a * mpmath.log(a) for a in p if a)),
            "peak": float(max(p)),
            "complement": float(1 - max(p)),
            "jacobian_frobenius": float(mpmath.sqrt(mpmath.fsum(x**2 for x in jacobian))),
            "jacobian_max": float(max(abs(x) for x in jacobian)),
            "jacobian_trace": float(mpmath.fsum(jacobian[i, i] for i in range(len(p)))),
            "jacobian_spectral": float(max(mpmath.eigsy(jacobian, eigvals_only=True))),
        }


def assert_promise(rows, expected: dict, index=..., names=NUMBERS) -> None:
    for name in names:
        got = getattr(rows, name)[index].double().numpy()
        np.testing.assert_allclose(got, expected[name], rtol=RELATIVE, atol=FLOOR**2, err_msg=name)


def dense(logits: torch.Tensor, seen: torch.Tensor) -> dict[str, np.ndarray]:
    """Whole matrices in float64, with no sum that leaves the largest out except for 1 − peak."""
    p = logits.double().masked_fill(~seen, -math.inf).softmax(-1).masked_fill(~seen, 0.0)
    jacobian = torch.diag_embed(p) - p[..., :, None] * p[..., None, :]
    others = p.scatter(-1, p.argmax(-1, keepdim=True), 0.0).sum(-1)
    numbers = {
        "entropy": torch.special.entr(p).sum(-1),
        "peak": p.amax(-1),
        "complement": others,
        "jacobian_frobenius": torch.linalg.matrix_norm(jacobian),
        "jacobian_max": jacobian.abs().amax((-1, -2)),
        "jacobian_trace": jacobian.diagonal(dim1=-2, dim2=-1).sum(-1),
        "jacobian_spectral": torch.linalg.eigvalsh(jacobian)[..., -1].clamp_min(0.0),
    }
    return {name: number.numpy() for name, number in numbers.items()}


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles so small that a few dozen rows need many."""
    monkeypatch.setattr(tiles, "_ELEMENTS_PER_THREAD", 2 * 7 * tiles.BLOCK)
    monkeypatch.setattr(tiles, "_FEWEST", 3)
    monkeypatch.setattr(tiles, "_MOST", 7)


@pytest.mark.parametrize("gap", [0.0, 1e-4, 0.5, 2.0, 9.0, 20.0, 40.0, 60.0])
def test_two_keys_follow_the_closed_forms_however_saturated(gap):
    rows = statistics_of(torch.tensor([[0.0, -gap], [3.0 - gap, 3.0]]), None)
    small = math.exp(-gap) / (1 + math.exp(-gap))
    both = small / (1 + math.exp(-gap))
    expected = {
        "entropy": math.log1p(math.exp(-gap)) + gap * small,
        "peak": 1 / (1 + math.exp(-gap)),
        "complement": small,
        "jacobian_frobenius": 2 * both,
        "jacobian_max": both,
        "jacobian_trace": 2 * both,
        "jacobian_spectral": 2 * both,
    }
    # 3 − gap is rounded to a float32 first, which moves e^−gap by at most half a unit of 64.
    for name, number in expected.items():
        np.testing.assert_allclose(getattr(rows, name)[0], number, rtol=2e-6, err_msg=name)
        np.testing.assert_allclose(getattr(rows, name)[1], number, rtol=RELATIVE, err_msg=name)


@pytest.mark.parametrize("keys", [1, 2, 3, 63, 64, 65, 1000, 32768])
def test_equal_logits_give_the_uniform_row(keys):
    rows = statistics_of(torch.full((3, keys), 0.7), None)
    expected = {
        "entropy": math.log(keys),
        "peak": 1 / keys,
        "complement": 1 - 1 / keys,
        "jacobian_frobenius": math.sqrt(keys - 1) / keys,
        "jacobian_max": (keys - 1) / keys**2,
        "jacobian_trace": 1 - 1 / keys,
        "jacobian_spectral": 1 / keys if keys > 1 else 0.0,
    }
    assert_promise(rows, expected)
    np.testing.assert_allclose(rows.effective_keys, keys, rtol=RELATIVE)
    assert rows.peak_key.tolist() == [0, 0, 0]


def test_a_row_of_one_key_is_exactly_certain():
    rows = statistics_of(torch.tensor([[5.0]]), None)
    assert [getattr(rows, name).item() for name in NUMBERS] == [
        0.0 if n != "peak" else 1.0 for n in NUMBERS
    ]
    assert rows.raw_std.item() == 0.0
    assert rows.normalised_entropy.isnan().all()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-1.0, 1.0, width=32), min_size=2, max_size=7),
    st.sampled_from([1e-3, 0.3, 2.0, 8.0, 27.0, 300.0, 1e4]),
    st.sampled_from([0.0, 5.0, 12.0, 24.0]),
)
def test_every_number_keeps_its_digits_for_any_logits(shape, spread, lead):
    logits = torch.tensor(shape) * spread
    logits[0] = logits.max() + lead
    expected = fifty_digits(logits)
    rows = statistics_of(logits, None)
    if expected["complement"] >= FLOOR:
        assert_promise(rows, expected)
    else:
        for name in NUMBERS:
            assert abs(getattr(rows, name).item() - expected[name]) <= FLOOR


@pytest.mark.parametrize("keys", [3, 11, 64, 97])
@pytest.mark.parametrize("spread", [0.01, 0.5, 1.0, 2.0])
def test_norms_are_those_of_the_jacobian_that_autograd_finds(keys, spread):
    generator = torch.Generator().manual_seed(keys)
    logits = torch.randn(5, keys, generator=generator) * spread
    rows = statistics_of(logits, None)
    for index, row in enumerate(logits.double()):
        jacobian = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), row)
        expected = {
            "jacobian_frobenius": jacobian.norm(),
            "jacobian_max": jacobian.abs().max(),
            "jacobian_trace": jacobian.trace(),
            "jacobian_spectral": torch.linalg.matrix_norm(jacobian, 2),
        }
        assert_promise(rows, expected, index, tuple(expected))


@pytest.mark.parametrize(
    "weights",
    [
        [0.4, 0.4, 0.1, 0.1],
        [0.25, 0.25, 0.25, 0.25],
        [0.5, 0.1, 0.1, 0.1, 0.1, 0.1],
        [0.4000001, 0.3999999, 0.2],
        [0.3, 0.28, 0.22, 0.2],
        [0.9, 0.04, 0.03, 0.02, 0.01],
        [0.5, 0.5],
        [0.0, 1.0, 0.0],
        [1.0],
    ],
)
def test_the_spectral_norm_is_the_largest_eigenvalue(weights):
    p = torch.tensor(weights, dtype=torch.float64)
    expected = torch.linalg.eigvalsh(torch.diag(p) - p.outer(p))[-1].item()
    assert spectral_norm(p).item() == pytest.approx(expected, rel=1e-12, abs=1e-16)
    assert spectral_norm(p.float()).item() == pytest.approx(expected, rel=RELATIVE, abs=1e-16)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.0, 12.0), st.integers(0, 5)), min_size=1, max_size=6).filter(
        lambda kinds: any(2**power > 1 for _, power in kinds)
    ),
)
def test_clustered_weights_cannot_fool_the_spectral_norm(kinds):
    logits = torch.cat([torch.full((2**power,), -depth) for depth, power in kinds])
    logits = torch.cat([torch.zeros(1), logits]).double()
    expected = dense(logits, torch.ones_like(logits, dtype=torch.bool))["jacobian_spectral"]
    wide = statistics_of(logits, None, dtype=torch.float64).jacobian_spectral
    narrow = statistics_of(logits.float(), None).jacobian_spectral
    assert wide.item() == pytest.approx(expected.item(), rel=1e-9)
    assert narrow.item() == pytest.approx(expected.item(), rel=RELATIVE)


def test_the_spectral_norm_of_a_saturated_row_is_relative_to_what_is_left():
    p = torch.tensor([1.0 - 3e-9, 2e-9, 1e-9], dtype=torch.float64)
    logits = p.log()
    assert fifty_digits(logits)["jacobian_spectral"] == pytest.approx(
        spectral_norm(p).item(), rel=1e-7
    )


def test_adding_a_number_to_a_row_or_reordering_its_keys_changes_nothing():
    logits = torch.randn(5, 77, generator=torch.Generator().manual_seed(1)).mul(64).round() / 16
    order = torch.randperm(77, generator=torch.Generator().manual_seed(2))
    plain, shifted = statistics_of(logits, None), statistics_of(logits + 512, None)
    shuffled = statistics_of(logits[:, order], None)
    for name in NUMBERS:
        torch.testing.assert_close(getattr(shifted, name), getattr(plain, name), rtol=0, atol=0)
        torch.testing.assert_close(getattr(shuffled, name), getattr(plain, name), rtol=1e-5, atol=0)
    assert torch.equal(order[shuffled.peak_key], plain.peak_key)


def test_long_rows_keep_their_digits_too():
    generator = torch.Generator().manual_seed(3)
    for spread in (0.0, 0.3, 3.0):
        logits = torch.rand(4, 32768, generator=generator) * spread + 0.7
        rows, wide = statistics_of(logits, None), statistics_of(logits, None, dtype=torch.float64)
        p = logits.double().softmax(-1)
        np.testing.assert_allclose(rows.entropy, torch.special.entr(p).sum(-1), rtol=RELATIVE)
        np.testing.assert_allclose(rows.jacobian_trace, 1 - (p**2).sum(-1), rtol=RELATIVE)
        for name in (*NUMBERS, "raw_mean"):
            np.testing.assert_allclose(
                getattr(rows, name), getattr(wide, name), rtol=RELATIVE, err_msg=name
            )
        # The deviation of 0.7 + spread·u is accurate relative to the logits themselves.
        np.testing.assert_allclose(rows.raw_std, logits.double().std(-1, correction=0), atol=1e-6)


def exact_logits(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys whose products are these logits, without rounding: the keys are units."""
    keys = torch.eye(logits.shape[-1], dtype=logits.dtype)
    return logits, keys.expand(*logits.shape[:-2], -1, -1)


def visible(length: int, causal: bool, valid: torch.Tensor | None, batch: int) -> torch.Tensor:
    seen = torch.ones(batch, 1, length, length, dtype=torch.bool)
    seen = seen.tril() if causal else seen
    return seen if valid is None else seen & valid[:, None, None, :]


def holes(batch: int, length: int) -> torch.Tensor:
    """Padding on the left, padding on the right, and gaps."""
    valid = torch.rand(batch, length, generator=torch.Generator().manual_seed(length)) > 0.4
    valid[0, : length // 3] = False
    valid[1, length // 2 :] = False
    return valid


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("length", [1, 2, 7, 37, 64, 65, 131])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_tiles_give_the_statistics_of_the_whole_matrix(length, causal, padded, spread):
    generator = torch.Generator().manual_seed(length)
    logits = torch.randn(2, 3, length, length, generator=generator) * spread
    value = torch.randn(2, 3, length, 5, generator=generator)
    valid = holes(2, length) if padded else None
    seen = visible(length, causal, valid, 2).expand_as(logits)
    query, key = exact_logits(logits * 4)
    context, rows = attention_rows(query, key, value, scale=0.25, valid=valid, causal=causal)
    sighted = seen.any(-1)

    assert torch.equal(rows.keys, seen.sum(-1))
    whole = statistics_of(logits, seen, scale=0.25)
    for name in (*NUMBERS, "raw_std", "peak_key"):
        got, expected = getattr(rows, name), getattr(whole, name)
        torch.testing.assert_close(got, expected, rtol=2e-6, atol=1e-12, equal_nan=True)
    some = sighted.nonzero()[::13].unbind(-1)
    expected = dense(logits[some], seen[some])
    # Dense float64 cancels as well: it is an oracle of 1e-5 down to a complement of about 1e-6.
    known = expected["complement"] > 1e-6
    for name in NUMBERS:
        got = getattr(rows, name)[some].double()[known]
        np.testing.assert_allclose(got, expected[name][known], rtol=RELATIVE, err_msg=name)
    raw = (logits.double() * 4).masked_fill(~seen, math.nan)
    np.testing.assert_allclose(rows.raw_mean[sighted], raw.nanmean(-1)[sighted], atol=1e-5 * spread)
    spread_of = (raw - raw.nanmean(-1, keepdim=True)).square().nanmean(-1).sqrt()
    np.testing.assert_allclose(rows.raw_std[sighted], spread_of[sighted], rtol=1e-5, atol=1e-6)
    weights = logits.double().masked_fill(~seen, -math.inf).softmax(-1).masked_fill(~seen, 0.0)
    torch.testing.assert_close(context.double(), weights @ value.double(), rtol=0, atol=3e-6)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("causal", [False, True])
def test_logits_of_ten_thousand_keep_the_promise(causal):
    """The winners' neighbours are near, so that rows are saturated to every degree."""
    length = 71
    generator = torch.Generator().manual_seed(5)
    logits = torch.rand(1, 2, length, length, generator=generator) * -2e4 + 1e4
    near = torch.randint(0, length, (1, 2, length, 4), generator=generator)
    logits.scatter_(-1, near, 1e4 - 30 * torch.rand(near.shape, generator=generator))
    query, key = exact_logits(logits)
    rows = row_statistics(query, key, scale=1.0, valid=None, causal=causal)
    kinds = set()
    for head, position in [(h, i) for h in (0, 1) for i in range(2, length, 5)]:
        row = logits[0, head, position, : position + 1 if causal else None]
        # Keys 200 below the largest change nothing that fifty digits can show.
        expected = fifty_digits(row[row > row.max() - 200])
        index = (0, head, position)
        kinds.add(round(math.log10(expected["complement"])) if expected["complement"] else None)
        if expected["complement"] >= FLOOR:
            assert_promise(rows, expected, index)
        else:
            assert rows.entropy[index] <= FLOOR * 30
    assert len(kinds) > 4


def test_context_equals_scaled_dot_product_attention():
    generator = torch.Generator().manual_seed(6)
    query, key = torch.randn(2, 2, 3, 150, 8, generator=generator)
    value = torch.randn(2, 3, 150, 5, generator=generator)
    for causal in (False, True):
        context, _ = attention_rows(query, key, value, scale=0.3, valid=None, causal=causal)
        expected = F.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=0.3)
        exact = F.scaled_dot_product_attention(
            query.double(), key.double(), value.double(), is_causal=causal, scale=0.3
        )
        # No more than a small multiple of what the library's own float32 kernel errs.
        assert (context - exact).abs().max() <= 4 * (expected - exact).abs().max()


def test_what_stands_at_invalid_keys_never_leaks():
    generator = torch.Generator().manual_seed(7)
    query, key, value = torch.randn(3, 2, 3, 11, 5, generator=generator)
    valid = holes(2, 11)
    clean = attention_rows(query, key, value, scale=0.4, valid=valid, causal=True)
    hidden = ~valid[:, None, :, None]
    dirty = attention_rows(
        query,
        key.masked_fill(hidden, math.nan),
        value.masked_fill(hidden, math.inf),
        scale=0.4,
        valid=valid,
        causal=True,
    )
    assert torch.equal(clean[0], dirty[0])
    for name in (*NUMBERS, "raw_mean", "raw_std", "peak_key"):
        torch.testing.assert_close(
            getattr(clean[1], name), getattr(dirty[1], name), rtol=0, atol=0, equal_nan=True
        )


def test_padding_does_not_change_the_rows_of_real_tokens():
    generator = torch.Generator().manual_seed(8)
    query, key, value = torch.randn(3, 1, 3, 13, 5, generator=generator)
    short, rows = attention_rows(
        query[:, :, :9], key[:, :, :9], value[:, :, :9], scale=0.4, valid=None, causal=False
    )
    valid = torch.arange(13)[None] < 9
    long, padded = attention_rows(query, key, value, scale=0.4, valid=valid, causal=False)
    torch.testing.assert_close(long[:, :, :9], short, rtol=1e-6, atol=1e-6)
    for name in NUMBERS:
        torch.testing.assert_close(
            getattr(padded, name)[..., :9], getattr(rows, name), rtol=1e-6, atol=0
        )


def test_a_row_that_sees_no_key_is_undefined_and_its_context_is_zero():
    query, key, value = torch.randn(3, 1, 2, 6, 4, generator=torch.Generator().manual_seed(9))
    valid = torch.tensor([[False, False, True, True, False, True]])
    context, rows = attention_rows(query, key, value, scale=0.5, valid=valid, causal=True)
    assert rows.keys[0, 0].tolist() == [0, 0, 1, 2, 2, 3]
    assert rows.peak_key[0, 1, :3].tolist() == [-1, -1, 2]
    assert context[:, :, :2].eq(0).all()
    torch.testing.assert_close(context[:, :, 2], value[:, :, 2])
    for name in (*NUMBERS, "raw_mean", "raw_std"):
        assert getattr(rows, name).isnan().sum(-1).eq(2).all(), name
    assert rows.normalised_entropy[0, 0].isnan().tolist() == [True] * 3 + [False] * 3
    none = attention_rows(
        query, key, value, scale=0.5, valid=torch.zeros(1, 6, dtype=torch.bool), causal=False
    )
    assert none[0].eq(0).all()
    assert none[1].keys.eq(0).all()


def test_the_peak_key_is_the_first_of_equal_logits():
    logits = torch.zeros(4, 200)
    logits[0, [70, 71, 199]] = 2.0
    logits[1, [63, 64]] = 1.0
    logits[2, [3, 130]] = 5.0
    assert statistics_of(logits, None).peak_key.tolist() == [70, 63, 3, 0]


def test_derived_numbers_follow_from_their_definitions():
    logits = torch.tensor([[1.0, 3.0, -2.0, 9.0]])
    mask = torch.tensor([[True, True, True, False]])
    rows = statistics_of(logits, mask, scale=-0.5)
    assert rows.keys.item() == 3
    assert rows.raw_mean.item() == pytest.approx((1 + 3 - 2) / 3 / -0.5)
    assert rows.raw_std.item() == pytest.approx(np.std([1, 3, -2]) / 0.5)
    assert rows.scaled_mean.item() == pytest.approx((1 + 3 - 2) / 3)
    assert rows.scaled_std.item() == pytest.approx(np.std([1, 3, -2]))
    assert rows.normalised_entropy.item() == pytest.approx(rows.entropy.item() / math.log(3))
    assert rows.effective_keys.item() == pytest.approx(math.exp(rows.entropy.item()))


def test_the_deviation_is_accurate_when_one_key_stands_far_from_many():
    logits = torch.randn(3, 2000, generator=torch.Generator().manual_seed(10)) * 0.01 - 50
    logits[:, 17] = 20.0
    rows = statistics_of(logits, None)
    np.testing.assert_allclose(rows.raw_std, logits.double().std(-1, correction=0), rtol=2e-6)


def test_given_logits_are_left_as_they_are_and_broadcast_with_their_mask():
    logits = torch.randn(2, 3, 5, 7, generator=torch.Generator().manual_seed(11))
    before = logits.clone()
    mask = torch.rand(5, 7, generator=torch.Generator().manual_seed(12)) > 0.3
    mask[:, 0] = True
    rows = statistics_of(logits, mask)
    assert torch.equal(logits, before)
    assert rows.entropy.shape == (2, 3, 5)
    kept = statistics_of(logits[1, 2, 4][mask[4]], None)
    assert rows.entropy[1, 2, 4].item() == pytest.approx(kept.entropy.item(), rel=1e-6)
    assert statistics_of(torch.zeros(0, 4), None).entropy.shape == (0,)


def test_half_precision_inputs_are_computed_in_float32_and_contexts_come_back_in_their_dtype():
    query, key, value = (
        torch.randn(3, 1, 2, 40, 8, generator=torch.Generator().manual_seed(13)) * 3
    ).bfloat16()
    context, rows = attention_rows(query, key, value, scale=0.35, valid=None, causal=True)
    wide, wide_rows = attention_rows(
        query.float(), key.float(), value.float(), scale=0.35, valid=None, causal=True
    )
    assert context.dtype == torch.bfloat16
    assert rows.entropy.dtype == torch.float32
    assert torch.equal(context, wide.bfloat16())
    assert torch.equal(rows.jacobian_spectral, wide_rows.jacobian_spectral)


def test_float64_is_accurate_to_its_own_digits():
    logits = torch.randn(1, 2, 83, 83, generator=torch.Generator().manual_seed(14)).double()
    query, key = exact_logits(logits)
    rows = row_statistics(query, key, scale=1.0, valid=None, causal=False, dtype=torch.float64)
    expected = dense(logits, torch.ones_like(logits, dtype=torch.bool))
    for name in NUMBERS:
        np.testing.assert_allclose(
            getattr(rows, name).numpy(), expected[name], rtol=1e-12, err_msg=name
        )


def test_the_spectral_norm_can_be_left_out():
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(15))
    assert statistics_of(logits, None, spectral=False).jacobian_spectral is None


def test_weights_are_a_softmax_over_seen_keys_and_exactly_zero_elsewhere():
    generator = torch.Generator().manual_seed(16)
    query, key = torch.randn(2, 2, 3, 9, 5, generator=generator)
    valid = holes(2, 9)
    for causal in (False, True):
        weights = attention_weights(query, key, scale=0.7, valid=valid, causal=causal)
        seen = visible(9, causal, valid, 2).expand_as(weights)
        assert weights[~seen].eq(0).all()
        torch.testing.assert_close(weights.sum(-1), seen.any(-1).float())
        for batch, head, row in [(0, 0, 8), (1, 2, 3), (1, 1, 0)]:
            keys = seen[batch, head, row].nonzero().flatten()
            scores = [math.exp(0.7 * (query[batch, head, row] @ key[batch, head, j])) for j in keys]
            for j, score in zip(keys, scores, strict=True):
                got = weights[batch, head, row, j].item()
                assert got == pytest.approx(score / sum(scores), rel=1e-5)
        some = attention_weights(
            query, key, scale=0.7, valid=valid, causal=causal, rows=slice(4, 7)
        )
        torch.testing.assert_close(some, weights[..., 4:7, :])
        one = attention_weights(
            query[1, 2], key[1, 2], scale=0.7, valid=valid[1], causal=causal, rows=slice(5, 6)
        )
        torch.testing.assert_close(one[0], weights[1, 2, 5])


class Sizes(TorchDispatchMode):
    """Remembers the largest number of elements of any tensor that an operation makes."""

    largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.untyped_storage().nbytes() // 4)
        return result


@pytest.mark.parametrize("causal", [False, True])
def test_no_matrix_of_a_whole_head_is_ever_built(causal):
    length = 3100
    query, key, value = torch.randn(3, 1, 2, length, 3, generator=torch.Generator().manual_seed(17))
    valid = torch.arange(length)[None] < length - 5
    with Sizes() as sizes:
        attention_rows(query, key, value, scale=0.5, valid=valid, causal=causal)
    # Two buffers, a quarter wider than their first row.
    tile = min(tiles._ELEMENTS_PER_THREAD * torch.get_num_threads(), tiles._ELEMENTS_AT_MOST)
    assert 0 < sizes.largest <= 2.5 * tile
    assert sizes.largest < length**2


def test_tiles_cover_every_row_of_every_group_once():
    for counts in ([5] * 300, list(range(1, 700)), [0, 0, 0, 1, 1, 2, 2, 2, 3], [4000] * 50):
        covered = torch.zeros(7, len(counts), dtype=torch.int64)
        for tile in tiles.tiles(7, counts, torch.device("cpu")):
            covered[tile.groups, tile.rows] += 1
            assert tile.shape == (*covered[tile.groups, tile.rows].shape, tile.shape[-1])
            assert tile.shape[-1] >= counts[tile.rows.stop - 1]
        assert covered.eq(1).all()


def test_bad_arguments_are_refused_in_a_sentence():
    query, key = torch.zeros(1, 1, 4, 3), torch.zeros(1, 1, 5, 3)
    common = {"valid": None}
    with pytest.raises(BadInput, match="4 and 5 came"):
        row_statistics(query, key, scale=1.0, causal=True, **common)
    with pytest.raises(BadInput, match="4 and 5 came"):
        attention_weights(query, key, scale=1.0, causal=True, **common)
    with pytest.raises(BadInput, match=r"the scale is 0\.0"):
        row_statistics(query, key, scale=0.0, causal=False, **common)
    with pytest.raises(BadInput, match="float16"):
        statistics_of(torch.zeros(2, 3), None, dtype=torch.float16)
    assert row_statistics(query, key, scale=1.0, causal=False, **common).keys.eq(5).all()


def test_weights_of_a_half_precision_model_are_those_of_its_numbers_in_float32():
    generator = torch.Generator().manual_seed(5)
    half = [torch.randn(2, 7, 3, generator=generator).bfloat16() for _ in range(2)]
    rule = {"scale": 0.6, "valid": None, "causal": True}
    found = attention_weights(*half, **rule)
    assert found.dtype == torch.float32
    assert torch.equal(found, attention_weights(*(x.float() for x in half), **rule))
