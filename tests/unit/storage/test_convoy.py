"""Readers that are kept together: who waits, for whom, and for whom nobody does."""

from __future__ import annotations

import threading

from kbroker.clock import ManualClock
from kbroker.storage import convoy as convoy_module
from kbroker.storage.convoy import ACTIVE_SECONDS, Convoy

P, Q = ("t", 0), ("t", 1)


def too_far(convoy: Convoy, offset: int, owner=P) -> bool:
    with convoy._lock:
        return convoy._too_far_locked(owner, offset, 10.0)


def at(*offsets: int, owner=P, convoy: Convoy | None = None, clock: ManualClock | None = None) -> Convoy:
    made = convoy or Convoy(1000, clock or ManualClock())
    for offset in offsets:
        made.moved(owner, offset - 1, offset)
    return made


def test_a_reader_waits_for_one_that_is_more_than_half_a_cache_behind() -> None:
    convoy = at(0)
    assert not too_far(convoy, 50)
    assert too_far(convoy, 51)
    assert too_far(convoy, 100)
    assert not too_far(convoy, 101)  # it has lost the others
    assert not too_far(convoy, 80, owner=Q)


def test_alone_nobody_waits() -> None:
    convoy = Convoy(1000, ManualClock())
    for offset in range(0, 1000, 10):
        convoy.moved(P, offset, offset + 10)
        assert not too_far(convoy, offset + 10)


def test_readers_at_one_place_are_counted() -> None:
    convoy = at(0, 0)
    convoy.moved(P, 0, 80)
    assert too_far(convoy, 80)
    convoy.moved(P, 0, 70)
    assert not too_far(convoy, 80)


def test_a_reader_that_stands_still_is_not_waited_for() -> None:
    clock = ManualClock()
    convoy = at(0, clock=clock)
    clock.advance(ACTIVE_SECONDS + 0.01)
    convoy.moved(P, 70, 80)
    assert not too_far(convoy, 80)


def test_partitions_share_the_cache() -> None:
    convoy = at(0)
    assert not too_far(convoy, 30)
    at(0, owner=Q, convoy=convoy)
    assert too_far(convoy, 30)


def test_the_wait_ends_when_the_other_comes_nearer(monkeypatch) -> None:
    monkeypatch.setattr(convoy_module, "HOLD_SECONDS", 20)
    convoy = at(0)
    done = threading.Event()

    def leader() -> None:
        convoy.hold(P, 80, 10.0)
        done.set()

    thread = threading.Thread(target=leader)
    thread.start()
    while not convoy.held:
        pass
    convoy.moved(P, 0, 20)
    assert not done.is_set()
    convoy.moved(P, 20, 40)
    assert done.wait(10)
    thread.join()


def test_the_wait_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(convoy_module, "HOLD_SECONDS", 0.01)
    convoy = at(0)
    convoy.hold(P, 80, 10.0)
    assert convoy.held == 1


def test_places_are_forgotten(monkeypatch) -> None:
    monkeypatch.setattr(convoy_module, "OWNERS_MAX", 3)
    monkeypatch.setattr(convoy_module, "READERS_MAX", 3)
    convoy = at(*range(0, 100, 10))
    assert len(convoy._owners[P]) <= 3
    for number in range(10):
        at(5, owner=("t", number), convoy=convoy)
    assert len(convoy._owners) <= 3
