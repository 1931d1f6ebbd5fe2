"""Files: what is in them, that they are whole, and that nothing typed comes alive in them."""

import html.parser
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pypdf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from attnprobe import export, figures
from attnprobe.errors import ExportFailed
from attnprobe.export.converter import FONTS, WORKER, Converter
from attnprobe.export.render import spec_of
from attnprobe.export.sheet import length, with_own_names, wrapped
from attnprobe.export.table import plain

NASTY = [
    "", " ", "\n", "a", "\u200b", "\x00", "a\x00b", "\x1b[31m", "\ufffe", "\uffff", "\x0b", "\x0c",
    "a\u0301", "\u00e1", "\U0001f600\U0001f600", "\u4e2d\u6587 \u6a21\u578b",
    "\u05e9\u05dc\u05d5\u05dd world", "the cat the dog", "[SEP] hello [MASK]", "<|endoftext|>x",
    "<img src=x onerror=alert(1)>", "</script>", "<script>alert(1)</script>", "$5 and $6",
    "*a* _b_ :red[x] # h", "word " * 600, "\ud83d", "\u202eevil", "'\"\\${x}", "=1+1", "\ufffd",
    "]]>", "--><b>", "{{x}}", "{0}", "NA", "##ing",
]  # fmt: skip
SVG = "{http://www.w3.org/2000/svg}"
PROVENANCE = export.Provenance(
    "org/some-bert",
    revision="86b5e0934494",
    dtype="float32",
    device="cpu",
    head="L2.H5",
    text_digest="ab12cd34ef56",
    n_tokens=5,
    certificate="green: largest error 2.1e-07 of tolerance 3.0e-06",
    versions={"attnprobe": "0.1.0", "torch": "2.13.0"},
    excluded="rows with one key",
    extra={"seed": 7, "threshold": 0.9, "ratio": float("nan")},
)


def figure(tokens=("the", "cat", "the", "##dog", "[SEP]"), **changes) -> export.Figure:
    n = len(tokens)
    values = np.random.default_rng(3).dirichlet(np.ones(n), n)
    frame = figures.matrix_frame(values, list(tokens), "weight", valid=np.tri(n, dtype=bool))
    made = export.Figure(
        "token-map",
        lambda mode: figures.token_map(frame, mode=mode),
        frame,
        "Weights of one head.",
        "Heat map.",
        PROVENANCE,
    )
    return replace(made, **changes)


def nasty_figure() -> export.Figure:
    """Every nasty text as a token, in the caption, the alternative text and the provenance."""
    everything = " ".join(text[:200] for text in NASTY)
    provenance = replace(
        PROVENANCE,
        model="<b>x</b>\x00",
        certificate=everything,
        extra={t[:20]: t[:20] for t in NASTY},
    )
    return figure(NASTY, caption=everything, alt=everything, provenance=provenance)


def unzipped(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = [name for name in archive.namelist() if "_no2" not in name]
        return {Path(name).suffix[1:]: archive.read(name) for name in names}


@pytest.fixture(scope="module")
def pair() -> bytes:
    return export.bundle([figure(), figure()])


@pytest.fixture(scope="module")
def plain_files(pair) -> dict[str, bytes]:
    return unzipped(pair)


@pytest.fixture(scope="module")
def nasty_files() -> dict[str, bytes]:
    return unzipped(export.bundle([nasty_figure()]))


@pytest.fixture(scope="module")
def nasty_pdf_text(nasty_files) -> str:
    return pdf_text(nasty_files["pdf"])


@pytest.fixture(scope="module")
def nasty_report() -> str:
    return export.report([nasty_figure(), figure()], "<script>alert(1)</script>\x00").decode()


def pdf_text(data: bytes) -> str:
    return pypdf.PdfReader(io.BytesIO(data)).pages[0].extract_text()


def read_csv(data: bytes) -> pd.DataFrame:
    """The call that the file itself recommends."""
    return pd.read_csv(io.BytesIO(data), comment="#", keep_default_na=False, na_values=[""])


def unguarded(text: str) -> str:
    """The inverse of the guard against formulas, written from its rule."""
    return text[1:] if re.match(r"''*[=+\-@\t\r]", text) else text


def test_a_bundle_has_each_format_once(plain_files):
    assert sorted(plain_files) == sorted(export.FORMATS)


def test_an_svg_is_xml_with_caption_and_provenance_seen_and_as_metadata(plain_files):
    root = ElementTree.fromstring(plain_files["svg"])
    assert root.tag == SVG + "svg"
    drawn = "\n".join(e.text or "" for e in root.iter(SVG + "text"))
    assert "Weights of one head." in drawn
    for line in PROVENANCE.lines():
        assert line in drawn
    assert "Heat map." in root.findtext(SVG + "desc")
    record = json.loads(root.findtext(SVG + "metadata"))
    assert record["provenance"] == PROVENANCE.as_dict()
    assert record["provenance"]["extra"]["ratio"] == "undefined"


def test_a_pdf_has_its_labels_caption_and_provenance_as_text_that_can_be_searched(plain_files):
    text = pdf_text(plain_files["pdf"])
    for line in ["Weights of one head.", "##dog", "[SEP]", *PROVENANCE.lines()]:
        assert line in text


def test_a_pdf_brings_its_fonts_along(plain_files):
    fonts = pypdf.PdfReader(io.BytesIO(plain_files["pdf"])).pages[0]["/Resources"]["/Font"]
    names = {font.get_object()["/BaseFont"] for font in fonts.values()}
    assert any("Inter-Regular" in name for name in names)


def test_a_png_holds_the_picture_and_its_provenance(plain_files):
    with Image.open(io.BytesIO(plain_files["png"])) as image:
        image.load()
        root = ElementTree.fromstring(plain_files["svg"])
        assert image.width == pytest.approx(2 * float(root.get("width")), abs=2)
        assert json.loads(image.text["Provenance"])["provenance"] == PROVENANCE.as_dict()
        assert "Weights of one head." in image.text["Description"]
        corner = image.convert("RGBA").getpixel((1, 1))
    assert corner == (255, 255, 255, 255)


def test_a_csv_is_the_frame_with_its_provenance_above(plain_files):
    made = figure()
    back = read_csv(plain_files["csv"])
    pd.testing.assert_frame_equal(back, made.frame, check_dtype=False, rtol=1e-15)
    head = [line for line in plain_files["csv"].decode("utf-8-sig").splitlines() if line[0] == "#"]
    for line in ["Weights of one head.", *PROVENANCE.lines()]:
        assert f"# {line}" in head


def test_a_csv_keeps_full_precision():
    values = pd.DataFrame({"x": [1 / 3, 1e-300, np.nan, -0.0, 2**53 + 0.0]})
    text = export.render(figure(frame=values), "csv").decode("utf-8-sig")
    cells = [line for line in text.splitlines() if not line.startswith("#")][1:]
    assert [float(c.strip('"') or "nan") for c in cells] == pytest.approx(
        values["x"].tolist(), rel=0, nan_ok=True
    )


def test_an_undefined_number_is_an_empty_cell(plain_files):
    assert b"nan" not in plain_files["csv"].lower().split(b'"query","key"')[1]


def test_words_that_mean_missing_elsewhere_stay_words():
    words = pd.DataFrame({"token": ["NA", "null", "nan", "#1", "x,y", 'q"q', "a\nb"]})
    back = read_csv(export.render(figure(frame=words), "csv"))
    assert back["token"].tolist() == words["token"].tolist()


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"])), min_size=1))
def test_guarded_text_is_no_formula_and_the_guard_can_be_undone(texts):
    guarded = plain(pd.DataFrame({"token": texts}, dtype=object))["token"].tolist()
    assert not any(g[:1] in ("=", "+", "-", "@", "\t", "\r") for g in guarded)
    assert [unguarded(g) for g in guarded] == texts


def test_numbers_are_not_guarded():
    frame = pd.DataFrame({"difference": [-1.5, 2.0]})
    pd.testing.assert_frame_equal(plain(frame), frame)


def test_nasty_texts_give_whole_files(nasty_files, nasty_pdf_text):
    assert nasty_files["png"].startswith(b"\x89PNG\r\n\x1a\n")
    with Image.open(io.BytesIO(nasty_files["png"])) as image:
        image.load()
    assert nasty_files["pdf"].startswith(b"%PDF-")
    assert "[SEP]" in nasty_pdf_text
    assert nasty_files["svg"].lstrip().startswith(b"<svg")


def test_emoji_are_named_in_a_pdf_and_drawn_in_an_svg(nasty_files, nasty_pdf_text):
    assert "[U+1F600][U+1F600]" in nasty_pdf_text
    assert "\U0001f600" in nasty_files["svg"].decode()


def test_nothing_typed_becomes_an_element_of_the_svg(nasty_files):
    text = nasty_files["svg"].decode()
    assert "<script" not in text
    tags = {e.tag.removeprefix(SVG) for e in ElementTree.fromstring(text).iter()}
    drawing = {"svg", "g", "path", "text", "rect", "image", "title", "desc", "metadata", "defs"}
    assert tags <= drawing | {"linearGradient", "radialGradient", "stop", "clipPath", "line"}
    attributes = {a for e in ElementTree.fromstring(text).iter() for a in e.attrib}
    assert not any(a.lower().startswith("on") for a in attributes)


def test_nasty_tokens_come_back_from_the_csv(nasty_files):
    back = read_csv(nasty_files["csv"])
    assert len(back) == len(NASTY) ** 2
    once = back.drop_duplicates("query").sort_values("query")["query_token"].fillna("")
    assert [unguarded(t) for t in once] == figures.safe_labels(NASTY)


class Tags(html.parser.HTMLParser):
    """What a browser would see as elements, links and text."""

    def __init__(self):
        super().__init__()
        self.tags, self.links, self.events, self.text = set(), [], [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.links += [v for k, v in attrs if k in ("href", "src", "xlink:href")]
        self.events += [k for k, _ in attrs if k.startswith("on")]

    def handle_data(self, data):
        self.text += data


def test_a_report_has_no_script_and_asks_nobody_for_anything(nasty_report):
    seen = Tags()
    seen.feed(nasty_report)
    assert not seen.tags & {"script", "iframe", "object", "embed", "link", "img", "b"}
    assert seen.events == []
    assert all(link.startswith(("data:", "#")) for link in seen.links)
    assert "default-src 'none'" in nasty_report
    assert "<script" not in nasty_report
    assert "\x00" not in nasty_report


def test_a_report_shows_title_captions_and_provenance_as_text(nasty_report):
    seen = Tags()
    seen.feed(nasty_report)
    for line in ["<script>alert(1)</script>", "Weights of one head.", *PROVENANCE.lines()]:
        assert line in seen.text


def test_drawings_of_one_report_do_not_share_names(nasty_report):
    ids = re.findall(r'\bid="([^"]+)"', nasty_report)
    assert ids
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]+)\)", nasty_report)) <= set(ids)


def test_renamed_parts_are_still_found_by_those_that_use_them():
    ns = "http://www.w3.org/1999/xlink"
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="{ns}"><g id="a"/>'
        '<path fill="url(#a)" clip-path="url(#a)"/><use xlink:href="#a"/><a href="#b"/></svg>'
    )
    root = with_own_names(ElementTree.fromstring(svg), "f1-")
    group, path, use, link = list(root)
    assert group.get("id") == "f1-a"
    assert path.attrib == {"fill": "url(#f1-a)", "clip-path": "url(#f1-a)"}
    assert use.get(f"{{{ns}}}href") == "#f1-a"
    assert link.get("href") == "#b"


def test_equal_figures_give_equal_bytes_whatever_the_hour(plain_files):
    for format in ("png", "csv"):
        assert export.render(figure(), format) == plain_files[format]


def test_files_of_a_zip_carry_no_clock_and_equal_names_are_numbered(pair):
    with zipfile.ZipFile(io.BytesIO(pair)) as archive:
        names = archive.namelist()
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert len(set(names)) == len(names) == 8
    assert "attnprobe_org-some-bert_L2.H5_token-map_no2.svg" in names


def test_a_file_name_suits_every_file_system():
    assert export.file_name(figure(), "svg") == "attnprobe_org-some-bert_L2.H5_token-map.svg"
    hostile = replace(PROVENANCE, model="../../etc/passwd\x00", head=None)
    name = export.file_name(figure(name="a/b:c", provenance=hostile), "pdf")
    assert re.fullmatch(r"[A-Za-z0-9._=-]+", name)
    assert ".." not in name


def test_files_are_light_whatever_the_screen_and_in_the_file_font():
    spec = spec_of(figure())
    assert spec["config"]["font"].startswith("Inter")
    assert spec["config"]["axis"]["labelColor"] == figures.COLOURS["light"].text
    assert "usermeta" not in spec


def test_a_crash_of_the_converter_is_one_sentence_and_this_process_lives():
    bad = {
        "mark": "text",
        "data": {"values": [{"t": "a\x00b"}]},
        "encoding": {"text": {"field": "t"}},
    }
    with Converter() as converter, pytest.raises(ExportFailed, match="converter stopped"):
        converter.svg(bad)


def test_a_refusal_of_the_converter_leaves_it_running():
    good = {"mark": "point", "data": {"values": [{"a": 1}]}}
    with Converter() as converter:
        with pytest.raises(ExportFailed, match="PDF could not be made"):
            converter.pdf("this is no drawing")
        assert converter.svg(good).startswith("<svg")


def test_a_font_that_cannot_be_embedded_gives_a_picture_of_the_page(monkeypatch):
    def refuse(self, svg):
        raise ExportFailed("subsetting a font")

    monkeypatch.setattr(Converter, "pdf", refuse)
    data = export.render(figure(), "pdf")
    reader = pypdf.PdfReader(io.BytesIO(data))
    assert len(reader.pages[0].images) == 1
    assert json.loads(reader.metadata.subject)["provenance"] == PROVENANCE.as_dict()


def test_no_converter_is_left_running():
    with Converter() as converter:
        process = converter._process
        assert process.poll() is None
    assert process.poll() is not None


def test_the_converter_fetches_nothing():
    spec = {"mark": "point", "data": {"url": "http://localhost:1/x.json"}, "encoding": {}}
    with Converter() as converter, pytest.raises(ExportFailed, match="not allowed"):
        converter.svg(spec)


def test_the_worker_needs_nothing_of_attnprobe():
    path = str(WORKER.parent)
    code = f"import sys; sys.path.insert(0, {path!r}); import worker; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"attnprobe", "torch", "numpy"} & set(done.stdout.split())


def test_the_fonts_come_with_their_licence():
    assert "SIL OPEN FONT LICENSE" in (FONTS / "OFL.txt").read_text(encoding="utf-8")
    assert {p.name for p in FONTS.glob("*.otf")} == {"Inter-Regular.otf", "Inter-SemiBold.otf"}


@given(st.text(min_size=1), st.integers(40, 400))
def test_wrapped_lines_fit_and_keep_every_letter(text, width):
    lines = list(wrapped(text, 12, width))
    assert "".join("".join(lines).split()) == "".join(text.split())
    for line in lines:
        assert length(line, 12) <= width or len(line) == 1


def test_labels_in_other_scripts_get_a_note_about_fonts():
    assert export.font_note(["the", "##é", "Ġ", "→"]) == ""
    note = export.font_note(["中文", "שלום"])
    assert "Hebrew" in note
    assert "Noto Sans CJK" in note


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    target = tmp_path / "figure.svg"
    assert export.write(target, b"old") == target

    def die(source, destination):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", die)
        with pytest.raises(ExportFailed, match="disk full"):
            export.write(target, b"new")
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]
    export.write(target, b"new")
    assert target.read_bytes() == b"new"


def test_a_missing_folder_is_one_sentence(tmp_path):
    with pytest.raises(ExportFailed, match="could not be written"):
        export.write(tmp_path / "no" / "figure.svg", b"x")


def test_provenance_prints_only_what_is_known():
    assert export.Provenance("m").lines() == ["Model: m"]
    assert export.Provenance("m").as_dict() == {"model": "m"}
    assert "Ratio: undefined" in PROVENANCE.lines()
    assert "Threshold: 0.9" in PROVENANCE.lines()


def test_a_screen_is_given_the_rows_that_a_file_is_given():
    values = np.random.default_rng(0).normal(size=(7, 7))
    values[2, 3] = np.nan
    frame = figures.matrix_frame(values, list("abcdefg"), "weight")
    made = figure(frame=frame, chart_for=lambda mode: figures.token_map(frame, mode=mode))
    screen, file = made.spec("light"), spec_of(made)
    drawn, written = (each["datasets"][each["layer"][0]["data"]["name"]] for each in (screen, file))
    assert len(written) == 48
    assert drawn.to_dict("records") == list(written)
    frame.loc[6, "weight"] += 1
    assert made.spec("light")["layer"][0]["data"] != screen["layer"][0]["data"]
