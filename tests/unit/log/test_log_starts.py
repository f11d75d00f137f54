"""Log starts that clients move: durable before they are visible, one record for all, and how later flushes see them."""

from __future__ import annotations

import threading

import pytest

from kbroker.background.retention import Retention
from kbroker.clock import SystemClock
from kbroker.errors import ErrorCode, KafkaError
from kbroker.log.log_starts import LogStarts
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.store_faults import Fault, FaultyStore, When
from tests.unit.storage.flush.flush_harness import KEYS, Storage, batch, topic_id


@pytest.fixture
def storages(tmp_path):
    opened = []

    def open_storage(store, *, epoch=1, data_dir_id="dir-1", pack_below_bytes=0):
        directory = tmp_path / data_dir_id
        directory.mkdir(exist_ok=True)
        s = Storage(directory, store, epoch=epoch, data_dir_id=data_dir_id, pack_below_bytes=pack_below_bytes)
        opened.append(s)
        s.add_topic("t", 2, retention_ms=-1, file_delete_delay_ms=0)
        s.start()
        s.log_starts = LogStarts(s.table, s.manifest, s.clock)
        return s

    yield open_storage
    for s in opened:
        s.close()


def move(s, *targets, timeout_ms=1000):
    """Moves log starts by (partition, offset); returns the future."""
    return s.log_starts.move([(s.table.partition("t", index), offset) for index, offset in targets], timeout_ms)


def starts(s):
    return [partition.log_start_offset for partition in s.table.by_name["t"].partitions]


def records(s):
    return len(list(s.store.list(KEYS.manifest_dir)))


def keys(s):
    return {meta.key for meta in s.store.list(KEYS.root) if KEYS.parse(meta.key)}


def test_waiting_requests_share_one_record(storages):
    s = storages(MemoryStore())
    for index in (0, 1):
        s.append("t", index, batch([b"v"] * 9))
    s.flush()
    before = records(s)
    waiting = [move(s, (0, 2)), move(s, (0, 4), (1, 3)), move(s, (0, 3))]
    s.log_starts.turn()
    assert [future.result(0) for future in waiting] == [None] * 3
    assert starts(s) == [4, 3]
    assert records(s) == before + 1
    moved = move(s, (0, 1))
    s.log_starts.turn()
    moved.result(0)
    assert (starts(s), records(s)) == ([4, 3], before + 1), "never down, and nothing to write"


def test_a_crash_right_after_the_answer_keeps_the_start(storages):
    store = MemoryStore()
    s = storages(store)
    s.append("t", 0, batch([b"v"] * 5))
    s.sync()
    moved = move(s, (0, 3))
    s.log_starts.turn()
    moved.result(0)
    s.close()
    again = storages(store, epoch=2)
    assert starts(again) == [3, 0]
    assert again.table.partition("t", 0).next_offset == 5
    again.flush()
    assert again.manifest.image.partition(topic_id("t"), 0).end_offset == 5
    again.close()
    lost = storages(store, epoch=3, data_dir_id="dir-2")
    assert starts(lost) == [3, 0]
    assert lost.table.partition("t", 0).next_offset == 5


def test_a_start_beyond_the_flushed_end_fits_later_flushes(storages):
    """Also where a leader epoch begins in between: below the new start, and not in the manifest yet."""
    store = MemoryStore()
    s = storages(store)
    s.append("t", 0, batch([b"v"] * 5))
    s.flush()
    s.append("t", 0, batch([b"v"] * 2))
    s.sync()
    s.close()
    again = storages(store, epoch=2)
    again.append("t", 0, batch([b"v"] * 4))
    again.sync()
    moved = move(again, (0, 10))
    again.log_starts.turn()
    moved.result(0)
    assert again.flush()
    assert again.stopped == []
    state = again.manifest.image.partition(topic_id("t"), 0)
    assert (state.log_start_offset, state.end_offset) == (10, 11)
    assert state.leader_epochs[-1] == (2, 7)
    assert again.table.partition("t", 0).log.end_offset_for(2) == (2, 11)
    again.close()
    last = storages(store, epoch=3)
    assert starts(last) == [10, 0]
    assert last.table.partition("t", 0).log.end_offset_for(2) == (2, 11)


def test_whole_objects_below_the_start_are_freed(storages):
    s = storages(MemoryStore())
    retention = Retention(s.table, s.manifest, s.store, s.clock)
    for _ in range(4):
        s.append("t", 0, batch([b"v" * 100] * 5))
        s.flush()
    assert len(keys(s)) == 4
    moved = move(s, (0, 14))
    s.log_starts.turn()
    moved.result(0)
    assert retention.delete_once() == 2
    assert len(keys(s)) == 2


def test_a_pack_is_deleted_when_nothing_in_it_is_live(storages):
    s = storages(MemoryStore(), pack_below_bytes=1 << 20)
    retention = Retention(s.table, s.manifest, s.store, s.clock)
    for index in (0, 1):
        s.append("t", index, batch([b"v"] * 3))
    s.flush()
    assert len(keys(s)) == 1
    move(s, (0, 3))
    s.log_starts.turn()
    assert retention.delete_once() == 0
    move(s, (1, 3))
    s.log_starts.turn()
    assert retention.delete_once() == 1
    assert keys(s) == set()


def test_a_failed_move_times_out_and_succeeds_later(storages):
    store = FaultyStore(MemoryStore())
    s = storages(store)
    s.append("t", 0, batch([b"v"] * 5))
    s.flush()
    store.outage = True
    failed = move(s, (0, 3))
    s.log_starts.turn()
    with pytest.raises(KafkaError) as caught:
        failed.result(0)
    assert caught.value.code == ErrorCode.REQUEST_TIMED_OUT
    assert starts(s) == [0, 0]
    store.outage = False
    s.manifest.settle()
    assert starts(s) == [3, 0], "the record was in doubt, and is settled by storing it"
    s.clock.advance(1)
    moved = move(s, (0, 4))
    s.log_starts.turn()
    moved.result(0)
    assert starts(s) == [4, 0]


def code_of(future):
    with pytest.raises(KafkaError) as caught:
        future.result(20)
    return caught.value.code


def test_a_request_is_answered_at_its_deadline_though_the_store_hangs(storages):
    store = FaultyStore(MemoryStore())
    s = storages(store)
    s.append("t", 0, batch([b"v"] * 5))
    s.flush()
    store_is_back = threading.Event()
    store.inject(Fault("put", When.HOLD, release=store_is_back))
    s.log_starts = LogStarts(s.table, s.manifest, SystemClock())
    s.log_starts.start()
    served = move(s, (0, 3), timeout_ms=50)
    assert code_of(served) == ErrorCode.REQUEST_TIMED_OUT
    queued, patient = move(s, (0, 4), timeout_ms=0), move(s, (0, 5), timeout_ms=60_000)
    assert code_of(queued) == ErrorCode.REQUEST_TIMED_OUT
    assert (s.log_starts.queued_count, patient.done()) == (1, False)  # however long the store hangs
    assert starts(s) == [0, 0]
    store_is_back.set()
    patient.result(20)
    assert starts(s) == [5, 0]
    s.log_starts.stop()


def test_a_request_that_has_timed_out_is_not_begun(storages):
    s = storages(MemoryStore())
    s.append("t", 0, batch([b"v"] * 5))
    s.flush()
    late, in_time = move(s, (0, 3), timeout_ms=1000), move(s, (0, 2), timeout_ms=2000)
    s.clock.advance(1)
    s.log_starts.expire()
    assert code_of(late) == ErrorCode.REQUEST_TIMED_OUT
    s.log_starts.turn()
    in_time.result(0)
    assert starts(s) == [2, 0]


def test_a_deleted_topic_is_left_alone(storages):
    s = storages(MemoryStore())
    s.append("t", 0, batch([b"v"] * 5))
    s.sync()
    moved = move(s, (0, 3))
    s.table.remove_topic(topic_id("t"))
    s.log_starts.turn()
    moved.result(0)
    assert topic_id("t") not in s.manifest.image.partitions


def test_the_thread_serves_and_stops(storages):
    s = storages(MemoryStore())
    s.append("t", 0, batch([b"v"] * 5))
    s.sync()
    s.log_starts.start()
    move(s, (0, 3)).result(20)
    assert starts(s) == [3, 0]
    s.log_starts.stop()
    with pytest.raises(KafkaError) as caught:
        move(s, (0, 4)).result(0)
    assert caught.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
