"""Uploaded CSV and JSON: huge, malformed, full of formulas, with NUL."""

import io
import json
import os

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprobe import data
from attnprobe.data import LabelledText, from_bytes, pasted, read_file
from attnprobe.errors import AttnprobeError, BadInput
from attnprobe.export.table import plain

FEW = settings(max_examples=25, derandomize=True, deadline=None)
ANY = st.text(st.characters(codec=None), max_size=30)
FORMULAS = ["=1+1", "+1", "-2", "@SUM(A1)", "\t=1", "=cmd|' /C calc'!A0", "'=1", "''@x"]


def texts(name: str, content: bytes) -> list[LabelledText]:
    return list(from_bytes(name, content).texts)


def test_a_row_longer_than_its_header_never_moves_the_columns():
    """pandas takes the first column for an index then, and every text becomes its label."""
    with pytest.raises(BadInput, match="line 2"):
        texts("a.csv", b"text,label\nthe cat,x,more\na dog,y,more\n")
    with pytest.raises(BadInput, match="line 3"):
        texts("a.csv", b"text,label\nthe cat,x\na dog,y,more\n")


def test_a_short_row_has_no_label_and_a_label_alone_is_no_text():
    assert texts("a.csv", b"text,label\nthe cat\n") == [LabelledText("the cat", None)]
    assert texts("a.csv", b"label,text\nx\ny,a dog\n") == [LabelledText("a dog", "y")]


def test_spaces_round_a_column_s_name_do_not_hide_it():
    assert texts("a.csv", b"text, label \nthe cat,x\n") == [LabelledText("the cat", "x")]


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_a_line_end_of_unicode_inside_a_json_string_ends_no_line(end):
    line = json.dumps({"text": f"the{end}cat"}, ensure_ascii=False)
    if end < " ":
        line = json.dumps({"text": f"the{end}cat"})
    assert texts("a.jsonl", line.encode()) == [LabelledText(f"the{end}cat")]


@pytest.mark.parametrize(
    "line", ['{"text": "a\\ud800"}', '{"text": "a", "label": "\\udfff"}'], ids=["text", "label"]
)
def test_half_a_character_is_refused_where_it_comes_in(line):
    with pytest.raises(BadInput, match=r"text 1 of a\.jsonl .* lone surrogate"):
        texts("a.jsonl", line.encode())
    with pytest.raises(BadInput, match="lone surrogate"):
        pasted("a fine text\na\ud800")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", b"[" * 100_000),
        ("a.jsonl", b'{"text": "a", "x": ' + b"[" * 90_000 + b"]" * 90_000 + b"}"),
        ("a.jsonl", b'{"text": "a", "label": ' + b"9" * 5_000 + b"}"),
        ("a.jsonl", b'{"text": "a\0b"}'),
        ("a.csv", b'text\n"never closed'),
        ("a.csv", b"text\n\0\n"),
        ("a.csv", b""),
        ("a.csv", b"\n\n\n"),
        ("a.csv", b"," * 100_000),
        ("a.csv", "text\nà".encode("utf-16")),
        ("a.txt", b"\xff\xfe\xfd"),
    ],
    ids=lambda value: ascii(value)[:24],
)
def test_a_malformed_file_is_one_short_sentence(name, content):
    with pytest.raises(BadInput) as refused:
        texts(name, content)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500


def test_a_file_that_is_too_large_is_refused_before_it_is_parsed(monkeypatch):
    monkeypatch.setattr(data.csv, "reader", lambda *_, **__: pytest.fail("it was parsed"))
    with pytest.raises(BadInput, match="MiB"):
        texts("a.csv", b"text\n" + b"a\n" * (data.MAX_BYTES // 2))


def test_one_text_of_a_megabyte_is_kept_whole():
    long = "word " * 200_000
    assert texts("a.csv", b'text\n"' + long.encode() + b'"\n') == [LabelledText(long.strip())]


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_formula_comes_in_as_text_and_leaves_as_no_formula(formula):
    cell = formula.replace('"', '""')
    (read,) = texts("a.csv", f'text\n"{cell}"\n'.encode())
    assert read.text == formula.strip()
    written = plain(pd.DataFrame({"text": [read.text]})).to_csv(index=False)
    assert pd.read_csv(io.StringIO(written))["text"][0][0] == "'"


def split_or_said(read: data.TextSet) -> str:
    """Splits into two parts that are the whole, or says why there are no two."""
    try:
        parts = read.split()
    except BadInput as refused:
        return str(refused)
    return "split" if sum(map(len, parts)) == len(read) else "some texts\nare gone"


@given(st.lists(st.tuples(ANY, ANY), min_size=1, max_size=6))
@FEW
def test_any_table_gives_its_texts_or_one_sentence(rows):
    frame = pd.DataFrame(rows, columns=["text", "label"])
    content = frame.to_csv(index=False).encode("utf-8", "surrogatepass")
    lines = "\n".join(map(json.dumps, frame.to_dict("records"))).encode()
    for name, given_bytes in (("a.csv", content), ("a.jsonl", lines)):
        try:
            read = from_bytes(name, given_bytes)
        except AttnprobeError:
            continue
        expected = [text.strip() for text, _ in rows if text.strip()]
        if name == "a.jsonl":
            assert [text.text for text in read.texts] == expected
        assert read.digest
        assert "\n" not in split_or_said(read)


@given(st.sampled_from(["a.csv", "a.jsonl", "a.txt"]), st.binary(max_size=200), st.data())
@FEW
def test_a_good_file_with_any_bytes_inside_is_texts_or_one_sentence(name, extra, draw):
    good = {
        "a.csv": b"text,label\nthe cat,x\na dog,y\n",
        "a.jsonl": b'{"text": "the cat"}\n{"text": "a dog"}\n',
        "a.txt": b"the cat\na dog\n",
    }[name]
    at = draw.draw(st.integers(0, len(good)))
    try:
        assert len(from_bytes(name, good[:at] + extra + good[at:])) > 0
    except BadInput as refused:
        assert_one_sentence(str(refused))


def assert_one_sentence(sentence: str) -> None:
    assert "\n" not in sentence
    assert 0 < len(sentence) < 600


@pytest.mark.parametrize(
    "name", ["a\0b.csv", "~nosuchuser/x.csv", "x" * 5_000, "", ".", "pipe.csv"]
)
def test_a_path_that_is_no_file_is_one_sentence_and_nothing_is_waited_for(name, tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(BadInput, match=r"check the path|no ordinary file"):
        read_file(name if name.startswith("~") else tmp_path / name)
