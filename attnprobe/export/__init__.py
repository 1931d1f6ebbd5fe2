"""A chart, its frame and its provenance as files: SVG, PDF, PNG, CSV, zip, HTML report.

Made on this machine without a browser and without the network. Caption and provenance are in every
file: as visible text and as metadata in SVG (title, desc, metadata) and PNG (text chunks), as real
text in PDF, as "#" lines above the data in CSV.
"""

from attnprobe.export.figure import FORMATS, Figure, Format, Provenance, file_name
from attnprobe.export.files import write
from attnprobe.export.render import bundle, render, report
from attnprobe.export.scripts import font_note

__all__ = [
    "FORMATS",
    "Figure",
    "Format",
    "Provenance",
    "bundle",
    "file_name",
    "font_note",
    "render",
    "report",
    "write",
]
