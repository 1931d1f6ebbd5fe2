"""The docs' tables are what the stored results say."""

import pytest

from benchmarks import cells, tables


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: page.name)
def test_every_table_of_the_docs_is_that_of_the_stored_results(page):
    text = page.read_text(encoding="utf-8")
    assert "<!-- table: " in text
    assert tables.filled(text) == text


def test_numbers_have_three_digits_a_true_minus_and_a_word_for_none():
    given = (0.0123456, -1.5, 3182.3, float("nan"))
    assert [cells.short(value) for value in given] == ["0.0123", "−1.5", "3,182", "never"]


def test_what_stands_around_a_table_is_left_alone():
    text = "before\n<!-- table: pruning_speed -->\nold\n<!-- end -->\nafter\n"
    fresh = tables.filled(text)
    assert fresh.startswith("before\n<!-- table: pruning_speed -->\n\n| tokens |")
    assert fresh.endswith("<!-- end -->\nafter\n")
    assert "old" not in fresh
