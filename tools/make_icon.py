"""Draws the page icon, `attnprobe/ui/icon.png`: a small attention map in viridis."""

from pathlib import Path

import numpy as np
from PIL import Image

from attnprobe.figures.colour import channels
from attnprobe.figures.theme import VIRIDIS

CELLS = np.array(
    [
        [16, 2, 1, 0, 0],
        [9, 5, 3, 1, 0],
        [2, 16, 4, 2, 1],
        [1, 3, 14, 6, 2],
        [0, 1, 4, 16, 7],
    ]
)
PIXELS = 24


def icon() -> Image.Image:
    palette = np.array([channels(colour) for colour in VIRIDIS], dtype=np.uint8)
    return Image.fromarray(np.kron(palette[CELLS], np.ones((PIXELS, PIXELS, 1), dtype=np.uint8)))


if __name__ == "__main__":
    icon().save(Path(__file__).parents[1] / "attnprobe/ui/icon.png", optimize=True)
