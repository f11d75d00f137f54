"""How fast uploads may be by what comes in: what lasts, bursts, and how seldom it may be looked at."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kbroker import limits
from kbroker.clock import ManualClock
from kbroker.limits import GIB, MIB
from kbroker.storage.flush.schedule import FlushSchedule, FlushSettings

SLOWEST = limits.UPLOAD_BYTES_PER_SECOND_MIN


class Input:
    """A log that bytes come into, and a schedule that is asked for its pace beside; nothing is flushed by itself."""

    def __init__(self, memory_bytes: int = GIB) -> None:
        self.clock = ManualClock()
        commits = SimpleNamespace(newest_lsn=0)
        self.wal = SimpleNamespace(durable_lsn=0, is_at_rest=False, wants_flush=False, object_commits=commits)
        source = SimpleNamespace(all_partitions=list, kfs_topics=frozenset)
        settings = FlushSettings(wal_bytes=4 * GIB, memory_bytes=memory_bytes)
        self.schedule = FlushSchedule(settings, self.wal, source, self.clock)  # type: ignore[arg-type]

    def come(self, rate: int, seconds: float, *, step: float = 0.1, unflushed: int = 0) -> list[float]:
        """`rate` bytes per second for so long, all but `unflushed` flushed at once: the pace after each step."""
        paces = []
        for _ in range(round(seconds / step)):
            self.wal.durable_lsn += int(rate * step)
            self.clock.advance(step)
            paces.append(self.schedule.pace(max(0, self.wal.durable_lsn - unflushed), urgent=False))
        return paces


def test_what_lasts_is_uploaded_faster_than_it_comes_in() -> None:
    given = Input()
    paces = given.come(100 * MIB, 200)
    assert paces[100] < 25 * MIB  # the first seconds may be of a burst
    assert paces[600] > 100 * MIB
    assert paces[-1] == pytest.approx(125 * MIB, rel=0.02)
    assert max(given.come(20 * MIB, 60)[200:]) < 30 * MIB  # less comes in: what there was before is not caught up
    assert given.come(0, 30)[-1] == SLOWEST


@pytest.mark.parametrize(("memory_bytes", "enough"), [(GIB, 500 * MIB), (128 * MIB, 120 * MIB)])
def test_a_backlog_is_uploaded_faster(memory_bytes: int, enough: int) -> None:
    """More than the flush that is sent and the one that gathers meanwhile, or more than is in memory."""
    given = Input(memory_bytes)
    assert given.come(50 * MIB, 200, unflushed=enough)[-1] == pytest.approx(62.5 * MIB, rel=0.02)
    assert given.come(50 * MIB, 1, unflushed=enough + 15 * MIB)[-1] == pytest.approx(100 * MIB, rel=0.02)


def test_a_burst_is_left_alone() -> None:
    given = Input()
    assert max(given.come(250 * MIB, 4, unflushed=GIB)) < 1.1 * SLOWEST
    assert max(given.come(0, 1, unflushed=GIB)) < 1.1 * SLOWEST
    assert max(given.come(0, 40, unflushed=GIB)) < 2.1 * SLOWEST  # for a few seconds


def test_what_a_burst_has_left_goes_faster_once_the_log_is_at_rest() -> None:
    given = Input()
    given.come(250 * MIB, 4, unflushed=GIB)
    given.wal.is_at_rest = True
    assert given.come(0, 60, unflushed=GIB)[-1] == limits.UPLOAD_BYTES_PER_SECOND_AT_REST
    given.wal.is_at_rest = False
    assert given.come(0, 1, unflushed=GIB)[-1] == SLOWEST


def test_what_comes_in_counts_the_same_however_seldom_it_is_looked_at() -> None:
    often, seldom = Input(), Input()
    often.come(100 * MIB, 90)
    assert seldom.come(100 * MIB, 90, step=30)[-1] == pytest.approx(often.come(100 * MIB, 0.1)[-1], rel=0.02)


def test_a_log_without_room_is_flushed_at_once_and_at_full_speed() -> None:
    given = Input()
    given.wal.durable_lsn = MIB
    assert given.schedule.due(0, -1) is None
    assert given.schedule.pace(0, urgent=False) > 0
    given.wal.wants_flush = True
    assert given.schedule.due(0, -1) == "no room"
    assert given.schedule.pace(0, urgent=False) == 0.0
    assert given.schedule.due(MIB, -1) is None
