"""The sections of the theory lab: which claims and which panel belong to each part.

A part reads: text, claim, derivation, figures to play with, the measured beside the claimed
numbers, verdict. The texts are in `pages/theory`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import streamlit as st

from attnprobe.theory import EXPERIMENTS
from attnprobe.ui.errors import explained
from attnprobe.ui.state import choice
from attnprobe.ui.theory import cost, freezing, meaning, scores, spread
from attnprobe.ui.theory.lab import LANGUAGES, Lab, judge, state, texts, words
from attnprobe.ui.view import View


@dataclass(frozen=True)
class Part:
    """The claims of a part and the function that draws its controls and figures."""

    claims: tuple[str, ...]
    panel: Callable[[Lab], None]


SECTIONS: dict[str, tuple[Part, ...]] = {
    "variance": (
        Part(("C1",), spread.counting),
        Part(("C6",), spread.devices),
        Part(("C7",), spread.quarter_root),
    ),
    "softmax": (Part(("C2", "C8", "C9"), scores.row), Part(("C3",), scores.multiplier)),
    "exponent": (Part(("C10",), spread.exponents), Part(("C11", "C12"), spread.extremes)),
    "freezing": (
        Part(("C4",), freezing.descent),
        Part((), freezing.phase),
        Part(("C5",), freezing.gradient_check),
    ),
    "meaning": (
        Part(("C13",), meaning.saturated_row),
        Part(("C14",), meaning.hull),
        Part(("C15",), meaning.direction),
        Part(("C16",), meaning.kernels),
    ),
    "linear": (Part(("C17",), cost.features), Part((), cost.linear_time)),
    "cost": (Part(("C18",), cost.heads), Part(("C19",), cost.tokens)),
    "equivariance": (Part(("C20",), meaning.order),),
}


_ENGLISH_INSIDE = (
    "Words inside the figures and in exported files stay English: the font that goes with them has "
    "no letters of other scripts."
)
QUESTION = "Why are scores divided by √d_k? Every claim is derived, measured here, and judged."


def question() -> str:
    """What the page asks, in the language that is chosen; it stands above the choice itself."""
    language = st.session_state.get("lang:widget", st.query_params.get("lang", "en"))
    return words(language).get(QUESTION, QUESTION) if language in LANGUAGES else QUESTION


def experiments(view: View) -> None:
    """The whole page under its title: choice of experiment and language, then the section."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        place = st.container(width="stretch")
        language = choice(
            "Language · 언어", list(LANGUAGES), key="lang", url=True,
            format_func=LANGUAGES.__getitem__,
        )  # fmt: skip
    lab = Lab(view, language)
    with place:
        name = choice(
            lab.say("Experiment"),
            list(SECTIONS),
            key="section",
            url=True,
            format_func=lambda key: lab.say(EXPERIMENTS[key].title),
            width="stretch",
        )
    section(lab, name)


def section(lab: Lab, name: str) -> None:
    """One experiment from its introduction to its last verdict."""
    introduction, parts = texts(name, lab.language)
    if lab.language != "en":
        st.caption(lab.say(_ENGLISH_INSIDE))
    st.markdown(introduction)
    for part, (title, text) in zip(SECTIONS[name], parts, strict=True):
        st.subheader(title, anchor=False)
        st.markdown(text)
        state(lab, part.claims)
        with explained():
            part.panel(lab)
        if part.claims:
            with explained():
                judge(lab, part.claims)
