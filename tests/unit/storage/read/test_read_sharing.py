"""Positions of readers: which ranges a reader will come to, from how far, and when a position is forgotten."""

from __future__ import annotations

import pytest

from kbroker.clock import ManualClock
from kbroker.storage.read import read_sharing
from kbroker.storage.read.read_sharing import ACTIVE_SECONDS, OffsetRange, ReaderPositions

P, Q = ("t", 0), ("t", 1)


def positions_at(*offsets: int, clock: ManualClock | None = None) -> ReaderPositions:
    positions = ReaderPositions(clock or ManualClock())
    for number, offset in enumerate(offsets):
        positions.moved(P, -1, -2 - number)
        positions.moved(P, -2 - number, offset)
    return positions


def test_distance_is_that_of_the_nearest_reader_before_the_range() -> None:
    positions = positions_at(100, 150)
    assert positions.distance(OffsetRange(P, 200, 210)) == 50
    assert positions.distance(OffsetRange(P, 145, 151)) == 0
    assert positions.distance(OffsetRange(P, 145, 150)) == 45
    assert positions.distance(OffsetRange(P, 90, 100)) is None
    assert positions.distance(OffsetRange(Q, 200, 210)) is None


def test_a_reader_that_has_stopped_is_not_counted() -> None:
    clock = ManualClock()
    positions = positions_at(100, 150, clock=clock)
    clock.advance(ACTIVE_SECONDS)
    positions.moved(P, 100, 101)
    assert positions.distance(OffsetRange(P, 200, 210)) == 50
    clock.advance(0.01)
    assert positions.distance(OffsetRange(P, 200, 210)) == 99
    clock.advance(ACTIVE_SECONDS)
    assert positions.distance(OffsetRange(P, 200, 210)) is None


def test_readers_at_one_offset_are_counted() -> None:
    positions = positions_at(100, 100)
    positions.moved(P, 100, 170)
    assert positions.distance(OffsetRange(P, 120, 130)) == 20
    positions.moved(P, 100, 165)
    assert positions.distance(OffsetRange(P, 120, 130)) is None


def test_a_reader_that_repeats_a_fetch_is_one_reader() -> None:
    positions = positions_at(100)
    positions.moved(P, 100, 104)
    positions.moved(P, 100, 104)  # the first answer came too late
    positions.moved(P, 104, 165)
    assert positions.distance(OffsetRange(P, 120, 130)) is None


def test_positions_and_partitions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_sharing, "PARTITIONS_MAX", 3)
    monkeypatch.setattr(read_sharing, "POSITIONS_MAX", 3)
    positions = ReaderPositions(ManualClock())
    for offset in range(0, 100, 10):
        positions.moved(P, offset - 1, offset)
    assert positions.distance(OffsetRange(P, 65, 70)) is None  # the position at 60 is gone
    assert positions.distance(OffsetRange(P, 70, 75)) == 0
    for number in range(2, 5):
        positions.moved(("t", number), 0, 5)
    assert positions.distance(OffsetRange(P, 100, 110)) is None
    assert positions.distance(OffsetRange(("t", 2), 10, 11)) == 5
