"""How fast uploads may be: by what comes in, by the backlog, and without limit under pressure."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kbroker import limits
from kbroker.clock import ManualClock
from kbroker.limits import GIB, MIB
from kbroker.storage.flush.schedule import FlushSchedule, FlushSettings

SLOWEST = limits.UPLOAD_BYTES_PER_SECOND_MIN


class Input:
    """A log that bytes come into, and a schedule that is asked for its pace."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.commits = SimpleNamespace(newest_lsn=0)
        self.wal = SimpleNamespace(
            durable_lsn=0, wants_flush=False, object_commits=self.commits,
            bytes_between=lambda from_lsn, to_lsn: to_lsn - from_lsn,
        )  # fmt: skip
        source = SimpleNamespace(all_partitions=list, kfs_topics=frozenset)
        settings = FlushSettings(wal_bytes=4 * GIB, flush_seconds=60)
        self.schedule = FlushSchedule(settings, self.wal, source, self.clock)  # type: ignore[arg-type]

    def come(self, rate: int, seconds: float, *, step: float = 0.1, unflushed: int = 0) -> float:
        """`rate` bytes per second for so long, all but `unflushed` flushed at once: the pace at the end."""
        for _ in range(round(seconds / step)):
            self.wal.durable_lsn += int(rate * step)
            self.clock.advance(step)
            pace = self.schedule.pace(max(0, self.wal.durable_lsn - unflushed), urgent=False)
        return pace


def test_sustained_load_is_uploaded_as_fast_as_it_comes_in() -> None:
    given = Input()
    assert given.come(100 * MIB, 360) == pytest.approx(100 * MIB, rel=0.01)
    assert given.come(20 * MIB, 360) == pytest.approx(20 * MIB, rel=0.02)
    assert given.come(0, 360) == SLOWEST


def test_a_short_burst_raises_the_rate_by_its_share_of_flush_seconds() -> None:
    assert Input().come(1500 * MIB, 1) == pytest.approx(25 * MIB, rel=0.1)


def test_a_backlog_adds_what_uploads_it_within_flush_seconds() -> None:
    assert Input().come(100 * MIB, 360, unflushed=1200 * MIB) == pytest.approx(120 * MIB, rel=0.01)
    given = Input()
    given.wal.durable_lsn = 1800 * MIB
    assert given.schedule.pace(0, urgent=False) == pytest.approx(30 * MIB, rel=0.01)


def test_the_average_does_not_depend_on_how_often_it_is_measured() -> None:
    often, seldom = Input(), Input()
    assert seldom.come(100 * MIB, 12, step=4) == pytest.approx(often.come(100 * MIB, 12), rel=0.01)


def test_a_log_without_room_is_flushed_at_once_without_a_limit() -> None:
    given = Input()
    given.wal.durable_lsn = MIB
    assert given.schedule.due(0, -1) is None
    assert given.schedule.pace(0, urgent=False) > 0
    given.wal.wants_flush = True
    assert given.schedule.due(0, -1) == "no room"
    assert given.schedule.pace(0, urgent=False) == 0
    assert given.schedule.due(MIB, -1) is None


def test_there_is_no_limit_while_the_log_is_half_full() -> None:
    given = Input()
    given.wal.durable_lsn = 2 * GIB
    assert given.schedule.pace(0, urgent=False) > 0
    given.wal.durable_lsn += 1
    assert given.schedule.due(0, -1) == "WAL pressure"
    assert given.schedule.pace(0, urgent=False) == 0


def test_there_is_no_limit_for_an_urgent_flush_or_an_awaited_object() -> None:
    given = Input()
    given.wal.durable_lsn = 2 * MIB
    assert given.schedule.pace(0, urgent=True) == 0
    given.commits.newest_lsn = MIB
    assert given.schedule.pace(MIB - 1, urgent=False) == 0
    assert given.schedule.pace(MIB, urgent=False) > 0
