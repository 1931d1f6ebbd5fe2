"""What every section of the theory lab is made of: texts, claims, figures, verdicts.

The words stand in Markdown beside the page, `pages/theory/LANGUAGE/NAME.md`: an introduction, then
one part per "## " heading, in the order of the section's parts.
"""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any

import pandas as pd
import streamlit as st

from attnprobe import figures
from attnprobe.export import Figure, Provenance
from attnprobe.theory import EXPERIMENTS
from attnprobe.theory.claims import REPRODUCED, RIGHT, WRONG, Claim, measured
from attnprobe.ui.bar import Bar
from attnprobe.ui.cached import RESULTS, computed, digest_of, kept
from attnprobe.ui.errors import plain
from attnprobe.ui.lock import tick
from attnprobe.ui.show import card, draw, provenance, versions
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
WIDE, WIDER, HIGH = 390, 554, 220  # px of a chart in a file; on the screen it fills its card
MOST_ROWS = 24
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


@dataclass(frozen=True)
class Lab:
    """One visit: the page's view and the language of the texts."""

    view: View
    language: str = "en"

    @cached_property
    def alone(self) -> View:
        """The view without its model: for results that no model has a part in."""
        return View(None, None, None, None, None, self.view.mode)

    @property
    def at(self) -> dict[str, int]:
        """The chosen layer and head."""
        return {"layer": self.view.layer, "head": self.view.head}

    def frame(self, name: str, function: Callable[..., Any], **settings: Any) -> Any:
        """`function(**settings)`, computed once for these JSON-like settings."""
        digest = digest_of("theory", name, settings)
        with st.spinner(self.say("Computing …"), show_time=True):
            return kept(RESULTS, digest, lambda tick: function(**settings))

    def of_model(self, name: str, function: Callable[..., Any], **settings: Any) -> Any:
        """`function(**settings)` on the view's model and text, computed once."""
        with st.spinner(self.say("Computing …"), show_time=True):
            return computed(
                self.view, f"theory {name}", settings, lambda tick: function(**settings)
            )

    def of_all(self, name: str, function: Callable[[Callable[[int, int], object]], Any]) -> Any:
        """`function(told)` on the view's model and text, with a bar that `told` moves on."""
        place = st.empty()
        bar = Bar(place)

        def told(done: int, total: int) -> None:
            bar(done / total, self.say("{done} of {total}", done=done, total=total))
            tick()

        found = self.of_model(name, lambda: function(told))
        place.empty()
        return found

    def say(self, template: str, **values: Any) -> str:
        """`template` in the language of the visit, filled with `values`; words among them too."""
        table = words(self.language)
        said = {k: table.get(v, v) if isinstance(v, str) else v for k, v in values.items()}
        return table.get(template, template).format(**said)

    def show(
        self,
        name: str,
        title: str,
        frame: pd.DataFrame,
        chart: Callable[[figures.Mode], Any],
        caption: str,
        *,
        said: Mapping[str, Any] = MappingProxyType({}),
        **settings: Any,
    ) -> None:
        """A card with a figure of no model; `settings` are printed into its files.

        `title` and `caption` are templates, filled with `settings` and `said`.
        """
        source = Provenance("no model (theory lab)", versions=versions(), extra=settings)
        self._card(f"theory-{name}", frame, chart, title, caption, source, settings | dict(said))

    def show_on_model(
        self,
        name: str,
        title: str,
        frame: pd.DataFrame,
        chart: Callable[[figures.Mode], Any],
        caption: str,
        *,
        said: Mapping[str, Any] = MappingProxyType({}),
        of_head: bool = False,
        **settings: Any,
    ) -> None:
        """A card with a figure of the loaded model's heads, or of the chosen head; as `show`."""
        source = provenance(self.view, **self.at if of_head else {}, **settings)
        values = self.at | settings | dict(said)
        self._card(f"theory-{name}", frame, chart, title, caption, source, values)

    def _card(self, name, frame, chart, title, caption, source, values) -> None:
        """What is exported is in English, as what its files print of the origin."""
        alone, below = (text.format(**values) for text in (title, caption))
        figure = Figure(name, chart, frame, below, alone, source)
        shown, under = (self.say(text, **values) for text in (title, caption))
        with card(shown, caption=under, export=figure, key=name, menu=self.say("Export")):
            draw(self.view, figure, key=name)

    def on_model(self, key: str) -> bool:
        """The switch from random numbers to the loaded model's own heads."""
        there = self.view.loaded is not None
        wanted = st.toggle(
            self.say("Also on the loaded model's own heads"),
            key=f"theory:{key}:on_model",
            persist_state="session",
            disabled=not there,
            help=None if there else self.say("No model is loaded; the sidebar says why."),
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
def words(language: str) -> Mapping[str, str]:
    """What labels, titles and captions are in a language other than English, by the English."""
    return _table(language, "words.toml")


@cache
def claim_words(language: str) -> Mapping[str, Mapping[str, str]]:
    """The claims' sentences in a language other than English, by claim and field."""
    return _table(language, "claims.toml")


def _table(language: str, file: str) -> dict[str, Any]:
    path = TEXTS / language / file
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _word(claim: Claim, field: str, language: str) -> Any:
    return claim_words(language).get(claim.id, {}).get(field, getattr(claim, field))


def state(lab: Lab, ids: Sequence[str]) -> None:
    """Each claim in its own card: the statement, and the mathematics behind it."""
    alone = [st.container() for _ in range(len(ids) % 2)]
    places = alone + [column for _ in range(len(ids) // 2) for column in st.columns(2)]
    for place, claim in zip(places, (CLAIMS[key] for key in ids), strict=True):
        with place.container(border=True, height="stretch"):
            statement = plain(_word(claim, "statement", lab.language))
            st.markdown(f":blue-badge[{claim.id}] {statement}")
            lines = r" \\ ".join(_word(claim, "derivation", lab.language))
            st.latex(rf"\begin{{gathered}}{lines}\end{{gathered}}")


def judge(lab: Lab, ids: Sequence[str]) -> None:
    """The verdict on each claim, and the claimed numbers beside the measured ones."""
    with st.spinner(lab.say("Measuring the claims …"), show_time=True):
        rows = pd.concat([_rows(CLAIMS[key]) for key in ids], ignore_index=True)
    with st.container(border=True):
        for key in ids:
            outcome = rows.loc[rows["claim"] == key, "verdict"].iloc[0]
            holds = rows.loc[rows["claim"] == key, "holds"]
            _verdict(lab, CLAIMS[key], outcome, int(holds.sum()), len(holds))
        st.dataframe(
            beside(lab, rows),
            hide_index=True,
            height="content" if len(rows) <= MOST_ROWS else 35 * (MOST_ROWS + 1) + 3,
            column_config={lab.say("quantity"): st.column_config.TextColumn(width="large")},
        )


def _rows(claim: Claim) -> pd.DataFrame:
    return kept(RESULTS, digest_of("claim", claim.id), lambda tick: measured((claim,)))


def _verdict(lab: Lab, claim: Claim, outcome: str, holds: int, numbers: int) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.badge(f"{claim.id} {lab.say(outcome)}", **_BADGES[outcome])
        how = _word(claim, "measurement", lab.language)
        if numbers > 1:
            count = "{holds} of {numbers} numbers hold."
            how = f"{how} {lab.say(count, holds=holds, numbers=numbers)}"
        st.markdown(plain(how), width="stretch")
    if outcome == WRONG:
        st.markdown(plain(_word(claim, "reason", lab.language)))


def beside(lab: Lab, rows: pd.DataFrame) -> pd.DataFrame:
    """The frame of `claims.measured` as a table to read: numbers of six digits, signs for holds."""
    relation = rows["relation"].where(rows["relation"] != "=", "")
    numbers = rows["claimed"].map("{:.6g}".format)
    claimed = rows["printed"].where(rows["printed"] != "", relation + " " + numbers)
    table = {
        "claim": rows["claim"],
        "quantity": [named(lab, quantity) for quantity in rows["quantity"]],
        "claimed": claimed.str.strip(),
        "measured": rows["measured"].map("{:.6g}".format),
        "holds": rows["holds"].map({True: "✓", False: "✗"}),
    }
    right = pd.to_numeric(rows["right"])
    if right.notna().any():
        table["right value"] = right.map("{:.4g}".format).where(right.notna(), "")
    return pd.DataFrame({lab.say(name): column for name, column in table.items()})


def named(lab: Lab, quantity: str) -> str:
    """The name of a checked number: as a whole, or piece by piece; its own numbers stay.

    The table of words has # where a number stands.
    """
    table = words(lab.language)

    def said(text: str) -> str:
        numbers = iter(_NUMBER.findall(text))
        pattern = table.get(_NUMBER.sub("#", text), text)
        return re.sub("#", lambda _: next(numbers), pattern)

    whole = said(quantity)
    return whole if whole != quantity else ", ".join(map(said, quantity.split(", ")))
