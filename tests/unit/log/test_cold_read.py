"""Cold reads: where the answer comes from, on which thread, and what a fetch is told when there is none."""

from __future__ import annotations

import threading

import pytest

from kbroker._fast.records.records import build_batch, iter_batches
from kbroker.errors import CorruptionError, ErrorCode
from kbroker.limits import MIB
from kbroker.log import cold_read
from kbroker.log.cold_read import ColdReader
from kbroker.storage.read.object_reader import ObjectReader
from kbroker.storage.stores.object_store import StoreUnavailable
from tests.unit.storage.read.object_bucket import NOW, ObjectBucket, batch, batches, topic_id


class HotPartition:
    """The hot state, as the cold reader sees it."""

    def __init__(self, wal_start: int = 0, wal: bytes | None = b"") -> None:
        self.topic = "t"
        self.topic_id = topic_id("t")
        self.index = 0
        self.log_start_offset = 0
        self.wal_start = wal_start
        self.wal = wal
        self.read_at: list[int] = []

    def wal_start_offset(self) -> int:
        return self.wal_start

    def read_bytes(self, offset: int, upper: int, max_bytes: int) -> bytes | None:
        self.read_at.append(offset)
        return self.wal


class Log:
    def __init__(self, partition: HotPartition) -> None:
        self.partition = partition


class Answer:
    """A fetch's callback: the result, and the thread it came on."""

    def __init__(self) -> None:
        self._called = threading.Event()
        self.count = 0

    def __call__(self, result) -> None:
        self.result = result
        self.thread = threading.current_thread().name
        self.count += 1
        self._called.set()

    def get(self):
        assert self._called.wait(20), "never answered"
        assert self.count == 1
        return self.result


class Setup:
    def __init__(self, threads: int = 4) -> None:
        self.bucket = ObjectBucket()
        self.partition = HotPartition()
        self.log = Log(self.partition)
        self.reader = ObjectReader(self.bucket.store, self.bucket.image, 64 * MIB)
        self.cold = ColdReader(self.reader, threads)

    def ask(self, offset: int, upper: int = 1 << 40, max_bytes: int = 1 << 20) -> Answer:
        answer = Answer()
        self.cold.request(self.log, offset, upper, max_bytes, answer)
        return answer


@pytest.fixture
def setup():
    made = Setup()
    yield made
    made.cold.close()


def base_offsets(parts) -> list[int]:
    return [header.base_offset for part in parts for header, _ in iter_batches(part)]


def test_a_read_runs_on_a_pool_thread_and_in_memory_on_the_callers(setup) -> None:
    setup.bucket.klix("t", 0, batches(0, 4))
    setup.partition.wal_start = 12
    first = setup.ask(4)
    assert base_offsets(first.get()) == [3, 6, 9]
    assert first.thread.startswith("kbroker-cold-read")
    second = setup.ask(7)
    assert second.count == 1  # before request() returned: a fetch that waits 0 ms gets it too
    assert base_offsets(second.get()) == [6, 9]
    assert (setup.cold.from_store, setup.cold.from_memory, setup.cold.failures) == (1, 1, 0)


def test_fetches_are_deferred_until_there_is_a_reader(setup) -> None:
    setup.bucket.klix("t", 0, batches(0, 4))
    setup.partition.wal_start = 12
    opened, setup.cold = setup.cold, ColdReader()
    opened.close()
    assert setup.ask(4).get() == []
    assert (setup.cold.from_store, setup.cold.from_memory, setup.cold.deferred) == (0, 0, 1)
    setup.cold.read_from(setup.reader)
    assert base_offsets(setup.ask(4).get()) == [3, 6, 9]


def test_store_errors_become_kafka_errors(setup, caplog) -> None:
    setup.bucket.klix("t", 0, batches(0, 4))
    setup.partition.wal_start = 12

    def away(key, start):
        raise StoreUnavailable("away")

    setup.bucket.store.before_get = away
    assert setup.ask(0).get() is ErrorCode.KAFKA_STORAGE_ERROR
    assert "cold read of t-0 at 0: away" in caplog.text
    setup.bucket.store.before_get = lambda key, start: None
    assert base_offsets(setup.ask(0).get()) == [0, 3, 6, 9]
    assert setup.cold.failures == 1


def test_damage_becomes_a_kafka_error(setup) -> None:
    key = setup.bucket.klix("t", 0, batches(0, 4))
    bad = bytearray(setup.bucket.store.get(key))
    bad[90] ^= 1
    setup.bucket.swap(key, bytes(bad))
    assert setup.ask(0).get() is ErrorCode.KAFKA_STORAGE_ERROR


def test_an_unexpected_failure_is_answered(setup, caplog) -> None:
    setup.bucket.klix("t", 0, batches(0, 4))
    setup.partition.wal_start = 12
    setup.bucket.store.get = None
    assert setup.ask(0).get() is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "TypeError" in caplog.text


def test_a_gap_up_to_the_end_of_the_objects_continues_in_the_log(setup) -> None:
    """What compaction took from the end of the last object must not hold a consumer there for ever."""
    setup.bucket.klix("t", 0, batches(0, 2), end=50)
    setup.partition.wal_start = 40
    setup.partition.wal = batch(50)
    assert base_offsets(setup.ask(20).get()) == [50]
    assert setup.partition.read_at == [40]
    assert setup.ask(20, upper=30).get() == []  # nothing visible yet: a tail reader waits


def test_offsets_that_are_nowhere_are_an_error(setup) -> None:
    setup.bucket.klix("t", 0, batches(0, 2))
    setup.partition.wal_start = 20
    setup.partition.wal = batch(20)
    assert setup.ask(10).get() is ErrorCode.KAFKA_STORAGE_ERROR
    setup.partition.log_start_offset = 20
    assert setup.ask(20).get() != ErrorCode.KAFKA_STORAGE_ERROR


def test_a_read_that_loses_a_race_with_a_trim_is_tried_again(setup) -> None:
    setup.bucket.klix("t", 0, batches(0, 2))
    setup.partition.wal_start = 6
    flushed = []

    def trimmed(offset: int, upper: int, max_bytes: int):
        if not flushed:
            flushed.append(setup.bucket.klix("t", 0, batches(6, 2)))
            setup.partition.wal_start = 12

    setup.partition.read_bytes = trimmed
    assert base_offsets(setup.ask(6).get()) == [6, 9]


def test_a_log_that_never_answers_is_an_error(setup) -> None:
    setup.bucket.klix("t", 0, batches(0, 2))
    setup.partition.wal_start, setup.partition.wal = 6, None
    with pytest.raises(CorruptionError, match="no data at offset 6"):
        setup.cold.read(setup.log, 6, 100, 100)
    assert len(setup.partition.read_at) == cold_read.TRIM_RACES_MAX


def test_below_the_log_start_there_is_nothing(setup) -> None:
    setup.bucket.klix("t", 0, batches(0, 4))
    setup.partition.wal_start = 12
    setup.partition.log_start_offset = 6
    assert setup.ask(0).get() == []


def test_reads_of_one_place_take_one_thread() -> None:
    setup = Setup(threads=2)
    setup.bucket.klix("t", 0, batches(0, 4))
    setup.bucket.klix("t", 1, batches(0, 4))
    setup.partition.wal_start = 12
    entered, go_on = threading.Event(), threading.Event()

    def slow(key, start):
        if "/0/" in key:
            entered.set()
            assert go_on.wait(20)

    setup.bucket.store.before_get = slow
    answers = [setup.ask(0) for _ in range(10)]
    assert entered.wait(20)
    other = HotPartition(12)
    other.index = 1
    answer = Answer()
    setup.cold.request(Log(other), 0, 1 << 40, 1000, answer)
    assert base_offsets(answer.get()) == [0, 3, 6, 9]  # while ten readers wait at another place
    go_on.set()
    for waiting in answers:
        assert base_offsets(waiting.get()) == [0, 3, 6, 9]
    assert len(setup.bucket.store.gets) == 2
    setup.cold.close()


def test_too_many_waiting_reads_are_deferred(setup, monkeypatch) -> None:
    monkeypatch.setattr(cold_read, "WAITING_MAX", 3)
    setup.bucket.klix("t", 0, batches(0, 4))
    setup.partition.wal_start = 12
    entered, go_on = threading.Event(), threading.Event()

    def slow(key, start):
        entered.set()
        assert go_on.wait(20)

    setup.bucket.store.before_get = slow
    first = setup.ask(0)
    assert entered.wait(20)
    waiting = [setup.ask(0) for _ in range(3)]
    assert setup.ask(0).get() == []
    assert setup.cold.deferred == 1
    go_on.set()
    for answer in [first, *waiting]:
        assert base_offsets(answer.get()) == [0, 3, 6, 9]


def test_reads_are_deferred_while_unread_answers_hold_the_memory(setup) -> None:
    setup.bucket.klix("t", 0, batches(0, 4))
    setup.bucket.klix("t", 0, batches(12, 4))
    setup.partition.wal_start = 24
    setup.reader.ranges.pieces.capacity_bytes = 0
    held = setup.ask(0).get()
    assert held
    assert setup.ask(12).get()  # pushes the first one out of the cache; it stays in memory for its holder
    assert setup.ask(0).get() == []
    assert setup.cold.deferred == 1
    setup.reader.ranges.pieces.capacity_bytes = 64 * MIB
    assert base_offsets(setup.ask(0).get()) == [0, 3, 6, 9]


def test_a_queued_read_is_deferred_when_the_memory_is_held_by_then(monkeypatch) -> None:
    setup = Setup(threads=1)
    setup.bucket.klix("t", 0, batches(0, 4))
    setup.bucket.klix("t", 0, batches(12, 4))
    setup.partition.wal_start = 24
    entered, go_on = threading.Event(), threading.Event()

    def slow(key, start):
        entered.set()
        assert go_on.wait(20)

    setup.bucket.store.before_get = slow
    first = setup.ask(0)
    assert entered.wait(20)
    second = setup.ask(12)
    monkeypatch.setattr(ObjectReader, "crowded", property(lambda self: True))
    go_on.set()
    assert base_offsets(first.get()) == [0, 3, 6, 9]
    assert second.get() == []
    assert setup.cold.deferred == 1
    setup.cold.close()


def test_a_failing_callback_ends_no_other_read(setup, caplog) -> None:
    setup.bucket.klix("t", 0, batches(0, 4))
    setup.partition.wal_start = 12

    def failing(result) -> None:
        raise RuntimeError("the connection is gone")

    setup.cold.request(setup.log, 0, 1 << 40, 100, failing)
    assert base_offsets(setup.ask(3).get()) == [3, 6, 9]


def test_after_the_end_there_is_an_answer(setup) -> None:
    setup.bucket.klix("t", 0, batches(0, 4))
    setup.cold.close()
    assert setup.ask(0).get() == []


def test_offset_for_timestamp_and_max_timestamp(setup) -> None:
    setup.bucket.klix("t", 0, batches(0, 4))
    setup.bucket.klix("t", 0, batches(12, 4))
    assert setup.cold.offset_for_timestamp(setup.log, NOW + 13).result(20) == (13, NOW + 13)
    assert setup.cold.offset_for_timestamp(setup.log, NOW + 100).result(20) is None
    setup.partition.log_start_offset = 14
    assert setup.cold.offset_for_timestamp(setup.log, NOW).result(20) == (14, NOW + 14)
    assert setup.cold.max_timestamp(setup.log).result(20) == (23, NOW + 23)


def test_the_highest_timestamp_is_looked_for_above_the_log_start_only(setup) -> None:
    def falling(base: int, highest: int) -> bytes:
        return build_batch([(None, b"v", highest - i, None) for i in range(4)], base_offset=base)

    setup.bucket.klix("t", 0, falling(0, NOW + 100) + falling(4, NOW + 50) + falling(8, NOW + 98))
    for log_start, expected in [(0, (0, 100)), (1, (1, 99)), (2, (2, 98)), (3, (8, 98)), (9, (9, 97)), (11, (11, 95))]:
        setup.partition.log_start_offset = log_start
        assert setup.cold.max_timestamp(setup.log).result(20) == (expected[0], NOW + expected[1])
