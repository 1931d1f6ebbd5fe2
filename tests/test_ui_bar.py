"""A bar that moves once a second at most, whatever the work reports."""

from types import SimpleNamespace

import pytest

from attnprobe.ui import bar as bars
from attnprobe.ui.bar import Bar


class Element:
    def __init__(self) -> None:
        self.moves: list[tuple[float, str]] = []

    def progress(self, share: float, text: str) -> None:
        self.moves.append((share, text))


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""
    now = [0.0]
    monkeypatch.setattr(bars, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_of_many_reports_one_a_second_is_drawn_and_the_last(clock):
    element = Element()
    bar = Bar(element)
    for number in range(1, 41):
        clock[0] = number * 0.1
        bar(number / 40, str(number))
    assert [text for _, text in element.moves] == ["1", "11", "21", "31", "40"]


def test_more_than_everything_counts_as_everything(clock):
    element = Element()
    Bar(element)(1.2, "6 of 5")
    assert element.moves == [(1.0, "6 of 5")]
