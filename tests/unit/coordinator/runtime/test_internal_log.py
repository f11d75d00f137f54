"""The coordinator's log on a real WAL."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker._fast.partition.partition import Partition
from kbroker._fast.records.records import build_batch, iter_batches, iter_records
from kbroker._fast.wal.commit import FastKafkaError
from kbroker.background.retention import Retention
from kbroker.errors import CorruptionError, ErrorCode
from kbroker.log.internal_log import InternalLog
from kbroker.storage.stores.memory_store import MemoryStore
from tests.reference.wal_harness import Log
from tests.unit.coordinator.coordinator_fakes import Bench
from tests.unit.storage.flush.flush_harness import Storage


class Led:
    """A partition whose leader epoch changes."""

    def __init__(self, partition: Partition) -> None:
        self.leader_epoch = 1
        self._partition = partition

    def __getattr__(self, name: str) -> Any:
        return getattr(self._partition, name)


def never(offset: int, upper: int, max_bytes: int) -> list[bytes]:
    raise AssertionError("nothing is cold")


def one(value: bytes) -> bytes:
    return build_batch([(b"k", value, 0, None)])


def values_of(log: InternalLog) -> list[bytes | None]:
    batches = (batch for block in log.read_all() for _, batch in iter_batches(block, check_crc=True))
    return [record.value for batch in batches for record in iter_records(batch)]


def test_reads_back_what_is_durable_in_order(tmp_path: Path) -> None:
    with Log(tmp_path).start() as wal_log:
        log = InternalLog(wal_log.partition(), never)
        durable: list[int] = []
        for i in range(50):
            assert log.append(one(b"%d" % i), 0, durable.append) == i
        wal_log.sync()
        assert durable == [0] * 50
        assert log.next_offset == 50
        assert values_of(log) == [b"%d" % i for i in range(50)]


def test_a_flushed_part_is_read_from_objects(tmp_path: Path) -> None:
    with Log(tmp_path).start() as wal_log:
        asked = []

        def cold(offset: int, upper: int, max_bytes: int) -> list[bytes]:
            asked.append((offset, upper))
            return [build_batch([(b"k", b"cold", 0, None)] * 3, base_offset=0)] if offset < 3 else []

        partition = wal_log.partition()
        partition.set_next_offset(3)  # as after a recovery that found three flushed records
        log = InternalLog(partition, cold)
        log.append(one(b"hot"), 0, lambda error: None)
        wal_log.sync()
        assert values_of(log) == [b"cold"] * 3 + [b"hot"]
        assert asked == [(0, 4)]


def test_a_gap_in_the_log_is_an_error(tmp_path: Path) -> None:
    with Log(tmp_path).start() as wal_log:
        partition = wal_log.partition()
        partition.set_next_offset(3)
        with pytest.raises(CorruptionError, match="no data at offset 0"):
            list(InternalLog(partition, lambda *_: []).read_all())


def test_the_start_is_raised_when_what_replaces_the_old_part_is_in_objects(tmp_path: Path) -> None:
    with Log(tmp_path).start() as wal_log:
        partition = wal_log.partition()
        raised: list[int] = []
        partition.log = SimpleNamespace(raise_log_start=raised.append, flushed_end=0)
        log = InternalLog(partition, never)
        for value in (b"old", b"snapshot", b"later"):
            log.append(one(value), 0, lambda error: None)
        log.advance_start(1)
        partition.log.flushed_end = 2  # a part of it is not enough
        log.append(one(b"more"), 0, lambda error: None)
        assert raised == []
        partition.log.flushed_end = 3
        log.append(one(b"more"), 0, lambda error: None)
        assert raised == [1]
        log.append(one(b"more"), 0, lambda error: None)
        assert raised == [1]


def test_a_newer_log_start_does_not_delay_the_previous_one(tmp_path: Path) -> None:
    with Log(tmp_path).start() as wal_log:
        partition = wal_log.partition()
        raised: list[int] = []
        partition.log = SimpleNamespace(raise_log_start=raised.append, flushed_end=0)
        log = InternalLog(partition, never)
        for offset in range(100):
            assert log.append(one(b"snapshot"), 0, lambda error: None) == offset
            log.advance_start(offset)
        partition.log.flushed_end = 1
        assert log.start_offset == 0
        assert raised == [0]
        partition.log.flushed_end = 100
        log.advance_start(99)
        assert raised[-1] == 99


def test_a_snapshot_that_is_only_in_the_wal_replaces_nothing_in_the_bucket(tmp_path: Path) -> None:
    store = MemoryStore()
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    storage = Storage(first, store).start()
    storage.add_topic("__consumer_offsets", cleanup_policy="compact")
    log = InternalLog(storage.table.partition("__consumer_offsets", 0), never)
    log.append(one(b"committed"), 0, lambda error: None)
    storage.flush()
    snapshot = log.append(one(b"committed"), 0, lambda error: None)
    storage.sync()
    log.advance_start(snapshot)
    Retention(storage.table, storage.manifest, store, storage.clock).check_once()
    storage.close()
    # The disk is lost with the snapshot on it: what had been flushed long before must still be there.
    lost = Storage(second, store, epoch=2, data_dir_id="dir-2", topics=[("__consumer_offsets", 1)]).start()
    try:
        assert lost.table.partition("__consumer_offsets", 0).log_start_offset == 0
        assert b"committed" in lost.stored("__consumer_offsets", 0)
    finally:
        lost.close()


def test_nothing_is_written_in_another_leader_epoch(tmp_path: Path) -> None:
    with Log(tmp_path).start() as wal_log:
        partition = Led(wal_log.partition())
        raised: list[int] = []
        partition.log = SimpleNamespace(raise_log_start=raised.append, flushed_end=0)
        log = InternalLog(partition, never)  # type: ignore[arg-type]
        log.append(one(b"1"), 0, lambda error: None)
        log.advance_start(1)
        for leader_epoch in (-1, log.leader_epoch + 1):
            partition.leader_epoch = leader_epoch
            with pytest.raises(FastKafkaError, match="is over") as refusal:
                log.append(one(b"2"), 0, raised.append)
            assert refusal.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            with pytest.raises(FastKafkaError, match="is over"):
                log.append_marker(1, 0, 0, True, 0, raised.append)
        partition.log.flushed_end = 1
        assert log.start_offset == 0
        assert InternalLog(partition, never).append(one(b"2"), 0, lambda error: None) == 1  # type: ignore[arg-type]
        assert raised == []


def test_coordinator_survives_a_broker_restart(tmp_path: Path) -> None:
    with Log(tmp_path).start() as wal_log:
        bench = Bench([InternalLog(wal_log.partition(), never)])  # type: ignore[list-item]
        bench.start()
        committing = bench.commit(42, metadata="answer")
        fetching = bench.fetch()
        wal_log.sync()
        bench.run()
        assert committing.result(0) == 0
        assert fetching.result(0)[0][1][0][1].offset == 42
    with Log(tmp_path).start() as wal_log:
        bench = Bench([InternalLog(wal_log.partition(), never)])  # type: ignore[list-item]
        bench.start()
        value = bench.fetch().result(0)[0][1][0][1]
        assert (value.offset, value.metadata) == (42, "answer")
