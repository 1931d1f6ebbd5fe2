"""The descent that stops: plain Python and autograd as oracles."""

import math
import random

import numpy as np
import pytest
import torch

from attnprobe.errors import BadInput
from attnprobe.theory import freezing
from attnprobe.theory.softmax import weights


def _plain_python(scaled: bool, steps: int, rate: float, seed: int) -> list[float]:
    """Losses of the same experiment, number by number."""
    source = random.Random(seed)
    keys = [[source.gauss(0, 1) for _ in range(6)] for _ in range(5)]
    values = [[source.gauss(0, 1) for _ in range(3)] for _ in range(5)]
    query = torch.tensor([source.gauss(0, 1) for _ in range(6)], dtype=torch.float64)
    key, value = torch.tensor(np.array(keys)), torch.tensor(np.array(values))
    losses = []
    for _ in range(steps):
        query = query.detach().requires_grad_()
        p = torch.softmax(key @ query / (math.sqrt(6) if scaled else 1.0), 0)
        loss = 0.5 * (p @ value - value[2]).square().sum()
        losses.append(loss.item())
        query = query - rate * torch.autograd.grad(loss, query)[0]
    return losses


@pytest.mark.parametrize(("division", "scaled"), [("1/√d_k", True), ("none", False)])
def test_the_descent_is_that_of_autograd(division, scaled):
    task = freezing.Task(d_k=6, d_v=3, pairs=5, target=2)
    found = freezing.freezing(23, 0.3, 4, task).query("division == @division")["loss"]
    np.testing.assert_allclose(found, _plain_python(scaled, 23, 0.3, 4), rtol=1e-9)


def test_runs_side_by_side_do_not_touch_each_other():
    task = freezing.Task(d_k=7, pairs=5)
    *_, together = freezing.descent(freezing.runs(task, False, (1, 2, 3)), 0.4, 31)
    *_, alone = freezing.descent(freezing.runs(task, False, (2,)), 0.4, 31)
    assert together["loss"][1] == pytest.approx(alone["loss"][0], rel=1e-10)


def test_without_division_the_loss_stops_moving():
    rows = freezing.freezing().query("division == 'none'").set_index("step")
    assert rows.loc[50:, "gradient_norm"].max() < 1e-8
    assert np.ptp(rows.loc[60:, "loss"]) < 1e-9
    assert rows.loc[399, "target_weight"] < 1e-12


def test_central_differences_meet_the_formula():
    rows = freezing.gradient_check()
    divided = rows[rows["division"] == "1/√d_k"].set_index("h")["max_abs_error"]
    assert divided.min() < 1e-9
    # truncation: a tenth of the width, a hundredth of the error
    assert divided.iloc[0] / divided.iloc[1] == pytest.approx(100, rel=0.01)


def test_the_score_gradient_sums_to_zero():
    start = freezing.runs(freezing.Task(), True, (3, 4))
    gradient = start.score_gradient(weights(start.scores()))
    assert np.abs(gradient.sum(-1)).max() < 1e-14


def test_freezing_grows_with_the_width_only_without_division():
    frame = freezing.phase(dims=(4, 256), rates=(0.5,), seeds=12, steps=200)
    frozen = frame.set_index(["division", "d_k"])["frozen"]
    assert frozen["none", 256] >= 0.5 > frozen["none", 4]
    assert frozen["1/√d_k", 4] == frozen["1/√d_k", 256] == 0.0


def test_the_map_comes_cell_by_cell():
    cells = freezing.phase_cells(dims=(4, 8), rates=(0.1, 0.2, 0.3), seeds=2, steps=3)
    first = next(cells)
    assert (first["d_k"], first["rate"], first["runs"]) == (4, 0.1, 2)
    assert len(list(cells)) == 2 * 2 * 3 - 1


def test_a_target_that_is_no_pair_is_refused():
    with pytest.raises(BadInput, match="pairs is 3; it must be at least 5"):
        freezing.Task(pairs=3, target=4)


def test_the_traced_weights_are_those_of_the_trace():
    task = freezing.Task(d_k=6, pairs=5, target=2)
    weights_of = freezing.freezing_weights(9, 0.3, 4, task)
    assert len(weights_of) == 2 * 9 * 5
    by_step = weights_of.groupby(["division", "step"])["weight"]
    np.testing.assert_allclose(by_step.sum(), 1.0)
    trace = freezing.freezing(9, 0.3, 4, task).set_index(["division", "step"])
    np.testing.assert_allclose(by_step.max(), trace["peak"].sort_index())
    target = weights_of[weights_of["pair"] == 2].set_index(["division", "step"])["weight"]
    np.testing.assert_allclose(target, trace["target_weight"])
