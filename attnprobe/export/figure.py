"""What leaves the app: a chart with its data, its caption and where it comes from."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import altair as alt
import pandas as pd
from altair.utils.schemapi import debug_mode

from attnprobe.figures import Mode, safe_label
from attnprobe.figures.values import rows_apart

Format = Literal["svg", "pdf", "png", "csv"]
FORMATS: tuple[Format, ...] = ("svg", "pdf", "png", "csv")
LONGEST = 4000


@dataclass(frozen=True)
class Provenance:
    """What a reader needs to get the same figure again; what is empty is not printed.

    `head` is "L2.H5" or None; `certificate` one line on the proof; `excluded` what the figure
    leaves out; `versions` program to version; `extra` anything else (N, seed, threshold).
    """

    model: str
    revision: str = ""
    dtype: str = ""
    device: str = ""
    head: str | None = None
    text_digest: str = ""
    n_tokens: int | None = None
    certificate: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    excluded: str = ""
    extra: Mapping[str, object] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The filled fields, every string cleaned, as JSON can hold them."""
        filled = {k: v for k, v in asdict(self).items() if v not in ("", None, {})}
        return _clean(filled)

    def lines(self) -> list[str]:
        """One fact or a few related ones a line, as files print them."""
        revision = f" @ {self.revision}" if self.revision else ""
        how = ", ".join(filter(None, [self.dtype, self.device]))
        size = "" if self.n_tokens is None else f"{self.n_tokens} tokens"
        digest = f"SHA-256 {self.text_digest}" if self.text_digest else ""
        made = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        facts = {
            "Model": self.model + revision + (f" ({how})" if how else ""),
            "Head": self.head or "",
            "Text": ", ".join(filter(None, [size, digest])),
            "Certificate": self.certificate,
            "Excluded": self.excluded,
            **{name.capitalize(): _clean(value) for name, value in self.extra.items()},
            "Made with": made,
        }
        return [prose(f"{name}: {value}") for name, value in facts.items() if value != ""]


@dataclass(frozen=True)
class Figure:
    """A chart and what belongs to it. `name` is the stem of its file names.

    `chart_for` is a function of the mode ("light" or "dark") or a chart; `frame` is what the CSV
    holds and what the chart was made from, or what makes it when a file is asked for; `alt` is the
    text alternative.
    """

    name: str
    chart_for: Callable[[Mode], alt.TopLevelMixin] | alt.TopLevelMixin
    frame: pd.DataFrame | Callable[[], pd.DataFrame]
    caption: str
    alt: str
    provenance: Provenance

    def chart(self, mode: Mode = "light") -> alt.TopLevelMixin:
        """The chart in one mode; a ready chart has only the one it was made in."""
        given = self.chart_for
        return given if isinstance(given, alt.TopLevelMixin) else given(mode)

    def table(self) -> pd.DataFrame:
        """What the CSV holds."""
        return self.frame if isinstance(self.frame, pd.DataFrame) else self.frame()

    def spec(self, mode: Mode) -> dict[str, Any]:
        """The chart as Vega-Lite, for a screen.

        altair would check every part of it against the schema, at every step: three quarters of the
        time. Tests do that once. Rows are frames under `datasets`.
        """
        with debug_mode(False), rows_apart() as frames:
            spec = self.chart(mode).to_dict(validate=False)
        return spec | {"datasets": spec.get("datasets", {}) | frames}


def file_name(figure: Figure, format: Format) -> str:
    """A name that every file system takes: attnprobe_MODEL_L2.H5_NAME.svg."""
    parts = ["attnprobe", figure.provenance.model, figure.provenance.head or "", figure.name]
    return "_".join(filter(None, map(_slug, parts))) + f".{format}"


def prose(text: object) -> str:
    """Running text as one line without characters that a file cannot hold."""
    return safe_label(" ".join(str(text).split()), LONGEST)


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.=-]+", "-", text).strip("-.")[-60:]


def _clean(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {prose(str(k)): _clean(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "undefined"
    return value if isinstance(value, int | float) else prose(value)
