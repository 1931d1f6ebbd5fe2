"""The page around a chart: opaque ground, caption, provenance, and the same as metadata."""

import json
import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from xml.etree import ElementTree as ET

from PIL import ImageFont

from attnprobe.export.converter import FONTS
from attnprobe.export.figure import Figure, prose
from attnprobe.figures import COLOURS, Mode
from attnprobe.metrics import Number

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
FONT = 'Inter, "Source Sans 3", "Segoe UI", Helvetica, Arial, sans-serif'
MARGIN, NARROWEST = 20, 480
CAPTION, NOTE = (12, 17), (9.5, 13.5)

ET.register_namespace("", SVG)
ET.register_namespace("xlink", XLINK)


def sheet(chart_svg: str, figure: Figure, mode: Mode = "light") -> ET.Element:
    """The chart with its caption and provenance under it, as one SVG element."""
    chart = ET.fromstring(chart_svg)
    width = max(NARROWEST, float(chart.get("width", 0)))
    c = COLOURS[mode]
    top = MARGIN + float(chart.get("height", 0)) + 24
    caption, top = _paragraphs([prose(figure.caption)], CAPTION, c.text, width, top)
    notes, top = _paragraphs(figure.provenance.lines(), NOTE, c.muted, width, top + 6)
    size = (width + 2 * MARGIN, top - NOTE[1] + MARGIN)
    root = ET.Element(_svg("svg"), _frame(size))
    ET.SubElement(root, _svg("title")).text = prose(figure.name)
    ET.SubElement(root, _svg("desc")).text = prose(f"{figure.alt} {figure.caption}")
    ET.SubElement(root, _svg("metadata")).text = json.dumps(record(figure), ensure_ascii=False)
    ET.SubElement(root, _svg("rect"), {"width": "100%", "height": "100%", "fill": c.page})
    place = ET.SubElement(root, _svg("g"), {"transform": f"translate({MARGIN},{MARGIN})"})
    place.extend(list(chart))
    root.extend([*caption, *notes])
    return root


def record(figure: Figure) -> dict[str, object]:
    """Caption and provenance as one JSON-able object."""
    return {"caption": prose(figure.caption), "provenance": figure.provenance.as_dict()}


def crisp(root: ET.Element) -> ET.Element:
    """Cells without hairlines between them at any zoom: edges on whole pixels.

    The stroke in the cell's own colour, which does the same on screen and in a PDF, goes.
    """
    for group in root.iter(_svg("g")):
        if "mark-rect role-mark" in group.get("class", ""):
            group.set("shape-rendering", "crispEdges")
            for cell in group:
                if cell.get("stroke") == cell.get("fill"):
                    cell.attrib.pop("stroke", None)
                    cell.attrib.pop("stroke-width", None)
    return root


def without_emoji(root: ET.Element) -> ET.Element:
    """Emoji by code point: a colour font cannot be embedded into a PDF."""
    for element in root.iter():
        if element.text and element.tag in (_svg("text"), _svg("tspan")):
            element.text = "".join(map(_emoji, element.text))
    return root


def with_own_names(root: ET.Element, prefix: str) -> ET.Element:
    """Ids made unique by `prefix`, so that several drawings can share one document."""
    known = {element.get("id") for element in root.iter()} - {None}
    for element in root.iter():
        for key, value in element.attrib.items():
            if key == "id":
                element.set(key, prefix + value)
            elif key in ("href", f"{{{XLINK}}}href") and value[1:] in known:
                element.set(key, "#" + prefix + value[1:])
            elif "url(#" in value:
                element.set(key, re.sub(r"url\(#", f"url(#{prefix}", value))
    return root


def text_of(root: ET.Element) -> str:
    """The element as text."""
    return ET.tostring(root, encoding="unicode")


def _svg(tag: str) -> str:
    return f"{{{SVG}}}{tag}"


def _frame(size: tuple[Number, Number]) -> dict[str, str]:
    width, height = (f"{side:g}" for side in size)
    view = f"0 0 {width} {height}"
    return {"version": "1.1", "role": "img", "width": width, "height": height, "viewBox": view}


def _paragraphs(
    texts: list[str], face: tuple[Number, Number], colour: str, width: Number, top: Number
) -> tuple[list[ET.Element], Number]:
    """Wrapped text elements from the line `top` down, and where the next line would stand."""
    size, leading = face
    made = []
    for line in (line for text in texts for line in wrapped(text, size, width)):
        look = {"font-family": FONT, "font-size": f"{size}px", "fill": colour}
        element = ET.Element(_svg("text"), {"x": str(MARGIN), "y": f"{top:g}", **look})
        element.text = line
        made.append(element)
        top += leading
    return made, top


def wrapped(text: str, size: Number, width: Number) -> Iterator[str]:
    """Lines of at most `width` px; a word that is longer than a line is cut."""
    line = ""
    for word in text.split():
        for piece in _pieces(word, size, width):
            longer = f"{line} {piece}" if line else piece
            if line and length(longer, size) > width:
                yield line
                longer = piece
            line = longer
    if line:
        yield line


def _pieces(word: str, size: Number, width: Number) -> Iterator[str]:
    if length(word, size) <= width:
        yield word
        return
    piece = ""
    for char in word:
        if piece and length(piece + char, size) > width:
            yield piece
            piece = ""
        piece += char
    yield piece


def length(text: str, size: Number) -> Number:
    """How wide the file's own font sets `text`, px; a full-width character counts one em."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    narrow = "".join(c for c in text if unicodedata.east_asian_width(c) not in "WF")
    return _font().getlength(narrow) * size / 100 + wide * size


@cache
def _font() -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(FONTS / "Inter-Regular.otf"), 100)


def _emoji(char: str) -> str:
    if char in "\u200d\ufe0f":
        return ""
    pictured = unicodedata.category(char) in ("So", "Sk") and ord(char) > 0xFFFF
    return f"[U+{ord(char):X}]" if pictured else char
