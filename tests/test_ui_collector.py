"""Garbage after a page's run: what was imported is spared, what a run leaves behind is not."""

import gc
import weakref

import pytest

from attnprobe.ui.collector import spare_what_lives


class Cycle:
    def __init__(self):
        self.me = self


@pytest.fixture
def afresh():
    """As in a server that has just started, whatever pages ran before in this process."""
    gc.unfreeze()
    spare_what_lives.cache_clear()


@pytest.mark.usefixtures("afresh")
def test_what_lives_before_the_first_page_is_not_looked_through_again():
    before = Cycle()
    spare_what_lives()
    assert not any(found is before for found in gc.get_objects())


@pytest.mark.usefixtures("afresh")
def test_a_cycle_that_a_run_leaves_behind_is_collected():
    spare_what_lives()
    after = Cycle()
    gone = weakref.ref(after)
    del after
    gc.collect()
    assert gone() is None


@pytest.mark.usefixtures("afresh")
def test_later_pages_spare_nothing_more():
    spare_what_lives()
    later = Cycle()
    spare_what_lives()
    assert any(found is later for found in gc.get_objects())
