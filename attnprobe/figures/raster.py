"""Arrays to pixels: pooling, hatching, PNG data URLs."""

import base64
import io

import numpy as np
from PIL import Image

from attnprobe.figures.colour import channels
from attnprobe.metrics import Kind

# Half the time of the usual 6 for a fifth more bytes.
_COMPRESSION = 3


def cell_size(n: int, size: int, largest: int = 44) -> int:
    """Whole pixels per cell for `n` cells on a side of about `size` px: fractions leave seams."""
    return int(min(largest, max(1, size // max(1, n))))


def pool_max(values: np.ndarray, most: int) -> np.ndarray:
    """`values` [row column] with at most `most` cells a side, each the maximum of those it covers.

    The mean would wash out stripes one cell wide. A cell is undefined only if all under it are.
    """
    for axis in (0, 1):
        every = stride(values.shape[axis], most)
        if every == 1:
            continue
        starts = np.arange(0, values.shape[axis], every)
        values = np.fmax.reduceat(values, starts, axis=axis)
    return values


def pooled(values: np.ndarray, most: int, kind: Kind) -> np.ndarray:
    """As `pool_max`, but where values are signed each cell is the one of largest magnitude."""
    if kind != "diverging":
        return pool_max(values, most)
    high, low = pool_max(values, most), -pool_max(-values, most)
    return np.where(-low > high, low, high)


def stride(n: int, most: int) -> int:
    """How many cells share a pixel when `n` cells have to fit into `most`."""
    return max(1, -(-n // most))


def hatch(cells: np.ndarray, step: int, colour: str) -> np.ndarray:
    """RGBA pixels of `cells` (boolean [row column]), `step` px each, diagonal lines where true."""
    pixels = np.kron(cells, np.ones((step, step), dtype=bool)).astype(bool)
    row, col = np.indices(pixels.shape)
    rgba = np.zeros((*pixels.shape, 4), dtype=np.uint8)
    rgba[pixels & ((row + col) % 6 == 0)] = (*channels(colour), 255)
    return rgba


def png_url(rgba: np.ndarray) -> str:
    """An RGBA array [row column 4] as a PNG data URL."""
    buffer = io.BytesIO()
    Image.fromarray(rgba).save(buffer, "PNG", compress_level=_COMPRESSION)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
