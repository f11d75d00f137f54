"""Idempotence and transactions of a partition, against the twin and case by case."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker._fast.partition.aborted_transactions import aborted_between
from kbroker._fast.partition.producer_state import ProducerStates
from kbroker._fast.records.records import build_control_batch, iter_batches
from kbroker._fast.wal.commit import FastAppendWait, FastKafkaError
from tests.reference.producer_twin import ProducerTwin
from tests.reference.wal_harness import SEGMENT, Log, batch, marker

DAY_MS = 86_400_000

IDEMPOTENT = {"producer_id": 7, "epoch": 0}
WRAP = 2**31


def code_of(log: Log, data: bytes) -> int:
    try:
        log.append(data)
    except FastKafkaError as error:
        return error.code
    return 0


def test_the_five_newest_batches_are_known(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        partition = log.partition()
        results = [log.append(batch(sequence=2 * i, records=2, **IDEMPOTENT)) for i in range(7)]
        assert [r[0] for r in results] == [0, 2, 4, 6, 8, 10, 12]
        for i in range(2, 7):
            assert log.append(batch(sequence=2 * i, records=2, **IDEMPOTENT)) == results[i]
        for sequence, records in ((2, 2), (12, 1), (13, 1), (16, 1), (11, 2)):
            assert code_of(log, batch(sequence=sequence, records=records, **IDEMPOTENT)) == 45
        assert partition.next_offset == 14


def test_sequences_wrap(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        first = log.append(batch(sequence=WRAP - 3, records=5, **IDEMPOTENT))
        assert log.append(batch(sequence=WRAP - 3, records=5, **IDEMPOTENT)) == first
        assert code_of(log, batch(sequence=3, **IDEMPOTENT)) == 45
        assert log.append(batch(sequence=2, **IDEMPOTENT))[0] == 5


def test_a_retry_of_a_refused_append_is_no_duplicate(tmp_path: Path) -> None:
    with Log(tmp_path, wal_segments=3).start() as log:
        partition = log.partition()
        sequence = 0
        before = None
        with pytest.raises(FastAppendWait):  # noqa: PT012
            while True:
                before = partition.producers.snapshot()
                try:
                    partition.append_bytes(batch(8000, sequence=sequence, **IDEMPOTENT), 0)
                    sequence += 1
                except FastAppendWait:
                    log.sync()
                    if log.wal.head_lsn > 2 * SEGMENT + SEGMENT // 2:
                        raise
                    log.wait()
        assert partition.producers.snapshot() == before
        assert log.append(batch(8000, sequence=sequence, **IDEMPOTENT), trim=True)[0] == sequence
        with pytest.raises(FastKafkaError):
            partition.append_bytes(batch(SEGMENT, sequence=sequence + 1, **IDEMPOTENT), 0)
        assert log.append(batch(100, sequence=sequence + 1, **IDEMPOTENT), trim=True)[0] == sequence + 1


def test_a_duplicate_of_a_pending_batch_joins_its_completion(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        done: list[tuple[str, int]] = []
        data = batch(sequence=0, **IDEMPOTENT)
        first = log.partition().append_bytes(data, 0, lambda e: done.append(("first", e)))
        assert log.partition().append_bytes(data, 0, lambda e: done.append(("again", e))) == first
        log.sync()
        assert done == [("first", 0), ("again", 0)]
        log.wait()
        assert log.partition().append_bytes(data, 0, lambda e: done.append(("late", e))) == first
        log.wait()
        log.wal.drain_commits()
        assert done[-1] == ("late", 0)


def test_markers_fence_and_close_transactions(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        partition = log.partition()
        txn = {"producer_id": 7, "epoch": 3, "attributes": 0x10}
        log.append(batch())
        log.append(batch(sequence=0, **txn))
        assert code_of(log, batch(sequence=1, producer_id=7, epoch=3)) == 48
        log.sync()
        assert (partition.last_stable_offset(), partition.high_watermark()) == (1, 2)
        assert code_of(log, marker(commit=False, producer_id=7, epoch=2)) == 47
        log.append(marker(commit=False, producer_id=7, epoch=3, coordinator_epoch=5))
        assert code_of(log, marker(commit=False, producer_id=7, epoch=3, coordinator_epoch=4)) == 52
        log.sync()
        assert partition.last_stable_offset() == 3
        assert partition.producers.aborted.entries == [(7, 1, 2, 3)]
        assert aborted_between(partition.producers.aborted.entries, 0, 2) == [(7, 1)]
        assert aborted_between(partition.producers.aborted.entries, 3, 9) == []
        assert aborted_between(partition.producers.aborted.entries, 0, 1) == []
        log.append(marker(commit=True, producer_id=7, epoch=4, coordinator_epoch=5))
        assert code_of(log, batch(sequence=1, producer_id=7, epoch=4)) == 45
        assert code_of(log, batch(sequence=0, producer_id=7, epoch=4)) == 0
        partition.producers.aborted.trim(3)
        assert partition.producers.aborted.entries == []


def test_append_marker_and_describe_producers(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        partition = log.partition()
        for pid in (9, 7):
            log.append(batch(sequence=0, records=3, producer_id=pid, epoch=3, attributes=0x10, timestamp=50))
        log.append(batch(sequence=4, producer_id=8, epoch=0, timestamp=60))
        assert partition.producers.open_transactions() == [(9, 3, 0, -1, 50), (7, 3, 3, -1, 50)]
        active = partition.producers.active_producers()
        assert active == [(7, 3, 2, 50, -1, 3), (8, 0, 4, 60, -1, -1), (9, 3, 2, 50, -1, 0)]
        done: list[int] = []
        base, end = partition.append_marker(7, 4, 11, False, 77, done.append)
        assert base == 7
        log.sync()
        assert done == [0]
        assert log.wal.durable_lsn >= end
        ((_, stored),) = iter_batches(partition.read_bytes(7, 8, 1000), check_crc=True)
        assert stored == build_control_batch(
            0, producer_id=7, producer_epoch=4, coordinator_epoch=11, timestamp_ms=77, base_offset=7, leader_epoch=1
        )
        assert partition.producers.open_transactions() == [(9, 3, 0, -1, 50)]
        assert partition.producers.active_producers()[0] == (7, 4, -1, 77, 11, -1)
        assert partition.producers.aborted.entries == [(7, 3, 7, 0)]
        # The same epochs again are as good, lower ones are fenced. A marker without transaction leaves its epochs.
        assert partition.append_marker(7, 4, 11, False, 78)[0] == 8
        for epoch, coordinator_epoch, code in ((3, 11, 47), (4, 10, 52)):
            with pytest.raises(FastKafkaError) as refused:
                partition.append_marker(7, epoch, coordinator_epoch, True, 79)
            assert refused.value.code == code
        assert partition.append_marker(100, 5, 0, True, 80)[0] == 9
        assert partition.producers.active_producers()[-1] == (100, 5, -1, 80, 0, -1)
        assert len(partition.producers.aborted.entries) == 1


def test_a_coordinators_batches_have_no_sequence(tmp_path: Path) -> None:
    offsets = {"producer_id": 7, "sequence": -1, "attributes": 0x10}
    with Log(tmp_path).start() as log:
        partition = log.partition()
        assert code_of(log, batch(epoch=3, **offsets)) == 87
        partition.rules.internal = True
        for _ in range(7):
            assert code_of(log, batch(epoch=3, **offsets)) == 0
        assert partition.producers.open_transactions() == [(7, 3, 0, -1, 1000)]
        assert partition.producers.snapshot()[0][5] == []
        assert code_of(log, batch(epoch=2, **offsets)) == 47
        assert code_of(log, batch(producer_id=7, epoch=3, sequence=-1)) == 48
        log.sync()
        assert partition.last_stable_offset() == 0
        partition.append_marker(7, 4, 0, False, 1)
        log.sync()
        assert partition.last_stable_offset() == 8
        assert aborted_between(partition.producers.aborted.entries, 0, 8) == [(7, 0)]
        assert code_of(log, batch(epoch=3, **offsets)) == 47
        assert code_of(log, batch(epoch=4, **offsets)) == 0


def test_a_guard_does_not_outlive_a_marker(tmp_path: Path) -> None:
    first = batch(sequence=0, producer_id=7, epoch=0, attributes=0x10)
    with Log(tmp_path).start() as log:
        partition = log.partition()
        stale = partition.begin_verification(7, 0, 0, sequence=0)
        partition.append_marker(7, 0, 0, False, 1)
        partition.end_verification(stale, refused=False)
        guard = partition.begin_verification(7, 0, 0, sequence=0)
        with pytest.raises(FastKafkaError) as refused:
            partition.append_bytes(first, 0, None, stale)
        assert refused.value.code == 48
        assert partition.append_bytes(first, 0, None, guard)[0] == 1
        assert partition.begin_verification(7, 0, 0, sequence=1) is None  # the transaction is open
        assert partition.producers.guards.count == 0


def test_guards_are_bounded_and_expire() -> None:
    with tempfile.TemporaryDirectory() as folder, Log(Path(folder)).start() as log:
        partition = log.partition()
        asked = partition.begin_verification(1, 0, 1000, sequence=0)
        again = partition.begin_verification(1, 0, 2000, sequence=5)
        assert again is asked
        assert (asked.pending, asked.last_ticket, asked.lowest_sequence) == (2, 2, 0)
        partition.end_verification(asked, refused=True)
        assert partition.producers.guards.count == 1  # the other question is open
        partition.producers.expire(10**12, DAY_MS)
        assert partition.producers.guards.count == 1
        partition.end_verification(asked, refused=False)
        partition.producers.expire(1000, DAY_MS)
        assert partition.producers.guards.count == 1
        partition.producers.expire(10**12, DAY_MS)
        assert partition.producers.guards.count == 0


def test_aborted_transactions_of_a_range(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        partition = log.partition()
        for n in range(40):
            for pid in (1, 2, 3):
                if (n + pid) % 4:
                    log.append(batch(producer_id=pid, epoch=n, sequence=0, attributes=0x10))
            for pid in (3, 1, 2):
                if (n * pid) % 5 < 3:
                    log.append_marker(pid, n, 0, n % 2 == 0, 1)
        aborted = partition.producers.aborted.entries
        assert len(aborted) > 20
        for low in range(0, partition.next_offset, 3):
            for high in range(low, partition.next_offset + 1, 7):
                expected = [(a[0], a[1]) for a in aborted if a[2] >= low and a[1] < high]
                assert aborted_between(partition.producers.aborted.entries, low, high) == expected


def test_ended_transactions_are_forgotten_without_reads(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        partition = log.partition()
        for n in range(300):
            log.append(batch(producer_id=n % 3, epoch=0, sequence=n // 3, attributes=0x10))
            log.append_marker(n % 3, 0, 0, n % 2 == 0, 1)
            if n % 10 == 0:
                log.sync()
        assert partition.producers.transaction_count <= 20


def test_a_damaged_marker_is_refused(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        for body in (b"", b"\x20\0\0\0", bytes.fromhex("20000000020000"), bytes.fromhex("ff" * 17), b"\0" * 17):
            data = batch(producer_id=7, epoch=0, attributes=0x30, body=body)
            assert code_of(log, data) == 87
        assert log.partition().next_offset == 0


def test_expiry_keeps_open_transactions(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        log.append(batch(sequence=0, producer_id=1, epoch=0, timestamp=1000))
        log.append(batch(sequence=0, producer_id=2, epoch=0, timestamp=1000, attributes=0x10))
        log.append(batch(sequence=0, producer_id=3, epoch=0, timestamp=1001))
        assert log.partition().producers.expire(DAY_MS + 999, DAY_MS) == 0
        assert log.partition().producers.expire(DAY_MS + 1000, DAY_MS) == 1
        assert sorted(s[0] for s in log.partition().producers.snapshot()) == [2, 3]


def test_expiry_counts_from_the_append_not_only_from_the_timestamp(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        partition = log.partition()
        log.append(batch(sequence=0, producer_id=1, epoch=0, timestamp=1000), now_ms=50 * DAY_MS)
        log.append(batch(sequence=0, producer_id=2, epoch=0, timestamp=60 * DAY_MS), now_ms=50 * DAY_MS)
        partition.append_marker(3, 0, 0, True, 50 * DAY_MS + 1)
        assert partition.producers.expire(51 * DAY_MS - 1, DAY_MS) == 0
        assert partition.producers.expire(51 * DAY_MS, DAY_MS) == 1
        assert [s[0] for s in partition.producers.snapshot()] == [2, 3]
        assert partition.producers.expire(51 * DAY_MS + 1, DAY_MS) == 1
        assert partition.producers.expire(61 * DAY_MS - 1, DAY_MS) == 0  # a timestamp in the future counts, as in Kafka
        assert partition.producers.expire(61 * DAY_MS, DAY_MS) == 1


def test_appends_before_a_restart_expire_counted_from_the_first_look(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        log.append(batch(sequence=0, producer_id=1, epoch=0, timestamp=1000), now_ms=1000)
    again = Log(tmp_path)
    again.recover()
    partition = again.partition()
    assert partition.producers.expire(50 * DAY_MS, DAY_MS) == 0
    assert partition.producers.expire(51 * DAY_MS - 1, DAY_MS) == 0
    assert partition.producers.expire(51 * DAY_MS, DAY_MS) == 1


def test_restored_producers_keep_the_time_that_is_known() -> None:
    states = ProducerStates()
    states.restore([(n, 0, -1, 1000, -1, []) for n in (1, 2)], {1: 5 * DAY_MS})
    assert states.expire(6 * DAY_MS - 1, DAY_MS) == 0
    assert states.expire(6 * DAY_MS, DAY_MS) == 1
    assert [s[0] for s in states.snapshot()] == [2]


def test_restore_is_the_inverse_of_snapshot() -> None:
    states = ProducerStates()
    snapshot = [(4, 0, 2, 78, 2, [(0, 2, 0, 1)]), (5, 1, -1, 77, -1, [(4, 9, 4, 77)]), (6, 0, 2, 78, 3, [])]
    states.restore(snapshot)
    assert states.snapshot() == snapshot
    assert len(states) == 3


event = st.one_of(
    st.tuples(
        st.just("data"),
        st.integers(1, 3),
        st.integers(0, 2),
        st.sampled_from(["next", "again", "zero", "gap", "old"]),
        st.integers(1, 3),
        st.booleans(),
    ),
    st.tuples(st.just("marker"), st.integers(1, 3), st.integers(0, 2), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("sync")),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(event, max_size=60), st.sampled_from([0, WRAP - 4]))
def test_any_history_is_judged_as_by_the_twin(events: list[tuple], start: int) -> None:
    with tempfile.TemporaryDirectory() as folder, Log(Path(folder)).start() as log:
        partition, twin = log.partition(), ProducerTwin()
        ends: dict[int, int] = {}
        for n, step in enumerate(events):
            if step[0] == "sync":
                log.sync()
            elif step[0] == "data":
                _, pid, epoch, kind, count, transactional = step
                cached = twin.producers[pid].batches if pid in twin.producers else []
                last = cached[-1] if cached else (start, start - 1, 0, 0)
                sequence = {
                    "next": (last[1] + 1) % WRAP,
                    "again": cached[n % len(cached)][0] if cached else 0,
                    "zero": 0,
                    "gap": (last[1] + 3) % WRAP,
                    "old": (last[0] - 20) % WRAP,
                }[kind]
                if kind == "again" and cached:
                    item = cached[n % len(cached)]
                    count = item[3] - item[2] + 1
                data = batch(
                    records=count,
                    sequence=sequence,
                    producer_id=pid,
                    epoch=epoch,
                    timestamp=n,
                    attributes=0x10 if transactional else 0,
                )
                expected, base, duplicate = twin.data(pid, epoch, sequence, count, n, transactional)
                try:
                    got = (0, *log.append(data))
                except FastKafkaError as error:
                    got = (error.code, -1, 0)
                assert got[:2] == (expected, base)
                if duplicate:
                    assert got[2] == ends[base]
                ends[base] = got[2]
            else:
                _, pid, epoch, coordinator_epoch, commit = step
                data = marker(
                    commit=commit, producer_id=pid, epoch=epoch, coordinator_epoch=coordinator_epoch, timestamp=n
                )
                assert code_of(log, data) == twin.marker(pid, epoch, coordinator_epoch, commit, n)
            assert partition.next_offset == twin.next_offset
            watermark = partition.high_watermark()
            stable = partition.last_stable_offset()  # the commit goes on meanwhile
            assert twin.last_stable_offset(watermark) <= stable
            assert stable <= twin.last_stable_offset(partition.high_watermark())
            assert watermark <= partition.next_offset
        assert partition.producers.aborted.entries == twin.aborted
        log.sync()
        before = partition.producers.snapshot()
        log.wal.close()
        again = Log(Path(folder))
        again.recover()
        replayed = again.partition()
        assert replayed.producers.snapshot() == before
        assert replayed.producers.aborted.entries == twin.aborted
        assert replayed.last_stable_offset() == twin.last_stable_offset(twin.next_offset)
