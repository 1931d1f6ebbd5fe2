"""Panels on what attention costs: linear attention, heads, tokens, measured times."""

from functools import partial

import pandas as pd
import streamlit as st

from attnprobe import figures
from attnprobe.analyses import theory_on_model
from attnprobe.metrics import Quantity
from attnprobe.theory import cost, linear
from attnprobe.ui.cached import trace
from attnprobe.ui.run import Progress, run
from attnprobe.ui.show import metrics
from attnprobe.ui.theory.lab import HIGH, WIDE, WIDER, Lab

FEATURES = Quantity("features", "features m", scale="log", format="d")
TOKENS = Quantity("tokens", "tokens T", scale="log", format="d")
ERRORS = {
    "kernel_error": "kernel, measured",
    "predicted_kernel_error": "kernel, predicted: ∝ 1/√m",
    "output_error": "output",
    "elu": "output, elu + 1",
}
STREAMED_LENGTHS = (1024, 2048, 4096, 8192, 16_384, 32_768)


def features(lab: Lab) -> None:
    """Error against the number of features, on random numbers and on the chosen head."""
    with st.container(horizontal=True):
        std = st.slider(
            lab.say("Standard deviation of the components"), 0.1, 1.0, 0.4, 0.05,
            key="theory:component_std", width=300,
        )  # fmt: skip
        d_k = st.select_slider("d_k", (16, 32, 64, 128), 64, key="theory:linear_d_k", width=260)
    settings = {"d_k": d_k, "component_std": std, "repeats": 4, "seed": 0}
    frame = lab.frame("linear", linear.linear, **settings)
    on_model = lab.on_model("linear")
    left, right = st.columns(2) if on_model else (st.container(), None)
    with left:
        lab.show(
            "linear", "Error against the number of features", frame,
            lambda mode: _error_curves(frame, mode),
            "48 random queries and keys, mean over 4 draws of features, seed 0. Kernel: root mean "
            "square of φ(q)·φ(k)/exp(q·k/√d_k) − 1; output: ‖difference‖ / ‖softmax output‖.",
            **settings,
        )  # fmt: skip
    if on_model:
        with right:
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
    traced = trace(lab.view)
    frame = lab.of_model(
        "linear", lambda **at: theory_on_model.linear_errors(traced, **at), **lab.at
    )
    lab.show_on_model(
        "linear-model", "The same on layer {layer}, head {head}", frame,
        lambda mode: _error_curves(frame, mode),
        "The head's own queries, keys and values, every query seeing every key, of a long text the "
        "first {most} tokens; mean over 4 draws of features, seed 0. Where the predicted error is "
        "far above 1, such a mean has not settled. What exceeds double precision is left out.",
        said={"most": theory_on_model.MOST_TOKENS}, of_head=True,
    )  # fmt: skip


def linear_time(lab: Lab) -> None:
    """Seconds and memory against T for four methods, started by a button."""
    count = st.select_slider(
        lab.say("Features m"), (32, 128, 512), 128, key="theory:time_m", width=260
    )

    def steps(progress: Progress) -> pd.DataFrame:
        rows = [] if progress.partial is None else progress.partial.to_dict("records")
        done = len(rows) // len(linear.METHODS)
        for tokens in linear.LENGTHS[done:]:
            for row in linear.time_cells((tokens,), features=count):
                rows.append(row)
                progress.tick()
            done += 1
            note = lab.say("T = {tokens:,} done", tokens=tokens)
            progress(done, len(linear.LENGTHS), pd.DataFrame(rows), note)
        return pd.DataFrame(rows)

    outcome = run(
        lab.alone, "theory linear time", {"features": count}, steps,
        cost=lab.say("One head, d_k = 64, T from 128 to 4,096, eight calls; some ten seconds."),
        label=lab.say("Measure"), say=lab.say,
    )  # fmt: skip
    if outcome is not None:
        _times(lab, outcome.value, count)


FULL = "softmax, full matrix"


def _times(lab: Lab, frame: pd.DataFrame, count: int) -> None:
    maps = frame[frame["method"] != "softmax, fused"]
    found = linear.crossings(maps, FULL)
    marks = found.assign(label=[f"T ≈ {tokens:,.0f}" for tokens in found["tokens"]])
    seconds = Quantity("seconds", "time per call", "s", scale="log")
    held = Quantity("mib", "allocated at most", "MiB", scale="log")
    memory = frame.assign(mib=frame["peak_bytes"] / cost.MIB)
    left, right = st.columns(2)
    with left:
        lab.show(
            "linear-time", "Time against length", frame,
            lambda mode: figures.curves(
                frame, TOKENS, seconds, by="method", dots=True,
                marked=None if marks.empty else marks, mode=mode, width=WIDE, height=260,
            ),
            "Median of five calls on this machine, one head, d_k = 64, m = {features}, float32. "
            "Rings: from there on a feature map is faster than the full matrix; none means that "
            "it is so at no measured T, or at every one.",
            features=count,
        )  # fmt: skip
    with right:
        lab.show(
            "linear-memory", "Memory against length", memory,
            lambda mode: figures.curves(
                memory, TOKENS, held, by="method", dots=True, mode=mode, width=WIDE, height=260
            ),
            "The most that one call had allocated at one time beyond its inputs, measured on this "
            "machine. Doubling T: four times as much for the full matrix, twice for the others.",
            features=count,
        )  # fmt: skip


_COUNTS = {
    "parameters": "parameters",
    "product_flops": "operations of the products",
    "softmax_numbers": "exponentials",
    "score_bytes": "score memory",
}


def heads(lab: Lab) -> None:
    """Counts against the number of heads and of tokens, and measured times by a button."""
    with st.container(horizontal=True):
        d_model = st.select_slider(
            "d_model", (192, 384, 768, 1536), 768, key="theory:d_model", width=260
        )
        tokens = st.select_slider(
            lab.say("Tokens T"), (128, 512, 1024, 4096), 1024, key="theory:cost_tokens", width=260
        )
        count = st.select_slider(
            lab.say("Heads h"), cost.HEADS, cost.HEADS[-1], key="theory:cost_heads", width=260
        )
    settings = {"d_model": d_model, "tokens": tokens}
    frame = lab.frame("cost", cost.cost, **settings)
    ratios = frame.assign(**{name: frame[name] / frame[name].iloc[0] for name in _COUNTS})
    tidy = ratios.melt("heads", list(_COUNTS), "what", "ratio").replace({"what": _COUNTS})
    row = frame.set_index("heads").loc[count]
    metrics(
        (lab.say("Parameters"), f"{row['parameters']:,.0f}"),
        (lab.say("Operations of the products"), _powers(float(row["product_flops"]))),
        (lab.say("Exponentials"), _powers(float(row["softmax_numbers"]))),
        (lab.say("Scores of all heads"), f"{row['score_bytes'] / cost.MIB:,.4g} MiB"),
    )
    left, right = st.columns(2)
    with left:
        lab.show(
            "cost", "Against one head", frame,
            lambda mode: figures.curves(
                tidy, Quantity("heads", "heads h", format="d"),
                Quantity("ratio", "times that of one head", domain=(0, None)), by="what",
                dots=True, mode=mode, width=WIDE, height=HIGH,
            ),
            "One layer, d_model = {d_model}, T = {tokens:,}. Scores of all heads take {one:,.4g} "
            "MiB with one head and {twelve:,.4g} MiB with twelve.",
            said={
                "one": frame["score_bytes"].iloc[0] / cost.MIB,
                "twelve": frame["score_bytes"].iloc[-1] / cost.MIB,
            },
            **settings,
        )  # fmt: skip
    with right:
        _work(lab, d_model, count)
    _measured_heads(lab)


_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def _powers(number: float) -> str:
    """Three digits and a power of ten."""
    digits, _, power = f"{number:.2e}".partition("e+")
    return f"{digits} · 10{str(int(power)).translate(_RAISED)}"


def _work(lab: Lab, d_model: int, count: int) -> None:
    settings = {"d_model": d_model, "heads": count}
    frame = lab.frame("work", cost.against_tokens, **settings)
    lab.show(
        "cost-work", "Against the length, {heads} heads", frame,
        lambda mode: figures.curves(
            frame, TOKENS, Quantity("number", "operations, or exponentials", scale="log"),
            by="work", mode=mode, width=WIDE, height=HIGH,
        ),
        "One layer, d_model = {d_model}. Scores and context grow with T² and overtake the "
        "projections at T = 2 d = {twice:,}.",
        said={"twice": 2 * d_model}, **settings,
    )  # fmt: skip


def _measured_heads(lab: Lab) -> None:
    def steps(progress: Progress) -> pd.DataFrame:
        rows = []
        for done, count in enumerate(cost.HEADS, 1):
            rows += cost.time_cells(heads=(count,))
            note = lab.say("{count} heads measured", count=count)
            progress(done, len(cost.HEADS), None, note)
        return pd.DataFrame(rows)

    outcome = run(
        lab.alone, "theory head time", {}, steps, label=lab.say("Measure"), say=lab.say,
        cost=lab.say("Time of one layer with 1 to 12 heads, T = 512; some seconds."),
    )  # fmt: skip
    if outcome is None:
        return
    frame = outcome.value
    lab.show(
        "cost-time", "Measured on this machine", frame,
        lambda mode: figures.curves(
            frame, Quantity("heads", "heads h", format="d"),
            Quantity("seconds", "time per call", "s", scale="log"), by="step", dots=True,
            mode=mode, width=WIDER, height=HIGH,
        ),
        "One layer, d_model = 768, T = 512, float32, median of five calls.",
    )  # fmt: skip


STREAMED = "one head's statistics, streamed (measured)"


def tokens(lab: Lab) -> None:
    """Memory against the length of the text, and what the streaming statistics really take."""
    longest = st.select_slider(
        lab.say("Measure up to T"),
        STREAMED_LENGTHS,
        STREAMED_LENGTHS[3],
        key="theory:longest",
        width=300,
    )
    outcome = run(
        lab.alone, "theory streaming", {"longest": longest}, partial(_stream, lab, longest),
        cost=lab.say(
            "Statistics of one head, d_head = 64, with no matrix, T from 1,024 to {longest:,}. "
            "Each doubling takes four times as long: 8,192 some seconds, 32,768 a minute or two.",
            longest=longest,
        ),
        label=lab.say("Measure"), say=lab.say,
    )  # fmt: skip
    streamed = pd.DataFrame() if outcome is None else outcome.value
    frame = lab.frame("memory", cost.score_memory)
    if not streamed.empty:
        found = streamed.rename(columns={"peak_bytes": "bytes"}).assign(kept=STREAMED)
        frame = pd.concat([frame, found[["tokens", "kept", "bytes"]]], ignore_index=True)
    sizes = frame.assign(gib=frame["bytes"] / cost.GIB)
    point = pd.DataFrame({"tokens": [32_768], "gib": [4.0], "label": ["4 GiB"]})
    left, right = st.columns(2) if len(streamed) > 1 else (st.container(), None)
    with left:
        lab.show(
            "memory", "What T tokens take", sizes,
            lambda mode: figures.curves(
                sizes, TOKENS, Quantity("gib", "memory", "GiB", scale="log"), by="kept",
                marked=point, mode=mode, width=WIDER, height=280,
            ),
            "float32, 12 layers of 12 heads, d_head = 64. Matrices grow with T², what is kept of "
            "each token with T. Ring: one matrix at T = 32,768.",
        )  # fmt: skip
    if right is not None:
        with right:
            _streamed_time(lab, streamed)


def _stream(lab: Lab, longest: int, progress: Progress) -> pd.DataFrame:
    """A measured row per length; what was finished before a stop is not measured again."""
    rows = [] if progress.partial is None else progress.partial.to_dict("records")
    lengths = [tokens for tokens in STREAMED_LENGTHS if tokens <= longest]
    whole = sum(tokens**2 for tokens in lengths)
    behind = sum(row["tokens"] ** 2 for row in rows)
    for tokens in lengths[len(rows) :]:
        for part in cost.streaming_parts(tokens):
            note = lab.say("T = {tokens:,}: {rows:,} rows", **part)
            percent = 100 * (behind + part["rows"] * tokens) // whole
            progress(percent, 100, pd.DataFrame(rows), note)
        rows.append(part)
        behind += tokens**2
    return pd.DataFrame(rows)


def _streamed_time(lab: Lab, frame: pd.DataFrame) -> None:
    last = frame.iloc[-1]
    lab.show(
        "streaming-time", "Time of the streamed statistics", frame,
        lambda mode: figures.curves(
            frame, TOKENS, Quantity("seconds", "time of one head", "s", scale="log"), dots=True,
            mode=mode, width=WIDER, height=280,
        ),
        "Entropy, peak, Jacobian norms and context of all T rows of one head, d_head = 64, "
        "float32, on this machine. At T = {tokens:,}: {seconds:.3g} s and {mib:,.3g} MiB, where "
        "one matrix would be {matrix:,.4g} MiB.",
        said={
            "tokens": int(last["tokens"]),
            "seconds": last["seconds"],
            "mib": last["peak_bytes"] / cost.MIB,
            "matrix": last["matrix_bytes"] / cost.MIB,
        },
    )  # fmt: skip
