"""Readers of a partition: what each will come to, who waits for whom and how long, and for whom nobody does."""

from __future__ import annotations

import threading

import pytest

from kbroker.clock import ManualClock
from kbroker.limits import MIB
from kbroker.storage.read import read_sharing as convoy_module
from kbroker.storage.read.read_sharing import (
    ACTIVE_SECONDS,
    PATIENCE_SECONDS,
    RECOUNT_SECONDS,
    WAITING_MAX,
    Convoy,
    Stretch,
)

P, Q = ("t", 0), ("t", 1)
CAPACITY = 80 * MIB  # of which a partition that is read alone fills 70


def too_far(convoy: Convoy, first: int, owner=P) -> bool:
    """Whether a fetch of 8 MiB from an offset on would be; an offset is a MiB."""
    return convoy.too_far(Stretch(owner, first, first + 8), MIB)


def at(*offsets: int, owner=P, convoy: Convoy | None = None, clock: ManualClock | None = None) -> Convoy:
    made = convoy or Convoy(CAPACITY, clock or ManualClock())
    for number, offset in enumerate(offsets):
        made.moved(owner, -1, -2 - number)
        made.moved(owner, -2 - number, offset)
    return made


def test_a_fetch_is_too_far_when_it_does_not_fit_beside_what_another_has_to_read() -> None:
    convoy = at(100)
    assert not too_far(convoy, 162)
    assert too_far(convoy, 163)
    assert too_far(convoy, 170)
    assert not too_far(convoy, 171)  # it has lost the others
    assert not too_far(convoy, 165, owner=Q)
    assert not too_far(convoy, 30)  # nobody waits for who is in front


def test_alone_nobody_waits() -> None:
    convoy = Convoy(CAPACITY, ManualClock())
    for offset in range(0, 1000, 4):
        convoy.moved(P, offset, offset + 4)
        assert not too_far(convoy, offset + 4)


def test_readers_at_one_place_are_counted() -> None:
    convoy = at(100, 100)
    convoy.moved(P, 100, 170)
    assert too_far(convoy, 170)
    convoy.moved(P, 100, 165)
    assert not too_far(convoy, 170)


def test_who_asks_again_is_one_reader() -> None:
    convoy = at(100)
    convoy.moved(P, 100, 104)
    convoy.moved(P, 100, 104)  # the first answer came too late
    convoy.moved(P, 104, 165)
    assert not too_far(convoy, 170)


def test_a_reader_that_stands_still_is_not_waited_for() -> None:
    clock = ManualClock()
    convoy = at(100, clock=clock)
    clock.advance(ACTIVE_SECONDS)
    convoy.moved(P, 160, 165)
    assert too_far(convoy, 165)
    clock.advance(0.01)
    assert not too_far(convoy, 165)


def test_partitions_share_the_cache() -> None:
    clock = ManualClock()
    convoy = at(100, clock=clock)
    assert not too_far(convoy, 130)
    at(0, owner=Q, convoy=convoy)
    assert too_far(convoy, 130)
    clock.advance(ACTIVE_SECONDS - 0.1)
    convoy.moved(P, 100, 100)
    clock.advance(max(0.2, RECOUNT_SECONDS))
    assert not too_far(convoy, 130)  # the other partition is not read any more
    for partition in range(2, 8):
        at(0, owner=("t", partition), convoy=convoy)
    assert not too_far(convoy, 104)  # too many to be kept together at all


def test_the_nearest_reader_behind_a_stretch() -> None:
    clock = ManualClock()
    convoy = at(100, 150, clock=clock)
    assert convoy.distance(Stretch(P, 200, 210)) == 50
    assert convoy.distance(Stretch(P, 145, 151)) == 0
    assert convoy.distance(Stretch(P, 145, 150)) == 45
    assert convoy.distance(Stretch(P, 90, 100)) is None
    assert convoy.distance(Stretch(Q, 200, 210)) is None
    clock.advance(ACTIVE_SECONDS)
    convoy.moved(P, 0, 101)
    clock.advance(0.01)
    assert convoy.distance(Stretch(P, 200, 210)) == 99  # the one at 150 has stopped


def waiting(convoy: Convoy, count: int) -> None:
    while True:
        with convoy._lock:
            if convoy._waiting == count:
                return


def test_the_wait_ends_when_the_other_comes_nearer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convoy_module, "PATIENCE_SECONDS", 60)
    convoy = at(100)
    done = threading.Event()

    def leader() -> None:
        assert convoy.hold(Stretch(P, 170, 178), MIB)
        done.set()

    thread = threading.Thread(target=leader)
    thread.start()
    waiting(convoy, 1)
    convoy.moved(P, 100, 105)
    assert not done.is_set()
    convoy.moved(P, 105, 108)
    assert done.wait(20)
    thread.join()
    assert convoy.held == 1


def test_the_wait_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convoy_module, "PATIENCE_SECONDS", 0.01)
    convoy = at(100)
    assert convoy.hold(Stretch(P, 170, 178), MIB)
    assert convoy.held == 1


class Waits:
    """Stands for the condition: a wait ends when its time is over, at once."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.seconds: list[float] = []

    def wait_for(self, predicate, timeout: float) -> None:
        self.seconds.append(timeout)
        self.clock.advance(timeout)


def test_a_reader_waits_two_thirds_of_its_time_at_most() -> None:
    clock = ManualClock()
    convoy = at(100, clock=clock)
    waits = convoy._moved = Waits(clock)  # type: ignore[assignment]
    worked = 0.0
    for _ in range(400):
        convoy.moved(P, 100, 100)
        if not convoy.hold(Stretch(P, 170, 178), MIB):
            assert not waits.seconds or waits.seconds[0] == PATIENCE_SECONDS
        clock.advance(0.1)
        worked += 0.1
    waited = sum(waits.seconds)
    assert 1.9 * worked < waited < 2 * worked + 4 * PATIENCE_SECONDS


def test_few_threads_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convoy_module, "PATIENCE_SECONDS", 60)
    convoy = at(100)
    threads = [threading.Thread(target=convoy.hold, args=(Stretch(P, 170, 178), MIB)) for _ in range(WAITING_MAX)]
    for thread in threads:
        thread.start()
    waiting(convoy, WAITING_MAX)
    assert not convoy.hold(Stretch(P, 170, 178), MIB)
    convoy.moved(P, 100, 170)
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_places_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convoy_module, "OWNERS_MAX", 3)
    monkeypatch.setattr(convoy_module, "READERS_MAX", 3)
    convoy = Convoy(CAPACITY, ManualClock())
    for offset in range(0, 100, 10):
        convoy.moved(P, offset - 1, offset)
    assert convoy._owners[P].offsets == sorted(convoy._owners[P].places) == [70, 80, 90]
    for number in range(10):
        at(5, owner=("t", number), convoy=convoy)
    assert len(convoy._owners) <= 3
