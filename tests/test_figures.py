"""Figures: facts about the specification, never about pixels of a screen."""

import base64
import io
import itertools
import json
import math
import re
from dataclasses import replace
from decimal import Decimal
from xml.etree import ElementTree

import altair as alt
import numpy as np
import pandas as pd
import pytest
import vl_convert
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from attnprobe import figures
from attnprobe.errors import BadInput
from attnprobe.export.converter import VL_VERSION
from attnprobe.figures.chart import Chart
from attnprobe.figures.colour import colour_scale, fitted
from attnprobe.figures.labels import thinned
from attnprobe.figures.matrix import CELL_LIMIT, MOST_PIXELS
from attnprobe.figures.raster import pooled
from attnprobe.figures.values import inline, six_digits
from attnprobe.metrics import METRICS, Quantity, quantity

MODES = ("light", "dark")
NASTY = [
    "", " ", "\n", "a", "\u200b", "\x00", "a\x00b", "\x1b[31m", "\ufffe", "\uffff", "\x0b", "\x0c",
    "a\u0301", "\u00e1", "\U0001f600\U0001f600", "\u4e2d\u6587 \u6a21\u578b",
    "\u05e9\u05dc\u05d5\u05dd world", "[SEP]", "<|endoftext|>x", "<img src=x onerror=alert(1)>",
    "</script>", "$5 and $6", "*a* _b_ :red[x] # h", "word " * 600, "\ud83d", "\u202eevil",
    "'\"\\${x}", "=1+1", "\ufffd", "if", "constructor", "toString", "valueOf", "__proto__",
]  # fmt: skip


def specs(chart: alt.TopLevelMixin) -> dict:
    """The specification, proved to be JSON without NaN."""
    spec = chart.to_dict()
    json.dumps(spec, allow_nan=False)
    return spec


def marks(spec: dict) -> list[dict]:
    """Every unit of a layered or concatenated specification, with the data it draws."""
    given = {"data": spec["data"]} if "data" in spec else {}
    inner = [child for key in ("layer", "hconcat") for child in spec.get(key, [])]
    return [unit for child in inner for unit in marks(given | child)] or [spec]


def kinds(spec: dict) -> list[str]:
    return [unit["mark"]["type"] for unit in marks(spec)]


def rows_of(spec: dict, unit: dict) -> list[dict]:
    return spec["datasets"][unit["data"]["name"]]


def cells(spec: dict) -> tuple[dict, list[dict]]:
    """The layer that takes clicks and its data."""
    unit = next(u for u in marks(spec) if u["mark"].get("cursor") == "pointer")
    return unit, rows_of(spec, unit)


def colour(spec: dict) -> dict:
    """The one colour encoding, which is that of the cells and of the colour bar."""
    (bar,) = [u["encoding"]["color"] for u in marks(spec) if "color" in u["encoding"]]
    return bar


def image_of(unit_rows: list[dict]) -> np.ndarray:
    data = unit_rows[0]["url"].removeprefix("data:image/png;base64,")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def square(n: int, name: str = "weight", *, tokens=None, valid=None, seed=0) -> pd.DataFrame:
    values = np.random.default_rng(seed).dirichlet(np.ones(n), n)
    return figures.matrix_frame(values, tokens or [f"t{i}" for i in range(n)], name, valid=valid)


def heads(n_layers=3, n_heads=5) -> pd.DataFrame:
    grid = [(layer, head) for layer in range(n_layers) for head in range(n_heads)]
    frame = pd.DataFrame(grid, columns=["layer", "head"])
    value = np.linspace(0.25, 2.0, len(frame))
    return frame.assign(entropy=value, raw_mean=value - 0.6)


def test_the_converter_knows_the_vega_lite_that_altair_writes():
    assert VL_VERSION in vl_convert.get_vegalite_versions()


@pytest.mark.parametrize("mode", MODES)
def test_every_head_is_a_cell_with_its_own_number(mode):
    frame = heads()
    _, data = cells(specs(figures.head_map(frame, "entropy", mode=mode)))
    got = {(d["layer"], d["head"]): d["entropy"] for d in data}
    want = {(r.layer, r.head): r.entropy for r in frame.itertuples()}
    assert got == pytest.approx(want, rel=1e-5)


def test_a_click_on_a_head_gives_its_layer_and_head():
    spec = specs(figures.head_map(heads(), "entropy"))
    (param,) = [p for p in spec["params"] if p["name"] == "cell"]
    assert param["select"]["fields"] == ["layer", "head"]
    assert param["select"]["type"] == "point"


def test_an_undefined_head_is_hatched_and_never_zero():
    frame = heads().assign(entropy=lambda t: t["entropy"].where(t.index != 7))
    spec = specs(figures.head_map(frame, "entropy"))
    _, data = cells(spec)
    assert (1, 2) not in {(d["layer"], d["head"]) for d in data}
    assert len(data) == 14
    assert "image" in kinds(spec)
    assert "undefined" in json.dumps(spec)


def test_a_missing_row_is_undefined_too_and_a_full_table_has_no_hatching():
    assert "image" in kinds(specs(figures.head_map(heads().drop(index=3), "entropy")))
    assert "image" not in kinds(specs(figures.head_map(heads(), "entropy")))


def test_the_scale_of_a_signed_number_is_symmetric_about_zero():
    domain = colour(specs(figures.head_map(heads(), "raw_mean")))["scale"]["domain"]
    assert domain[0] == -domain[-1] == pytest.approx(-1.4)
    assert domain[len(domain) // 2] == 0


def test_a_defined_limit_is_kept_whatever_the_data():
    frame = heads().assign(jacobian_spectral=0.1)
    domain = colour(specs(figures.head_map(frame, "jacobian_spectral")))["scale"]["domain"]
    assert (domain[0], domain[-1]) == (0, 0.5)


def test_values_beyond_stated_limits_are_announced_on_the_colour_bar():
    legend = colour(specs(figures.head_map(heads(), "entropy", limits=(0.5, 1.0))))["legend"]
    assert "\\u2264 0.5" in legend["labelExpr"]
    assert "\\u2265 1" in legend["labelExpr"]
    assert legend["title"] == "entropy (nats)"


def test_a_cell_is_ringed_in_its_own_colour_so_that_no_gap_shows():
    spec = specs(figures.head_map(heads(), "entropy"))
    drawn = ElementTree.fromstring(vl_convert.vegalite_to_svg(spec, vl_version=VL_VERSION))
    cells = [e for e in drawn.iter() if e.get("aria-roledescription") == "rect mark"]
    assert len(cells) == 15
    assert all(e.get("stroke") == e.get("fill") for e in cells)
    assert len({e.get("fill") for e in cells}) == 15
    assert any("gradient" in e.get("fill", "") for e in drawn.iter())


def test_the_chosen_head_has_a_light_and_a_dark_outline_of_its_cell():
    spec = specs(figures.head_map(heads(), "entropy", selected=(2, 4)))
    outlines = [u for u in marks(spec) if u["mark"].get("filled") is False]
    assert len({u["mark"]["stroke"] for u in outlines}) == 2
    step = spec["width"] / 5
    encoding = outlines[0]["encoding"]
    assert [encoding[c]["value"] for c in ("x", "x2", "y", "y2")] == [
        4 * step, 5 * step, 2 * step, 3 * step
    ]  # fmt: skip


@pytest.mark.parametrize(("n_layers", "n_heads"), [(4, 4), (6, 12), (12, 12), (24, 16), (1, 1)])
def test_cells_are_whole_pixels_and_the_picture_fits(n_layers, n_heads):
    spec = specs(figures.head_map(heads(n_layers, n_heads), "entropy", size=360))
    assert spec["width"] % n_heads == 0
    assert spec["height"] % n_layers == 0
    assert spec["width"] // n_heads == spec["height"] // n_layers
    assert max(spec["width"], spec["height"]) <= 360


def test_equal_tokens_keep_their_own_rows_and_columns():
    frame = square(4, tokens=["the", "cat", "the", "dog"])
    unit, data = cells(specs(figures.token_map(frame)))
    assert len({(d["query"], d["key"]) for d in data}) == 16
    assert unit["encoding"]["x"]["scale"]["domain"] == [0, 1, 2, 3]
    assert unit["encoding"]["y"]["scale"]["domain"] == [0, 1, 2, 3]


def test_axis_labels_are_the_tokens_in_text_order():
    words = ["zebra", "apple", "mango", *map(str, range(8))]
    unit, _ = cells(specs(figures.token_map(square(11, tokens=words))))
    assert written(unit["encoding"]["x"]) == words


def written(channel: dict) -> list[str]:
    """The labels in an axis' expression."""
    expression = channel["axis"]["labelExpr"]
    spaced = json.loads(expression[expression.index("[") : expression.rindex("[")])
    return [label[1:] for label in spaced]


@pytest.mark.parametrize(
    "word", ["if", "constructor", "toString", "hasOwnProperty", "valueOf", "__proto__", "datum"]
)
def test_a_word_that_means_something_to_vega_is_a_token_like_any_other(word):
    words = ["as", word, "not"]
    frame = pd.DataFrame({"name": words, "v": [0.1, 0.2, 0.3]})
    charts = figures.token_map(square(3, tokens=words)), figures.bars(frame, "v", "name")
    for chart in charts:
        picture = vl_convert.vegalite_to_svg(specs(chart), vl_version=VL_VERSION)
        drawn = [e.text for e in ElementTree.fromstring(picture).iter() if e.text]
        assert set(words) <= set(drawn)


@pytest.mark.parametrize("mode", MODES)
def test_a_key_that_the_query_may_not_see_has_no_cell(mode):
    frame = square(5, valid=np.tril(np.ones((5, 5), dtype=bool)))
    spec = specs(figures.token_map(frame, mode=mode))
    _, data = cells(spec)
    assert {(d["query"], d["key"]) for d in data} == {
        (q, k) for q in range(5) for k in range(q + 1)
    }
    hatching = next(u for u in marks(spec) if u["mark"]["type"] == "image")
    lines = image_of(rows_of(spec, hatching))[..., 3] > 0
    step = spec["width"] // 5
    covered = [
        [lines[q * step : q * step + step, k * step : k * step + step].any() for k in range(5)]
        for q in range(5)
    ]
    np.testing.assert_array_equal(covered, np.triu(np.ones((5, 5), dtype=bool), 1))


def test_zero_is_a_cell():
    frame = figures.matrix_frame(np.zeros((3, 3)), list("abc"), "weight")
    _, data = cells(specs(figures.token_map(frame)))
    assert [d["weight"] for d in data] == [0] * 9


@pytest.mark.parametrize(("n", "kind"), [(128, "rect"), (129, "image")])
def test_rectangles_end_and_the_raster_begins_at_the_cell_limit(n, kind):
    assert CELL_LIMIT == 128**2
    found = kinds(specs(figures.token_map(square(n))))
    assert kind in found
    assert ({"rect", "image"} - {kind}).isdisjoint(found)


def test_a_raster_has_the_colour_of_each_cell_and_none_where_undefined():
    n = 131
    frame = square(n, valid=np.tril(np.ones((n, n), dtype=bool)))
    spec = specs(figures.token_map(frame))
    drawn = next(
        image
        for image in (
            image_of(rows_of(spec, u)) for u in marks(spec) if u["mark"]["type"] == "image"
        )
        if image.shape[:2] == (n, n)
    )
    values = frame["weight"].to_numpy().reshape(n, n)
    np.testing.assert_array_equal(drawn[..., 3] > 0, np.isfinite(values))
    scale = colour_scale(values, METRICS["weight"], "light")
    np.testing.assert_array_equal(drawn[5, 3], scale.rgba(values[5:6, 3])[0])


def test_a_long_text_is_pooled_and_the_caption_knows():
    n = 2 * MOST_PIXELS + 1
    values = np.zeros((n, n), dtype=np.float32)
    values[700, 3] = 1.0
    frame = figures.matrix_frame(values, ["t"] * n, "weight")
    spec = specs(figures.token_map(frame))
    drawn = next(image_of(rows_of(spec, u)) for u in marks(spec) if u["mark"]["type"] == "image")
    assert max(drawn.shape[:2]) <= MOST_PIXELS
    bright = np.argwhere((drawn[..., 0] > 200) & (drawn[..., 2] < 60))
    np.testing.assert_array_equal(bright, [[700 // 3, 1]])
    assert "3 × 3" in figures.pooling_note(n)
    assert figures.pooling_note(MOST_PIXELS) == ""


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_pooling_keeps_every_maximum_and_invents_none(rows, columns, most, seed):
    values = np.random.default_rng(seed).normal(size=(rows, columns))
    values[values > 1] = np.nan
    pooled = figures.pool_max(values, most)
    assert max(pooled.shape) <= most
    high, wide = -(-rows // most), -(-columns // most)
    for i, j in np.ndindex(pooled.shape):
        block = values[i * high : (i + 1) * high, j * wide : (j + 1) * wide]
        seen = block[np.isfinite(block)]
        assert pooled[i, j] == seen.max() if seen.size else np.isnan(pooled[i, j])


@given(st.integers(1, 30), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_pooling_signed_values_keeps_the_largest_magnitude_with_its_sign(side, most, seed):
    values = np.random.default_rng(seed).normal(size=(side, side))
    values[values > 1] = np.nan
    drawn = pooled(values, most, "diverging")
    high = -(-side // most)
    for i, j in np.ndindex(drawn.shape):
        block = values[i * high : (i + 1) * high, j * high : (j + 1) * high]
        seen = block[np.isfinite(block)]
        assert drawn[i, j] == seen[np.abs(seen).argmax()] if seen.size else np.isnan(drawn[i, j])


def test_colours_of_the_raster_are_those_of_the_colour_bar():
    q = Quantity("weight", "weight", domain=(0, 1), scale="sqrt")
    scale = colour_scale(np.array([0.0, 1.0]), q, "light")
    stops = np.array(scale.scale().to_dict()["domain"])
    np.testing.assert_allclose(stops, np.linspace(0, 1, len(stops)) ** 2, atol=1e-12)
    colours = ["#" + "".join(f"{v:02X}" for v in rgba[:3]) for rgba in scale.rgba(stops)]
    assert colours == [colour.upper() for colour in scale.colours]


SIGNED = Quantity("entry", "∂p/∂s", kind="diverging", format=".2g")


def row_jacobian(n, evenness=0.3):
    p = np.random.default_rng(n).dirichlet(np.full(n, evenness))
    return np.diag(p) - np.outer(p, p)


@pytest.mark.parametrize("kind", ["linear", "sqrt", "symlog"])
def test_signed_colours_are_the_browser_s_at_every_bend(kind):
    """vl-convert draws cells by the scale; the raster's colours come from numpy."""
    q = replace(SIGNED, scale=kind)
    values = row_jacobian(7)
    scale = colour_scale(values, q, "light")
    frame = figures.matrix_frame(values, list("abcdefg"), "entry")
    svg = vl_convert.vegalite_to_svg(
        specs(figures.token_map(frame, q)), vl_version=VL_VERSION, allowed_base_urls=[]
    )
    drawn = [
        path.get("fill")
        for group in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}g")
        if "mark-rect role-mark" in group.get("class", "")
        for path in group
    ]
    shown = [[int(each) for each in re.findall(r"\d+", fill)] for fill in drawn[: values.size]]
    expected = scale.rgba(six_digits(values.ravel()))[:, :3].astype(int)
    assert np.abs(np.array(shown) - expected).max() <= 1


def test_a_signed_logarithm_is_odd_and_its_numbers_are_where_they_say():
    q = replace(SIGNED, scale="symlog")
    values = row_jacobian(67, evenness=3)
    scale = colour_scale(values, q, "light")
    place = np.log1p(np.abs(values).max() / scale.knee)
    sizes = np.abs(values[values != 0])
    assert (sizes < scale.knee).mean() == pytest.approx(0.1, abs=0.01)
    stops = np.array(scale.scale().to_dict()["domain"])
    np.testing.assert_allclose(stops, -stops[::-1], rtol=1e-9, atol=1e-18)
    middle = len(stops) // 2
    np.testing.assert_allclose(
        np.log1p(stops[middle:] / scale.knee), place * np.linspace(0, 1, middle + 1), rtol=1e-9
    )
    legend = scale.legend(300).to_dict()
    shown = [float(text.replace("−", "-")) for text in scale.ticks()]
    assert shown[1:4] == pytest.approx(legend["values"][1:4], rel=1e-9)
    assert shown[0] == -shown[4] == pytest.approx(-np.abs(values).max(), rel=0.05)
    quarter = np.log1p(legend["values"][3] / scale.knee) / place
    assert 0.4 < quarter < 0.6


def test_a_long_diffuse_row_has_one_colour_where_linear_and_many_by_logarithm():
    values = row_jacobian(301)
    off = ~np.eye(len(values), dtype=bool)

    def shades(kind):
        rgba = colour_scale(values, replace(SIGNED, scale=kind), "light").rgba(values)
        return len(np.unique(rgba[off] // 16, axis=0))

    assert shades("linear") < 12 < 3 * 12 < shades("symlog") * 3


def test_rounding_errors_are_not_spread_over_a_signed_colour_bar():
    values = np.array([-1.0, 1e-18, 2e-18, 3e-18, 0.0])
    scale = colour_scale(values, replace(SIGNED, scale="symlog"), "light")
    assert scale.knee == pytest.approx(1e-6)
    middle = colour_scale(np.array([-1.0, 1.0]), SIGNED, "light").rgba(np.zeros(1))
    np.testing.assert_array_equal(scale.rgba(values[1:]), np.repeat(middle, 4, axis=0))
    nothing = colour_scale(np.zeros(3), replace(SIGNED, scale="symlog"), "light")
    assert nothing.rgba(np.zeros(1))[0, 3] == 255


def test_the_caption_of_bent_colours_names_the_bend():
    values = np.array([[-0.5, 0.25], [0.25, 0.002]])
    bent = replace(SIGNED, scale="symlog")
    assert f"below {colour_scale(values, bent, 'dark').knee:.1g} they" in figures.bend_note(
        values, bent
    )
    assert figures.bend_note(values, SIGNED) == ""


def test_undefined_has_no_colour_and_a_constant_has_one():
    q = quantity("raw_mean")
    scale = colour_scale(np.zeros(3), q, "dark")
    assert scale.limits[0] < 0 < scale.limits[1]
    assert scale.rgba(np.array([np.nan]))[0, 3] == 0
    assert scale.rgba(np.array([0.0]))[0, 3] == 255


def test_a_log_scale_leaves_out_zero_when_it_looks_for_limits():
    scale = colour_scale(np.array([0.0, 1e-3, 10.0]), Quantity("e", "error", scale="log"), "light")
    assert scale.limits == (1e-3, 10.0)
    assert scale.rgba(np.array([0.1]))[0].tolist()[:3] == pytest.approx([0x21, 0x91, 0x8D], abs=1)


@pytest.mark.parametrize("text", NASTY, ids=ascii)
def test_a_label_holds_nothing_that_xml_or_a_neighbour_cannot_bear(text):
    label = figures.safe_label(text)
    assert label.encode().decode() == label
    assert len(label) <= 200
    assert not any(ord(c) < 32 or c in "\ufffe\uffff\u202e\u200b" for c in label)


def test_hidden_characters_stay_distinguishable():
    assert figures.safe_label("\x00") != figures.safe_label("\x01") != ""
    assert figures.safe_label("\u200b") == "‹U+200B›"
    assert figures.safe_label("\ufffd") == "\ufffd"
    assert figures.safe_label("a\nb\tc") == "a↵b⇥c"
    assert figures.safe_label("🧑\u200d🔬") == "🧑\u200d🔬"


@given(st.text(alphabet=st.characters()))
def test_an_ordinary_printable_text_is_its_own_label(text):
    if text.isprintable() and len(text) <= 200:
        assert figures.safe_label(text) == text


@given(st.integers(1, 2000), st.floats(0.05, 40))
def test_thinned_labels_never_touch(n, step):
    shown = thinned(n, step)
    assert shown[0] == 0
    assert all(step * (b - a) >= 11 - 1e-9 for a, b in itertools.pairwise(shown))


def test_strongest_lines_are_the_largest_of_each_query():
    frame = square(7)
    kept = figures.strongest(frame, per_query=2)
    for query, part in frame.groupby("query"):
        want = sorted(part["weight"], reverse=True)[:2]
        assert sorted(kept.loc[kept["query"] == query, "weight"], reverse=True) == want


def test_lines_below_the_least_or_undefined_are_not_drawn():
    frame = square(6, valid=np.tril(np.ones((6, 6), dtype=bool)))
    kept = figures.strongest(frame, per_query=6, least=0.3)
    assert (kept["weight"] >= 0.3).all()
    spec = specs(figures.token_lines(kept, [f"t{i}" for i in range(6)]))
    unit = next(u for u in marks(spec) if u["mark"]["type"] == "rule")
    assert len(rows_of(spec, unit)) == len(kept)


def test_histogram_shares_of_each_group_sum_to_one_and_leave_out_the_undefined():
    frame = pd.DataFrame({"head": [0] * 5 + [1] * 3, "v": [1, 2, 3, 4, np.nan, 7, 7, np.inf]})
    shares = figures.bin_shares(frame, "v", by="head", bins=6)
    np.testing.assert_allclose(shares.groupby("head")["share"].sum(), 1.0)
    assert shares["right"].max() == 7
    specs(figures.histogram(shares, "v", by="head"))


def test_five_numbers_are_the_quantiles_of_the_defined_values():
    frame = pd.DataFrame({"head": [3] * 101 + [1] * 2, "v": [*range(101), np.nan, np.nan]})
    table = figures.five_numbers(frame, "v", "head").set_index("head")
    assert table.loc[3, ["low", "q1", "median", "q3", "high", "n"]].tolist() == [
        5,
        25,
        50,
        75,
        95,
        101,
    ]
    assert table.loc[1, "n"] == 0
    assert np.isnan(table.loc[1, "median"])
    spec = specs(figures.boxes(table.reset_index(), "v", "head", selected=3))
    _, data = cells(spec)
    assert [d["head"] for d in data] == [3]


@pytest.mark.parametrize("mode", MODES)
def test_every_other_figure_is_json_without_nan_in_both_modes(mode):
    rows = pd.DataFrame(
        {
            "query": range(5),
            "query_token": list("aabbc"),
            "entropy": [np.nan, 1, 2, 0, 1.5],
            "peak": 0.5,
        }
    )
    frame = square(5)
    sweep = pd.DataFrame(
        {"x": [1.0, 10.0, 0.0], "y": [2.0, np.nan, 3.0], "lo": 1.0, "hi": 4.0, "g": ["a", "a", "b"]}
    )
    x, y = Quantity("x", "factor", scale="log"), Quantity("y", "loss", "nats")
    bound = heads().assign(bound="b")
    charts = [
        figures.head_view(frame, rows, mode=mode, row=2),
        figures.row_profile(rows, mode=mode),
        figures.row_bars(frame[frame["query"] == 3], mode=mode),
        figures.curves(sweep, x, y, by="g", band=("lo", "hi"), mode=mode, dots=True),
        figures.curves(sweep, x, y, marked=sweep.assign(label="here"), mode=mode),
        figures.scatter(heads(), "entropy", "raw_mean", by="layer", mode=mode),
        figures.scatter(heads(), "entropy", "raw_mean", bounds=bound, mode=mode),
        figures.scatter(sweep, x, y, interval=("lo", "hi"), by="g", mode=mode),
        figures.bars(sweep, y, "g", interval=("lo", "hi"), mode=mode),
        figures.bars(sweep, y, "g", by="g", ordered=False, mode=mode),
        figures.thumbnails({0: np.eye(3), 4: np.full((3, 3), np.nan)}, mode=mode, selected=4),
    ]  # fmt: skip
    for chart in charts:
        spec = specs(chart)
        assert spec["description"]
        assert spec["config"]["background"] == "transparent"
        assert "transform" not in json.dumps(spec)


@pytest.mark.parametrize("by", ["g", None])
def test_an_interval_is_a_rule_behind_each_point_and_has_no_legend_of_its_own(by):
    frame = pd.DataFrame({"x": [0.0, 1.0, 3.0], "y": [2.0, 5.0, 7.0], "g": ["a", "b", "b"]})
    frame = frame.assign(lo=[1.0, 4.0, np.nan], hi=[2.5, 6.0, np.nan])
    spec = specs(figures.scatter(frame, Quantity("x", "x"), Quantity("y", "y"), by=by,
                                 interval=("lo", "hi")))  # fmt: skip
    assert kinds(spec) == ["rule", "point"]
    rule, point = marks(spec)
    fields = [rule["encoding"][channel]["field"] for channel in ("x", "y", "y2")]
    assert fields == ["x", "lo", "hi"]
    assert rule["encoding"]["y"]["title"] == point["encoding"]["y"]["title"]
    ends = [(row["x"], row["lo"], row["hi"]) for row in rows_of(spec, rule)]
    assert ends == [(0, 1, 2.5), (1, 4, 6)]
    assert [row["y"] for row in rows_of(spec, point)] == [2, 5, 7]
    if by:
        colours = [unit["encoding"]["color"] for unit in (rule, point)]
        assert colours[0]["scale"] == colours[1]["scale"]
        assert [each["legend"] is None for each in colours] == [True, False]
    else:
        assert "color" not in rule["encoding"]


def test_row_profile_leaves_an_undefined_row_empty():
    rows = pd.DataFrame({"query": [0, 1], "query_token": ["a", "b"], "entropy": [np.nan, 0.0]})
    spec = specs(figures.row_profile(rows, ["entropy"]))
    (unit,) = marks(spec)
    assert [d["query"] for d in rows_of(spec, unit)] == [1]


def test_the_rows_beside_a_map_are_as_high_as_its_rows():
    frame = square(9)
    rows = pd.DataFrame({"query": range(9), "query_token": "t", "entropy": 1.0})
    spec = specs(figures.head_view(frame, rows, beside=["entropy"]))
    picture, strip = spec["hconcat"]
    assert picture["height"] == strip["height"]
    assert strip["encoding"]["y"]["scale"]["domain"] == [9, 0]


def test_bars_with_equal_labels_stay_apart_and_the_largest_is_on_top():
    frame = pd.DataFrame({"name": ["x", "x", "y"], "v": [0.1, -0.9, 0.5]})
    spec = specs(figures.bars(frame, "v", "name"))
    data = rows_of(spec, marks(spec)[0])
    assert [(d["position"], d["v"]) for d in data] == [(0, -0.9), (1, 0.5), (2, 0.1)]


def test_numbers_in_a_chart_are_float64_to_six_digits():
    frame = heads(1, 2).assign(entropy=np.array([0.0024, 1 / 3], dtype=np.float32))
    _, data = cells(specs(figures.head_map(frame, "entropy")))
    assert [d["entropy"] for d in data] == [0.0024, 0.333333]


@given(st.floats(allow_nan=True, allow_infinity=True))
@settings(max_examples=500)
def test_any_number_is_rounded_as_python_prints_it(number):
    """Within a unit in the last place or two; exactly where powers of ten are doubles."""
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        (rounded,) = six_digits(np.array([number]))
    expected = float(f"{number:.5e}")
    if math.isfinite(number) and not 1e-15 < abs(number) < 1e25:
        assert abs(rounded - expected) <= 3 * math.ulp(expected) or tied(number)
    elif math.isfinite(number):
        assert rounded == expected or tied(number)
    else:
        assert str(rounded) == str(number)


def tied(number):
    """Nearly halfway between two numbers of six digits: either is right."""
    digits = Decimal(number).normalize().scaleb(-Decimal(number).adjusted() + 5) if number else 0
    return abs(abs(digits % 1) - Decimal("0.5")) < Decimal("1e-9")


def test_drawing_a_chart_or_laying_it_over_another_leaves_it_as_it_was():
    """Copies share their parts, so nothing may be edited in one of them."""
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 5.0]})
    pick = alt.selection_point(name="cell", fields=["a"])
    dots = Chart(inline(frame, ["a", "b"])).mark_point(size=7).encode(x="a:Q", y="b:Q")
    dots = dots.add_params(pick)
    line = dots.mark_line(strokeWidth=3).encode(y="a:Q")
    before = [each.to_dict() for each in (dots, line)]
    first, second = (alt.layer(dots, line, width=11, height=5).to_dict() for _ in range(2))
    assert first == second
    assert [each.to_dict() for each in (dots, line)] == before
    plain = alt.Chart(inline(frame, ["a", "b"])).mark_point(size=7).encode(x="a:Q", y="b:Q")
    over = plain.mark_line(strokeWidth=3).encode(y="a:Q")
    assert alt.layer(plain.add_params(pick), over, width=11, height=5).to_dict() == first
    assert before[1]["encoding"]["y"]["field"] == "a"
    assert before[0]["encoding"]["y"]["field"] == "b"


def test_nasty_labels_are_data_in_expressions():
    spec = specs(figures.token_map(square(len(NASTY), tokens=NASTY)))
    unit, _ = cells(spec)
    assert written(unit["encoding"]["y"]) == figures.safe_labels(NASTY)


def test_a_missing_column_is_named_together_with_those_there_are():
    with pytest.raises(BadInput, match=r"'nothing'.*layer, head, entropy"):
        figures.head_map(heads(), "nothing")


def test_a_matrix_that_does_not_fit_its_tokens_is_refused():
    with pytest.raises(BadInput, match="2 tokens needs as many rows and columns, not 2 × 3"):
        figures.matrix_frame(np.zeros((2, 3)), ["a", "b"], "weight")


def test_each_metric_says_what_it_means_and_within_which_limits():
    for name, q in METRICS.items():
        assert q.name == name
        assert q.definition.endswith(".")
        assert q.kind in ("sequential", "diverging")
        assert replace(q, unit="u").title == f"{q.label} (u)"
    assert METRICS["jacobian_spectral"].domain == (0, 0.5)
    assert METRICS["jacobian_max"].domain == (0, 0.25)


def test_dense_figures_ask_for_a_canvas():
    assert specs(figures.token_map(square(3)))["usermeta"]["embedOptions"]["renderer"] == "canvas"


def contrast(a: str, b: str) -> float:
    """WCAG 2 contrast ratio."""

    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted([luminance(a), luminance(b)], reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("mode", MODES)
def test_text_and_first_series_stand_out_from_the_page(mode):
    c = figures.COLOURS[mode]
    assert contrast(c.text, c.page) >= 7
    assert contrast(c.muted, c.page) >= 4.5
    assert all(contrast(colour, c.page) >= 3 for colour in c.categories[:4])


def test_fitted_limits_leave_one_in_a_hundred_outside_and_keep_a_defined_zero():
    weights = np.append(np.linspace(0, 0.1, 990), np.linspace(0.5, 1, 10))
    low, high = fitted(np.append(weights, np.nan), METRICS["weight"])
    assert low == 0
    assert (weights > high).sum() == 10
    logits = np.linspace(-3, 2, 1001)
    low, high = fitted(logits, Quantity("logit", "logit"))
    assert (logits < low).sum() == (logits > high).sum() == 5
    low, high = fitted(logits, METRICS["raw_logit"])
    assert -low == high
    assert (np.abs(logits) > high).sum() == 10
    assert fitted(np.full(4, np.nan), METRICS["weight"]) is None
    assert fitted(np.ones(4), Quantity("logit", "logit")) is None


@pytest.mark.parametrize(("tall", "wide"), [(7, 5), (130, 33), (1030, 65)])
def test_a_tensor_by_components_is_as_wide_as_it_is_worth_and_none_of_it_is_lost(tall, wide):
    values = np.random.default_rng(0).normal(size=(tall, wide))
    spec = figures.component_map(values, Quantity("entry", "entry", kind="diverging")).to_dict()
    assert 130 <= spec["width"] <= 512
    assert 130 <= spec["height"] <= 520
    frame = figures.component_frame(values, "entry")
    assert len(frame) == tall * wide
    assert frame.query("position == 3 and component == 2")["entry"].item() == values[3, 2]
    pooled = "largest magnitude of 3 × 1 cells" in figures.component_note(values.shape)
    assert pooled == (tall > 512)


@pytest.mark.parametrize("top", [3e-9, 0.00123, 0.0697, 0.1106, 0.12, 0.7, 2.4, 120, 1.2e6])
def test_no_two_ticks_of_an_axis_say_the_same(top):
    """0.12 − 0.02 is less than 0.1 in floating point, by which d3 rounds significant digits."""
    frame = pd.DataFrame({"edit": ["a", "b"], "tvd": [top, top / 3]})
    chart = figures.bars(frame, Quantity("tvd", "TVD", domain=(0, None)), "edit")
    svg = vl_convert.vegalite_to_svg(json.dumps(chart.to_dict()), vl_version=VL_VERSION)
    ticks = re.findall(r">(\d+(?:\.\d+)?)<", svg)
    assert len(ticks) >= 4
    steps = np.diff([float(tick) for tick in ticks])
    np.testing.assert_allclose(steps, steps[0], rtol=1e-6)
