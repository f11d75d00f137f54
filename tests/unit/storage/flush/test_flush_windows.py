"""The queue of windows between the thread that begins them and the one that commits them."""

import threading
from types import SimpleNamespace

import pytest

from kbroker.storage.flush.windows import FlushWindows


class Window(SimpleNamespace):
    """A window as far as the queue knows it."""

    def __init__(self, *segment_topics):
        super().__init__(segment_topics=frozenset(segment_topics), abandoned=0)

    def abandon(self):
        self.abandoned += 1


@pytest.fixture
def windows():
    return FlushWindows(threading.Condition())


def test_windows_are_committed_in_order_until_the_end(windows):
    added = [Window() for _ in range(3)]
    assert all(windows.add(window) for window in added)
    windows.end()
    committed, wakes = [], []
    windows.run(committed.append, lambda: wakes.append(len(windows)))
    assert committed == added
    assert wakes == [2, 1, 0]
    assert windows.most == 3


def test_after_a_failure_all_are_abandoned_and_none_is_added_before_it_was_raised(windows):
    added = [Window() for _ in range(2)]
    for window in added:
        windows.add(window)
    windows.end()

    def fail(window):
        raise RuntimeError("no record")

    windows.run(fail, lambda: None)
    assert [window.abandoned for window in added] == [1, 1]
    assert not windows.add(Window())
    with pytest.raises(RuntimeError, match="no record"):
        windows.raise_failure()
    assert windows.add(Window())


def test_segments_are_being_written_from_the_plan_to_the_commit(windows):
    assert not windows.writes_segments("t")
    windows.note_building(frozenset({"t"}))
    assert windows.writes_segments("t")
    assert not windows.writes_segments("u")
    windows.add(Window("t"))
    assert windows.writes_segments("t")
    windows.remove_first()
    assert not windows.writes_segments("t")
