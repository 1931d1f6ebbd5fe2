"""Numbers to colours: the same scale for vector cells, for rasters and for the colour bar."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np

from attnprobe.figures.theme import COLOURS, PALETTES, Mode
from attnprobe.metrics import Number, Quantity

# Width of the stroke that closes the gap between two cells, px.
_SEAM = 0.75

Limits = tuple[Number, Number]

_TRANSFORMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "linear": np.asarray,
    "sqrt": np.sqrt,
    "log": np.log,
}
_INVERSES: dict[str, Callable[[float], float]] = {
    "linear": float,
    "sqrt": lambda value: float(value**2),
    "log": lambda value: float(np.exp(value)),
}


@dataclass(frozen=True)
class ColourScale:
    """Colours spread evenly over `limits` (lowest, highest); values beyond take the end colour."""

    quantity: Quantity
    limits: Limits
    colours: tuple[str, ...]
    below: bool = False
    above: bool = False

    def scale(self) -> alt.Scale:
        """For an encoding."""
        return alt.Scale(
            type=self.quantity.scale,
            domain=self._stops(len(self.colours)),
            range=list(self.colours),
            interpolate="rgb",
            clamp=True,
        )

    def closing(self) -> dict[str, Any]:
        """Options of a cell's mark: a stroke in the cell's own colour.

        Without it the page shines through between cells on screens that scale by a fraction. It is
        an expression because a stroke encoding would turn the colour bar into a row of dots.
        """
        datum = f"datum[{json.dumps(self.quantity.name)}]"
        return {"stroke": {"expr": f"scale('color', {datum})"}, "strokeWidth": _SEAM}

    def legend(self, length: int, offset: int = 14) -> alt.Legend:
        """A horizontal colour bar under the figure with its unit and its limits in numbers.

        `offset` is the gap above it in px, where another legend may stand.
        """
        values, texts = self._stops(3), self.ticks()
        middle = (values[0] + values[1]) / 2, (values[1] + values[2]) / 2
        choice = f"datum.value < {middle[0]!r} ? 0 : datum.value < {middle[1]!r} ? 1 : 2"
        return alt.Legend(
            title=self.quantity.title,
            orient="bottom",
            direction="horizontal",
            titleOrient="top",
            gradientLength=length,
            values=values,
            labelExpr=f"{json.dumps(texts)}[{choice}]",
            labelOverlap=False,
            offset=offset,
        )

    def ticks(self) -> list[str]:
        """The numbers at the lower end, the middle and the upper end of the colour bar."""
        texts = [tidy(value, self.quantity.format) for value in self._stops(3)]
        texts[0] = f"≤ {texts[0]}" if self.below else texts[0]
        texts[-1] = f"≥ {texts[-1]}" if self.above else texts[-1]
        return texts

    def rgba(self, values: np.ndarray) -> np.ndarray:
        """Eight-bit red, green, blue, alpha for each value; undefined is transparent."""
        forward = _TRANSFORMS[self.quantity.scale]
        defined = np.isfinite(values)
        inside = np.clip(np.where(defined, values, self.limits[0]), *self.limits)
        low, high = forward(np.array(self.limits, dtype=float))
        place = (forward(inside) - low) / (high - low)
        stops = np.linspace(0, 1, len(self.colours))
        table = np.array([channels(colour) for colour in self.colours])
        rgb = [np.interp(place, stops, table[:, channel]) for channel in range(3)]
        alpha = np.where(defined, 255.0, 0.0)
        return np.rint(np.stack([*rgb, alpha], axis=-1)).astype(np.uint8)

    def _stops(self, n: int) -> list[float]:
        forward, back = _TRANSFORMS[self.quantity.scale], _INVERSES[self.quantity.scale]
        low, high = forward(np.array(self.limits, dtype=float))
        inner = [back(value) for value in np.linspace(low, high, n)[1:-1]]
        return [float(self.limits[0]), *inner, float(self.limits[1])]


def colour_scale(
    values: np.ndarray,
    quantity: Quantity,
    mode: Mode,
    *,
    palette: str = "viridis",
    limits: Limits | None = None,
) -> ColourScale:
    """The scale of `values`: symmetric about 0 for a diverging quantity, else by its definition.

    Where the definition sets no limit, the data do. `limits` overrides both; what lies beyond is
    drawn in the end colour and the colour bar says ≤ or ≥.
    """
    defined = values[np.isfinite(values)]
    low, high = _spread(limits or _natural(defined, quantity))
    colours = PALETTES[palette]
    if quantity.kind == "diverging":
        reach = max(abs(low), abs(high))
        low, high, colours = -reach, reach, COLOURS[mode].diverging
    return ColourScale(
        quantity,
        (low, high),
        colours,
        below=bool((defined < low - 1e-9 * (high - low)).any()),
        above=bool((defined > high + 1e-9 * (high - low)).any()),
    )


def fitted(values: np.ndarray, quantity: Quantity, share: float = 0.99) -> Limits | None:
    """Limits that the middle `share` of the defined values lie between; None where all are equal.

    A limit that the definition puts at 0 stays: weights begin at 0 and end at a quantile.
    """
    defined = values[np.isfinite(values)]
    if not defined.size:
        return None
    if quantity.kind == "diverging":
        reach = float(np.quantile(np.abs(defined), share))
        return (-reach, reach) if reach else None
    if quantity.domain[0] == 0:
        low, high = 0.0, float(np.quantile(defined, share))
    else:
        low, high = np.quantile(defined, [(1 - share) / 2, (1 + share) / 2]).tolist()
    return (low, high) if low < high else None


def _natural(defined: np.ndarray, quantity: Quantity) -> Limits:
    if not defined.size:
        return (0.0, 1.0)
    if quantity.kind == "diverging":
        return (-float(np.abs(defined).max()), float(np.abs(defined).max()))
    low, high = quantity.domain
    if quantity.scale == "log":
        low, high = low or None, high or None
        defined = defined[defined > 0] if (defined > 0).any() else np.ones(1)
    return (
        float(defined.min() if low is None else low),
        float(defined.max() if high is None else high),
    )


def _spread(limits: Limits) -> Limits:
    """Limits that are apart, so that a constant frame has a colour."""
    low, high = limits
    return (low, high) if high > low else (low, low + (abs(low) or 1.0))


def tidy(value: Number, form: str) -> str:
    """A number as a figure prints it, with a real minus sign."""
    shown = format(round(value) if form == "d" else value + 0.0, form)
    return shown.replace("-", "−")


def channels(colour: str) -> tuple[int, ...]:
    """Red, green and blue of a #RRGGBB string."""
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))
