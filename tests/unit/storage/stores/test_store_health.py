"""When a store counts as away, and how often the log says so; the age of what it does not have."""

from __future__ import annotations

import pytest

from kbroker.clock import ManualClock
from kbroker.storage.flush import unflushed_age
from kbroker.storage.flush.unflushed_age import UnflushedAge
from kbroker.storage.stores.store_health import FORGOTTEN_SECONDS, StoreHealth


def test_an_outage_begins_at_its_first_failure_and_ends_at_the_first_answer(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(now_ms=1_767_323_045_678)
    health = StoreHealth(clock)
    health.note("put", None)
    for _ in range(3):
        health.note("put", "StoreUnavailable")
        clock.advance(60)
    assert (health.unavailable_since, health.consecutive_failures) == ("2026-01-02T03:04:05Z", 3)
    health.note("put", "StoreDenied")
    health.note("put", "PreconditionFailed")  # an answer
    assert (health.unavailable_since, health.consecutive_failures) == (None, 0)
    assert [record.getMessage() for record in caplog.records] == [
        "the object store is unavailable: put failed (StoreUnavailable)",
        "the object store answers again: unavailable since 2026-01-02T03:04:05Z, 4 failures",
    ]
    assert not any(record.throttled for record in caplog.records)


@pytest.mark.parametrize("error", ["StoreUnavailable", "StoreFull", "StoreDenied"])
def test_reads_that_succeed_do_not_hide_writes_that_fail(error: str) -> None:
    clock = ManualClock(now_ms=1_767_323_045_678)
    health = StoreHealth(clock)
    for _ in range(3):
        health.note("put", error)
        health.note("head", None)
        clock.advance(1.5)
    assert (health.unavailable_since, health.consecutive_failures) == ("2026-01-02T03:04:05Z", 3)
    clock.advance(FORGOTTEN_SECONDS)
    health.note("head", None)
    assert health.unavailable_since is None, "nothing is written any more"


@pytest.mark.parametrize("error", [None, "NotFound", "PreconditionFailed", "InvalidRange", "ChecksumMismatch"])
def test_what_the_store_answers_is_no_outage(error: str | None) -> None:
    health = StoreHealth(ManualClock())
    health.note("get", error)
    assert health.unavailable_since is None


def test_a_store_that_fails_now_and_then_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    health = StoreHealth(clock)
    for _ in range(500):
        health.note("put", "StoreUnavailable")
        health.note("put", None)
        clock.advance(0.1)
    begun = [record for record in caplog.records if "is unavailable" in record.getMessage()]
    assert len(begun) == 2
    assert len(caplog.records) == 4  # each of them has ended
    health.note("put", "StoreUnavailable")
    assert len(caplog.records) == 4
    clock.advance(30)
    health.note("put", "StoreUnavailable")  # it has lasted: now it is said
    assert "is unavailable" in caplog.records[-1].getMessage()
    assert len(caplog.records) == 5


def test_the_age_is_that_of_the_oldest_byte() -> None:
    clock = ManualClock()
    age = UnflushedAge(clock)
    assert age.look(100, 100) == 0
    clock.advance(3600)
    assert age.look(200, 100) == 0  # what came after a quiet hour is new
    clock.advance(5)
    assert age.look(300, 100) == 5
    clock.advance(5)
    assert age.look(300, 200) == 5
    assert age.look(300, 300) == 0


def test_a_long_outage_takes_no_more_memory_and_keeps_the_oldest() -> None:
    clock = ManualClock()
    age = UnflushedAge(clock)
    for lsn in range(1, 20_000):
        age.look(lsn, 0)
        clock.advance(1)
    assert len(age._marks) <= unflushed_age.MARKS_MAX
    assert age.look(19_999, 0) == 19_999
    assert 0 < age.look(20_000, 10_000) <= 10_001
