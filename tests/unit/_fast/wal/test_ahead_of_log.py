"""Zeros, memory and huge pages for the segments to come, out of the way of records that come meanwhile."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker._fast.wal.files import ZERO_PIECE_BYTES
from kbroker._fast.wal.keeper import FEW_ZEROS, GRACE_BYTES, ZEROS_PER_LOG_BYTE, SegmentKeeper
from kbroker._fast.wal.pace import (
    AHEAD_PER_LOG_BYTE,
    FEW_BYTES_PER_SECOND,
    PAUSE_SECONDS,
    REST_SECONDS,
    AheadOfLog,
    HugePages,
)
from kbroker.clock import ManualClock

MIB = 1 << 20
PIECE = MIB // 4
SEGMENT = 64 * MIB


class GrowingLog:
    """A log that grows while somebody waits, and a flag to wait for that never comes."""

    def __init__(self, growth: int) -> None:
        self.growth = growth
        self.clock = ManualClock()
        self.head_lsn = 5 * MIB
        self.waits = self.commits = 0
        self.wal_bytes = 16 * SEGMENT
        self.segment_bytes = SEGMENT
        self.segments = [SimpleNamespace(end_lsn=3 * SEGMENT)]
        self.missing = 40 * PIECE

    def wait(self, seconds: float) -> bool:
        assert 0 < seconds < 0.1
        self.clock.advance(seconds)
        self.waits += 1
        self.head_lsn += self.growth
        return False

    def wait_durable(self, lsn: int, timeout: float) -> bool:
        end = self.clock.monotonic() + timeout
        while self.head_lsn < lsn and self.clock.monotonic() < end:
            self.wait(0.001)
        self.commits += self.head_lsn >= lsn
        return self.head_lsn >= lsn

    def is_set(self) -> bool:
        return False

    def populate(self) -> int:
        piece = min(PIECE, self.missing)
        self.missing -= piece
        return piece


def ahead_of(log: Any) -> AheadOfLog:
    return AheadOfLog(log, log, log.clock)


def keeper_of(log: Any, path: Path) -> SegmentKeeper:
    keeper = SegmentKeeper(log, path, retry_ms=10, clock=log.clock)
    keeper.stopping = log
    keeper.ready.set()
    return keeper


def test_nothing_waits_for_a_log_that_rests() -> None:
    log = GrowingLog(0)
    ahead = ahead_of(log)
    assert [ahead.wait(done) for done in range(0, SEGMENT, PIECE)] == [0] * (SEGMENT // PIECE)
    assert log.waits == 0


def test_while_records_come_the_work_keeps_to_their_pace() -> None:
    log = GrowingLog(4096)
    ahead = ahead_of(log)
    log.head_lsn += 4096
    for done in range(0, 4 * MIB, PIECE):
        grown = ahead.wait(done)
        assert done <= grown * AHEAD_PER_LOG_BYTE <= done + AHEAD_PER_LOG_BYTE * 4096 * 2
    assert log.waits > 50


def test_records_are_not_looked_at_until_the_next_piece_is_due() -> None:
    log = GrowingLog(4096)
    ahead = ahead_of(log)
    log.head_lsn += 4096
    for done in range(0, 4 * MIB, PIECE):
        ahead.wait(done)
    assert ahead.records_are_few
    assert 0 < log.commits <= 4 * MIB // PIECE < 4 * MIB // AHEAD_PER_LOG_BYTE // 4096


def test_when_the_records_end_it_goes_on() -> None:
    log = GrowingLog(0)
    ahead = ahead_of(log)
    log.head_lsn += 4096
    assert ahead.wait(SEGMENT) == ahead.wait(SEGMENT) == 4096
    assert log.clock.monotonic() - 1000 == pytest.approx(REST_SECONDS, abs=PAUSE_SECONDS)


def test_records_that_come_now_and_then_are_waited_for() -> None:
    log = GrowingLog(0)
    ahead = ahead_of(log)
    wait = log.wait

    def wait_for_one_in_ten(seconds: float) -> bool:
        log.head_lsn += 4096 if log.waits % 10 == 0 else 0
        return wait(seconds)

    log.wait = wait_for_one_in_ten  # type: ignore[method-assign]
    log.head_lsn += 4096
    for done in range(0, 4 * MIB, PIECE):
        assert done <= ahead.wait(done) * AHEAD_PER_LOG_BYTE
    assert log.waits > 500


def test_nothing_waits_beside_a_log_that_grows_as_fast() -> None:
    log = GrowingLog(0)
    ahead = ahead_of(log)
    for done in range(PIECE, SEGMENT, PIECE):
        log.head_lsn += PIECE // AHEAD_PER_LOG_BYTE
        ahead.wait(done)
    assert log.waits == 0


def test_nothing_waits_while_the_log_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    log = GrowingLog(4096)
    monkeypatch.setattr(log, "is_set", lambda: True)
    ahead = ahead_of(log)
    log.head_lsn += 4096
    assert ahead.wait(SEGMENT) == 4096


def test_zeros_keep_to_the_pace_of_a_slow_log(tmp_path: Path) -> None:
    log = GrowingLog(4096)
    zeros = keeper_of(log, tmp_path).zeros_for(2 * SEGMENT)
    log.head_lsn += 4096
    assert all(zeros(position) for position in range(0, 8 * MIB, PIECE))
    assert log.head_lsn - 5 * MIB >= (8 * MIB - PIECE) // AHEAD_PER_LOG_BYTE


def test_zeros_come_in_small_pieces_while_records_are_few(tmp_path: Path) -> None:
    log = GrowingLog(4096)
    zeros = keeper_of(log, tmp_path).zeros_for(2 * SEGMENT)
    pieces, position = [], 0
    for _ in range(100):
        log.head_lsn += 4096 if position == 0 else 0
        pieces.append(zeros(position))
        position += pieces[-1]
    assert set(pieces) == {FEW_ZEROS}
    assert log.commits >= 98
    log.growth = 2 * int(FEW_BYTES_PER_SECOND * PAUSE_SECONDS)
    assert zeros(position + 8 * ZERO_PIECE_BYTES) == ZERO_PIECE_BYTES
    log.growth = 4096
    assert zeros(position + 16 * ZERO_PIECE_BYTES) == FEW_ZEROS


def test_zeros_that_fell_behind_few_records_come_in_a_larger_piece(tmp_path: Path) -> None:
    log = GrowingLog(4096)
    zeros = keeper_of(log, tmp_path).zeros_for(2 * SEGMENT)
    log.head_lsn += 4096
    position = zeros(0)
    position += zeros(position)
    log.head_lsn += 10 * 4096
    log.clock.advance(0.01)
    position += (piece := zeros(position))
    assert piece >= 8 * FEW_ZEROS
    assert position + zeros(position) <= (log.head_lsn - 5 * MIB) * AHEAD_PER_LOG_BYTE + FEW_ZEROS


def test_beside_a_log_that_rests_only_the_first_zeros_are_a_small_piece(tmp_path: Path) -> None:
    log = GrowingLog(0)
    zeros = keeper_of(log, tmp_path).zeros_for(2 * SEGMENT)
    assert [zeros(position) for position in range(0, SEGMENT, MIB)] == [FEW_ZEROS] + [ZERO_PIECE_BYTES] * 63
    log.head_lsn += 4096
    assert zeros(SEGMENT) == zeros(SEGMENT) == ZERO_PIECE_BYTES
    assert log.clock.monotonic() - 1000 == pytest.approx(REST_SECONDS, abs=PAUSE_SECONDS)


def test_a_request_beside_the_first_zeros_does_not_end_them(tmp_path: Path) -> None:
    log = GrowingLog(0)
    zeros = keeper_of(log, tmp_path).zeros_for(2 * SEGMENT)
    log.head_lsn += GRACE_BYTES
    assert zeros(0)
    log.head_lsn += PIECE
    assert not zeros(ZEROS_PER_LOG_BYTE * PIECE - 1)
    assert zeros(ZEROS_PER_LOG_BYTE * PIECE)


def test_memory_keeps_to_the_pace_of_a_slow_log(tmp_path: Path) -> None:
    log = GrowingLog(4096)
    keeper = keeper_of(log, tmp_path)
    populate = log.populate

    def populate_as_a_record_comes() -> int:
        log.head_lsn += 8
        return populate()

    log.populate = populate_as_a_record_comes  # type: ignore[method-assign]
    assert not keeper.prepare_once()
    assert log.missing == 0
    assert log.head_lsn - 5 * MIB >= 40 * PIECE // AHEAD_PER_LOG_BYTE


def test_a_segment_that_is_wanted_comes_before_memory(tmp_path: Path) -> None:
    log = GrowingLog(0)
    keeper = keeper_of(log, tmp_path)
    log.head_lsn = SEGMENT - 1
    populate = log.populate

    def populate_as_the_log_enters_a_segment() -> int:
        log.head_lsn = SEGMENT
        return populate()

    log.populate = populate_as_the_log_enters_a_segment  # type: ignore[method-assign]
    assert keeper.prepare_once()
    assert log.missing == 39 * PIECE


class Growth:
    """A log that grows by so much a second, and its arena."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.head_lsn = 3 * MIB
        self.is_at_rest = False
        self.arena = self
        self.allowed: list[bool] = []

    def allow_huge_pages(self, allowed: bool) -> None:
        self.allowed.append(allowed)

    def grow(self, count: int, seconds: float) -> None:
        self.head_lsn += count
        self.clock.advance(seconds)


def test_huge_pages_are_made_while_much_comes_in_for_long_or_nothing_does() -> None:
    log = Growth()
    pages = HugePages(log, log.clock)  # type: ignore[arg-type]
    pages.look()
    for _ in range(9):
        log.grow(100 * MIB, 0.1)
        pages.look()
    assert log.allowed == []
    for _ in range(20):
        log.grow(35 * MIB, 0.5)
        pages.look()
    assert log.allowed == [False] * 9 + [True]
    for _ in range(20):
        log.grow(20 * MIB, 0.5)
        pages.look()
    assert log.allowed[10:] == [False] * 10
    log.is_at_rest = True
    log.grow(0, 1)
    pages.look()
    assert log.allowed[20:] == [True]
    log.is_at_rest = False
    log.grow(4096, 1)
    pages.look()
    assert log.allowed[21:] == [False]
