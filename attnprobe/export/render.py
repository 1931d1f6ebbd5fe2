"""One figure to one file, many to a zip or to a report that stands alone."""

import base64
import copy
import html
import io
import json
import zipfile
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from attnprobe.errors import ExportFailed
from attnprobe.export.converter import Converter
from attnprobe.export.figure import Figure, Format, file_name, prose
from attnprobe.export.sheet import (
    FONT,
    crisp,
    record,
    sheet,
    text_of,
    with_own_names,
    without_emoji,
)
from attnprobe.export.table import to_csv
from attnprobe.figures import fig_config

PNG_SCALE = 2.0
# Stamped on every entry of a zip: the hour of the export is no part of a figure.
_EPOCH = (1980, 1, 1, 0, 0, 0)


def render(figure: Figure, format: Format) -> bytes:
    """One figure as the bytes of an SVG, PDF, PNG or CSV file with caption and provenance in it."""
    if format == "csv":
        return to_csv(figure)
    with Converter() as converter:
        return _drawn(converter, figure, (format,))[format]


def bundle(figures: Sequence[Figure]) -> bytes:
    """All figures in all formats as one zip.

    Equal figures give equal bytes, but for the PDFs: their objects come in another order each time.
    """
    buffer = io.BytesIO()
    with Converter() as converter, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for stem, figure in zip(_stems(figures), figures, strict=True):
            files = _drawn(converter, figure, ("svg", "pdf", "png")) | {"csv": to_csv(figure)}
            for format, data in files.items():
                entry = zipfile.ZipInfo(f"{stem}.{format}", _EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, data)
    return buffer.getvalue()


def report(figures: Sequence[Figure], title: str) -> bytes:
    """One HTML file with drawings, captions, provenance and data inside.

    No script, no request to anywhere; what a person typed is text in it and nothing else.
    """
    with Converter() as converter:
        parts = [_section(converter, figure, i) for i, figure in enumerate(figures)]
    heading = html.escape(prose(title))
    return _PAGE.format(title=heading, figures="\n".join(parts)).encode()


def _drawn(converter: Converter, figure: Figure, formats: Sequence[Format]) -> dict[Format, bytes]:
    page = sheet(converter.svg(spec_of(figure)), figure)
    smooth = text_of(without_emoji(copy.deepcopy(page)))
    svg = text_of(crisp(page))
    acts = {
        "svg": lambda: svg.encode(),
        "png": lambda: _with_record(converter.png(svg, PNG_SCALE), figure),
        "pdf": lambda: _pdf(converter, smooth, figure),
    }
    return {format: acts[format]() for format in formats}


def spec_of(figure: Figure) -> dict[str, Any]:
    """The figure's Vega-Lite for a file: light, in the file's own font, on a ground of its own."""
    spec = figure.chart("light").to_dict()
    spec["config"] = fig_config("light", font=FONT)
    spec.pop("usermeta", None)
    return spec


def _pdf(converter: Converter, page: str, figure: Figure) -> bytes:
    """A PDF with real text; should a font not embed, a picture of the same page.

    The picture comes from a converter of its own, for the first may have ended with its refusal.
    """
    try:
        return converter.pdf(page)
    except ExportFailed:
        with Converter() as fresh:
            return _picture_pdf(fresh.png(page, PNG_SCALE), figure)


def _picture_pdf(png: bytes, figure: Figure) -> bytes:
    buffer = io.BytesIO()
    note = json.dumps(record(figure), ensure_ascii=False)
    with Image.open(io.BytesIO(png)) as image:
        image.convert("RGB").save(
            buffer,
            "PDF",
            resolution=72 * PNG_SCALE,
            title=prose(figure.name),
            subject=note,
            creator="attnprobe",
            creationDate=None,
            modDate=None,
        )
    return buffer.getvalue()


def _with_record(png: bytes, figure: Figure) -> bytes:
    """The PNG with caption, text alternative and provenance in its text chunks."""
    info, buffer = PngInfo(), io.BytesIO()
    info.add_itxt("Title", prose(figure.name))
    info.add_itxt("Description", prose(f"{figure.alt} {figure.caption}"))
    info.add_itxt("Provenance", json.dumps(record(figure), ensure_ascii=False))
    info.add_text("Software", "attnprobe")
    with Image.open(io.BytesIO(png)) as image:
        image.save(buffer, "PNG", pnginfo=info, dpi=(96 * PNG_SCALE, 96 * PNG_SCALE))
    return buffer.getvalue()


def _stems(figures: Sequence[Figure]) -> list[str]:
    """File names without ending; equal ones are numbered."""
    stems: list[str] = []
    for figure in figures:
        stem = file_name(figure, "csv").removesuffix(".csv")
        taken = sum(s == stem or s.startswith(f"{stem}_no") for s in stems)
        stems.append(f"{stem}_no{taken + 1}" if taken else stem)
    return stems


def _section(converter: Converter, figure: Figure, i: int) -> str:
    drawing = crisp(_parsed(converter.svg(spec_of(figure))))
    drawing.set("role", "img")
    drawing.set("aria-label", prose(figure.alt))
    data = base64.b64encode(to_csv(figure)).decode()
    return _SECTION.format(
        svg=text_of(with_own_names(drawing, f"figure{i}-")),
        caption=html.escape(prose(figure.caption)),
        facts="".join(f"<li>{html.escape(line)}</li>" for line in figure.provenance.lines()),
        name=html.escape(file_name(figure, "csv")),
        data=data,
    )


def _parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


_SECTION = """<figure>
<div class="drawing">{svg}</div>
<figcaption>{caption}</figcaption>
<ul>{facts}</ul>
<p><a download="{name}" href="data:text/csv;charset=utf-8;base64,{data}">Data (CSV)</a></p>
</figure>"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light; }}
body {{ font: 15px/1.5 Inter, "Source Sans 3", "Segoe UI", Helvetica, Arial, sans-serif;
 color: #1B2733; background: #FFFFFF; max-width: 960px; margin: 2rem auto; padding: 0 1rem; }}
figure {{ margin: 0 0 2rem; padding: 1.25rem; border: 1px solid #D5DCE3; border-radius: 6px; }}
.drawing {{ overflow-x: auto; }}
figcaption {{ margin-top: 0.75rem; }}
ul {{ margin: 0.5rem 0 0; padding: 0; list-style: none; color: #55626F; font-size: 0.8rem; }}
a {{ color: #005F99; }}
</style>
</head>
<body>
<h1>{title}</h1>
{figures}
</body>
</html>
"""
