"""Panels on one row of scores: its weights, its Jacobian, and a factor on the scores."""

import numpy as np
import pandas as pd
import streamlit as st

from attnprobe import figures
from attnprobe.errors import BadInput
from attnprobe.figures import theory as pictures
from attnprobe.metrics import Quantity
from attnprobe.theory import softmax
from attnprobe.ui.show import metrics
from attnprobe.ui.theory.lab import HIGH, WIDE, WIDER, Lab

PRESETS = {
    "six scores": (softmax.SIX_SCORES, None),
    "Tom, New York, lives": (softmax.TOM_SCORES, ("Tom", "New York", "lives")),
}
OWN = "own scores"
MOST_KEYS = 24
TYPICAL = "2.0, 1.0, 0.5, -1.0"
SLIDER_END = 100.0
PRESET, TYPED, WIDTH = "theory:preset", "theory:scores", "theory:row_d_k"


def parsed(text: str) -> tuple[float, ...]:
    """Scores as they were typed: numbers with commas, semicolons or spaces between them."""
    words = text.replace(",", " ").replace(";", " ").split()
    try:
        numbers = tuple(float(word) for word in words)
    except ValueError as error:
        raise BadInput(f"{error}; type numbers such as 1.5, 0.2, −3 with commas between") from error
    if len(numbers) > MOST_KEYS:
        raise BadInput(f"{len(numbers)} scores came and at most {MOST_KEYS} are drawn; type fewer")
    return tuple(softmax.score_row(numbers).tolist())


def _row() -> tuple[tuple[float, ...], tuple[str, ...], int]:
    """The chosen scores, the names of their keys, and d_k."""
    chosen = st.session_state.get(PRESET, next(iter(PRESETS)))
    typed = st.session_state.get(TYPED, TYPICAL)
    row, names = PRESETS[chosen] if chosen in PRESETS else (parsed(typed), None)
    names = names or tuple(str(key) for key in range(len(row)))
    return _with_largest(row), names, st.session_state.get(WIDTH, 64)


def _slider_of(row: tuple[float, ...]) -> str:
    """The key of the slider for this row's largest score: another row starts at its own score."""
    return "theory:largest:" + " ".join(map(repr, row))


def _with_largest(row: tuple[float, ...]) -> tuple[float, ...]:
    """The row with its largest score as the slider says."""
    top = int(np.argmax(row))
    moved = st.session_state.get(_slider_of(row), row[top])
    return (*row[:top], float(moved), *row[top + 1 :])


def _largest(lab: Lab) -> None:
    chosen = st.session_state.get(PRESET, next(iter(PRESETS)))
    row = PRESETS[chosen][0] if chosen in PRESETS else parsed(st.session_state[TYPED])
    largest = max(row)
    if abs(largest) > SLIDER_END:
        st.caption(lab.say("The slider for the largest score goes to ±{end}.", end=SLIDER_END))
        return
    st.slider(
        lab.say("Largest score"), -SLIDER_END, SLIDER_END, largest, 0.001, format="%.4g",
        key=_slider_of(row), width=420,
        help=lab.say("It starts as the row has it. Below another score it no longer leads."),
    )  # fmt: skip


def row(lab: Lab) -> None:
    """Scores to choose or type, the largest and d_k to move, the weights before and after."""
    with st.container(horizontal=True):
        chosen = st.segmented_control(
            lab.say("Scores"), [*PRESETS, OWN], key=PRESET, default=next(iter(PRESETS)),
            required=True, format_func=lab.say,
        )  # fmt: skip
        st.select_slider("d_k", (1, 2, 4, 8, 16, 32, 64, 128, 256, 512), 64, key=WIDTH, width=300)
    if chosen == OWN:
        st.text_input(lab.say("Scores, with commas between"), TYPICAL, key=TYPED)
    _largest(lab)
    scores, names, d_k = _row()
    frame = lab.frame("row", softmax.row_weights, scores=scores, d_k=d_k).assign(name=names)
    top = int(np.argmax(scores))
    metrics(
        (lab.say("Largest score"), f"{scores[top]:g}"),
        ("√d_k", f"{d_k**0.5:.4g}"),
        (lab.say("Largest, divided"), f"{frame['scaled_logit'][top]:.4g}"),
        (lab.say("Peak, undivided"), f"{frame['undivided'][top]:.4f}"),
        (lab.say("Peak, divided"), f"{frame['divided'][top]:.4f}"),
    )
    tidy = frame.melt("name", ["undivided", "divided"], "scores", "weight").rename(
        columns={"name": "key"}
    )
    lab.show(
        "row-weights", "Weights before and after the division", tidy,
        lambda mode: pictures.grouped_bars(
            tidy, "key", Quantity("weight", "weight", domain=(0, 1)), "scores", mode=mode,
            width=WIDER, height=HIGH,
        ),
        "Softmax of the scores as they are, and divided by √{d_k}. The order is the same.",
        scores=", ".join(f"{score:g}" for score in scores), d_k=d_k,
    )  # fmt: skip


_CURVES = {
    "peak": "peak",
    "normalised_entropy": "entropy / ln n",
    "jacobian_max": "max J",
    "jacobian_frobenius": "‖J‖ Frobenius",
    "jacobian_spectral": "‖J‖ spectral",
}


def multiplier(lab: Lab) -> None:
    """The curve over the multiplier, the Jacobian at one of them, and the table."""
    scores, names, d_k = _row()
    power = st.slider(
        lab.say("Multiplier of the divided scores, as a power of two"), -3.0, 5.0, 0.0, 0.05,
        key="theory:power", width=420,
    )  # fmt: skip
    factor = 2.0**power
    settings = {"scores": scores, "d_k": d_k}
    curve = lab.frame("multiplier curve", softmax.multiplier_curve, **settings)
    here = lab.frame("multiplier", softmax.softmax, multipliers=(factor,), **settings)
    tidy, marks = (_tidy(frame) for frame in (curve, here))
    j = lab.frame("jacobian", softmax.jacobian_map, multiplier=factor, **settings)
    j = j.assign(**{axis: [names[i] for i in j[axis]] for axis in ("weight", "score")})
    left, right = st.columns(2)
    with left:
        lab.show(
            "multiplier-curve", "Multiplier {factor:.3g}", curve,
            lambda mode: figures.curves(
                tidy,
                Quantity("multiplier", "multiplier (√d_k: not divided)", scale="log"),
                Quantity("value", "value", domain=(0, 1)), by="statistic",
                marked=marks, mode=mode, width=WIDE, height=260,
            ),
            "Peak, entropy over the ln of the number n of keys, and J = diag(p) − ppᵀ: largest "
            "entry and norms. Rings: the chosen multiplier.",
            said={"factor": factor}, **settings,
        )  # fmt: skip
    with right:
        lab.show(
            "jacobian", "Jacobian at multiplier {multiplier:.3g}", j,
            lambda mode: _jacobian_map(j, mode),
            "∂ weight / ∂ score. Colours are fixed to ±¼, the largest that an entry can be.",
            multiplier=factor, **settings,
        )  # fmt: skip
    table = lab.frame("multiplier table", softmax.softmax, **settings)
    st.dataframe(table, hide_index=True, column_config=_columns(lab))


_COLUMNS = {
    "multiplier": "multiplier",
    "entropy": "entropy (nats)",
    **_CURVES,
    "jacobian_trace": "trace of J",
}


def _columns(lab: Lab) -> dict[str, object]:
    return {
        name: st.column_config.NumberColumn(lab.say(label), format="%.6g")
        for name, label in _COLUMNS.items()
    }


def _tidy(frame: pd.DataFrame) -> pd.DataFrame:
    tidy = frame.melt("multiplier", list(_CURVES), "statistic", "value")
    return tidy.replace({"statistic": _CURVES})


def _jacobian_map(frame: pd.DataFrame, mode: figures.Mode):
    cell = max(14, min(44, 264 // len(set(frame["score"]))))
    return pictures.labelled_grid(
        frame,
        Quantity("weight", "weight of key"),
        Quantity("score", "score of key"),
        Quantity("derivative", "∂ weight / ∂ score", kind="diverging"),
        mode=mode,
        limits=(-0.25, 0.25),
        cell=(cell, cell),
    )
