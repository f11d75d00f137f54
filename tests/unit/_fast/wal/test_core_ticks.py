"""Ticks of the cores while lone records come and go (decision 006). Logs in memory: one on a slow disk has no time."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from kbroker._fast.wal.core_ticks import CORES_MAX, CoreTicks
from tests.reference import wal_harness
from tests.reference.wal_harness import Log

CORES = os.sched_getaffinity(0)
TRIES = 2000
NONE = 0
some_cores = pytest.mark.skipif(not 1 < len(CORES) <= CORES_MAX, reason="ticks are for two to eight cores")


def wakeups(ticks: CoreTicks) -> list[int]:
    """How often each thread has gone on a core."""
    return [
        int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[2]) for thread in ticks.threads
    ]


def lone_commits(log: Log, count: int, size: int = 100) -> None:
    for _ in range(count):
        log.append(wal_harness.batch(size))
        log.wal.commit_left()
        assert log.sync()
        threading.Event().wait(0.001)


def at_rest(ticks: CoreTicks) -> list[int]:
    """What `wakeups` has come to once it no longer rises."""
    before, looks = wakeups(ticks), 0
    for _ in range(TRIES):
        threading.Event().wait(0.1)
        now = wakeups(ticks)
        looks = looks + 1 if now == before else 0
        if looks == 5:  # on a busy machine a thread that has yet to run looks like one that rests
            return now
        before = now
    raise AssertionError("they never rest")


def started(log: Log) -> list[int]:
    """Starts the threads and waits until each is on its core and rests; what `wakeups` is then."""
    log.wal.ticks.start()
    for _ in range(TRIES):
        cores = [os.sched_getaffinity(thread.native_id) for thread in log.wal.ticks.threads if thread.native_id]
        if cores == [{core} for core in sorted(CORES)]:
            return at_rest(log.wal.ticks)
        threading.Event().wait(0.01)
    raise AssertionError(f"the threads are on {cores}")


def lone_commits_until_all_tick(log: Log, begun: list[int]) -> None:
    for _ in range(TRIES):
        lone_commits(log, 10)
        if all(now - then > 20 for now, then in zip(wakeups(log.wal.ticks), begun, strict=True)):
            return
    raise AssertionError("some core does not tick")


@some_cores
def test_every_core_ticks_while_lone_records_come(memory_path: Path) -> None:
    with Log(memory_path).start() as log:
        begun = started(log)
        log.wal.resting_io_thread = threading.get_ident()
        lone_commits_until_all_tick(log, begun)
        at_rest(log.wal.ticks)


@some_cores
def test_no_core_ticks_while_the_io_thread_is_busy(memory_path: Path) -> None:
    with Log(memory_path).start() as log:
        begun = started(log)
        log.wal.resting_io_thread = NONE
        lone_commits(log, 100)
        assert wakeups(log.wal.ticks) == begun


@some_cores
def test_no_core_ticks_beside_bulk(memory_path: Path) -> None:
    with Log(memory_path, segment_bytes=1 << 23).start() as log:  # no commit ends with a segment
        begun = started(log)
        log.wal.resting_io_thread = threading.get_ident()
        lone_commits(log, 50, size=70_000)
        assert wakeups(log.wal.ticks) == begun
        lone_commits_until_all_tick(log, begun)


@some_cores
def test_commits_far_apart_are_worth_no_ticks(memory_path: Path) -> None:
    with Log(memory_path).start() as log:
        begun = started(log)
        log.wal.resting_io_thread = threading.get_ident()
        for _ in range(10):
            threading.Event().wait(0.02)
            lone_commits(log, 1)
        assert wakeups(log.wal.ticks) == begun
        lone_commits_until_all_tick(log, begun)


@some_cores
def test_the_threads_end_with_the_log(memory_path: Path) -> None:
    with Log(memory_path).start() as log:
        started(log)
        threads = log.wal.ticks.threads
        assert len(threads) == len(CORES)
        log.wal.resting_io_thread = threading.get_ident()
        lone_commits(log, 20)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("cores", [{0}, set(range(CORES_MAX + 1))])
def test_one_core_and_many_cores_do_not_tick(cores: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cores)
    ticks = CoreTicks()
    ticks.start()
    assert ticks.threads == []
    ticks.stop()
