"""One look for every figure, light and dark: colours, fonts and sizes live here only.

On screen the background is transparent, so that the page's own card shows; files get an opaque one
from `attnprobe.export`.
"""

from dataclasses import dataclass
from typing import Any, Literal

import altair as alt

from attnprobe.figures.labels import safe_label

Mode = Literal["light", "dark"]

FONT = '"Source Sans", Inter, "Segoe UI", Helvetica, Arial, sans-serif'


@dataclass(frozen=True)
class Colours:
    """The colours of one mode, by what they are for."""

    page: str
    text: str
    muted: str
    grid: str
    masked: str
    accent: str
    categories: tuple[str, ...]
    diverging: tuple[str, ...]
    halo: str = "#FFFFFF"
    outline: str = "#12171D"


# Okabe & Ito (2008), in an order that keeps the first ones readable on the mode's page: yellow has
# a contrast of 1.3 on white and is used last there.
COLOURS: dict[str, Colours] = {
    "light": Colours(
        page="#FFFFFF",
        text="#1B2733",
        muted="#55626F",
        grid="#E6EAEE",
        masked="#C3CBD3",
        accent="#005F99",
        categories=(
            "#0072B2",
            "#D55E00",
            "#009E73",
            "#CC79A7",
            "#E69F00",
            "#56B4E9",
            "#5C5C5C",
            "#F0E442",
        ),
        # ColorBrewer RdBu, blue below zero.
        diverging=(
            "#053061",
            "#2166AC",
            "#4393C3",
            "#92C5DE",
            "#D1E5F0",
            "#F7F7F7",
            "#FDDBC7",
            "#F4A582",
            "#D6604D",
            "#B2182B",
            "#67001F",
        ),
    ),
    "dark": Colours(
        page="#12171D",
        text="#E4EAF0",
        muted="#A3AFBB",
        grid="#2A343F",
        masked="#4A5663",
        accent="#56B4E9",
        categories=(
            "#56B4E9",
            "#E69F00",
            "#2BC49A",
            "#CC79A7",
            "#F0E442",
            "#FF8A3D",
            "#B8C2CC",
            "#3C8FCB",
        ),
        # The same two hues, with the middle as dark as the page.
        diverging=(
            "#D1E5F0",
            "#92C5DE",
            "#4393C3",
            "#2B6CA8",
            "#23425F",
            "#1E252D",
            "#5C2F2D",
            "#A63A35",
            "#D6604D",
            "#F4A582",
            "#FDDBC7",
        ),
    ),
}

# viridis and cividis (CC0), 17 stops each; colours between two stops are interpolated in RGB, by
# the browser and by the rasteriser alike.
VIRIDIS = (
    "#440154",
    "#48196B",
    "#472D7B",
    "#424086",
    "#3B528B",
    "#34638D",
    "#2C728E",
    "#27828E",
    "#21918D",
    "#1F9F88",
    "#28AE80",
    "#3EBC74",
    "#5DC963",
    "#82D34C",
    "#ABDC32",
    "#D5E21B",
    "#FDE725",
)
CIVIDIS = (
    "#002051",
    "#012B65",
    "#11366C",
    "#25416E",
    "#3B4C6E",
    "#4F576E",
    "#61636F",
    "#706F71",
    "#7E7B75",
    "#8A8677",
    "#989278",
    "#A69F77",
    "#B7AC73",
    "#CABA6A",
    "#DEC85F",
    "#F0D652",
    "#FCE647",
)
PALETTES = {"viridis": VIRIDIS, "cividis": CIVIDIS}

# With the eight colours, so that a series is never told by colour alone.
DASHES: tuple[tuple[int, ...], ...] = (
    (1, 0),
    (7, 3),
    (2, 2),
    (8, 3, 2, 3),
    (12, 4),
    (4, 4),
    (1, 3),
    (6, 2, 2, 2, 2, 2),
)


def fig_config(mode: Mode = "light", *, opaque: bool = False, font: str = FONT) -> dict[str, Any]:
    """The Vega-Lite configuration of every figure in this mode."""
    c = COLOURS[mode]
    text = {
        "labelFont": font,
        "titleFont": font,
        "labelColor": c.text,
        "titleColor": c.text,
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titleFontWeight": 600,
    }
    return {
        "background": c.page if opaque else "transparent",
        "font": font,
        "view": {"stroke": None},
        "axis": text
        | {
            "gridColor": c.grid,
            "domainColor": c.muted,
            "tickColor": c.muted,
            "titlePadding": 8,
            "tickSize": 4,
        },
        "legend": text
        | {
            "titleLimit": 360,
            "labelLimit": 220,
            "symbolStrokeWidth": 2,
            "gradientThickness": 10,
        },
        "header": text,
        "title": {
            "font": font,
            "subtitleFont": font,
            "color": c.text,
            "subtitleColor": c.muted,
            "fontSize": 13,
            "subtitleFontSize": 11,
            "fontWeight": 600,
            "anchor": "start",
        },
        "text": {"font": font, "color": c.text, "fontSize": 11},
        "bar": {"color": c.accent},
        "line": {"strokeWidth": 2, "color": c.accent},
        "rule": {"color": c.muted},
        "point": {"color": c.accent, "filled": True, "size": 40},
        "range": {"category": list(c.categories)},
    }


def themed(
    chart: alt.TopLevelMixin,
    mode: Mode,
    *,
    alt_text: str,
    dense: bool = False,
    elastic: bool = False,
) -> alt.TopLevelMixin:
    """Gives `chart` the look of `mode` and its text alternative; `dense` ones go on a canvas.

    An `elastic` chart has no square cells: its width includes the axes, and a page may stretch it
    to its card. A themed chart is finished: compose first, theme last. It is `chart` itself: altair
    would copy each of its layers.
    """
    chart.config = alt.Config(**fig_config(mode))
    chart.description = safe_label(alt_text, 1000)
    chart.autosize = alt.AutoSizeParams(type="fit-x" if elastic else "pad", contains="padding")
    if dense:
        chart.usermeta = {"embedOptions": {"renderer": "canvas"}}
    return chart
