"""The perturbation page: agreement with other importances, the reply, and how to read it all."""

from pathlib import Path

import pandas as pd
import streamlit as st

from attnprobe import figures
from attnprobe.analyses.perturbation import experiments, reply
from attnprobe.analyses.perturbation.agreement import TOP_AT_LEAST, TOP_SHARE
from attnprobe.analyses.perturbation.importance import DELETED, GRADIENT, GRADIENT_DETACHED, HIDDEN
from attnprobe.export import Figure
from attnprobe.metrics import Quantity
from attnprobe.ui import cached
from attnprobe.ui.experiments import Experiment
from attnprobe.ui.perturbing import Perturbing, baselines
from attnprobe.ui.run import Progress, run
from attnprobe.ui.show import card, show

READING = Path(__file__).parents[2] / "pages" / "perturbation" / "how_to_read.md"
TAU = Quantity("tau", "Kendall's τ-b, mean over texts", kind="diverging", domain=(-1, 1))
JSD = Quantity("jsd", "JSD between checkpoints", "nats", domain=(0, None))
_STILL = ("text", "tokens", "layer", "head", "rows")


def agreement(state: Perturbing) -> None:
    """Does attention rank tokens as gradients and leaving out do?"""
    frames = state.frames(
        "agreement",
        {},
        lambda runs: experiments.agreement_units(runs, state.scope),
        experiments.agreement_cost(state.lengths, state.view.loaded.n_layers),
    )
    if frames is None:
        return
    baselines(state, frames)
    table = pairs(frames["agreement"])
    _tau(state, table)
    _pair_table(table)
    _tokens(frames["importances"])


def pairs(frame: pd.DataFrame) -> pd.DataFrame:
    """Means over texts of each pair; the interval is where τ lies by chance in 95 of 100 cases.

    It is that of a normal distribution, cut where τ ends: for few tokens it would go beyond ±1.
    """
    keys = ["yardstick", "attention", "importance"]
    grouped = frame.groupby(keys, sort=False)
    columns = ["tau", "weighted_tau", "top_overlap", "top_chance", "null_sd", "n"]
    table = grouped[columns].mean().assign(texts=grouped["tau"].count()).reset_index()
    spread = (1.96 * table["null_sd"] / table["texts"].clip(lower=1) ** 0.5).clip(upper=1)
    names = _short(table["attention"]) + " – " + _short(table["importance"])
    kinds = table["yardstick"].map({True: "yardstick", False: "attention"})
    return table.assign(pair=names, kind=kinds, chance_low=-spread, chance_high=spread)


def _short(names: pd.Series) -> pd.Series:
    """As narrow as a bar's label must be; the table beside it has the whole names."""
    return names.replace(
        {
            GRADIENT_DETACHED: "gradient, detached",
            GRADIENT: "gradient",
            HIDDEN: "left out, hidden",
            DELETED: "left out, deleted",
        }
    )


def _tau(state: Perturbing, table: pd.DataFrame) -> None:
    figure = Figure(
        name="agreement",
        chart_for=lambda mode: figures.bars(
            table, TAU, "pair", interval=("chance_low", "chance_high"), by="kind", ordered=False,
            mode=mode,
        ),
        frame=table,
        caption="Whiskers: where the mean τ would lie in 95 of 100 cases if the two orders had "
        "nothing to do with each other, at these lengths: a normal approximation, cut at ±1. The "
        f"yardstick is gradient against leaving out. Special tokens out. {state.said}",
        alt="Kendall's tau for each pair of importances with its spread by chance.",
        provenance=state.provenance(excluded="special tokens"),
    )  # fmt: skip
    show(state.view, figure, "Attention and other importances", key="agreement:tau")


def _pair_table(table: pd.DataFrame) -> None:
    number = st.column_config.NumberColumn
    share = f"{TOP_SHARE:.0%} of the tokens, at least {TOP_AT_LEAST}"
    with card(
        "Beside τ",
        caption="Long texts are ruled by their unimportant tail: the weighted τ counts the top "
        f"more (Vigna 2015), the overlap is of the top {share}; by chance it is as stated. "
        "Undefined: one side ranks nothing.",
    ):
        st.dataframe(
            table.drop(columns=["yardstick", "pair", "kind", "chance_low", "chance_high"]),
            hide_index=True,
            placeholder="undefined",
            column_config={
                "tau": number("τ-b", format="%.3f"),
                "weighted_tau": number("weighted τ", format="%.3f"),
                "top_overlap": number("top overlap", format="percent"),
                "top_chance": number("by chance", format="percent"),
                "null_sd": number("τ's spread by chance", format="%.3f"),
                "n": number("tokens", format="%.0f"),
            },
        )


def _tokens(frame: pd.DataFrame) -> None:
    first = frame[frame["text"] == frame["text"].min()]
    values = first.drop(columns=[*_STILL, "position", "special"]).dropna(axis=1, how="all")
    bars = {
        name: st.column_config.ProgressColumn(
            name, format="%.3g", min_value=0.0, max_value=_top(values[name])
        )
        for name in values.columns.drop("token")
    }
    with card(
        "Token by token",
        caption="The first text. Leaving out is undefined for special tokens.",
    ):
        st.dataframe(values, hide_index=True, column_config=bars, height=420)


def _top(column: pd.Series) -> float:
    top = column.max()
    return float(top) if pd.notna(top) and top > 0 else 1.0


def the_reply(state: Perturbing) -> None:
    """Wiegreffe & Pinter's tests in words, and variation between checkpoints."""
    with card(
        "Wiegreffe & Pinter 2019: which of their tests are run here",
        caption="Without training, this page cannot say whether a model could have learned the "
        "adversarial weights.",
    ):
        for test, said in reply.TESTS.items():
            st.markdown(f"**{test[0].upper()}{test[1:]}**: {said}.")
    with card("Variation over seeds"):
        value = st.text_area(
            "Other checkpoints of the same model, one a line (folder or Hugging Face id)",
            key="reply_checkpoints",
            persist_state="session",
            height=90,
        )
        names = [line.strip() for line in value.splitlines() if line.strip()]
        if names:
            _variation(state, names)
        else:
            st.caption("With at least one more checkpoint, weights are compared head by head.")


def _variation(state: Perturbing, names: list[str]) -> None:
    def steps(progress: Progress) -> pd.DataFrame:
        taken = [_snapshots(state.experiment, progress)]
        for done, name in enumerate(names, 1):
            progress(done, len(names) + 1, note=f"{done} of {len(names) + 1} checkpoints")
            other = cached.model(name, "auto", state.view.loaded.precision, None)
            reply.same_kind([state.view.loaded, other])
            taken.append(_snapshots(state.experiment.on(other), progress))
        shots = enumerate(zip(*taken, strict=True))
        frames = [reply.seed_variation(list(each)).assign(text=i) for i, each in shots]
        return pd.concat(frames, ignore_index=True)

    n = len(state.lengths)
    outcome = run(
        state.experiment.view, "checkpoints", {**state.experiment.parameters, "names": names},
        steps, cost=f"{len(names) + 1} checkpoints, {n} text{'s' * (n > 1)} each.",
    )  # fmt: skip
    if outcome is None:
        return
    heads = outcome.value.dropna(subset=["head"])
    frame = heads.groupby(["layer", "head"])[["jsd", "relative_jsd"]].mean().reset_index()
    frame = frame.astype({"layer": int, "head": int})
    figure = Figure(
        name="checkpoints",
        chart_for=lambda mode: figures.head_map(frame, JSD, mode=mode, size=360),
        frame=frame,
        caption=f"Mean JSD between the weights of {len(names) + 1} checkpoints, head by head, over "
        f"rows, texts and pairs. {state.said} Heads compare only between fine-tunings of one "
        "model: separately trained models number their heads as it happened.",
        alt="Heat map of the divergence between checkpoints for every layer and head.",
        provenance=state.provenance(checkpoints=", ".join(names)),
    )
    show(state.view, figure, "Weights between checkpoints", key="reply:map", width="content")


def _snapshots(experiment: Experiment, progress: Progress) -> list[reply.Snapshot]:
    texts = experiment.texts.texts
    runs = experiments.clean_runs(experiment.readout, texts, progress.tick)
    return [reply.snapshot(one) for one in runs]


def how_to_read() -> None:
    """Both sides of the debate in a few sentences."""
    with st.expander("How to read this", icon=":material/menu_book:"):
        st.markdown(READING.read_text(encoding="utf-8"))
