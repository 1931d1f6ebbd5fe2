"""What the numbers are called: one line per column that a figure or a table may show.

Frames only: nothing here computes. A page that has a new column writes a `Quantity` beside it, or
adds a line to `METRICS` when several pages share it.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["sequential", "diverging"]
Scale = Literal["linear", "sqrt", "log", "symlog"]
Number = int | float


@dataclass(frozen=True)
class Quantity:
    """A column of a frame and how a person should read it.

    `kind` says whether zero is the lower end (sequential) or the middle (diverging). `domain` holds
    limits that follow from the definition; None where the data decide. `scale` is that of its axis
    or colour bar: "sqrt" keeps the small weights of long texts apart, "log" spans decades, "symlog"
    those of both signs and is for colours only.
    `ticks` are where its axis has its numbers; without them the drawing chooses.
    """

    name: str
    label: str
    unit: str = ""
    kind: Kind = "sequential"
    domain: tuple[Number | None, Number | None] = (None, None)
    definition: str = ""
    format: str = ".3g"
    scale: Scale = "linear"
    ticks: tuple[Number, ...] = ()

    @property
    def title(self) -> str:
        """Label and unit, as axes and colour bars print it."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


def quantity(name: str | Quantity) -> Quantity:
    """The line of `METRICS` with this name, or a plain quantity labelled with the name itself."""
    if isinstance(name, Quantity):
        return name
    return METRICS.get(name) or Quantity(name, name.replace("_", " "))


def _table(*rows: Quantity) -> dict[str, Quantity]:
    return {row.name: row for row in rows}


METRICS = _table(
    Quantity(
        "entropy",
        "entropy",
        "nats",
        domain=(0, None),
        definition="Mean over rows of −Σ p ln p; 0 when a row looks at one key.",
    ),
    Quantity(
        "normalised_entropy",
        "normalised entropy",
        "share of ln keys",
        domain=(0, 1),
        definition="Mean over rows of entropy / ln(number of valid keys); 1 is uniform.",
    ),
    Quantity(
        "effective_keys",
        "effective keys",
        "keys",
        domain=(1, None),
        definition="Mean over rows of exp(entropy): as many equal weights spread as far.",
    ),
    Quantity(
        "peak",
        "peak",
        "weight",
        domain=(0, 1),
        definition="Mean over rows of the largest weight.",
    ),
    Quantity(
        "saturated",
        "saturated",
        "share of rows",
        domain=(0, 1),
        definition="Share of rows whose largest weight reaches the stated threshold.",
    ),
    Quantity(
        "jacobian_frobenius",
        "Jacobian, Frobenius norm",
        "weight per logit",
        domain=(0, None),
        definition="Mean over rows of ‖diag(p) − ppᵀ‖ in the Frobenius norm.",
    ),
    Quantity(
        "jacobian_max",
        "Jacobian, largest entry",
        "weight per logit",
        domain=(0, 0.25),
        definition="Mean over rows of m(1 − m) with m the largest weight; at most ¼.",
    ),
    Quantity(
        "jacobian_spectral",
        "Jacobian, spectral norm",
        "weight per logit",
        domain=(0, 0.5),
        definition="Mean over rows of the largest eigenvalue of diag(p) − ppᵀ; at most ½.",
    ),
    Quantity(
        "jacobian_trace",
        "Jacobian, trace",
        "weight per logit",
        domain=(0, 1),
        definition="Mean over rows of 1 − Σp².",
    ),
    Quantity(
        "raw_mean",
        "raw logits, mean",
        "logit",
        kind="diverging",
        definition="Mean of q·k over the valid keys, before scale and mask.",
    ),
    Quantity(
        "raw_std",
        "raw logits, standard deviation",
        "logit",
        domain=(0, None),
        definition="Standard deviation of q·k over the valid keys, before scale and mask.",
    ),
    Quantity(
        "scaled_mean",
        "scaled logits, mean",
        "logit",
        kind="diverging",
        definition="Mean of the logits over the valid keys after the model's own scale.",
    ),
    Quantity(
        "scaled_std",
        "scaled logits, standard deviation",
        "logit",
        domain=(0, None),
        definition="Standard deviation over the valid keys after the model's own scale.",
    ),
    Quantity(
        "rows",
        "rows counted",
        "rows",
        domain=(0, None),
        definition="Rows in the means: the query is a real token and sees two keys or more.",
        format="d",
    ),
    Quantity("weight", "weight", domain=(0, 1), definition="Softmax over the valid keys of a row."),
    Quantity(
        "raw_logit",
        "raw logit",
        "q·k",
        kind="diverging",
        definition="q·k, before scale and mask.",
    ),
    Quantity(
        "scaled_logit",
        "scaled logit",
        "q·k × scale",
        kind="diverging",
        definition="q·k times the scale that the model uses, before the mask.",
    ),
    Quantity(
        "difference",
        "difference",
        kind="diverging",
        definition="What was changed minus what the model does.",
    ),
)
