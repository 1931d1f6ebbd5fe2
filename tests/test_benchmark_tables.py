"""The docs' tables are what the stored results say."""

import re
from argparse import Namespace
from dataclasses import replace

import pytest

from attnprobe.data import LabelledText
from benchmarks import cells, perturbation_study, study_tables, tables
from benchmarks.__main__ import machine


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


def test_the_perturbation_study_in_miniature_is_one_flat_object_that_fills_its_table(
    tiny_folder, monkeypatch
):
    study, texts = perturbation_study, ("the cat sat on the mat", "a dog ran and then")
    monkeypatch.setattr(
        study, "texts_for", lambda number: [LabelledText(t) for t in texts[:number]]
    )
    monkeypatch.setattr(study, "DRAWS", replace(study.DRAWS, number=3))
    monkeypatch.setattr(study, "SEARCH", replace(study.SEARCH, restarts=1, steps=8))
    found = study.measure(Namespace(model=str(tiny_folder("gpt2")), texts=2, search_texts=1))
    ablations = [found[f"L{layer}.H{head}_ablation"] for layer in range(3) for head in range(5)]
    assert all(isinstance(value, float | int | str) for value in found.values())
    assert found["tvd_largest_head_zero"] == pytest.approx(max(ablations), abs=1e-5)
    assert kinds(found | machine()) == kinds(cells.result("perturbation_study_gpt2"))
    assert all(cell(found) for _, cell in study_tables.PERTURBATION)


def kinds(found) -> set[str]:
    """Keys without what the model's heads and the rows' peaks are."""
    return {re.sub(r"^L\d+\.H\d+|(?<=peak_bin_).*", "", key) for key in found}
