"""A start skips positions of the log, past every file there is: these count nowhere as bytes of the log."""

from __future__ import annotations

from pathlib import Path

from tests.reference.wal_harness import SEGMENT, Log, batch

SKIPPED_MIN = SEGMENT // 2  # by a start: the rest of a segment, and what was prepared after it


def append_some(log: Log, count: int = 3) -> int:
    """Returns how many bytes of the log that takes."""
    before = log.wal.head_lsn
    for _ in range(count):
        log.append(batch(3000))
    return log.sync() - before


def test_after_a_stop_that_flushed_all_only_what_is_appended_since_is_unflushed(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        append_some(log)
        flushed = log.wal.durable_lsn
        log.wal.trim(flushed)
    with Log(tmp_path) as log:
        log.partition().set_next_offset(3)
        log.recover(flushed)
        assert log.wal.start_lsn - flushed >= SKIPPED_MIN
        assert log.wal.flushed_lsn == log.wal.start_lsn
        log.start()
        assert log.wal.unflushed_bytes == 0
        appended = append_some(log)
        assert log.wal.unflushed_bytes == appended
        assert log.wal.bytes_between(log.wal.flushed_lsn, log.wal.durable_lsn) == appended


def test_after_kills_what_each_of_them_left_is_unflushed_and_not_what_the_starts_skipped(tmp_path: Path) -> None:
    appended = 0
    for _ in range(3):
        with Log(tmp_path).start() as log:
            assert log.wal.unflushed_bytes == appended
            appended += append_some(log)
            assert log.wal.unflushed_bytes == appended
            head = log.wal.head_lsn
    assert head - appended >= 2 * SKIPPED_MIN


def test_bytes_between_positions_are_those_that_the_log_holds(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        first = append_some(log)
    with Log(tmp_path).start() as log:
        wal, start = log.wal, log.wal.start_lsn
        second = append_some(log)
        assert wal.bytes_between(0, start + second) == first + second
        assert wal.bytes_between(1000, start) == first - 1000
        assert wal.bytes_between(first, start) == wal.bytes_between(first + 100, start - 100) == 0
        assert wal.bytes_between(start - 100, start + 100) == 100
        assert wal.bytes_between(start + 100, 0) == -first - 100
