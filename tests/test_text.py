"""Tokens as a person reads them, limits, windows, padding."""

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprobe.errors import BadText, TextTooLong
from attnprobe.text import Reader, display_token

BERT = Reader(tiny.wordpiece(), max_tokens=64)
GPT2 = Reader(tiny.byte_level(), max_tokens=64)
ROBERTA = Reader(tiny.byte_level(wrapped=True), max_tokens=64)

NASTY = [
    "a\x00b",
    "\x1b[31m",
    "\ufffe",
    "a\u0301",
    "á",
    "😀😀",
    "中文 模型",
    "שלום world",
    "the cat the dog",
    "zebra apple mango",
    "1 2 3 4 5 6 7 8 9 10 11",
    "[SEP] hello [MASK]",
    "<|endoftext|>x",
    "<img src=x onerror=alert(1)>",
    "</script>",
    "$5 and $6",
    "*a* _b_ :red[x] # h",
]


def test_special_tokens_wrap_the_text_and_are_marked():
    tokens = BERT.read("The cat")
    assert tokens.display == ("[CLS]", "the", "cat", "[SEP]")
    assert tokens.special == (True, False, False, True)
    assert tokens.words == (None, 0, 1, None)


def test_an_unknown_word_is_content_and_a_typed_control_token_is_not():
    assert BERT.read("中").special == (True, False, True)
    assert BERT.read("[MASK]").special == (True, True, True)


def test_gpt2_begins_with_its_own_token_only_when_asked():
    assert GPT2.read("ab").display == ("a", "b")
    begun = GPT2.read("ab", begin=True)
    assert begun.display == ("<|endoftext|>", "a", "b")
    assert begun.special == (True, False, False)


def test_begin_changes_nothing_where_the_tokenizer_begins_by_itself():
    assert ROBERTA.read("ab", begin=True) == ROBERTA.read("ab")


@pytest.mark.parametrize("text", ["", " ", "\n", "\x00", "\u200b"])
def test_a_text_without_content_is_one_sentence_for_bert(text):
    with pytest.raises(BadText, match="0 tokens of content came"):
        BERT.read(text)


def test_an_empty_text_is_one_sentence_for_gpt2_but_a_space_is_a_token():
    with pytest.raises(BadText):
        GPT2.read("")
    assert GPT2.read(" ").display == ("·",)


def test_a_lone_surrogate_is_refused_with_its_place():
    with pytest.raises(BadText, match="lone surrogate at character 1"):
        BERT.read("a\ud83db")


def test_one_token_too_many_is_refused_and_the_limit_itself_is_not():
    assert len(BERT.read("cat " * 62)) == 64
    with pytest.raises(TextTooLong, match="65 tokens long and the model reads at most 64"):
        BERT.read("cat " * 63)


def test_a_window_takes_its_tokens_and_keeps_the_special_ones():
    tokens = BERT.read("the cat sat on a mat", window=(1, 3))
    assert tokens.display == ("[CLS]", "cat", "sat", "on", "[SEP]")
    assert (tokens.total, tokens.window) == (6, (1, 3))
    assert tokens.text == "cat sat on"
    assert BERT.read(tokens.text).ids == tokens.ids


def test_a_window_behind_the_end_is_one_sentence():
    with pytest.raises(BadText, match="starts at token 9 and the text has 6"):
        BERT.read("the cat sat on a mat", window=(9, 3))


def test_a_character_over_several_tokens_is_shown_as_its_bytes():
    assert GPT2.read("é").display == ("‹C3›", "‹A9›")


def test_a_typed_replacement_character_differs_from_a_broken_one():
    assert display_token("ï¿½", byte_level=True) == "\ufffd"
    assert display_token("ï¿", byte_level=True) == "‹EF BF›"


@pytest.mark.parametrize(
    ("raw", "shown"),
    [("Ġthe", "·the"), ("Ċ", "↵"), ("ĉ", "⇥"), ("Ā", "\\u0000"), ("", "∅"), ("ab", "ab")],
)
def test_invisible_bytes_become_visible(raw, shown):
    assert display_token(raw, byte_level=True) == shown


@pytest.mark.parametrize("reader", [BERT, GPT2, ROBERTA], ids=["bert", "gpt2", "roberta"])
@pytest.mark.parametrize("text", NASTY)
def test_every_label_of_a_nasty_text_is_visible_and_safe_for_xml(reader, text):
    try:
        tokens = reader.read(text)
    except BadText:
        return
    for label in tokens.display:
        assert label.strip()
        assert label.isprintable()


@given(st.text(max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_text_gives_labels_or_one_sentence(text):
    for reader in (BERT, GPT2):
        try:
            tokens = reader.read(text)
        except BadText:
            continue
        assert len(tokens.ids) == len(tokens.display) == len(tokens.special) == len(tokens.words)
        assert all(label and label.isprintable() for label in tokens.display)


@given(st.text(min_size=1, max_size=40))
@settings(max_examples=100, deadline=None)
def test_byte_level_labels_spell_the_text(text):
    try:
        tokens = GPT2.read(text)
    except BadText:
        return
    special = GPT2.tokenizer.all_special_tokens
    if any(token in text for token in special):
        return
    assert GPT2.tokenizer.decode(tokens.ids) == text


def test_equal_ids_have_equal_digests_and_others_do_not():
    assert BERT.read("the cat").digest == BERT.read("The  cat").digest
    assert BERT.read("the cat").digest != BERT.read("the dog").digest


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_batch_pads_and_counts_positions_over_real_tokens(side):
    texts = [GPT2.read("abc"), GPT2.read("defgh")]
    batch = GPT2.batch(texts, side=side)
    assert batch.mask.sum(-1).tolist() == [3, 5]
    for row, tokens in enumerate(texts):
        assert batch.ids[row][batch.mask[row]].tolist() == list(tokens.ids)
        assert batch.position_ids[row][batch.mask[row]].tolist() == list(range(len(tokens)))


def test_repeating_a_batch_keeps_rows_in_order():
    batch = GPT2.batch([GPT2.read("abc"), GPT2.read("d")]).repeat(2)
    assert torch.equal(batch.ids[:2], batch.ids[2:])
    assert batch.mask.sum(-1).tolist() == [3, 1, 3, 1]
