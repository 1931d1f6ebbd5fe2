"""The lab's own pictures: what is drawn is what the frame says, in its order."""

import pandas as pd
import pytest

from attnprobe import figures
from attnprobe.figures import theory as pictures
from attnprobe.metrics import Quantity
from attnprobe.theory import exponent, meaning


def layers(chart):
    """The layers with their rows under "rows", wherever the specification keeps them."""
    spec = chart.to_dict()
    sets = spec.get("datasets", {})
    parts = spec.get("layer", [spec])
    data = [part.get("data", spec.get("data")) for part in parts]
    return [
        part | {"rows": each.get("values") or sets[each["name"]]}
        for part, each in zip(parts, data, strict=True)
    ]


@pytest.fixture
def grid():
    frame = pd.DataFrame(
        {
            "weight": ["Tom", "Tom", "lives", "lives"],
            "score": ["Tom", "lives"] * 2,
            "derivative": [0.2, -0.2, -0.2, 0.2],
        }
    )
    return pictures.labelled_grid(
        frame,
        "weight",
        "score",
        Quantity("derivative", "d", kind="diverging"),
        limits=(-0.25, 0.25),
    )


def test_a_grid_keeps_the_order_of_its_frame_and_its_names(grid):
    (cells,) = layers(grid)
    assert cells["encoding"]["x"]["sort"] == ["Tom", "lives"]
    assert cells["encoding"]["y"]["sort"] == ["Tom", "lives"]
    assert cells["rows"][1] == {"weight": "Tom", "score": "lives", "derivative": -0.2}


def test_a_signed_grid_has_zero_in_the_middle_of_its_colours(grid):
    domain = layers(grid)[0]["encoding"]["color"]["scale"]["domain"]
    assert domain[0] == -domain[-1] == -0.25
    assert domain[len(domain) // 2] == 0


def test_uneven_steps_stay_numbers_in_their_order():
    frame = pd.DataFrame({"d_k": [256, 256, 8, 8], "rate": [0.5, 1.5] * 2, "frozen": [1, 0, 0, 1]})
    (cells,) = layers(pictures.labelled_grid(frame, "d_k", "rate", "frozen"))
    assert cells["encoding"]["y"]["sort"] == [256, 8]
    assert cells["encoding"]["x"]["sort"] == [0.5, 1.5]


def test_bars_stand_side_by_side_in_the_order_of_the_frame():
    frame = pd.DataFrame(
        {"key": ["b", "a", "b", "a"], "weight": [0.1, 0.9, 0.4, 0.6], "scores": list("uudd")}
    )
    (chart,) = layers(pictures.grouped_bars(frame, "key", "weight", "scores"))
    assert chart["encoding"]["x"]["sort"] == ["b", "a"]
    assert chart["encoding"]["xOffset"]["sort"] == ["u", "d"]
    assert len(chart["rows"]) == 4


def test_the_hull_is_a_closed_line_through_its_corners():
    frame = meaning.convex_hull(((0, 0), (2, 0), (1, 2), (1, 0.5)), (0, 0, 0, 0))
    corners = meaning.hull_corners(frame[["x", "y"]].to_numpy()[:4])
    outline, points, _, output, _ = layers(pictures.convex_hull(frame, corners))
    values = outline["rows"]
    assert len(values) == len(corners) + 1 == 4
    assert (values[0]["x"], values[0]["y"]) == (values[-1]["x"], values[-1]["y"])
    assert [each["label"] for each in points["rows"]] == [f"v{key}: 0.25" for key in range(4)]
    assert output["rows"][0]["x"] == 1.0


def test_points_are_measured_and_lines_predicted():
    frame = exponent.extremes((1.0,), (3, 30), draws=50)
    largest = Quantity("largest", "largest logit")
    marked = pd.DataFrame({"keys": [30], "largest": [3.0], "label": ["claimed"]})
    line, points, whisker, *claimed = layers(
        pictures.against_prediction(
            frame, "keys", "largest", "asymptote", largest, error="largest_error", marked=marked
        )
    )
    assert line["encoding"]["y"]["field"] == "asymptote"
    assert points["encoding"]["y"]["field"] == "largest"
    row = whisker["rows"][0]
    assert row["high"] - row["low"] == pytest.approx(4 * frame["largest_error"][0], rel=1e-3)
    assert list(claimed[0]["rows"]) == [{"keys": 30, "largest": 3.0, "label": "claimed"}]


def test_a_bound_is_a_dashed_line_beside_solid_predictions():
    frame = exponent.extremes((1.0, 2.0), (10, 30), draws=50).assign(spread=lambda t: t["std"])
    largest = Quantity("largest", "largest logit")
    chart = pictures.against_prediction(
        frame, "keys", "largest", "expected_largest", largest, by="spread", bound="asymptote"
    )
    bound, line, _ = layers(chart)
    assert bound["encoding"]["y"]["field"] == "asymptote"
    assert bound["mark"]["strokeDash"]
    assert "strokeDash" not in line["encoding"]


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_each_mode_has_its_own_colours(mode):
    frame = pd.DataFrame({"key": [0], "weight": [1.0], "scores": ["one"]})
    chart = pictures.grouped_bars(frame, "key", "weight", "scores", mode=mode).to_dict()
    assert chart["encoding"]["color"]["scale"]["range"] == [figures.COLOURS[mode].categories[0]]


def test_labels_that_do_not_fit_below_an_axis_lean():
    frame = pd.DataFrame(
        {"a": ["0", "1"] * 2, "b": ["x", "x", "y", "y"], "w": [0.1, 0.2, 0.3, 0.4]}
    )

    def angle(rows):
        (bars,) = layers(pictures.grouped_bars(rows, "a", "w", "b", width=120))
        return bars["encoding"]["x"]["axis"]["labelAngle"]

    assert angle(frame) == 0
    assert angle(frame.replace({"a": {"1": "a long token"}})) < 0


def test_the_axes_of_a_hull_leave_room_around_its_corners():
    frame = meaning.convex_hull()
    points = frame.loc[frame["point"] == "value", ["x", "y"]].to_numpy(dtype=float)
    hull = layers(pictures.convex_hull(frame, meaning.hull_corners(points)))[0]
    for i, axis in enumerate("xy"):
        scale = hull["encoding"][axis]["scale"]
        assert scale["domainMin"] < points[:, i].min()
        assert scale["domainMax"] > points[:, i].max()
