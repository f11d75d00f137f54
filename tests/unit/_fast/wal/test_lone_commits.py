"""Commits that are left to the I/O thread, which has appended (decision 005). The test's thread is that one."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.reference import wal_harness
from tests.reference.wal_harness import Log

TRIES = 2000
NONE = 0


@pytest.fixture
def log(memory_path: Path) -> Iterator[Log]:
    with Log(memory_path).start() as log:
        log.wal.resting_io_thread = threading.get_ident()
        yield log


def pause(seconds: float = 0.005) -> None:
    threading.Event().wait(seconds)


def leave(log: Log, size: int = 100) -> int:
    """Appends until that is left to this thread; the end of what has been appended."""
    for _ in range(TRIES):
        log.append(wal_harness.batch(size))
        if log.wal.left_to_io:
            return log.wal.head_lsn
        pause()
    raise AssertionError("the log's thread commits all")


def commit_one(log: Log) -> None:
    leave(log)
    assert log.wal.commit_left()


def test_what_is_left_is_durable_once_it_is_committed(log: Log) -> None:
    for _ in range(100):
        end = leave(log)
        pause()
        assert log.wal.durable_lsn < end
        assert log.wal.commit_left()
        assert log.wal.durable_lsn == log.wal.head_lsn >= end
        assert not log.wal.commit_left()
    assert log.wal.syncs == log.wal.entries


def test_several_are_one_commit(log: Log) -> None:
    leave(log)
    before = log.wal.syncs
    for _ in range(5):
        log.append(wal_harness.batch(100))
    assert log.wal.commit_left()
    assert (log.wal.syncs, log.wal.durable_lsn) == (before + 1, log.wal.head_lsn)


def test_segments_are_filled_and_sealed(log: Log) -> None:
    while log.wal.sealed_lsn < 3 * wal_harness.SEGMENT:
        log.append(wal_harness.batch(10_000), trim=True)
        log.wal.commit_left()
        pause(0.001)
        log.wal.drain_commits()
    log.sync()
    assert log.wal.durable_lsn == log.wal.head_lsn


def test_others_that_drain_are_told(log: Log) -> None:
    other = os.eventfd(0, os.EFD_NONBLOCK)
    log.wal.add_wakeup_fd(other)
    try:
        leave(log)
        os.eventfd_write(other, 1)
        os.eventfd_read(other)
        assert log.wal.commit_left()
        assert os.eventfd_read(other) == 1
    finally:
        log.wal.remove_wakeup_fd(other)
        os.close(other)


def test_an_append_of_another_thread_takes_it_to_the_logs(log: Log) -> None:
    with ThreadPoolExecutor(1) as other:
        leave(log)
        other.submit(log.append, wal_harness.batch()).result()
        assert log.wal.wait_durable(log.wal.head_lsn, 10)
        assert not log.wal.commit_left()


def test_what_other_threads_append_is_not_left(log: Log) -> None:
    with ThreadPoolExecutor(1) as other:
        for _ in range(50):
            other.submit(log.append, wal_harness.batch()).result()
            assert log.wal.wait_durable(log.wal.head_lsn, 10)
            pause(0.001)


def test_an_io_thread_without_time_leaves_nothing_to_itself(log: Log) -> None:
    leave(log)
    log.wal.resting_io_thread = NONE
    for _ in range(50):
        log.append(wal_harness.batch())
        assert log.wal.wait_durable(log.wal.head_lsn, 10)
        pause(0.001)


def test_who_waits_for_what_is_left_gets_it_from_the_logs_thread(log: Log) -> None:
    for _ in range(20):
        leave(log)
        assert log.wal.sync(10)


def test_much_is_not_left(memory_path: Path) -> None:
    with Log(memory_path, segment_bytes=1 << 20).start() as log:
        log.wal.resting_io_thread = threading.get_ident()
        leave(log)
        log.append(wal_harness.batch(70_000))
        assert log.wal.wait_durable(log.wal.head_lsn, 10)
        for _ in range(20):
            pause()
            log.append(wal_harness.batch(70_000), trim=True)
            assert log.wal.wait_durable(log.wal.head_lsn, 10)
            log.wal.drain_commits()


def test_behind_a_slow_commit_comes_one_by_the_logs_thread(log: Log) -> None:
    commit_one(log)
    log.faults.sync_us = 3_000
    commit_one(log)
    for _ in range(5):
        pause(0.02)
        log.append(wal_harness.batch())
        assert not log.wal.left_to_io
        assert log.wal.wait_durable(log.wal.head_lsn, 10)
    log.faults.sync_us = 0
    commit_one(log)


def test_behind_one_with_company_comes_one_by_the_logs_thread(log: Log) -> None:
    commit_one(log)
    leave(log)
    log.append(wal_harness.batch())
    assert log.wal.left_to_io
    assert log.wal.commit_left()
    pause()
    log.append(wal_harness.batch())
    assert not log.wal.left_to_io


def test_commits_without_a_pause_are_the_logs_threads(log: Log) -> None:
    """Each is quick, but all of them take more than half of the time."""
    log.faults.sync_us = 500
    commit_one(log)
    for _ in range(TRIES):
        log.append(wal_harness.batch(), trim=True)
        if not log.wal.left_to_io:
            break
        log.wal.commit_left()
        log.wal.drain_commits()
    else:
        raise AssertionError("none was left to the log's thread")
    assert log.wal.wait_durable(log.wal.head_lsn, 10)


def test_who_waits_is_told_of_a_long_commit_at_once(log: Log) -> None:
    """The I/O thread tells of others, behind its answers."""
    with ThreadPoolExecutor(1) as other:
        for _ in range(3):
            commit_one(log)
            end = leave(log)
            waits = other.submit(log.wal.wait_durable, end, 60)
            log.faults.sync_us = 20_000
            log.wal.commit_left()
            log.faults.sync_us = 0
            assert waits.result(10)


def test_who_syncs_is_told_of_any_commit_at_once(log: Log) -> None:
    """Else who holds a lock meanwhile that the I/O thread needs would wait for its time-out."""
    began = threading.Event()

    def sync() -> bool:
        began.wait()
        return log.wal.sync(60)

    with ThreadPoolExecutor(1) as other:
        for _ in range(100):
            leave(log)
            log.faults.sync_us = 800
            began.clear()
            waits = other.submit(sync)
            began.set()
            log.wal.commit_left()
            log.faults.sync_us = 0
            assert waits.result(10)


def test_a_file_that_fails_is_replaced_by_the_logs_thread(log: Log) -> None:
    leave(log)
    log.faults.sync_count = 1
    assert not log.wal.commit_left()
    assert log.wal.wait_durable(log.wal.head_lsn, 10)
    assert (log.wal.failed_files, log.wal.failed) == (1, False)
    leave(log)
    assert log.wal.commit_left()


def test_a_log_that_fails_for_good_says_so(log: Log) -> None:
    leave(log)
    log.faults.sync_count = -1
    assert not log.wal.commit_left()
    log.until(lambda: log.wal.failed)
    assert not log.wal.commit_left()
    assert log.wal.durable_lsn < log.wal.head_lsn


def test_a_log_that_closes_leaves_nothing_behind(memory_path: Path) -> None:
    for _ in range(3):
        with Log(memory_path).start() as log:
            log.wal.resting_io_thread = threading.get_ident()
            end = leave(log)
        assert log.wal.durable_lsn >= end
        assert not log.wal.commit_left()


def test_a_log_closes_behind_a_commit_that_is_under_way(log: Log) -> None:
    with ThreadPoolExecutor(1) as io:
        log.wal.resting_io_thread = io.submit(threading.get_ident).result()
        io.submit(leave, log).result()
        log.faults.sync_us = 500_000
        committed = io.submit(log.wal.commit_left)
        while log.wal.left_to_io:
            pause(0.001)
        log.wal.close()
        assert committed.result()
        assert log.wal.durable_lsn == log.wal.head_lsn
