"""Panels on the query that cannot learn: the descent step by step, the map, the gradient check."""

import pandas as pd
import streamlit as st

from attnprobe import figures
from attnprobe.analyses import theory_on_model
from attnprobe.figures import theory as pictures
from attnprobe.metrics import Quantity
from attnprobe.theory import freezing
from attnprobe.ui.cached import trace
from attnprobe.ui.run import Progress, run
from attnprobe.ui.show import metrics
from attnprobe.ui.theory.lab import HIGH, WIDE, WIDER, Lab

STEPS = 400
STEP, PLAYING = "theory:step", "theory:playing"
FRAME_SECONDS, FRAME_STEPS = 0.6, 10
TRACED = {
    "loss": ("Loss", Quantity("loss", "loss", scale="log")),
    "target_weight": (
        "Weight on the target",
        Quantity("target_weight", "weight on the target", scale="log"),
    ),
    "gradient_norm": (
        "Norm of the gradient",
        Quantity("gradient_norm", "‖∂L/∂q‖", scale="log"),
    ),
}
LEGEND = {"none": "not divided", "1/√d_k": "divided by √d_k"}
"""In the order of the colours: what is not divided has the first one in the whole product."""
MOVE = Quantity("move", "step + 1", scale="log", format="d")


def _descent(d_k: int, rate: float, seed: int) -> dict[str, pd.DataFrame]:
    task = freezing.Task(d_k=d_k)
    return {
        "trace": freezing.freezing(STEPS, rate, seed, task),
        "weights": freezing.freezing_weights(STEPS, rate, seed, task),
    }


def descent(lab: Lab) -> None:
    """Settings, a step to scrub or play, the weights at it, and the three curves."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        d_k = st.select_slider(
            "d_k", (4, 8, 16, 32, 64, 128, 256), 64, key="theory:freeze_d_k", width=260
        )
        rates = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
        rate = st.select_slider(lab.say("Learning rate"), rates, 0.5, key="theory:rate", width=260)
        seed = st.number_input(lab.say("Seed"), 0, 10**6, 11, key="theory:freeze_seed", width=140)
    settings = {"d_k": d_k, "rate": rate, "seed": seed}
    frames = lab.frame("freezing", _descent, **settings)
    playing = st.session_state.setdefault(PLAYING, False)
    st.fragment(run_every=FRAME_SECONDS if playing else None)(_scene)(lab, frames, settings)
    if lab.on_model("freezing"):
        _heads_descents(lab, rate, seed)


def _named(frame: pd.DataFrame) -> pd.DataFrame:
    """The two runs by the names of `LEGEND` and in its order; rows of one run stay in theirs."""
    runs = [frame[frame["division"] == division] for division in LEGEND]
    return pd.concat(runs, ignore_index=True).replace({"division": LEGEND})


def _scene(lab: Lab, frames: dict[str, pd.DataFrame], settings: dict) -> None:
    """One step of the descent; while playing, a later one each time."""
    if st.session_state[PLAYING]:
        _advance()
    with st.container(horizontal=True, vertical_alignment="bottom"):
        playing = st.session_state[PLAYING]
        if st.button(
            lab.say("Pause" if playing else "Play"),
            icon=":material/pause:" if playing else ":material/play_arrow:",
            key="theory:play",
        ):
            st.session_state[PLAYING] = not playing
            st.rerun()
        step = st.slider(lab.say("Step"), 0, STEPS - 1, key=STEP, width=520)
    trace, weights = frames["trace"], frames["weights"]
    _numbers(lab, trace[trace["step"] == step])
    first, *others = [*st.columns(2), *st.columns(2)]
    with first:
        now = _named(weights[weights["step"] == step])
        lab.show(
            "freezing-weights", "Weights at step {step}", now,
            lambda mode: pictures.grouped_bars(
                now, "pair", Quantity("weight", "weight", domain=(0, 1)), "division", mode=mode,
                width=WIDE, height=HIGH,
            ),
            "Weights on the eight pairs; pair 3 (the fourth) is the target.",
            said={"step": step}, **settings,
        )  # fmt: skip
    for place, (name, (title, quantity)) in zip(others, TRACED.items(), strict=True):
        seen = _named(trace[trace[name] > 0])
        seen = seen.assign(move=seen["step"] + 1)
        marks = seen[seen["step"] == step]
        with place:
            lab.show(
                f"freezing-{name}", title, trace,
                lambda mode, q=quantity, seen=seen, marks=marks: figures.curves(
                    seen, MOVE, q, by="division", marked=marks, mode=mode, width=WIDE,
                    height=HIGH,
                ),
                "Gradient descent on one query, eight pairs, value width 8; rings: step {step}.",
                said={"step": step}, **settings,
            )  # fmt: skip


def _advance() -> None:
    step = min(st.session_state.get(STEP, 0) + FRAME_STEPS, STEPS - 1)
    st.session_state[STEP] = step
    if step == STEPS - 1:
        st.session_state[PLAYING] = False
        st.rerun()


DRAWN_FROM = 1e-12
_ENDS = {"frozen": "Frozen", "solved": "Solved"}


def _heads_descents(lab: Lab, rate: float, seed: int) -> None:
    """The same descent with the keys, values and queries of the chosen head."""
    traced = trace(lab.view)
    settings = {"rate": rate, "seed": seed}
    frame = lab.of_model(
        "freezing", lambda **given: theory_on_model.freezing(traced, **given), **lab.at, **settings
    )
    last = frame[frame["step"] == STEPS - 1].groupby("division", sort=False)
    ends = {
        name: freezing.outcomes(
            *(rows[each].to_numpy() for each in ("target_weight", "gradient_norm"))
        )
        for name, rows in last
    }
    metrics(
        *(
            (f"{lab.say(label)}, {lab.say(_WORDS[division])}", f"{shares[end]:.0%}")
            for end, label in _ENDS.items()
            for division, shares in ends.items()
        )
    )
    queries = frame["query"].nunique()
    for place, name in zip(st.columns(2), ("target_weight", "gradient_norm"), strict=True):
        title, quantity = TRACED[name]
        found = _medians(frame, name)
        with place:
            lab.show_on_model(
                f"freezing-{name}-model", f"{title}: layer {{layer}}, head {{head}}", frame,
                lambda mode, q=quantity, found=found: figures.curves(
                    found, MOVE, q, by="division", band=("low", "high"), mode=mode, width=WIDE,
                    height=HIGH,
                ),
                "{queries} queries of the text, each to return the value of a key drawn with seed "
                "{seed}, rate {rate}: median and quartiles, drawn from 10⁻¹² on. Every query sees "
                "every key; of a long text the first 128. Solved: at least half of the weight on "
                "the target.",
                said={"queries": queries}, of_head=True, **settings,
            )  # fmt: skip


def _medians(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Median and quartiles over the queries at each step, none of them below `DRAWN_FROM`."""
    spread = frame.groupby(["division", "step"], sort=False)[name]
    found = spread.quantile([0.25, 0.5, 0.75]).unstack().set_axis(["low", name, "high"], axis=1)
    found = _named(found.clip(lower=DRAWN_FROM).reset_index())
    return found.assign(move=found["step"] + 1)


_WORDS = {"1/√d_k": "divided", "none": "undivided"}


def _numbers(lab: Lab, rows: pd.DataFrame) -> None:
    metrics(
        *(
            (f"{lab.say(label)}, {lab.say(_WORDS[row['division']])}", f"{row[name]:.3g}")
            for name, label in (("loss", "Loss"), ("target_weight", "Target"), ("peak", "Peak"))
            for row in rows.to_dict("records")
        )
    )


DIMS = (4, 8, 16, 32, 64, 128, 256)
RATES = (0.05, 0.15, 0.5, 1.5, 5.0)


def phase(lab: Lab) -> None:
    """The share of frozen runs over widths and rates: started by a button, kept when stopped."""
    seeds = st.select_slider(
        lab.say("Runs per cell"), (8, 16, 24, 48), 24, key="theory:runs", width=260
    )
    total = len(DIMS) * len(RATES)

    def steps(progress: Progress) -> pd.DataFrame:
        rows = [] if progress.partial is None else progress.partial.to_dict("records")
        cells = [(d_k, rate) for d_k in DIMS for rate in RATES]
        for done, (d_k, rate) in enumerate(cells[len(rows) // 2 :], len(rows) // 2 + 1):
            rows += freezing.phase_cells((d_k,), (rate,), seeds, STEPS)
            note = lab.say("{done} of {total} cells", done=done, total=total)
            progress(done, total, pd.DataFrame(rows), note)
        return pd.DataFrame(rows)

    outcome = run(
        lab.alone, "theory phase", {"seeds": seeds}, steps,
        cost=lab.say(
            "{total} cells, each {seeds} runs of {steps} steps with and without the division; some "
            "ten seconds.",
            total=total, seeds=seeds, steps=STEPS,
        ),
        label=lab.say("Run"), say=lab.say,
    )  # fmt: skip
    if outcome is None:
        return
    frame = outcome.value
    titles = {"1/√d_k": "Divided by √d_k", "none": "Not divided"}
    for place, (name, title) in zip(st.columns(2), titles.items(), strict=True):
        part = frame[frame["division"] == name]
        part = part.sort_values(["d_k", "rate"], ascending=[False, True])
        with place:
            lab.show(
                f"phase-{'divided' if name != 'none' else 'undivided'}", title, part,
                lambda mode, part=part: pictures.labelled_grid(
                    part, Quantity("d_k", "d_k"), Quantity("rate", "learning rate"),
                    Quantity("frozen", "frozen runs", "share", domain=(0, 1)),
                    mode=mode, limits=(0.0, 1.0), cell=(52, 30),
                ),
                "{runs} runs per cell, seeds 0 to {last}, {steps} steps. Frozen: ‖∂L/∂q‖ < 10⁻⁶ "
                "while the target has less than half of the weight.",
                said={"last": seeds - 1}, runs=seeds, steps=STEPS,
            )  # fmt: skip


def gradient_check(lab: Lab) -> None:
    """The error of central differences against the width of the difference."""
    frame = lab.frame("gradient check", freezing.gradient_check)
    seen = _named(frame)
    lab.show(
        "gradient-check", "Formula against central differences", frame,
        lambda mode: figures.curves(
            seen, Quantity("h", "h", "logit", scale="log", format=".0e"),
            Quantity("max_relative_error", "largest relative error of ∂L/∂s", scale="log",
                     format=".2e"),
            by="division", dots=True, marked=_CLAIMED_ERROR, mode=mode, width=WIDER, height=240,
        ),
        "First step, seed {seed}, d_k = 64; the largest relative error over the eight scores. "
        "Truncation falls with h², rounding grows with 1/h. Ring: the claimed error, "
        "drawn at h = 1e−5, since its h was not told.",
        seed=11,
    )  # fmt: skip


_CLAIMED_ERROR = pd.DataFrame(
    {"h": [1e-5], "max_relative_error": [1.1e-10], "label": ["claimed: 1.1e−10"]}
)
