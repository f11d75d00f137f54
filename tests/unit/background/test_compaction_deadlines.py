"""When compaction is due without an append: flushes that it requests, and tombstones that expire."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker._fast.records.records import build_control_batch
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.manifest.manifest import Manifest
from tests.unit.log.compacted_broker import CompactedBroker
from tests.unit.storage.flush.flush_harness import KEYS, NOW_MS, ONCE, topic_id
from tests.unit.storage.manifest.changes import change_of

HOUR_MS = 3_600_000
NEVER_MS = (1 << 63) - 1


class Flushes:
    """The flusher, as compaction sees it: counts requests, and flushes at once if told to."""

    def __init__(self, broker: CompactedBroker, at_once: bool = True) -> None:
        self.settings = SimpleNamespace(flush_seconds=60.0)
        self.asked = 0
        self._broker = broker
        self._at_once = at_once

    def flush(self, wait: bool = True) -> bool:
        assert not wait
        self.asked += 1
        if self._at_once:
            self._broker.s.flush()
        return self._at_once


def opened(tmp_path: Path, **config: Any) -> CompactedBroker:
    return CompactedBroker(tmp_path / "wal", **{"cleanup_policy": "compact", **config})


def test_a_record_that_may_not_wait_is_flushed_and_compacted(tmp_path: Path) -> None:
    """Long before the flush interval, however small; also the younger records of the same flush (KIP-354)."""
    broker = opened(tmp_path, max_compaction_lag_ms=2000, segment_ms=1000, min_cleanable_dirty_ratio=1)
    flushes = Flushes(broker)
    cleaner = broker.cleaner(flushes)
    broker.write((b"a", b"1"), timestamp=NOW_MS)
    broker.s.sync()
    broker.s.clock.advance(1.9)
    broker.write((b"a", b"2"), timestamp=NOW_MS + 1900)
    broker.s.sync()
    assert cleaner.run_once() is None
    assert flushes.asked == 0
    assert cleaner.deadlines.seconds_to_next == pytest.approx(0.101)
    broker.s.clock.advance(0.101)
    assert cleaner.run_once()
    assert flushes.asked == 1
    assert broker.contents() == {1: (b"a", b"2")}
    assert cleaner.run_once() is None
    assert cleaner.deadlines.seconds_to_next == float("inf")
    broker.close()


def test_flushes_are_requested_once_per_backoff(tmp_path: Path) -> None:
    broker = opened(tmp_path, max_compaction_lag_ms=1000, min_cleanable_dirty_ratio=1)
    flushes = Flushes(broker)
    cleaner = broker.cleaner(flushes, backoff_ms=15_000)
    for number in range(31):
        broker.write((b"a", b"%d" % number), timestamp=broker.s.clock.now_ms())
        broker.s.sync()
        broker.s.clock.advance(1)
        cleaner.run_once()
    assert flushes.asked == 2
    assert 0 < cleaner.deadlines.seconds_to_next < 15
    broker.close()


def test_a_slow_flush_is_awaited(tmp_path: Path) -> None:
    broker = opened(tmp_path, max_compaction_lag_ms=1000)
    flushes = Flushes(broker, at_once=False)
    cleaner = broker.cleaner(flushes)
    broker.write((b"a", b"1"))
    broker.write((b"a", b"2"))
    broker.s.sync()
    broker.s.clock.advance(2)
    assert cleaner.run_once() is None
    assert cleaner.run_once() is None
    assert flushes.asked == 1
    assert cleaner.deadlines.awaits_flush
    broker.s.flush()
    assert not cleaner.deadlines.awaits_flush
    assert cleaner.run_once()
    assert broker.contents() == {1: (b"a", b"2")}
    broker.close()


def test_segment_ms_requests_a_flush_if_enough_is_dirty(tmp_path: Path) -> None:
    broker = opened(tmp_path, segment_ms=1000, min_cleanable_dirty_ratio=0.6)
    flushes = Flushes(broker)
    cleaner = broker.cleaner(flushes, backoff_ms=0)
    broker.write((b"a", b"1" * 3000))
    broker.s.sync()
    broker.s.clock.advance(1)
    assert cleaner.run_once()  # all of it is dirty
    broker.write((b"a", b"1" * 1000), timestamp=NOW_MS + 1000)
    broker.s.sync()
    broker.s.clock.advance(1)
    assert cleaner.run_once() is None
    assert flushes.asked == 1
    broker.write((b"a", b"1" * 9000), timestamp=NOW_MS + 1000)
    broker.s.sync()
    assert cleaner.run_once()
    assert flushes.asked == 2
    assert list(broker.contents()) == [2]
    broker.close()


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"segment_ms": 60_000, "max_compaction_lag_ms": 60_000},  # flushed by then anyway
        {"cleanup_policy": "delete", "segment_ms": 1},
    ],
)
def test_topics_without_a_short_limit_request_no_flush(tmp_path: Path, config: dict[str, Any]) -> None:
    broker = opened(tmp_path, **config)
    flushes = Flushes(broker)
    cleaner = broker.cleaner(flushes)
    broker.write((b"a", b"1"))
    broker.s.sync()
    broker.s.clock.advance(3600)
    assert cleaner.run_once() is None
    assert flushes.asked == 0
    broker.close()


def test_an_open_transaction_needs_no_flush(tmp_path: Path) -> None:
    broker = opened(tmp_path, max_compaction_lag_ms=1000)
    flushes = Flushes(broker)
    cleaner = broker.cleaner(flushes)
    producer = {"producer_id": 9, "producer_epoch": 0}
    broker.write((b"a", b"1"), base_sequence=0, transactional=True, **producer)
    broker.write((b"a", b"2"))
    broker.s.sync()
    broker.s.clock.advance(5)
    assert cleaner.run_once() is None
    assert flushes.asked == 0
    broker.s.append("t", 0, build_control_batch(1, coordinator_epoch=1, timestamp_ms=NOW_MS, **producer))
    broker.s.sync()
    assert cleaner.run_once()
    assert broker.contents() == {1: (b"a", b"2")}
    broker.close()


def test_min_compaction_lag_counts_after_a_flush_too(tmp_path: Path) -> None:
    broker = opened(tmp_path, min_compaction_lag_ms=5000, max_compaction_lag_ms=6000)
    cleaner = broker.cleaner(Flushes(broker))
    broker.write((b"a", b"1"), timestamp=NOW_MS)
    broker.write((b"a", b"2"), timestamp=NOW_MS + 4000)
    broker.s.sync()
    broker.s.clock.advance(6.001)
    assert cleaner.run_once() is None
    assert sorted(broker.contents()) == [0, 1]
    broker.s.clock.advance(3)
    assert cleaner.run_once()
    assert sorted(broker.contents()) == [1]
    broker.close()


# -- tombstones ------------------------------------------------------------------------------------------------------


def with_tombstone(tmp_path: Path, **config: Any) -> tuple[CompactedBroker, int]:
    """A broker that has compacted a tombstone, at offset 2, and when that may go."""
    broker = opened(tmp_path, delete_retention_ms=HOUR_MS, segment_ms=1, min_cleanable_dirty_ratio=0, **config)
    broker.write((b"a", b"1"), (b"b", b"1"))
    broker.write((b"a", None))
    broker.s.flush()
    broker.s.clock.advance(1)
    assert broker.cleaner().run_once()
    assert broker.contents() == {1: (b"b", b"1"), 2: (b"a", None)}
    assert broker.state.horizon_ms == broker.s.clock.now_ms() + HOUR_MS
    return broker, broker.state.horizon_ms


def reloaded(broker: CompactedBroker) -> Any:
    log = NumberedLog(broker.store, KEYS.manifest_dir, 0, bytes(16), retries=ONCE)
    return Manifest(log, broker.s.clock, root=KEYS.root).load().partition(topic_id("t"), 0)


@pytest.mark.parametrize("known_by", ["record", "checkpoint"])
def test_tombstones_are_removed_after_their_retention_without_an_append(tmp_path: Path, known_by: str) -> None:
    broker, horizon_ms = with_tombstone(tmp_path)
    if known_by == "checkpoint":
        broker.s.manifest.checkpoint()
    assert reloaded(broker).horizon_ms == horizon_ms
    broker.restart()
    cleaner = broker.cleaner()
    broker.s.clock.advance((horizon_ms - broker.s.clock.now_ms() - 1) / 1000)
    assert cleaner.run_once() is None
    assert cleaner.next_horizon_ms == horizon_ms
    broker.s.clock.advance(0.001)
    report = cleaner.run_once()
    assert (report.clean_offset, report.records_kept) == (3, 1)
    assert broker.contents() == {1: (b"b", b"1")}
    assert broker.state.horizon_ms == -1
    assert broker.state.clean_offset == 3
    assert [batch.next_offset for batch in _headers(broker)] == [2, 3]  # offsets stay: the last batch is empty
    broker.s.clock.advance(10 * HOUR_MS / 1000)
    assert cleaner.run_once() is None
    broker.close()


def test_a_log_start_beyond_the_clean_part_ends_the_wait(tmp_path: Path) -> None:
    broker, _ = with_tombstone(tmp_path)
    broker.s.manifest.commit(change_of({"p": {topic_id("t").hex(): {"0": {"s": 3}}}}))
    broker.s.clock.advance(2 * HOUR_MS / 1000)
    assert broker.cleaner().run_once() is None
    broker.close()


def test_tombstones_with_endless_retention_stay(tmp_path: Path) -> None:
    broker = opened(tmp_path, delete_retention_ms=NEVER_MS, segment_ms=1, min_cleanable_dirty_ratio=0)
    broker.write((b"a", None))
    broker.s.flush()
    broker.s.clock.advance(1)
    cleaner = broker.cleaner()
    assert cleaner.run_once()
    assert broker.state.horizon_ms == NEVER_MS
    assert reloaded(broker).horizon_ms == NEVER_MS
    broker.s.clock.advance(HOUR_MS)
    assert cleaner.run_once() is None
    broker.close()


def _headers(broker: CompactedBroker) -> list[Any]:
    from kbroker._fast.records.records import iter_batches

    return [header for header, _ in iter_batches(b"".join(broker.read()))]
