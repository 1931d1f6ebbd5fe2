"""Panels on what attention costs: linear attention, heads, tokens, measured times."""

import pandas as pd
import streamlit as st

from attnprobe import figures
from attnprobe.analyses import theory_on_model
from attnprobe.metrics import Quantity
from attnprobe.theory import cost, linear
from attnprobe.ui.cached import computed, trace
from attnprobe.ui.run import Progress, run
from attnprobe.ui.theory.lab import HIGH, WIDE, WIDER, Lab

FEATURES = Quantity("features", "features m", scale="log", format="d")
TOKENS = Quantity("tokens", "tokens T", scale="log", format="d")
ERRORS = {
    "kernel_error": "kernel, measured",
    "predicted_kernel_error": "kernel, predicted",
    "output_error": "output",
    "elu": "output, elu + 1",
}
MOST_TOKENS = 192


def features(lab: Lab) -> None:
    """Error against the number of features, on random numbers and on the chosen head."""
    with st.container(horizontal=True):
        std = st.slider(
            "Standard deviation of the components", 0.1, 1.0, 0.4, 0.05,
            key="theory:component_std", width=300,
        )  # fmt: skip
        d_k = st.select_slider("d_k", (16, 32, 64, 128), 64, key="theory:linear_d_k", width=260)
    settings = {"d_k": d_k, "component_std": std, "repeats": 4, "seed": 0}
    frame = lab.frame("linear", linear.linear, **settings)
    on_model = lab.on_model("linear")
    with st.container(horizontal=True):
        lab.show(
            "linear", "Error against the number of features", frame,
            lambda mode: _error_curves(frame, mode),
            "48 random queries and keys, mean over 4 draws of features, seed 0. Kernel: root mean "
            "square of φ(q)·φ(k)/exp(q·k/√d_k) − 1; output: ‖difference‖ / ‖softmax output‖.",
            wide=True,
            **settings,
        )  # fmt: skip
        if on_model:
            _real_features(lab)


def _error_curves(frame: pd.DataFrame, mode: figures.Mode):
    random = frame[frame["features"].notna()]
    plain = float(frame.loc[frame["features"].isna(), "output_error"].iloc[0])
    tidy = random.assign(elu=plain).melt("features", list(ERRORS), "error", "relative_error")
    tidy = tidy.replace({"error": ERRORS}).astype({"relative_error": float})
    return figures.curves(
        tidy.dropna(),
        FEATURES,
        Quantity("relative_error", "relative error", scale="log"),
        by="error",
        dots=True,
        mode=mode,
        width=WIDER,
        height=260,
    )


def _real_features(lab: Lab) -> None:
    view, traced = lab.view, trace(lab.view)
    if len(view.tokens) > MOST_TOKENS:
        st.caption(f"This figure is drawn for texts of at most {MOST_TOKENS} tokens.")
        return
    at = {"layer": view.layer, "head": view.head}
    with st.spinner("Computing …", show_time=True):
        frame = computed(
            view, "theory linear", at, lambda tick: theory_on_model.linear_errors(traced, **at)
        )
    lab.show_on_model(
        "linear-model", "The same on this head", frame,
        lambda mode: _error_curves(frame, mode),
        "The head's own queries, keys and values, every query seeing every key; mean over 4 draws "
        "of features, seed 0. Where the predicted error is far above 1, such a mean has not "
        "settled. What exceeds double precision is left out.",
        wide=True,
        of_head=True,
    )  # fmt: skip


def linear_time(lab: Lab) -> None:
    """Seconds and memory against T for four methods, started by a button."""
    count = st.select_slider("Features m", (32, 128, 512), 128, key="theory:time_m", width=260)

    def steps(progress: Progress) -> pd.DataFrame:
        rows = [] if progress.partial is None else progress.partial.to_dict("records")
        done = len(rows) // len(linear.METHODS)
        for tokens in linear.LENGTHS[done:]:
            for row in linear.time_cells((tokens,), features=count):
                rows.append(row)
                progress.tick()
            done += 1
            progress(done, len(linear.LENGTHS), pd.DataFrame(rows), f"T = {tokens:,} done")
        return pd.DataFrame(rows)

    outcome = run(
        lab.alone, "theory linear time", {"features": count}, steps,
        cost="One head, d_k = 64, T from 128 to 4,096, six calls each; some ten seconds.",
        label="Measure",
    )  # fmt: skip
    if outcome is not None:
        _times(lab, outcome.value, count)


def _times(lab: Lab, frame: pd.DataFrame, count: int) -> None:
    full = "softmax, full matrix"
    crossing = {
        name: linear.crossing(frame, name, full)
        for name in linear.METHODS
        if name not in (full, "softmax, fused")
    }
    said = "; ".join(
        f"{name} is faster from T ≈ {at:,.0f}" if at else f"{name} is not faster up to here"
        for name, at in crossing.items()
    )
    seconds = Quantity("seconds", "time per call", "s", scale="log")
    held = Quantity("mib", "held besides inputs and output", "MiB", scale="log")
    memory = frame.assign(mib=frame["extra_bytes"] / cost.MIB)
    with st.container(horizontal=True):
        lab.show(
            "linear-time", "Time against length", frame,
            lambda mode: figures.curves(
                frame, TOKENS, seconds, by="method", dots=True, mode=mode, width=WIDE, height=260
            ),
            f"Median of five calls on this machine, one head, d_k = 64, m = {count}. Against the "
            f"full matrix: {said}.",
            features=count,
        )  # fmt: skip
        lab.show(
            "linear-memory", "Memory against length", memory,
            lambda mode: figures.curves(
                memory[memory["mib"] > 0], TOKENS, held, by="method", dots=True, mode=mode,
                width=WIDE, height=260,
            ),
            "Counted from the shapes, float32. The fused softmax keeps a few blocks only, whatever "
            "T is, and is left out.",
            features=count,
        )  # fmt: skip


_COUNTS = {
    "parameters": "parameters",
    "product_flops": "operations of the products",
    "softmax_numbers": "exponentials",
    "score_bytes": "score memory",
}


def heads(lab: Lab) -> None:
    """Counts against the number of heads, and measured times by a button."""
    with st.container(horizontal=True):
        d_model = st.select_slider(
            "d_model", (192, 384, 768, 1536), 768, key="theory:d_model", width=260
        )
        tokens = st.select_slider(
            "Tokens T", (128, 512, 1024, 4096), 1024, key="theory:cost_tokens", width=260
        )
    frame = lab.frame("cost", cost.cost, d_model=d_model, tokens=tokens)
    ratios = frame.assign(**{name: frame[name] / frame[name].iloc[0] for name in _COUNTS})
    tidy = ratios.melt("heads", list(_COUNTS), "what", "ratio").replace({"what": _COUNTS})
    with st.container(horizontal=True):
        lab.show(
            "cost", "Against one head", frame,
            lambda mode: figures.curves(
                tidy, Quantity("heads", "heads h", format="d"),
                Quantity("ratio", "times that of one head", domain=(0, None)), by="what",
                dots=True, mode=mode, width=WIDER, height=HIGH,
            ),
            f"One layer, d_model = {d_model}, T = {tokens:,}. Scores of all heads take "
            f"{frame['score_bytes'].iloc[0] / cost.MIB:,.4g} MiB with one head and "
            f"{frame['score_bytes'].iloc[-1] / cost.MIB:,.4g} MiB with twelve.",
            wide=True, d_model=d_model, tokens=tokens,
        )  # fmt: skip
        _measured_heads(lab)


def _measured_heads(lab: Lab) -> None:
    def steps(progress: Progress) -> pd.DataFrame:
        rows = []
        for done, count in enumerate(cost.HEADS, 1):
            rows += cost.time_cells(heads=(count,))
            progress(done, len(cost.HEADS), None, f"{count} heads measured")
        return pd.DataFrame(rows)

    with st.container(width=440):
        outcome = run(
            lab.alone, "theory head time", {}, steps, label="Measure",
            cost="Time of one layer with 1 to 12 heads, T = 512; some seconds.",
        )  # fmt: skip
        if outcome is None:
            return
        frame = outcome.value
        lab.show(
            "cost-time", "Measured on this machine", frame,
            lambda mode: figures.curves(
                frame, Quantity("heads", "heads h", format="d"),
                Quantity("seconds", "time", "s", domain=(0, None)), by="step", dots=True,
                mode=mode, width=WIDE, height=HIGH,
            ),
            "d_model = 768, T = 512, float32, median of five calls.",
        )  # fmt: skip


def tokens(lab: Lab) -> None:
    """Memory against the length of the text."""
    frame = lab.frame("memory", cost.score_memory)
    sizes = frame.assign(gib=frame["bytes"] / cost.GIB)
    point = pd.DataFrame({"tokens": [32_768], "gib": [4.0], "label": ["4 GiB"]})
    lab.show(
        "memory", "What T tokens take", sizes,
        lambda mode: figures.curves(
            sizes, TOKENS, Quantity("gib", "memory", "GiB", scale="log"), by="kept",
            marked=point, mode=mode, width=WIDER, height=260,
        ),
        "float32, 12 layers of 12 heads, d_head = 64. Matrices grow with T², what is kept of "
        "each token with T.",
        wide=True,
    )  # fmt: skip
