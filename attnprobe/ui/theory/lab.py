"""What every section of the theory lab is made of: texts, claims, figures, verdicts.

The words stand in Markdown beside the page, `pages/theory/LANGUAGE/NAME.md`: an introduction, then
one part per "## " heading, in the order of the section's parts.
"""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import pandas as pd
import streamlit as st

from attnprobe import figures
from attnprobe.export import Figure, Provenance
from attnprobe.theory import EXPERIMENTS
from attnprobe.theory.claims import REPRODUCED, RIGHT, WRONG, Claim, measured
from attnprobe.ui.cached import RESULTS, digest_of, kept
from attnprobe.ui.errors import plain
from attnprobe.ui.show import provenance, show, versions
from attnprobe.ui.sidebar import HOME
from attnprobe.ui.view import View

TEXTS = HOME / "pages" / "theory"
LANGUAGES = {"en": "English", "ko": "한국어"}
CLAIMS = {claim.id: claim for each in EXPERIMENTS.values() for claim in each.claims}
_BADGES = {
    REPRODUCED: {"icon": ":material/done_all:", "color": "green"},
    RIGHT: {"icon": ":material/check:", "color": "green"},
    WRONG: {"icon": ":material/close:", "color": "red"},
}
CARD, WIDE_CARD = 424, 588  # two of the first stand side by side on a small screen
WIDE, WIDER = (card - 34 for card in (CARD, WIDE_CARD))
HIGH = 220


@dataclass(frozen=True)
class Lab:
    """One visit: the page's view and the language of the texts."""

    view: View
    language: str = "en"

    @cached_property
    def alone(self) -> View:
        """The view without its model: for results that no model has a part in."""
        return View(None, None, None, None, None, self.view.mode)

    def frame(self, name: str, function: Callable[..., Any], **settings: Any) -> Any:
        """`function(**settings)`, computed once for these JSON-like settings."""
        digest = digest_of("theory", name, settings)
        with st.spinner("Computing …"):
            return kept(RESULTS, digest, lambda tick: function(**settings))

    def show(
        self,
        name: str,
        title: str,
        frame: pd.DataFrame,
        chart: Callable[[figures.Mode], Any],
        caption: str,
        *,
        wide: bool = False,
        **settings: Any,
    ) -> None:
        """A card with a figure of no model; `settings` are printed into its files."""
        source = Provenance("no model (theory lab)", versions=versions(), extra=settings)
        self._card(Figure(f"theory-{name}", chart, frame, caption, title, source), title, wide)

    def show_on_model(
        self,
        name: str,
        title: str,
        frame: pd.DataFrame,
        chart: Callable[[figures.Mode], Any],
        caption: str,
        *,
        wide: bool = False,
        of_head: bool = False,
    ) -> None:
        """A card with a figure of the loaded model's heads, or of the chosen head."""
        view = self.view
        head = {"layer": view.layer, "head": view.head} if of_head else {}
        if of_head:
            title = f"{title}, layer {view.layer}, head {view.head}"
        source = provenance(view, **head)
        self._card(Figure(f"theory-{name}", chart, frame, caption, title, source), title, wide)

    def _card(self, figure: Figure, title: str, wide: bool) -> None:
        show(self.view, figure, title, key=figure.name, width=WIDE_CARD if wide else CARD)

    def on_model(self, key: str) -> bool:
        """The switch from random numbers to the loaded model's own heads."""
        there = self.view.loaded is not None
        wanted = st.toggle(
            "Also on the loaded model's own heads",
            key=f"theory:{key}:on_model",
            persist_state="session",
            disabled=not there,
            help=None if there else "No model is loaded; the sidebar says why.",
        )
        return wanted and there


def texts(name: str, language: str) -> tuple[str, list[tuple[str, str]]]:
    """Introduction and (heading, text) parts of a section; English where a language lacks it."""
    path = TEXTS / language / f"{name}.md"
    if not path.is_file():
        path = TEXTS / "en" / f"{name}.md"
    introduction, *parts = re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.M)
    heads = (part.partition("\n") for part in parts)
    return introduction.strip(), [(title.strip(), text.strip()) for title, _, text in heads]


@cache
def claim_words(language: str) -> Mapping[str, Mapping[str, str]]:
    """The claims' sentences in a language other than English, by claim and field."""
    path = TEXTS / language / "claims.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _word(claim: Claim, field: str, language: str) -> str:
    return claim_words(language).get(claim.id, {}).get(field, getattr(claim, field))


def state(lab: Lab, ids: Sequence[str]) -> None:
    """Each claim in its own card: the statement, and the mathematics behind it."""
    columns = st.columns(2) if len(ids) > 1 else [st.container()]
    for number, claim in enumerate(CLAIMS[key] for key in ids):
        with columns[number % len(columns)].container(border=True):
            statement = plain(_word(claim, "statement", lab.language))
            st.markdown(f":blue-badge[{claim.id}] {statement}")
            lines = r" \\ ".join(claim.derivation)
            st.latex(rf"\begin{{gathered}}{lines}\end{{gathered}}")


def judge(lab: Lab, ids: Sequence[str]) -> None:
    """The verdict on each claim, and the claimed numbers beside the measured ones."""
    with st.spinner("Measuring the claims …", show_time=True):
        rows = pd.concat([_rows(CLAIMS[key]) for key in ids], ignore_index=True)
    with st.container(border=True):
        for key in ids:
            outcome = rows.loc[rows["claim"] == key, "verdict"].iloc[0]
            _verdict(lab, CLAIMS[key], outcome)
        st.dataframe(
            beside(rows),
            hide_index=True,
            height="auto" if len(rows) <= 9 else 300,
            column_config={"quantity": st.column_config.TextColumn(width="large")},
        )


def _rows(claim: Claim) -> pd.DataFrame:
    return kept(RESULTS, digest_of("claim", claim.id), lambda tick: measured((claim,)))


def _verdict(lab: Lab, claim: Claim, outcome: str) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.badge(f"{claim.id} {outcome}", **_BADGES[outcome])
        st.markdown(plain(_word(claim, "measurement", lab.language)), width="stretch")
    if outcome == WRONG:
        st.markdown(plain(_word(claim, "reason", lab.language)))


def beside(rows: pd.DataFrame) -> pd.DataFrame:
    """The frame of `claims.measured` as a table to read: numbers of six digits, signs for holds."""
    relation = rows["relation"].where(rows["relation"] != "=", "")
    numbers = rows["claimed"].map("{:.6g}".format)
    claimed = rows["printed"].where(rows["printed"] != "", relation + " " + numbers)
    table = {
        "claim": rows["claim"],
        "quantity": rows["quantity"],
        "claimed": claimed.str.strip(),
        "measured": rows["measured"].map("{:.6g}".format),
        "holds": rows["holds"].map({True: "✓", False: "✗"}),
    }
    right = pd.to_numeric(rows["right"])
    if right.notna().any():
        table["right value"] = right.map("{:.4g}".format).where(right.notna(), "")
    return pd.DataFrame(table)
