"""Numbers to colours: the same scale for vector cells, for rasters and for the colour bar."""

import itertools
import json
import math
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

# Numbers to places on the colour bar, and back; the knee is where "symlog" turns linear.
_TRANSFORMS: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "linear": lambda values, knee: np.asarray(values),
    "sqrt": lambda values, knee: np.sign(values) * np.sqrt(np.abs(values)),
    "log": lambda values, knee: np.log(values),
    "symlog": lambda values, knee: np.sign(values) * np.log1p(np.abs(values) / knee),
}
_INVERSES: dict[str, Callable[[float, float], float]] = {
    "linear": lambda place, knee: place,
    "sqrt": lambda place, knee: place * abs(place),
    "log": lambda place, knee: math.exp(place),
    "symlog": lambda place, knee: math.copysign(math.expm1(abs(place)) * knee, place),
}
# The knee of a "symlog" scale: this share of magnitudes is below it, and it is so far from the end.
_BELOW_KNEE, _DECADES = 0.1, 6


@dataclass(frozen=True)
class ColourScale:
    """Colours spread evenly over `limits` (lowest, highest); values beyond take the end colour.

    `knee` is the magnitude up to which a "symlog" scale is nearly linear: colours change with the
    logarithm of 1 + |value| / knee, and with the sign.
    """

    quantity: Quantity
    limits: Limits
    colours: tuple[str, ...]
    below: bool = False
    above: bool = False
    knee: float = 1.0

    def scale(self) -> alt.Scale:
        """For an encoding."""
        return alt.Scale(
            type=self.quantity.scale,
            domain=self._stops(len(self.colours)),
            range=list(self.colours),
            interpolate="rgb",
            clamp=True,
            **({"constant": self.knee} if self.quantity.scale == "symlog" else {}),
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
        values, texts = self._marks(), self.ticks()
        halfway = [(low + high) / 2 for low, high in itertools.pairwise(values)]
        place = " + ".join(f"(datum.value > {middle!r})" for middle in halfway)
        return alt.Legend(
            title=self.quantity.title,
            orient="bottom",
            direction="horizontal",
            titleOrient="top",
            gradientLength=length,
            values=values,
            labelExpr=f"{json.dumps(texts)}[{place}]",
            labelOverlap=False,
            offset=offset,
        )

    def ticks(self) -> list[str]:
        """The numbers under the colour bar: both ends, the middle, quarters where it is bent."""
        texts = [tidy(value, self.quantity.format) for value in self._marks()]
        texts[0] = f"≤ {texts[0]}" if self.below else texts[0]
        texts[-1] = f"≥ {texts[-1]}" if self.above else texts[-1]
        return texts

    def rgba(self, values: np.ndarray) -> np.ndarray:
        """Eight-bit red, green, blue, alpha for each value; undefined is transparent."""
        defined = np.isfinite(values)
        inside = np.clip(np.where(defined, values, self.limits[0]), *self.limits)
        low, high = self._places(np.array(self.limits, dtype=float))
        place = (self._places(inside) - low) / (high - low)
        stops = np.linspace(0, 1, len(self.colours))
        table = np.array([channels(colour) for colour in self.colours])
        rgb = [np.interp(place, stops, table[:, channel]) for channel in range(3)]
        alpha = np.where(defined, 255.0, 0.0)
        return np.rint(np.stack([*rgb, alpha], axis=-1)).astype(np.uint8)

    def _marks(self) -> list[float]:
        """Where the colour bar has its numbers; those of quarters are round."""
        if self.quantity.scale != "symlog":
            return self._stops(3)
        low, lower, middle, upper, high = self._stops(5)
        return [low, float(f"{lower:.0e}"), middle, float(f"{upper:.0e}"), high]

    def _stops(self, n: int) -> list[float]:
        low, high = self._places(np.array(self.limits, dtype=float))
        back = _INVERSES[self.quantity.scale]
        inner = [back(float(place), self.knee) for place in np.linspace(low, high, n)[1:-1]]
        return [float(self.limits[0]), *inner, float(self.limits[1])]

    def _places(self, values: np.ndarray) -> np.ndarray:
        return _TRANSFORMS[self.quantity.scale](values, self.knee)


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
        knee=_knee(defined, high) if quantity.scale == "symlog" else 1.0,
    )


def _knee(values: np.ndarray, high: Number) -> float:
    """Where a "symlog" scale up to `high` turns linear: a tenth of what is not 0 is below it.

    At most six decades below the end, so that rounding errors are not spread over the bar.
    """
    sizes = np.abs(values[values != 0])
    low = float(np.quantile(sizes, _BELOW_KNEE)) if sizes.size else 0.0
    return max(low, high * 10.0**-_DECADES)


def bend_note(values: np.ndarray, quantity: Quantity) -> str:
    """The sentence a caption needs where colours are not in proportion to signed values."""
    if quantity.scale != "symlog":
        return ""
    knee = colour_scale(values, quantity, "light").knee
    return (
        "Colours keep the sign and follow the logarithm of the magnitude; below "
        f"{tidy(knee, '.1g')} they are in proportion to it."
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
