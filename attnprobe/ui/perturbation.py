"""The perturbation page: permutation and replacement."""

from collections.abc import Mapping
from functools import partial

import pandas as pd
import streamlit as st

from attnprobe import figures
from attnprobe.analyses.perturbation import experiments, permutation
from attnprobe.analyses.perturbation.edits import Scope
from attnprobe.analyses.perturbation.permutation import Draws
from attnprobe.analyses.perturbation.replacement import EDITS
from attnprobe.export import Figure
from attnprobe.figures.violins import violins
from attnprobe.metrics import Quantity
from attnprobe.ui.perturbing import TVD, Perturbing, baselines, chosen, only, shown
from attnprobe.ui.show import card, draw, show

PEAK = Quantity(
    "peak", "peak", "weight", domain=(0, 1), definition="Largest weight of a row, mean over rows."
)
MEDIAN = Quantity("median", f"{TVD}, median over permutations", domain=(0, None))
DRAWN = Quantity("tvd", f"{TVD}, one permutation", domain=(0, None))
EFFECT = Quantity("tvd", f"{TVD}, mean over texts", domain=(0, None))
RATIO = Quantity("ratio", "permutation TVD / ablation TVD", domain=(0, None))
CHOSEN, OTHERS = "chosen", "others, the null"


_SAID = {**EDITS, "permutation": "each row's weights in a random order, median"}
_MEANINGS = "; ".join(f"{edit}: {said}" for edit, said in _SAID.items()).capitalize()
_LACKS = {
    "mean": "there is no other text",
    "frozen": "no other text is long enough",
    "permutation": "no row has two keys to exchange",
}


def permutations(state: Perturbing) -> None:
    """Permutation and replacement: the paper's figures, and what stands beside them."""
    draws, others = _settings()
    loaded = state.view.loaded
    null = permutation.other_scopes(loaded, state.scope, others, draws.seed)
    scopes = [state.scope, *null]
    cost = experiments.permutation_cost(state.lengths, loaded.n_layers, scopes, draws)
    frames = state.frames(
        "permutation",
        {"draws": draws.statement, "others": others},
        lambda runs: experiments.permutation_units(runs, scopes, draws),
        cost,
    )
    if frames is None:
        return
    baselines(state, frames)
    summary = permutation.per_text(frames["draws"])
    left, right = st.columns(2)
    with left:
        _scatter(state, summary, draws)
    with right:
        _violins(state, frames["draws"], draws)
    left, right = st.columns(2)
    with left:
        _ratios(state, permutation.ratios(summary, frames["replaced"]), draws)
    with right:
        _replaced(state, frames, summary)


def _settings() -> tuple[Draws, int]:
    columns = st.columns(4)
    with columns[0]:
        number = st.number_input(
            "Permutations", 10, 1000, 100, 10, key="permutations", persist_state="session"
        )
    with columns[1]:
        others = st.number_input(
            "Random others as the null", 0, 48, 12, key="permutation_others",
            persist_state="session",
            help="Other heads (or layers) that the same is done to, so that a ratio can be placed.",
        )  # fmt: skip
    with columns[2]:
        seed = st.number_input("Seed", 0, 2**31, 0, key="permutation_seed", persist_state="session")
    with columns[3]:
        specials = st.toggle(
            "Move special tokens too", True, key="permutation_specials", persist_state="session"
        )
    return Draws(int(number), specials, int(seed)), int(others)


def _scatter(state: Perturbing, summary: pd.DataFrame, draws: Draws) -> None:
    which = chosen(state, summary).map({True: CHOSEN, False: OTHERS})
    frame = summary.assign(weights=which).sort_values("weights")
    figure = Figure(
        name="permutation-peak",
        chart_for=lambda mode: figures.scatter(
            frame, PEAK, MEDIAN, by="weights", names=("layer", "head", "text"),
            interval=("q25", "q75"), mode=mode,
        ),
        frame=frame,
        caption=f"A point per text and scope: the output's median TVD over {draws.statement}, "
        "against the peak of the edited rows (Jain & Wallace 2019); the rule through it spans the "
        f"middle half of the permutations. {state.said} A small TVD says little where the ablation "
        "is small too.",
        alt="Median TVD under permutation against the peak, one point per text with its quartiles.",
        provenance=state.provenance(permutations=draws.statement),
    )  # fmt: skip
    show(state.view, figure, "Permutation against peak", key="perturbation:scatter")


def _violins(state: Perturbing, drawn: pd.DataFrame, draws: Draws) -> None:
    frame = permutation.violins(only(state, drawn))
    if frame.empty:
        with card("Permutation by peak"):
            st.markdown("Undefined: no row has two keys to exchange.")
        return
    figure = Figure(
        name="permutation-violins",
        chart_for=lambda mode: violins(frame, DRAWN, "peak_bin", mode=mode),
        frame=frame,
        caption=f"All permutations of {state.scope.label}, by the peak of their text's rows; n "
        f"counts permutations. {state.said} {draws.statement.capitalize()}.",
        alt="Violins of the TVD of single permutations, one per bin of the peak.",
        provenance=state.provenance(permutations=draws.statement),
    )
    show(state.view, figure, "Permutation by peak", key="perturbation:violins")


def _ratios(state: Perturbing, ratios: pd.DataFrame, draws: Draws) -> None:
    names = [
        Scope(None if pd.isna(a) else int(a), None if pd.isna(b) else int(b)).label
        for a, b in zip(ratios["layer"], ratios["head"], strict=True)
    ]
    which = chosen(state, ratios).map({True: CHOSEN, False: OTHERS})
    frame = ratios.assign(scope=names, weights=which).sort_values("weights", kind="stable")
    own = only(state, frame).iloc[0]
    said = (
        f"{state.scope.label}: ratio {shown(own['ratio'])}, larger than {own['null_share']:.0%} of "
        f"{own['null_scopes']} random others (5 to 95 %: {shown(own['null_low'])} to "
        f"{shown(own['null_high'])})."
        if pd.notna(own["null_share"])
        else f"{state.scope.label}: ratio {shown(own['ratio'])}."
    )
    figure = Figure(
        name="permutation-ratio",
        chart_for=lambda mode: figures.bars(frame, RATIO, "scope", by="weights", mode=mode),
        frame=frame,
        caption=f"{said} Mean over texts of the median permutation TVD, over the mean ablation "
        "TVD. Above 1, wrong weights do more than no weights; undefined where the ablation does "
        f"nothing. {state.said}",
        alt="Ratio of permutation TVD to ablation TVD for the chosen scope and random others.",
        provenance=state.provenance(permutations=draws.statement),
    )
    show(state.view, figure, "Permutation over ablation", key="perturbation:ratio")


def _replaced(state: Perturbing, frames: Mapping[str, pd.DataFrame], summary: pd.DataFrame) -> None:
    table = effects_table(only(state, frames["replaced"]), only(state, summary))
    figure = Figure(
        name="replacement",
        chart_for=partial(_replacement_bars, table),
        frame=table,
        caption="Mean TVD of the output when the weights are replaced; the permutations' median "
        f"stands beside them. {state.said} {undefined_said(table)}{_MEANINGS}.",
        alt="Mean TVD for each replacement of the weights.",
        provenance=state.provenance(),
    )
    with card("Replacement", caption=figure.caption, export=figure, key="perturbation:replaced"):
        draw(state.view, figure, key="perturbation:replaced:chart")
        st.dataframe(
            table,
            hide_index=True,
            placeholder="undefined",
            column_order=["edit", "tvd", "flips", "texts"],
            column_config={
                "tvd": st.column_config.NumberColumn("mean TVD", format="%.4f"),
                "flips": st.column_config.NumberColumn("decisions flipped", format="percent"),
                "texts": st.column_config.NumberColumn("texts", format="%d"),
            },
        )


def undefined_said(table: pd.DataFrame) -> str:
    """Which edits of the table are undefined and why, one sentence each; empty if none is."""
    undefined = set(table.loc[table["tvd"].isna(), "edit"])
    return "".join(f"Undefined, {edit}: {_LACKS[edit]}. " for edit in _LACKS if edit in undefined)


def _replacement_bars(table: pd.DataFrame, mode: figures.Mode):
    return figures.bars(table, EFFECT, "edit", mode=mode)


def effects_table(replaced: pd.DataFrame, summary: pd.DataFrame) -> pd.DataFrame:
    """One row per edit: mean TVD, share of flipped decisions, texts, and what it is."""
    grouped = replaced.groupby("edit", sort=False)
    table = grouped[["tvd", "flips"]].mean().assign(texts=grouped["tvd"].count())
    table.loc["permutation"] = [
        summary["median"].mean(),
        summary["flips"].mean(),
        summary["median"].count(),
    ]
    table = table.reset_index().assign(meaning=lambda t: t["edit"].map(_SAID))
    return table.astype({"texts": int})
