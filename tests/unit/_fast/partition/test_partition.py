"""Reads, watermarks and look-ups of a partition, over sealed and dense parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kbroker._fast.partition.partition import Partition, traffic
from kbroker._fast.partition.topic_rules import TopicRules
from kbroker._fast.wal.commit import CallbackWaiter, FastAppendWait, FastKafkaError
from kbroker._fast.wal.faults import Faults
from tests.reference.wal_harness import SEGMENT, TOPIC, Log, batch


def spans(data: bytes) -> list[tuple[int, int]]:
    """[(base offset, size)] of concatenated batches."""
    result, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at + 8 : at + 12], "big") + 12
        result.append((int.from_bytes(data[at : at + 8], "big"), size))
        at += size
    assert at == len(data)
    return result


def two_tiers(folder: Path) -> tuple[Log, Partition, list[tuple[int, int, int, int]]]:
    """A log with sealed segments and dense rest: rows (base, last, size, timestamp)."""
    log = Log(folder).start()
    partition, rows = log.partition(), []
    for i in range(500):
        size, records, timestamp = 200 + i * 37 % 600, 1 + i % 4, i * 7919 % 1000
        base, _ = log.append(batch(size, records=records, timestamp=timestamp))
        rows.append((base, base + records - 1, size, timestamp))
        if i % 3 == 0:
            log.append(batch(300), log.partition(index=1))
    log.sync()
    log.until(lambda: log.wal.sealed_lsn >= log.wal.durable_lsn // SEGMENT * SEGMENT)
    assert log.wal.sealed_lsn >= 3 * SEGMENT
    return log, partition, rows


class ShortOfMemory:
    """A WAL that hands the first index to two partitions and then has no memory, once."""

    def __init__(self, wal: Any) -> None:
        self._wal = wal
        self.failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wal, name)

    def attach(self, segment: Any, scan: Any, first: int, count: int) -> int:
        if self.failed:
            return self._wal.attach(segment, scan, first, count)
        self.failed = True
        self._wal.attach(segment, scan, first, 2)
        raise MemoryError


def test_a_segment_whose_sealing_failed_half_way_is_sealed_whole(tmp_path: Path) -> None:
    log = Log(tmp_path)
    wal = log.wal.keeper.sealer.wal = ShortOfMemory(log.wal)
    with log.start():
        for i in range(1000):
            log.append(batch(600), log.partition(index=i % 4))
        log.sync()
        log.until(lambda: log.wal.sealed_lsn >= log.wal.durable_lsn // SEGMENT * SEGMENT)
        assert wal.failed
        assert log.wal.sealed_lsn >= 2 * SEGMENT
        for index in range(4):
            partition = log.partition(index=index)
            assert len(spans(partition.read_bytes(0, partition.high_watermark(), 1 << 20))) == 250


def test_reads_are_whole_batches_within_the_bounds(tmp_path: Path) -> None:
    log, partition, rows = two_tiers(tmp_path)
    with log:
        end = partition.high_watermark()
        for offset in (*range(0, end, 7), end - 1, 3, 4, 5):
            for max_bytes in (0, 500, 5000, 300_000):
                upper = end if offset % 2 else min(end, offset + 40)
                expected, total = [], 0
                for base, last, size, _ in rows:
                    if last < offset:
                        continue
                    if last >= upper or (total + size > max_bytes and expected):
                        break
                    expected.append((base, size))
                    total += size
                assert spans(partition.read_bytes(offset, upper, max_bytes)) == expected
        assert partition.read_bytes(end, end, 100) == b""
        plan = partition.read_plan(0, end, 10, at_least_one=False)
        assert plan.references() == []


def test_entries_of_any_range(tmp_path: Path) -> None:
    log, partition, rows = two_tiers(tmp_path)
    with log:
        everything = partition.entries(0, log.wal.durable_lsn)
        assert everything["base_offset"].tolist() == [r[0] for r in rows]
        assert everything["size"].tolist() == [r[2] for r in rows]
        positions = everything["lsn"].tolist()
        for low, high in ((0, SEGMENT), (SEGMENT // 2, 3 * SEGMENT), (positions[77], positions[400]), (9, 9)):
            part = partition.entries(low, high)
            assert part["lsn"].tolist() == [p for p in positions if low <= p < high]
        log.wal.trim(SEGMENT + 8192)
        assert partition.unflushed_bytes == sum(
            r[2] for r, p in zip(rows, positions, strict=True) if p >= SEGMENT + 8192
        )


def test_available_stops_at_the_limit(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        partition = log.partition()
        for _ in range(10):
            log.append(batch(100, records=2))
        end = partition.next_offset
        assert partition.available_bytes(0, end, 10_000) == 1000
        assert partition.available_bytes(5, end, 10_000) == 800
        assert partition.available_bytes(0, end, 250) == 250
        assert partition.available_bytes(0, 7, 10_000) == 300
        assert partition.available_bytes(end, end, 10_000) == 0


def test_the_high_watermark_follows_the_commit(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        partition, woken = log.partition(), []
        waiter = CallbackWaiter(lambda: woken.append(partition.high_watermark()))
        partition.waiters.park(waiter)
        partition.waiters.park(waiter)
        assert len(partition.waiters) == 1
        assert partition.high_watermark() == 0
        log.append(batch(records=3))
        assert partition.next_offset == 3
        log.sync()
        assert woken == [3]
        partition.waiters.leave(waiter)
        log.append(batch())
        log.sync()
        assert woken == [3]
        assert partition.high_watermark() == 4


def test_timestamp_lookup(tmp_path: Path) -> None:
    log, partition, rows = two_tiers(tmp_path)
    with log:
        end = partition.high_watermark()
        for start in (0, 333, 900):
            partition.log_start_offset = start
            for timestamp in (0, 1, 500, 993, 999, 1000, 5000):
                for upper in (end, end // 2, 3):
                    hits = [r for r in rows if r[3] >= timestamp and r[0] < upper and r[1] >= start]
                    found = partition.offset_for_timestamp(timestamp, upper)
                    assert (found and found[0]) == (hits[0][0] if hits else None)
            kept = [r for r in rows if r[1] >= start]
            best = max(kept, key=lambda r: (r[3], -r[0]))
            found = partition.max_timestamp_batch(end)
            assert (found[0], found[2], found[3]) == (best[0], best[3], best[2])
            assert spans(log.wal.read(found[1], found[3])) == [(best[0], best[2])]
        assert partition.max_timestamp_batch(0) is None


@pytest.mark.parametrize("sealed", [False, True])
def test_no_timestamp_is_higher_than_the_highest_there_can_be(tmp_path: Path, sealed: bool) -> None:
    with Log(tmp_path).start() as log:
        for timestamp in (5, 2**63 - 1, 7):
            log.append(batch(timestamp=timestamp))
        if sealed:
            log.append(batch(SEGMENT - 5_000), log.partition(index=1))
            log.append(batch(SEGMENT - 5_000), log.partition(index=1))
            log.until(lambda: log.wal.sealed_lsn >= SEGMENT)
        log.sync()
        assert log.partition().max_timestamp_batch(3)[0] == 1


def test_states_that_refuse(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        partition = log.partition()

        def code(data: bytes = batch()) -> int:
            with pytest.raises(FastKafkaError) as caught:
                partition.append_bytes(data, 0)
            return caught.value.code

        good = bytearray(batch())
        assert code(bytes(good[:60])) == 2
        assert code(bytes(good[:-1])) == 2
        good[70] ^= 1
        assert code(bytes(good)) == 2
        assert code(batch(records=0)) == 87
        with pytest.raises(ValueError, match="led here"):
            partition.drop()
        partition.resign()
        assert code() == 6
        partition.mark_deleted()
        assert code() == 3
        partition.drop()
        assert partition.next_offset == 0
        again = Partition(log.wal, "topic", TOPIC, 0, 9, 1)
        with pytest.raises(ValueError, match="led here"):
            Partition(log.wal, "topic", TOPIC, 0, 9, 1)
        again.set_next_offset(50)
        assert log.append(batch(), again)[0] == 50
        with pytest.raises(ValueError, match="holds batches"):
            again.set_next_offset(1)
        assert again.wal_start_offset() == 50
        assert again.read_bytes(49, 51, 100) is None


def test_a_released_partition_is_not_attached_again(tmp_path: Path) -> None:
    log = Log(tmp_path).start()
    with log:
        other = log.partition(index=1)
        log.append(batch(1000))
        log.append(batch(1000), other)
        other.resign()
        other.drop()
        while log.wal.head_lsn < 2 * SEGMENT:
            log.append(batch(1000))
        log.sync()
        log.until(lambda: log.wal.segments[0].sealed)
        assert len(other.entries(0, 1 << 60)) == 0


def test_default_rules() -> None:
    rules = TopicRules()
    assert (rules.max_message_bytes, rules.delete_enabled, rules.internal) == (1048588, True, False)
    assert rules.timestamp_before_max_ms == 2**63 - 1


def test_a_retry_completes_with_the_batch_that_it_repeats(tmp_path: Path) -> None:
    faults = Faults()
    with Log(tmp_path, faults=faults).start() as log:
        partition = log.partition()
        sent = [batch(producer_id=9, epoch=0, sequence=n) for n in range(3)]
        results: list[int] = []
        first = partition.append_bytes(sent[0], 0, results.append)
        assert partition.append_bytes(sent[0], 0, results.append) == first
        log.sync()
        assert results == [0, 0]
        assert partition.append_bytes(sent[0], 0, results.append) == first  # durable long ago: answered all the same
        log.sync()
        assert results == [0, 0, 0]
        log.until(lambda: len(log.wal.segments) >= 3)
        faults.sync_count = -1
        results.clear()
        pending = partition.append_bytes(sent[1], 0, results.append)
        assert partition.append_bytes(sent[1], 0, results.append) == pending
        log.until(lambda: log.wal.failed)
        assert partition.append_bytes(sent[1], 0, results.append) == pending  # known, but not stored: no success
        log.wal.drain_commits()
        assert results == [56, 56, 56]
        with pytest.raises(FastKafkaError):
            partition.append_bytes(sent[2], 0, results.append)


def test_an_append_without_space_leaves_no_trace_in_the_producers_state(tmp_path: Path) -> None:
    with Log(tmp_path, wal_segments=4).start() as log:
        partition = log.partition()
        count = log.fill_up(batch(3000), 4)
        waiting = batch(3000, producer_id=9, epoch=0, sequence=0)
        for _ in range(2):
            with pytest.raises(FastAppendWait):
                partition.append_bytes(waiting, 0)
        assert partition.producers.snapshot() == []
        assert log.append(waiting, trim=True)[0] == count
        assert partition.next_offset == count + 1


def test_nothing_is_acknowledged_once_the_broker_is_superseded(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        partition, results = log.partition(), []
        acknowledged = batch(producer_id=9, epoch=0, sequence=0)
        first = partition.append_bytes(acknowledged, 0, results.append)
        log.sync()
        assert results == [0]
        pending = batch(producer_id=9, epoch=0, sequence=1)
        partition.append_bytes(pending, 0, results.append)
        in_bucket: list[int] = []
        log.wal.object_commits.push_callback(first[1], in_bucket.append)
        log.wal.object_commits.push_callback(first[1] + 1, in_bucket.append)
        log.wal.trim(first[1])
        log.wal.refuse(6)
        assert log.wal.sync(10.0)  # what is in the log becomes durable all the same
        log.wal.drain_commits()
        assert results == [0, 6]
        assert in_bucket == [0, 6]
        # The retry of a batch that was acknowledged is an acknowledgement, too.
        assert partition.append_bytes(acknowledged, 0, results.append) == first
        log.wal.drain_commits()
        assert results == [0, 6, 6]
        with pytest.raises(FastKafkaError) as caught:
            partition.append_bytes(batch(producer_id=9, epoch=0, sequence=2), 0, results.append)
        assert caught.value.code == 6
        with pytest.raises(FastKafkaError) as caught:
            partition.append_marker(9, 0, 0, True, 0)
        assert caught.value.code == 6
        assert partition.high_watermark() == 2


def test_traffic_counts_what_was_appended_and_fetched_since_the_start(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        partition, other = log.partition(), log.partition(index=1)
        log.append(batch(300, records=3))
        log.append(batch(200, records=2), other)
        other.count_fetched(200, 2)
        assert traffic([partition, other]) == (500, 5, 200, 2)
        assert traffic([partition]) == (300, 3, 0, 0)
        assert traffic([]) == (0, 0, 0, 0)
        log.sync()
    with Log(tmp_path).start() as log:
        partition = log.partition()
        assert (partition.next_offset, partition.unflushed_bytes) == (3, 300)
        assert traffic([partition]) == (0, 0, 0, 0)
