"""Group commit: commits that wait for company, and those that must not (decision 004)."""

from __future__ import annotations

from pathlib import Path

from kbroker._fast.wal.group_commit import GroupCommit
from tests.reference.wal_harness import Log, SyncGate, batch

US = 1_000
MS = 1_000_000
SECOND = 1_000_000_000
PAGE = 4096
MUCH = 65536


def test_a_commit_does_not_wait_where_entries_come_one_by_one() -> None:
    group = GroupCommit()
    for count in range(1, 100):
        assert not group.should_gather(count, PAGE)
        group.committed(count, count, PAGE, MS)


def test_a_commit_waits_for_as_many_entries_as_the_last_one_met() -> None:
    group = GroupCommit()
    group.committed(1, 3, PAGE, MS)  # one was covered, two came meanwhile
    assert group.should_gather(3, PAGE)
    assert not group.should_gather(4, PAGE)


def test_a_commit_of_many_bytes_does_not_wait() -> None:
    group = GroupCommit()
    group.committed(1, 3, PAGE, MS)
    assert not group.should_gather(3, MUCH)
    group.committed(3, 5, MUCH, MS)
    assert not group.should_gather(5, PAGE)


def test_a_commit_does_not_wait_for_more_entries_than_a_sync_has_time_for() -> None:
    group = GroupCommit()
    group.committed(50, 100, PAGE, MS)
    assert group.should_gather(100, PAGE)
    group = GroupCommit()
    group.committed(50, 101, PAGE, MS)
    assert not group.should_gather(101, PAGE)


def test_a_wait_takes_three_quarters_of_a_sync_and_half_a_millisecond_at_most() -> None:
    group = GroupCommit()
    group.committed(1, 1, PAGE, 200 * US)
    assert group.wait_ns == 150 * US
    group.committed(2, 2, PAGE, SECOND)
    assert group.wait_ns == 500 * US


def waits(group: GroupCommit, commits: int, all_came: bool) -> int:
    """Two entries are on their way during each commit; how many commits waited."""
    count = 0
    for _ in range(commits):
        entries = group.awaited - 1
        if group.should_gather(entries, PAGE):
            group.gathered(all_came)
            count += 1
        group.committed(entries, entries + 1, PAGE, MS)
    return count


def test_waits_that_fail_become_rare_until_one_succeeds() -> None:
    group = GroupCommit()
    group.committed(1, 2, PAGE, MS)
    assert waits(group, 20, all_came=True) == 20
    assert waits(group, 126, all_came=False) == 7  # the 1st, 2nd, 5th, 12th, 27th, 58th, 121st
    assert waits(group, 630, all_came=False) == 10
    assert waits(group, 126, all_came=True) > 63


def test_a_log_does_not_wait_for_entries_that_come_one_by_one(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        log.faults.sync_ns = SECOND
        for _ in range(10):
            log.append(batch())
            log.sync()
        assert (log.wal.syncs, log.wal.group_waits) == (10, 0)


def test_a_log_goes_on_when_none_comes_back(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log, SyncGate(log.faults) as gate:
        log.faults.sync_ns = SECOND
        log.append(batch())
        gate.await_sync()
        log.append(batch())
        log.append(batch())
        gate.open(2)
        log.sync()
        assert (log.wal.syncs, log.wal.group_waits) == (2, 1)


def test_entries_that_come_back_share_the_sync(tmp_path: Path) -> None:
    """Three in flight: what is sent on an acknowledgement is in the commit that begins just then."""
    with Log(tmp_path).start() as log, SyncGate(log.faults) as gate:
        log.faults.sync_ns = 100 * SECOND
        log.wal.group.wait_ns_max = 60 * SECOND
        _, first = log.append(batch())
        gate.await_sync()
        log.append(batch())
        log.append(batch())
        gate.open()
        log.until(lambda: log.wal.durable_lsn >= first)
        log.append(batch())
        gate.open()
        log.sync()
        assert (log.wal.syncs, log.wal.group_waits, log.wal.entries) == (2, 1, 4)
