"""The certificate: the running model against its twin, stage by stage, on one text.

What is certified is the traced run, whose numbers the screen shows. Each layer of the twin is fed
the *model's own* input of that layer and runs free within it, so a mistake turns its own stage red
and not the whole model above it. Nothing is lost by that: each certified output is the next
certified input. `end to end`, on request, also runs the twin free from the token ids.

The reference is the twin in float64, and every error is against it. What an error may be is not
chosen: the same twin is also run in the model's precision, and the model may err `HEADROOM` times
as much as that plain arithmetic does, plus one rounding of the stage's largest entry (the rule by
which flash-attention's kernels are tested). A float64 model has no finer reference: there the
twin errs in float32 instead, that error is scaled by the ratio of the two precisions, and twice as
much is allowed, because the reference errs as well as the model.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from attnprobe.errors import CertificateFailed
from attnprobe.models import LoadedModel
from attnprobe.scratch.gaps import Row, attention_only, observe, plain_precision, whole_model
from attnprobe.scratch.twin import TWINS
from attnprobe.text import Tokens

HEADROOM = 4.0
"""How many times the plain arithmetic's own rounding error the model may be away."""

STAGES = (
    "embeddings",
    "query",
    "key",
    "value",
    "raw logits",
    "scaled logits",
    "weights",
    "context",
    "attention output",
    "layer output",
    "final output",
    "end to end",
)

ATTENTION_STAGES = ("raw logits", "scaled logits", "weights", "context")
"""What is certified in families without a twin: attention from the captured q, k and v."""


def certify(
    loaded: LoadedModel,
    text: str | Tokens,
    *,
    faults: Iterable[str] = (),
    end_to_end: bool = False,
    tick: Callable[[], None] | None = None,
) -> pd.DataFrame:
    """One row per layer and stage: layer, stage, max_abs_error, tolerance, ok.

    `layer` is missing for embeddings, final output and end to end. `max_abs_error` is the largest
    absolute difference to the float64 reference, in the stage's own unit. `faults` are names of
    `faults.FAULTS`, put into the reference; the tolerance stays that of the right arithmetic.
    `end_to_end` adds a row for the final output of the twin run alone, which doubles the cost.
    `tick` is called between layers and may raise to stop. A family without a twin gets
    `ATTENTION_STAGES` only.
    """
    tokens = loaded.read(text) if isinstance(text, str) else text
    faults = tuple(faults)
    with torch.no_grad():
        run = observe(loaded, tokens, tick)
        if loaded.family.model_type in TWINS:
            rows = whole_model(loaded, run, faults, end_to_end=end_to_end)
        else:
            rows = attention_only(loaded, run, faults)
        return _frame(loaded, _ticking(rows, tick or _nothing))


def _nothing() -> None:
    """The tick of a run that nobody wants to stop."""


def _ticking(rows: Iterable[Row], tick: Callable[[], None]) -> list[Row]:
    """All rows, with a chance to stop after each."""
    done = []
    for row in rows:
        tick()
        done.append(row)
    return done


def _frame(loaded: LoadedModel, rows: Sequence[Row]) -> pd.DataFrame:
    layers, stages, gaps = zip(*rows, strict=True)
    error, rounding, magnitude = torch.stack(gaps).cpu().numpy().T
    unit = torch.finfo(loaded.dtype).eps
    share = unit / torch.finfo(plain_precision(loaded)).eps
    sides = 2 if loaded.dtype == torch.float64 else 1
    tolerance = sides * (HEADROOM * share * rounding + unit * magnitude)
    return pd.DataFrame(
        {
            "layer": pd.array(layers, dtype="Int64"),
            "stage": stages,
            "max_abs_error": error,
            "tolerance": tolerance,
            "ok": (error <= tolerance) & np.isfinite(tolerance),
        }
    )


@dataclass(frozen=True)
class Certificate:
    """A certificate in short, for a badge or a figure's provenance.

    `worst` is the largest error in units of its tolerance (green means at most 1), found at
    `stage` of `layer` (None outside the layers). `attention_only` says that the family has no
    twin, so that queries, keys and values were taken from the model.
    """

    ok: bool
    stages: int
    failed: int
    worst: float
    stage: str
    layer: int | None
    max_abs_error: float
    tolerance: float
    attention_only: bool

    @property
    def place(self) -> str:
        """Where the worst stage is: `layer 3, weights`, or the stage alone."""
        return self.stage if self.layer is None else f"layer {self.layer}, {self.stage}"

    def __str__(self) -> str:
        scope = "stages of attention" if self.attention_only else "stages"
        count = f"{self.stages} {scope}" if self.ok else f"{self.failed} of {self.stages} {scope}"
        return (
            f"{'green' if self.ok else 'red'}: {count}, worst error {self.max_abs_error:.2g} of "
            f"{self.tolerance:.2g} allowed ({self.place})"
        )


def summary(frame: pd.DataFrame) -> Certificate:
    """The worst stage of a certificate stands for it; the first red one if there is one.

    The order of the rows is the order of computation, so the first red stage is where a mistake
    entered and not where it grew largest.
    """
    ratio = (frame["max_abs_error"] / frame["tolerance"]).mask(frame["max_abs_error"] == 0, 0.0)
    red = frame.index[~frame["ok"]]
    at = red[0] if len(red) else ratio.idxmax()
    row = frame.loc[at]
    return Certificate(
        ok=not len(red),
        stages=len(frame),
        failed=len(red),
        worst=float(ratio[at]),
        stage=str(row["stage"]),
        layer=None if pd.isna(row["layer"]) else int(row["layer"]),
        max_abs_error=float(row["max_abs_error"]),
        tolerance=float(row["tolerance"]),
        attention_only=not (frame["stage"] == "embeddings").any(),
    )


def require(frame: pd.DataFrame) -> Certificate:
    """The summary of a green certificate; raises `CertificateFailed` for a red one."""
    certificate = summary(frame)
    if not certificate.ok:
        raise CertificateFailed(
            f"the model and its re-implementation differ by {certificate.max_abs_error:.3g} at "
            f"{certificate.place}, where rounding explains at most {certificate.tolerance:.3g} "
            f"({certificate.failed} of {certificate.stages} stages are red); nothing can be shown "
            "for certain, so try another dtype or the CPU, or report this model"
        )
    return certificate
