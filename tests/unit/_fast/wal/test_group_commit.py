"""Commits that wait for company, and those that must not (decision 004)."""

from __future__ import annotations

import threading
from pathlib import Path

from kbroker._fast.wal.faults import Faults
from tests.reference.wal_harness import Log, batch

PAGE = 4096
ATTEMPTS = 40


def slow_log(path: Path, sync_us: int) -> Log:
    faults = Faults()
    faults.sync_us = sync_us
    path.mkdir(exist_ok=True)
    return Log(path, faults=faults).start()


def append_and_see_it_written(log: Log) -> int:
    """Returns while the commit that covers it is under way, with the entry's end."""
    _, end = log.append(batch())
    while log.wal.head_lsn % PAGE and log.wal.durable_lsn < end:  # a commit begins with a filler up to the page's end
        threading.Event().wait(0.0005)
    return end


def test_one_after_another_none_waits(tmp_path: Path) -> None:
    with slow_log(tmp_path, 20_000) as log:
        for _ in range(10):
            log.append(batch())
            log.sync()
        assert (log.wal.syncs, log.wal.group_waits) == (10, 0)


def test_a_commit_waits_for_those_that_the_last_one_has_freed(tmp_path: Path) -> None:
    with slow_log(tmp_path, 300_000) as log:
        append_and_see_it_written(log)
        log.append(batch())
        log.append(batch())
        log.sync()
        assert (log.wal.syncs, log.wal.group_waits) == (2, 1)  # none came, and it went on


def test_who_comes_back_at_once_shares_the_sync(tmp_path: Path) -> None:
    """Three in flight: what is sent on an acknowledgement is in the commit that begins just then."""
    for attempt in range(ATTEMPTS):  # on a busy machine a test is not always as quick as that
        with slow_log(tmp_path / str(attempt), 20_000) as log:
            first = append_and_see_it_written(log)
            log.append(batch())
            log.append(batch())
            log.until(lambda log=log, first=first: log.wal.durable_lsn >= first)
            log.append(batch())
            log.sync()
            if (log.wal.syncs, log.wal.group_waits, log.wal.entries) == (2, 1, 4):
                return
    raise AssertionError("never in the same commit")


def test_waits_in_vain_become_rare(tmp_path: Path) -> None:
    """Each entry comes while the one before is written, whatever the log waits for."""
    with slow_log(tmp_path, 20_000) as log:
        for _ in range(40):
            append_and_see_it_written(log)
        log.sync()
        assert 1 <= log.wal.group_waits <= 8
