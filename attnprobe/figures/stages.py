"""The certificate as a picture: stages across, layers down, error against what is allowed."""

import math

import altair as alt
import numpy as np
import pandas as pd

from attnprobe.figures.chart import Chart
from attnprobe.figures.theme import COLOURS, Mode, themed
from attnprobe.figures.values import inline

WHOLE = "model"
_LIMIT = 4
_BEYOND = 1e99


def stage_frame(certificate: pd.DataFrame) -> pd.DataFrame:
    """The frame of `certify` with `place` (a layer or the whole model) and `log_ratio`.

    `log_ratio` is log10(error / tolerance), at most 0 where the stage holds; exact agreement is
    drawn as −4, like anything below. A failed stage without such a number, for one of the two is
    infinite or no number at all, is beyond every limit.
    """
    ratio = certificate["max_abs_error"] / certificate["tolerance"].clip(lower=1e-300)
    ratio = ratio.mask(beyond_measure(certificate), _BEYOND).astype(float)
    log_ratio = np.log10(ratio.clip(10.0**-_LIMIT, _BEYOND))
    place = [WHOLE if pd.isna(layer) else str(int(layer)) for layer in certificate["layer"]]
    return certificate.assign(place=place, log_ratio=log_ratio)


def beyond_measure(certificate: pd.DataFrame) -> pd.Series:
    """Which stages have an error or a tolerance that is infinite or no number: they have failed."""
    numbers = certificate[["max_abs_error", "tolerance"]].astype(float)
    return ~np.isfinite(numbers).all(axis=1)


def beyond_note(certificate: pd.DataFrame) -> str:
    """The sentence that a caption needs where an error is infinite or no number; else empty."""
    count = int(beyond_measure(certificate).sum())
    if not count:
        return ""
    return f"In {count} of the red stages the error is infinite or not a number."


def stage_map(frame: pd.DataFrame, *, mode: Mode = "light", step: int = 26) -> alt.LayerChart:
    """The frame of `stage_frame` as a heat table; red stages are outlined and carry a cross."""
    c = COLOURS[mode]
    places = list(dict.fromkeys(frame["place"]))
    layers = sorted((p for p in places if p != WHOLE), key=int)
    rows = [*([WHOLE] if WHOLE in places else []), *layers]
    stages = list(dict.fromkeys(frame["stage"]))
    data = inline(
        frame.assign(
            exactly=list(map(_exactly, frame["max_abs_error"], frame["tolerance"])),
            error=frame["max_abs_error"].map(_in_words),
            allowed=frame["tolerance"].map(_in_words),
        ),
        ["place", "stage", "log_ratio", "exactly", "error", "allowed"],
    )
    base = Chart(data).encode(
        x=alt.X(
            "stage:N", sort=stages, title="stage",
            axis=alt.Axis(labelAngle=-40, orient="bottom", ticks=False, domain=False),
        ),
        y=alt.Y(
            "place:N", sort=rows, title="layer", axis=alt.Axis(ticks=False, domain=False)
        ),
        tooltip=[
            alt.Tooltip("place:N", title="layer"),
            alt.Tooltip("stage:N"),
            alt.Tooltip("error:N", title="largest error"),
            alt.Tooltip("allowed:N", title="allowed"),
            alt.Tooltip("exactly:N", title="log10(error / allowed)"),
        ],
    )  # fmt: skip
    colour = alt.Color(
        "log_ratio:Q",
        title="log10(error / allowed)",
        scale=alt.Scale(
            domain=[-_LIMIT, 0, _LIMIT], range=_RANGE[mode], clamp=True, interpolate="rgb"
        ),
        legend=alt.Legend(
            orient="bottom", gradientLength=220, values=[-_LIMIT, -2, 0, 2, _LIMIT], labelExpr=_ENDS
        ),
    )
    cells = base.mark_rect(stroke=c.page, strokeWidth=2).encode(color=colour)
    crosses = (
        Chart(inline(frame[~frame["ok"].astype(bool)], ["place", "stage", "ok"]))
        .mark_text(text="✕", fontWeight=700, color=c.halo)
        .encode(x=alt.X("stage:N", sort=stages), y=alt.Y("place:N", sort=rows))
    )
    return themed(
        alt.layer(cells, crosses, width=100 + len(stages) * (step + 22), height=alt.Step(step)),
        mode,
        alt_text=f"Heat table of {len(stages)} stages by {len(rows)} rows; "
        f"{int((~frame['ok']).sum())} red. {beyond_note(frame)}".strip(),
        elastic=True,
    )


def _exactly(error: float, allowed: float) -> str:
    """log10(error / allowed), or why there is none."""
    if not (math.isfinite(error) and math.isfinite(allowed)):
        return "failed: no number to compare"
    if error == 0:
        return "no error at all"
    return f"{math.log10(error / allowed):.2f}" if allowed > 0 else "nothing is allowed"


def _in_words(number: float) -> str:
    """A number for a tooltip, or what it is instead."""
    if math.isnan(number):
        return "not a number"
    return f"{number:.3e}" if math.isfinite(number) else "infinite"


_ENDS = (
    f"datum.value <= -{_LIMIT} ? '≤ −{_LIMIT}' : datum.value >= {_LIMIT} ? '≥ {_LIMIT}' : "
    "replace(datum.label, '-', '−')"
)
_RANGE = {"light": ["#2166ac", "#f2f4f6", "#b2182b"], "dark": ["#4393c3", "#2b333c", "#d6604d"]}
