"""Panels on one row of scores: its weights, its Jacobian, and a factor on the scores."""

from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import pandas as pd
import streamlit as st

from attnprobe import figures
from attnprobe.analyses import theory_on_model
from attnprobe.errors import BadInput
from attnprobe.figures import theory as pictures
from attnprobe.metrics import Quantity
from attnprobe.theory import softmax
from attnprobe.ui.cached import trace
from attnprobe.ui.show import metrics
from attnprobe.ui.theory.lab import HIGH, WIDE, WIDER, Lab

PRESETS = {
    "six scores": (softmax.SIX_SCORES, None),
    "Tom, New York, lives": (softmax.TOM_SCORES, ("Tom", "New York", "lives")),
}
OWN, OF_HEAD = "own scores", "a row of the loaded head"
MOST_KEYS = theory_on_model.MOST_KEYS
TYPICAL = "2.0, 1.0, 0.5, -1.0"
SLIDER_END = 100.0
PRESET, TYPED, WIDTH, QUERY = (
    f"theory:{name}" for name in ("preset", "scores", "row_d_k", "row_query")
)
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True)
class Row:
    """The scores to be divided, the names of their keys, d_k, and where a head's row is from.

    `held` is how much of a head's row these keys have: less than 1 if it sees more keys.
    """

    scores: tuple[float, ...]
    names: tuple[str, ...]
    d_k: int
    query: int | None = None
    held: float = 1.0

    def show(self, lab: Lab, *figure, said=MappingProxyType({}), **settings) -> None:
        """A card as `Lab.show`, or as `Lab.show_on_model` if the row is a head's."""
        if self.query is None:
            lab.show(*figure, said=said, **settings)
        else:
            lab.show_on_model(*figure, said=said, of_head=True, query=self.query, **settings)


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


def _preset(lab: Lab) -> str:
    """Which scores: two rows of the texts, one of the loaded model, or what the person types."""
    there = [*PRESETS, *([OF_HEAD] if lab.view.loaded is not None else []), OWN]
    if st.session_state.get(PRESET) not in there:
        st.session_state[PRESET] = there[0]
    return st.segmented_control(
        lab.say("Scores"), there, key=PRESET, required=True, format_func=lab.say
    )


def _width_key(lab: Lab, preset: str) -> str:
    """A head's row has a slider of its own, which starts at the width of that head."""
    return f"{WIDTH}:{trace(lab.view).d_head}" if preset == OF_HEAD else WIDTH


def _width(lab: Lab, preset: str) -> None:
    own = trace(lab.view).d_head if preset == OF_HEAD else 64
    key = _width_key(lab, preset)
    st.session_state.setdefault(key, own)
    st.select_slider("d_k", sorted({*WIDTHS, own}), key=key, width=300)


def _queries(lab: Lab) -> list[int]:
    """The rows of the head that see two keys or more."""
    counted = trace(lab.view).counted[lab.view.layer, lab.view.head]
    if not bool(counted.any()):
        raise BadInput("no row of this text sees two keys; type a longer text")
    return counted.nonzero()[:, 0].tolist()


def _query(lab: Lab) -> None:
    there = _queries(lab)
    tokens = lab.view.tokens.display
    st.selectbox(
        lab.say("Query"), there, len(there) - 1, key=QUERY, width=300,
        format_func=lambda query: f"{query}: {tokens[query]}",
    )  # fmt: skip


def _row(lab: Lab) -> Row:
    """The chosen row and d_k as the widgets above say."""
    preset = st.session_state[PRESET]
    d_k = st.session_state[_width_key(lab, preset)]
    if preset == OF_HEAD:
        return _of_head(lab, d_k)
    scores, names = PRESETS[preset] if preset in PRESETS else (_typed(), None)
    return Row(scores, names or tuple(map(str, range(len(scores)))), d_k)


def _of_head(lab: Lab, d_k: int) -> Row:
    view, there = lab.view, _queries(lab)
    query = st.session_state.get(QUERY)
    query = query if query in there else there[-1]
    frame = lab.of_model(
        "row", lambda **at: theory_on_model.row_of_scores(trace(view), **at), **lab.at, query=query
    )
    names = tuple(f"{key} {view.tokens.display[key]}" for key in frame["key"])
    scores, held = tuple(frame["score"].tolist()), float(frame["weight"].sum())
    return Row(scores, names, d_k, query, held)


def _typed() -> tuple[float, ...]:
    return parsed(st.session_state.get(TYPED, TYPICAL))


def _slider_of(row: tuple[float, ...]) -> str:
    """The key of the slider for this row's largest score: another row starts at its own score."""
    return "theory:largest:" + " ".join(map(repr, row))


def _moved(row: Row) -> Row:
    """The row with its largest score where the slider has it."""
    scores = list(row.scores)
    top = int(np.argmax(scores))
    scores[top] = float(st.session_state.get(_slider_of(row.scores), scores[top]))
    return replace(row, scores=tuple(scores))


def _largest(lab: Lab, row: tuple[float, ...]) -> None:
    """The slider for the largest of the scores as they were before it was moved."""
    largest = max(row)
    if abs(largest) > SLIDER_END:
        st.caption(lab.say("The slider for the largest score goes to ±{end}.", end=SLIDER_END))
        return
    st.slider(
        lab.say("Largest score"), -SLIDER_END, SLIDER_END, largest, 0.001, format="%.4g",
        key=_slider_of(row), width=420,
        help=lab.say("It starts as the row has it. Below another score it no longer leads."),
    )  # fmt: skip


def _edit(lab: Lab, row: Row) -> None:
    """A head's row as own scores, to change every one of them."""

    def take() -> None:
        typed = ", ".join(f"{score:.6g}" for score in row.scores)
        st.session_state.update({PRESET: OWN, TYPED: typed, WIDTH: _nearest(row.d_k)})

    st.button(
        lab.say("Edit these scores"), icon=":material/edit:", key="theory:edit", on_click=take
    )


def _nearest(d_k: int) -> int:
    return min(WIDTHS, key=lambda width: abs(width - d_k))


def row(lab: Lab) -> None:
    """Scores to choose or type, the largest and d_k to move, the weights before and after."""
    with st.container(horizontal=True):
        preset = _preset(lab)
        _width(lab, preset)
    if preset == OWN:
        st.session_state.setdefault(TYPED, TYPICAL)
        st.text_input(lab.say("Scores, with commas between"), key=TYPED)
    if preset == OF_HEAD:
        with st.container(horizontal=True, vertical_alignment="bottom"):
            _query(lab)
            place = st.container()
    start = _row(lab)
    _largest(lab, start.scores)
    chosen = _moved(start)
    if preset == OF_HEAD:
        with place:
            _edit(lab, chosen)
    frame = lab.frame("row", softmax.row_weights, scores=chosen.scores, d_k=chosen.d_k)
    top = int(np.argmax(chosen.scores))
    metrics(
        (lab.say("Largest score"), f"{chosen.scores[top]:.4g}"),
        ("√d_k", f"{chosen.d_k**0.5:.4g}"),
        (lab.say("Largest, divided"), f"{frame['scaled_logit'][top]:.4g}"),
        (lab.say("Peak, undivided"), f"{frame['undivided'][top]:.4f}"),
        (lab.say("Peak, divided"), f"{frame['divided'][top]:.4f}"),
    )
    _weights(lab, chosen, frame.assign(name=chosen.names))


def _weights(lab: Lab, chosen: Row, frame: pd.DataFrame) -> None:
    tidy = frame.melt("name", ["undivided", "divided"], "scores", "weight").rename(
        columns={"name": "key"}
    )
    chosen.show(
        lab, "row-weights", "Weights before and after the division", tidy,
        lambda mode: pictures.grouped_bars(
            tidy, "key", Quantity("weight", "weight", domain=(0, 1)), "scores", mode=mode,
            width=WIDER, height=HIGH,
        ),
        _ALONE if chosen.query is None else _HELD,
        scores=", ".join(f"{score:g}" for score in chosen.scores), d_k=chosen.d_k,
        said={"share": chosen.held, "keys": len(chosen.scores)},
    )  # fmt: skip


_ALONE = "Softmax of the scores as they are, and divided by √{d_k}. The order is the same."
_HELD = (
    "Softmax of the scores as they are, and divided by √{d_k}. The order is the same. Row of query "
    "{query} in layer {layer}, head {head}; its {keys} largest scores hold {share:.1%} of its "
    "weight in the model."
)


_CURVES = {
    "peak": "peak",
    "normalised_entropy": "entropy / ln n",
    "jacobian_max": "max J",
    "jacobian_frobenius": "‖J‖ Frobenius",
    "jacobian_spectral": "‖J‖ spectral",
}


def multiplier(lab: Lab) -> None:
    """The curve over the multiplier, the Jacobian at one of them, and the table."""
    chosen = _moved(_row(lab))
    power = st.slider(
        lab.say("Multiplier of the divided scores, as a power of two"), -3.0, 5.0, 0.0, 0.05,
        key="theory:power", width=420,
    )  # fmt: skip
    factor = 2.0**power
    settings = {"scores": chosen.scores, "d_k": chosen.d_k}
    curve = lab.frame("multiplier curve", softmax.multiplier_curve, **settings)
    here = lab.frame("multiplier", softmax.softmax, multipliers=(factor,), **settings)
    tidy, marks = (_tidy(frame) for frame in (curve, here))
    j = lab.frame("jacobian", softmax.jacobian_map, multiplier=factor, **settings)
    j = j.assign(**{axis: [chosen.names[i] for i in j[axis]] for axis in ("weight", "score")})
    left, right = st.columns(2)
    with left:
        chosen.show(
            lab, "multiplier-curve", "Multiplier {factor:.3g}", curve,
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
        chosen.show(
            lab, "jacobian", "Jacobian at multiplier {multiplier:.3g}", j,
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
