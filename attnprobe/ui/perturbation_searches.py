"""The perturbation page: adversarial weights, and keys erased until the decision flips."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import streamlit as st

from attnprobe import figures
from attnprobe.analyses.perturbation import adversary, erasure, experiments
from attnprobe.analyses.perturbation.adversary import Settings
from attnprobe.analyses.perturbation.edits import READOUT_ROW
from attnprobe.export import Figure
from attnprobe.metrics import METRICS, Quantity
from attnprobe.ui.perturbing import TVD, Perturbing, baselines, shown
from attnprobe.ui.show import card, metrics, show

PROBABILITY = Quantity("probability", "probability", domain=(0, 1))
FLIPPED = Quantity("flipped", "decisions flipped", "share", domain=(0, 1))
SHARE = Quantity("share", "keys erased", "share", domain=(0, 1))
MOVED = Quantity("tvd", TVD, domain=(0, None))
MAP = 330
"""The side of a token map in px where two stand side by side; more tokens need more."""
NEVER = "None of these orders flips a decision, down to the last key."
SIDES = {"real": "real weights", "adversarial": "adversarial weights"}


def adversaries(state: Perturbing) -> None:
    """Weights as far from the real ones as can be with the same output."""
    settings = _search_settings()
    loaded = state.view.loaded
    cost = experiments.adversary_cost(state.lengths, loaded.n_layers, state.scope, settings)
    frames = state.frames(
        "adversary",
        {"settings": settings.statement},
        lambda runs: experiments.adversary_units(runs, state.scope, settings),
        cost,
    )
    st.caption(
        ":material/info: A demonstration that weights are not identified, no score of a head: "
        "many weights against one constraint nearly always leave room, in heads that matter and "
        "in heads that do not."
    )
    if frames is None:
        return
    baselines(state, frames)
    _searched(frames["adversaries"], settings)
    if len(frames.get("weights", ())):
        _one_text(state, frames, settings)


def _search_settings() -> Settings:
    columns = st.columns(4)
    with columns[0]:
        epsilon = st.number_input(
            "ε, largest TVD", 0.001, 0.5, 0.01, 0.01, format="%.3f", key="adversary_epsilon",
            persist_state="session", help="The same in the search and in the filter.",
        )  # fmt: skip
    with columns[1]:
        restarts = st.number_input(
            "Restarts", 1, 20, 5, key="adversary_restarts", persist_state="session"
        )
    with columns[2]:
        steps = st.number_input(
            "Steps", 10, 1000, 150, 10, key="adversary_steps", persist_state="session"
        )
    with columns[3]:
        seed = st.number_input("Seed", 0, 2**31, 0, key="adversary_seed", persist_state="session")
    return Settings(float(epsilon), int(restarts), int(steps), seed=int(seed))


def _searched(frame: pd.DataFrame, settings: Settings) -> None:
    short = frame[frame["steps"] < settings.steps]
    if len(short):
        st.caption(
            f":material/warning: The search of text {int(short['text'].iloc[0]) + 1} was stopped "
            f"after {int(short['steps'].iloc[0]):,} of {settings.steps:,} steps: a longer one may "
            "find weights that lie further away."
        )
    real = frame[frame["feasible_share"] == 0]
    if len(real):
        st.caption(
            f":material/warning: No restart met TVD ≤ {settings.epsilon:g} in {len(real):,} of "
            f"{len(frame):,} texts: the real weights stand for the adversarial ones there, JSD 0."
        )
    means = frame[["max_jsd", "attainable_jsd", "relative_jsd", "tvd", "feasible_share"]].mean()
    metrics(
        ("ε-max JSD", shown(means["max_jsd"]), "Nats, mean over influential rows and texts."),
        ("Attainable, φ", shown(means["attainable_jsd"]), "ln 2 needs a key without weight."),
        ("JSD / φ", shown(means["relative_jsd"]), "1: as different as weights can be."),
        ("Output TVD", shown(means["tvd"]), "Of the best weights found."),
        ("Feasible restarts", shown(means["feasible_share"], ".0%"), "Met TVD ≤ ε on the way."),
        ("Influential rows", f"{frame['influential_rows'].mean():.0f}", "Mean over texts."),
    )


def _one_text(state: Perturbing, frames: Mapping[str, pd.DataFrame], settings: Settings) -> None:
    texts = frames["weights"]["text"].unique().tolist()
    number = texts[0]
    if len(texts) > 1:
        words = [item.text for item in state.experiment.texts.texts]
        number = st.selectbox(
            "Text", texts, format_func=lambda i: words[i][:90], key="adversary_text"
        )
    row, weights, outputs = (
        frames[name][frames[name]["text"] == number]
        for name in ("adversaries", "weights", "outputs")
    )
    said = settings.after(int(row["steps"].iloc[0]))
    wide = state.scope.rows != READOUT_ROW and weights["key"].max() >= MAP
    places = [st.container(), st.container()] if wide else st.columns(2)
    for place, (side, title) in zip(places, SIDES.items(), strict=True):
        with place:
            _weights(state, weights, side, title, said)
    _outputs(state, outputs, said)


def _weights(state: Perturbing, frame: pd.DataFrame, side: str, title: str, said: str) -> None:
    q = METRICS["weight"]
    named = frame.rename(columns={side: "weight"})[
        ["query", "key", "query_token", "key_token", "weight"]
    ]
    limits = (0.0, float(frame[list(SIDES)].to_numpy().max()))  # one scale for both sides
    lone = state.scope.rows == READOUT_ROW

    def chart(mode: figures.Mode):
        if lone:
            return figures.row_bars(named, q, mode=mode, width=360)
        return figures.token_map(_square(named), q, mode=mode, size=MAP, limits=limits)

    pooled = "" if lone else figures.pooling_note(int(named["key"].max()) + 1)
    averaged = "" if state.scope.head is not None else " Mean over the heads in scope."
    figure = Figure(
        name=f"adversary-{side}",
        chart_for=chart,
        frame=named,
        caption=f"{title.capitalize()} of {state.scope.label}.{averaged} "
        f"{adversary.LABEL.capitalize()}; {said}. {pooled}".rstrip(),
        alt=f"{title.capitalize()}: queries by keys.",
        provenance=state.provenance(search=said, label=adversary.LABEL),
    )
    show(state.view, figure, title.capitalize(), key=f"adversary:{side}")


def _square(frame: pd.DataFrame) -> pd.DataFrame:
    """All pairs of tokens; those that a query may not see are undefined."""
    tokens = dict(zip(frame["key"], frame["key_token"], strict=True))
    tokens |= dict(zip(frame["query"], frame["query_token"], strict=True))
    n = max(tokens) + 1
    values = np.full((n, n), np.nan)
    values[frame["query"], frame["key"]] = frame["weight"]
    return figures.matrix_frame(values, [tokens.get(i, "") for i in range(n)], "weight")


def _outputs(state: Perturbing, frame: pd.DataFrame, said: str) -> None:
    long = frame.melt(
        ["outcome"], ["real", "adversarial"], var_name="weights", value_name="probability"
    )
    long = long.sort_values("outcome", key=lambda s: s.map(_order(frame)), kind="stable")
    figure = Figure(
        name="adversary-outputs",
        chart_for=lambda mode: figures.bars(
            long, PROBABILITY, "outcome", by="weights", ordered=False, mode=mode
        ),
        frame=long,
        caption=f"The read-out's most probable outcomes before and after. {said}.",
        alt="Probabilities of the outcomes under real and adversarial weights.",
        provenance=state.provenance(search=said, label=adversary.LABEL),
    )
    show(state.view, figure, "Output before and after", key="adversary:outputs")


def _order(frame: pd.DataFrame) -> dict[str, int]:
    ranked = frame.sort_values("real", ascending=False)["outcome"]
    return {name: place for place, name in enumerate(ranked)}


def erasing(state: Perturbing) -> None:
    """Keys erased in four orders until the decision flips."""
    settings = erasure.Erasing()
    loaded = state.view.loaded
    frames = state.frames(
        "erasure",
        {},
        lambda runs: experiments.erasure_units(runs, state.scope, settings),
        experiments.erasure_cost(state.lengths, loaded.n_layers, state.scope, settings),
    )
    if frames is None:
        return
    baselines(state, frames)
    found = frames["erasure"]
    if found.empty:
        with card("Erasure"):
            st.markdown("Undefined: no text has two content tokens to erase one of.")
        return
    left, right = st.columns(2)
    with left:
        _survival(state, found)
    with right:
        _moved(state, found)
    _flip_table(found)


def _said(found: pd.DataFrame) -> str:
    """What the orders are; of a run that was stopped, as many as it came to."""
    tried = found.loc[found["order"] == "chance", "draw"].nunique()
    return (
        "attention: largest weight first; norm: largest ‖αf(x)‖ first (Kobayashi et al. 2020); "
        f"gradient: largest ∂ ln p/∂α first; chance: {tried} random orders, seed 0. Special tokens "
        "stay, and one key always does."
    )


def _survival(state: Perturbing, found: pd.DataFrame) -> None:
    frame = erasure.survival(found)
    never = "" if (found["flips"] > 0).any() else f"{NEVER} "
    figure = Figure(
        name="erasure-flips",
        chart_for=lambda mode: figures.curves(frame, SHARE, FLIPPED, by="order", mode=mode),
        frame=frame,
        caption=f"Share of texts whose decision has flipped once so many keys are erased "
        f"(Serrano & Smith 2019). {never}{_said(found)} {state.said}",
        alt="Share of flipped decisions against the share of erased keys, one line per order.",
        provenance=state.provenance(excluded="special tokens", orders=_said(found)),
    )
    show(state.view, figure, "Until the decision flips", key="erasure:flips")


def _moved(state: Perturbing, found: pd.DataFrame) -> None:
    frame = erasure.movement(found)
    steps = "" if len(state.lengths) == 1 else " Texts of different lengths meet in steps of 5 %."
    figure = Figure(
        name="erasure-tvd",
        chart_for=lambda mode: figures.curves(frame, SHARE, MOVED, by="order", mode=mode),
        frame=frame,
        caption=f"Mean TVD of the output after erasing; nothing erased, nothing moved.{steps} "
        f"{state.said}",
        alt="TVD of the output against the share of erased keys, one line per order.",
        provenance=state.provenance(excluded="special tokens", orders=_said(found)),
    )
    show(state.view, figure, "How far the output moves", key="erasure:tvd")


def _flip_table(found: pd.DataFrame) -> None:
    points = erasure.flip_points(found).groupby("order", sort=False)
    table = pd.DataFrame(
        {
            "flipped": points["flipped"].mean(),
            "median share erased where it flips": points["share"].median(),
            "orders tried": points.size(),
        }
    ).reset_index()
    with card("When the decision flips"):
        st.dataframe(
            table,
            hide_index=True,
            placeholder="undefined",
            column_config={
                "flipped": st.column_config.NumberColumn("flipped at all", format="percent"),
                "median share erased where it flips": st.column_config.NumberColumn(
                    format="percent"
                ),
            },
        )
