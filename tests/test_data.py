"""Texts and labels from every source, and the split into two disjoint parts."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprobe import data
from attnprobe.data import LabelledText, TextSet
from attnprobe.errors import AttnprobeError, BadInput


def test_pasted_lines_become_texts_and_blank_lines_are_left_out():
    assert [t.text for t in data.pasted("one\n\n  two  \n").texts] == ["one", "two"]


def test_a_csv_file_gives_texts_and_labels(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('label,text\nx,"one, two"\ny,three\n')
    assert data.read_file(path).texts == (LabelledText("one, two", "x"), LabelledText("three", "y"))


def test_a_jsonl_file_gives_texts_and_labels_whatever_their_type():
    content = '{"text": "one", "label": 3}\n\n{"text": "two", "label": "x"}\n'
    assert [t.label for t in data.from_bytes("a.jsonl", content.encode()).texts] == ["3", "x"]


def test_texts_that_look_like_numbers_or_missing_values_stay_texts():
    assert [t.text for t in data.from_bytes("a.csv", b"text\nNA\n007\n").texts] == ["NA", "007"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", b"body\nx\n", "no column 'text'"),
        ("a.csv", b"", "no CSV table"),
        ("a.csv", b'text\n"unclosed\n', "no CSV table"),
        ("a.csv", b"text,label\na,x\nb,\n", "label for 1 of 2"),
        ("a.txt", b"a\0b", "NUL"),
        ("a.txt", b"\xff\xfe", "not UTF-8"),
        ("a.txt", b"\n \n", "holds no text"),
        ("a.xlsx", b"PK", "no known kind"),
        ("a.jsonl", b"{", "line 1 of a.jsonl"),
        ("a.jsonl", b'{"text": 3}', 'no "text"'),
        ("a.jsonl", b"[" * 100_000, "line 1"),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(name, content, said):
    with pytest.raises(BadInput, match=said):
        data.from_bytes(name, content)


def test_too_large_and_too_many_are_refused_with_both_figures(monkeypatch, tmp_path):
    monkeypatch.setattr(data, "MAX_TEXTS", 2)
    with pytest.raises(BadInput, match="holds 3 texts and at most 2"):
        data.pasted("a\nb\nc")
    monkeypatch.setattr(data, "MAX_BYTES", 4)
    (tmp_path / "a.txt").write_text("12345")
    with pytest.raises(BadInput, match="MiB"):
        data.read_file(tmp_path / "a.txt")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BadInput, match="cannot be read"):
        data.read_file(tmp_path / "nowhere.txt")


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([".txt", ".csv", ".jsonl"]), st.binary(max_size=300))
def test_any_bytes_give_texts_or_one_named_failure(suffix, content):
    try:
        found = data.from_bytes("a" + suffix, content)
    except AttnprobeError:
        return
    assert len(found) >= 1
    assert all(text.text for text in found.texts)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abcdefgh"), st.sampled_from(["x", "y"])), min_size=4, max_size=20
    ),
    st.integers(0, 3),
)
def test_a_split_is_disjoint_complete_and_blind_to_order(pairs, seed):
    texts = TextSet("t", tuple(LabelledText(a, b) for a, b in dict(pairs).items()))
    try:
        scoring, evaluation = texts.split(seed=seed)
    except BadInput:
        return
    backwards = TextSet("t", texts.texts[::-1])
    assert not set(scoring.texts) & set(evaluation.texts)
    assert set(scoring.texts) | set(evaluation.texts) == set(texts.texts)
    assert set(backwards.split(seed=seed)[0].texts) == set(scoring.texts)


def test_equal_texts_never_land_on_both_sides():
    texts = TextSet("t", tuple(LabelledText(w) for w in ["a", "a", "b", "b", "c", "a"]))
    scoring, evaluation = texts.split()
    assert not {t.text for t in scoring.texts} & {t.text for t in evaluation.texts}


def test_one_text_cannot_be_split():
    with pytest.raises(BadInput, match="leaves scoring or evaluation without any"):
        data.pasted("only").split()


def test_the_bundled_topics_are_many_balanced_different_and_explained():
    topics = data.bundled("topics")
    counts = [sum(t.label == label for t in topics.texts) for label in topics.labels]
    assert len(topics) >= 120
    assert 4 <= len(counts) <= 6
    assert len(set(counts)) == 1
    assert len({t.text for t in topics.texts}) == len(topics)
    assert set(topics.sentences) == set(topics.labels)
    for part in topics.split():
        assert set(part.labels) == set(topics.labels)


def test_the_bundled_prose_is_a_page_of_paragraphs():
    prose = data.bundled("prose")
    assert len(prose) >= 20
    assert prose.labels == ()
    assert sum(len(t.text) for t in prose.texts) > 4000


def test_the_first_texts_keep_the_classes_balanced():
    some = data.bundled("topics").first(10)
    assert sorted(t.label for t in some.texts) == sorted([*data.bundled("topics").labels] * 2)


def test_the_digest_follows_the_content_and_not_the_name():
    one, other = data.pasted("a\nb"), data.from_bytes("x.txt", b"a\nb")
    assert one.digest == other.digest != data.pasted("b\na").digest


def test_json_labels_of_null_count_as_missing():
    content = json.dumps({"text": "a", "label": None})
    assert data.from_bytes("a.jsonl", content.encode()).texts[0].label is None
