"""The bounded pool of producer ids: which of them go, which stay, what they take, and what a restart loads."""

from __future__ import annotations

import ctypes
import pickle
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.partition.producer_map import ProducerMap
from kbroker._fast.partition.producer_pool import ProducerPool
from kbroker._fast.wal.commit import FastKafkaError
from kbroker.limits import PRODUCER_ID_BYTES
from tests.reference.wal_harness import TOPIC, Log, batch

NOT_ENOUGH_REPLICAS = 19
IDLE_MS = 300_000
MINUTE_MS = 60_000
START_MS = 1_700_000_000_000
IDS_AT_192_MIB = (192 << 20) // 10 // PRODUCER_ID_BYTES


class Mallinfo2(ctypes.Structure):
    """What glibc says of its memory (mallinfo2)."""

    _fields_ = [(f"field{n}", ctypes.c_size_t) for n in range(10)]


def allocated_bytes() -> int:
    """Bytes that malloc has given out in this process."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo2
    info = mallinfo2()
    return int(info.field7 + info.field4)  # uordblks, hblkhd


def code_of(log: Log, data: bytes, now_ms: int) -> int:
    try:
        log.append(data, trim=True, now_ms=now_ms)
    except FastKafkaError as error:
        return error.code
    return 0


def known(log: Log) -> list[int]:
    return [state[0] for state in log.partition().producers.snapshot()]


def first(producer_id: int, **options: int) -> bytes:
    return batch(sequence=0, producer_id=producer_id, epoch=0, **options)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Log]:
    """A log whose pool takes four producers, protected for five minutes."""
    with Log(tmp_path, producers=ProducerPool(4, min_idle_ms=IDLE_MS)).start() as log:
        yield log


def test_the_producer_longest_without_an_append_is_evicted_first(small: Log) -> None:
    for n in range(4):
        assert code_of(small, first(n), START_MS + n * MINUTE_MS) == 0
    assert code_of(small, batch(sequence=1, producer_id=0, epoch=0), START_MS + 4 * MINUTE_MS) == 0
    assert code_of(small, first(9), START_MS + 7 * MINUTE_MS) == 0  # 1 has been silent for six minutes
    assert known(small) == [0, 2, 3, 9]
    assert small.producers.evictions == 1


def test_a_recent_producer_is_not_evicted_and_a_new_one_is_refused(small: Log) -> None:
    for n in range(4):
        assert code_of(small, first(n), START_MS) == 0
    before = small.partition().next_offset
    assert code_of(small, first(9), START_MS + IDLE_MS - 1) == NOT_ENOUGH_REPLICAS
    assert small.partition().next_offset == before
    assert small.producers.refusals == 1
    for n in range(4):  # those that are known go on, with all their batches
        for sequence in range(1, 7):
            data = batch(sequence=sequence, producer_id=n, epoch=0)
            assert code_of(small, data, START_MS + IDLE_MS - 1) == 0
            assert code_of(small, data, START_MS + IDLE_MS - 1) == 0
    assert small.partition().next_offset == before + 24
    assert code_of(small, first(9), START_MS + IDLE_MS) == NOT_ENOUGH_REPLICAS
    assert code_of(small, first(9), START_MS + 2 * IDLE_MS) == 0


def test_a_new_epoch_of_a_known_producer_needs_no_room(small: Log) -> None:
    for n in range(4):
        assert code_of(small, first(n), START_MS) == 0
    assert code_of(small, batch(sequence=0, producer_id=2, epoch=1), START_MS) == 0
    assert known(small) == [0, 1, 2, 3]


def test_a_producer_with_an_open_transaction_is_never_evicted(small: Log) -> None:
    partition = small.partition()
    for n in range(4):
        assert code_of(small, first(n, attributes=0x10), START_MS) == 0
    assert code_of(small, first(9), START_MS + 100 * IDLE_MS) == NOT_ENOUGH_REPLICAS
    # A marker is never refused; that of a producer which is not known leaves no trace when there is no room for one.
    partition.append_marker(77, 3, 0, False, START_MS)
    assert known(small) == [0, 1, 2, 3]
    partition.append_marker(2, 0, 0, False, START_MS + 100 * IDLE_MS)
    assert code_of(small, first(9), START_MS + 100 * IDLE_MS) == NOT_ENOUGH_REPLICAS  # the marker was an append, too
    assert code_of(small, first(9), START_MS + 101 * IDLE_MS) == 0
    assert known(small) == [0, 1, 3, 9]
    assert [state[0] for state in partition.producers.open_transactions()] == [0, 1, 3]
    small.sync()
    assert partition.last_stable_offset() == 0


def test_an_evicted_producer_continues_with_any_sequence(small: Log) -> None:
    for n in range(4):
        assert code_of(small, first(n), START_MS + n) == 0
    assert code_of(small, first(9), START_MS + 2 * IDLE_MS) == 0
    assert known(small) == [1, 2, 3, 9]
    assert code_of(small, batch(sequence=1, producer_id=0, epoch=0), START_MS + 2 * IDLE_MS) == 0  # as in Kafka
    assert code_of(small, batch(sequence=3, producer_id=0, epoch=0), START_MS + 2 * IDLE_MS) == 45
    assert code_of(small, batch(sequence=2, producer_id=0, epoch=0), START_MS + 2 * IDLE_MS) == 0


def test_the_pool_is_one_for_all_partitions(small: Log) -> None:
    other = small.partition(TOPIC, 1)
    for n in range(4):
        small.append(first(7), small.partition(TOPIC, n), now_ms=START_MS + n)
    with pytest.raises(FastKafkaError) as refused:
        small.append(first(8), other, now_ms=START_MS)
    assert refused.value.code == NOT_ENOUGH_REPLICAS
    small.append(first(8), other, now_ms=START_MS + 2 * IDLE_MS)
    assert [small.partition(TOPIC, n).producers.rows for n in range(4)] == [0, 2, 1, 1]
    other.resign()
    assert (other.producers.rows, small.producers.rows) == (0, 2)


def test_guards_are_bounded_together_and_old_ones_make_room(tmp_path: Path) -> None:
    with Log(tmp_path, producers=ProducerPool(16, min_idle_ms=IDLE_MS)).start() as log:
        partition, other = log.partition(), log.partition(TOPIC, 1)
        for n in range(2):
            partition.end_verification(partition.begin_verification(n, 0, START_MS, sequence=0), refused=False)
        for target in (partition, other):
            with pytest.raises(FastKafkaError) as refused:
                target.begin_verification(9, 0, START_MS + IDLE_MS - 1, sequence=0)
            assert refused.value.code == NOT_ENOUGH_REPLICAS
        assert partition.begin_verification(9, 0, START_MS + IDLE_MS, sequence=0) is not None
        assert (partition.producers.guards.count, log.producers.guards) == (2, 2)


def test_a_restart_loads_no_more_than_the_bound_and_keeps_the_newest(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        log.append(first(1000, attributes=0x10), now_ms=START_MS)
        for n in range(50):
            log.append(first(n), now_ms=START_MS)
        log.append(batch(sequence=1, producer_id=3, epoch=0), now_ms=START_MS)
        log.sync()
    again = Log(tmp_path, producers=ProducerPool(4, min_idle_ms=IDLE_MS, started_ms=START_MS))
    again.recover()
    assert known(again) == [3, 48, 49, 1000]
    again.start()
    with again:
        # They may have written just before the restart.
        assert code_of(again, first(77), START_MS + IDLE_MS - 1) == NOT_ENOUGH_REPLICAS
        assert code_of(again, batch(sequence=2, producer_id=3, epoch=0), START_MS) == 0
        assert code_of(again, batch(sequence=1, producer_id=48, epoch=0), START_MS + IDLE_MS) == 0
        assert code_of(again, first(77), START_MS + IDLE_MS) == 0
        assert known(again) == [3, 48, 77, 1000]


@pytest.mark.parametrize("count", [150_000, pytest.param(5_000_000, marks=pytest.mark.slow)])
def test_an_endless_stream_of_ids_stays_within_the_pool(tmp_path: Path, count: int) -> None:
    """As many as come through: the clock goes on by five minutes for as many ids as the pool of 192 MiB takes."""
    pool = ProducerPool(IDS_AT_192_MIB, min_idle_ms=IDLE_MS)
    head = bytearray(batch(61, sequence=0, producer_id=0, epoch=0))
    with Log(tmp_path, producers=pool, segment_bytes=8 << 20, chunk_bytes=1 << 20).start() as log:
        partition = log.partition()
        for n in range(count):
            struct.pack_into(">q", head, 43, n)
            struct.pack_into(">I", head, 17, crc32c(head[21:]))
            log.append(head, partition, trim=True, now_ms=START_MS + n * (IDLE_MS + 10_000) // IDS_AT_192_MIB)
        assert pool.refusals == 0
        assert pool.rows == partition.producers.rows == IDS_AT_192_MIB
        assert pool.evictions == count - IDS_AT_192_MIB
        assert pool.used_bytes <= IDS_AT_192_MIB * PRODUCER_ID_BYTES // 2
        assert known(log)[0] == count - IDS_AT_192_MIB


@pytest.mark.parametrize(("batches", "most"), [(1, 110), (5, 205)])
def test_bytes_per_row(batches: int, most: int) -> None:
    """Bytes of malloc, the hash table included: the log's row, and the manifest's, which is as large."""
    count = 200_000
    states = ProducerMap(ProducerPool())
    states.put((0, 0, -1, 0, -1, ((0, 0, 0, 0),)))
    before = allocated_bytes()
    entries = ((n, n, 0, START_MS) for n in range(batches))
    newest = tuple(entries)
    for n in range(1, count):
        states.put((n, 0, -1, START_MS, -1, newest), START_MS)
    taken = allocated_bytes() - before
    assert abs(taken - states.pool.used_bytes) < 8 * count
    assert taken / count < most
    assert 2 * taken / count <= PRODUCER_ID_BYTES + 10


def test_a_map_is_a_mapping_of_entries() -> None:
    known = ProducerMap()
    entry = (7, 1, 2, 3, 4, ((9, 20, 4, 5), (11, 22, 1, 6)))
    known.put(entry, 50)
    known[8] = (8, 0, -1, -1, -1, ())
    assert dict(known) == {7: entry, 8: (8, 0, -1, -1, -1, ())}
    assert known == {7: entry, 8: known[8]}
    assert (list(known), 7 in known, 9 in known, known.get(9), len(known)) == ([7, 8], True, False, None, 2)
    assert (known.written_ms(7), known.written_ms(8, 33), known.written()) == (50, 33, {7: 50})
    other = ProducerMap()
    other.update(known, {7: 60})
    assert (other == known, other.written()) == (True, {7: 60})
    known[7] = (7, 2, 2, 3, -1, ((0, 30, 0, 5),) * 7)  # fewer than it came with
    assert known[7][5] == ((0, 30, 0, 5),) * 5
    del known[8]
    with pytest.raises(KeyError):
        known[8]
    with pytest.raises(KeyError):
        del known[8]
    with pytest.raises(ValueError, match="producer 1 under 2"):
        known[2] = (1, 0, -1, -1, -1, ())
    assert known.expire(10**12, 1)  # it wrote at an unknown time, which is taken for now
    assert not known.expire(10**12, 1)
    assert known.expire(10**12 + 1, 1)
    assert len(known) == 0


def test_a_table_shrinks_when_its_rows_have_gone() -> None:
    pool = ProducerPool()
    known = ProducerMap(pool)
    for producer_id in range(10_000):
        known.put((producer_id, 0, -1, 0, -1, ()), 1_000 if producer_id < 9_990 else 2_000)
    full = pool.used_bytes
    assert known.expire(2_000, 1_000)
    assert list(known) == list(range(9_990, 10_000))
    assert full - pool.used_bytes > 4 * 8_000  # of 4 bytes for each
    known.put((5, 0, -1, 0, -1, ()), 3_000)
    assert known[9_995][0] == 9_995
    assert len(known) == 11


def test_trim_orders_what_was_loaded_by_when_it_wrote() -> None:
    pool = ProducerPool()
    tables = [ProducerMap(pool), ProducerMap(pool)]
    times = {1: 5_000, 2: 9_000, 3: -1, 4: 1_000, 5: 7_000, 6: 3_000}
    for n, time_ms in times.items():
        tables[n % 2].put((n, 0, -1, 0, 0 if n == 4 else -1, ()), time_ms)
    pool.trim(4)
    assert sorted([*tables[0], *tables[1]]) == [2, 3, 4, 5]  # the oldest two without a transaction are gone
    assert tables[0].has_evicted
    assert tables[1].has_evicted


step = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 2), st.integers(0, 30), st.booleans()),
    st.tuples(st.just("remove"), st.integers(0, 2), st.integers(0, 30)),
    st.tuples(st.just("end"), st.integers(0, 2)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(step, max_size=150), st.integers(1, 12))
def test_any_use_of_the_pool_agrees_with_a_dictionary(steps: list[tuple], limit: int) -> None:
    pool = ProducerPool(limit)
    tables = [ProducerMap(pool) for _ in range(3)]
    model: dict[tuple[int, int], bool] = {}  # (table, id) -> open, the longest without a put first
    for n, (action, table, *rest) in enumerate(steps):
        if action == "put":
            producer_id, is_open = rest
            if (table, producer_id) not in model and len(model) >= limit:
                idle = next((key for key, opened in model.items() if not opened), None)
                while idle is not None and len(model) >= limit:
                    del model[idle]
                    idle = next((key for key, opened in model.items() if not opened), None)
            model.pop((table, producer_id), None)
            model[table, producer_id] = is_open
            tables[table].put((producer_id, 0, -1, n, n if is_open else -1, ((n, n, 0, n),) * (n % 6)), n << 10)
        elif action == "remove" and (table, rest[0]) in model:
            del model[table, rest[0]]
            del tables[table][rest[0]]
        elif action == "end":
            tables[table] = ProducerMap(pool)
            model = {key: opened for key, opened in model.items() if key[0] != table}
        assert [list(each) for each in tables] == [sorted(i for t, i in model if t == n) for n in range(3)]
    assert pool.rows == len(model)
    tables.clear()
    assert pool.rows == 0


def test_a_map_can_be_pickled() -> None:
    """Spark's tasks get the state of a partition."""
    entries = {7: (7, 1, 2, 3, 4, ((5, 6, 0, 3),)), 9: (9, 0, -1, 8, -1, ())}
    producers = ProducerMap(ProducerPool(1))
    producers.update(entries, {7: 70})
    producers.put(entries[7], 70)
    copied = pickle.loads(pickle.dumps(producers))
    assert dict(copied) == dict(producers)
    assert copied.written() == producers.written()
