import threading

import pytest

from kbroker.background import retention
from kbroker.background.retention import Retention
from kbroker.storage.formats.object_keys import klix_key
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import StoreUnavailable
from kbroker.storage.stores.store_faults import FaultyStore
from kbroker.topic_config import parse_topic_config
from tests.unit.storage.flush.flush_harness import KEYS, NOW_MS, HeldClaim, Storage, batch, topic_id
from tests.unit.storage.manifest.changes import change_of, evaluate_twice

HOUR = 3_600_000


@pytest.fixture
def storage(tmp_path):
    directory = tmp_path / "wal"
    directory.mkdir()
    s = Storage(directory, FaultyStore(MemoryStore()), pack_below_bytes=0)
    s.start()
    s.retention = Retention(s.table, s.manifest, s.store, s.clock)
    s.table.on_removed = s.retention.topic_removed
    yield s
    s.close()


def fill(s, topic, count=4, partition=0, timestamp_step=HOUR):
    """Objects of one batch of 1000 bytes, an hour between their timestamps, the last one now."""
    for n in range(count):
        timestamp = NOW_MS - (count - 1 - n) * timestamp_step
        s.append(topic, partition, batch([b"v" * 900], timestamp=timestamp))
        s.flush()


def log_start(s, topic, partition=0):
    state = s.manifest.image.partition(topic_id(topic), partition)
    assert s.table.partition(topic, partition).log_start_offset == state.log_start_offset
    return state.log_start_offset


def keys(s):
    return {meta.key for meta in s.store.list(KEYS.root) if KEYS.parse(meta.key)}


def test_time_retention_deletes_the_oldest_up_to_the_first_that_stays(storage):
    storage.add_topic("t", 1, retention_ms=2 * HOUR)
    fill(storage, "t", 4)
    assert storage.retention.check_once() == 1
    assert log_start(storage, "t") == 1  # 3 hours old; the next is 2 hours old, not older
    storage.clock.advance(1)
    storage.retention.check_once()
    assert log_start(storage, "t") == 2
    assert storage.retention.check_once() == 0


def test_very_many_objects_expire_by_several_records(storage, monkeypatch):
    monkeypatch.setattr(retention, "EXPIRED_MAX", 2)
    monkeypatch.setattr(retention, "RECORD_EXPIRED_MAX", 3)
    storage.add_topic("t", 3, retention_ms=HOUR)
    for partition, count in ((0, 7), (1, 3), (2, 1)):
        fill(storage, "t", count, partition)
    storage.clock.advance(2 * 3600)
    removed = []
    commit = storage.manifest.commit

    def counted(*change):
        before = len(storage.manifest.image.files)
        record = commit(*change)
        removed.append(before - len(storage.manifest.image.files))
        return record

    monkeypatch.setattr(storage.manifest, "commit", counted)
    assert storage.retention.check_once() == 3
    assert [log_start(storage, "t", partition) for partition in range(3)] == [7, 3, 1]
    assert (sum(removed), max(removed)) == (11, 3)


def test_an_expiry_that_waits_for_another_record_counts_once(storage, monkeypatch):
    storage.add_topic("t", 1, retention_ms=2 * HOUR)
    fill(storage, "t", 4)
    size = next(storage.manifest.image.objects_from(topic_id("t"), 0)).length
    evaluate_twice(storage.manifest, monkeypatch)
    assert storage.retention.check_once() == 1
    assert (storage.retention.expired_objects, storage.retention.expired_bytes) == (1, size)
    assert log_start(storage, "t") == 1


def test_nothing_else_expires_while_the_delete_queue_is_long(storage, monkeypatch):
    monkeypatch.setattr(retention, "EXPIRED_MAX", 2)
    monkeypatch.setattr(retention, "RECORD_EXPIRED_MAX", 3)
    monkeypatch.setattr(retention, "WAITING_MAX", 4)
    storage.add_topic("t", 2, retention_ms=HOUR)
    for partition in range(2):
        fill(storage, "t", 9, partition)
    storage.clock.advance(2 * 3600)
    storage.retention.check_once()
    assert 4 <= len(storage.manifest.image.deletions) <= 7
    for _ in range(12):
        storage.clock.advance(61)
        storage.retention.turn()
    assert [log_start(storage, "t", partition) for partition in range(2)] == [9, 9]


def test_a_young_object_protects_the_objects_after_it(storage):
    storage.add_topic("t", 1, retention_ms=2 * HOUR)
    fill(storage, "t", 1)
    storage.append("t", 0, batch([b"old"], timestamp=NOW_MS - 9 * HOUR))
    storage.flush()
    assert storage.retention.check_once() == 0


def test_objects_without_timestamps_expire_by_their_creation_time(storage):
    storage.add_topic("t", 1, retention_ms=HOUR)
    storage.append("t", 0, batch([b"v"], timestamp=-1))
    storage.flush()
    assert storage.retention.check_once() == 0
    storage.clock.advance(HOUR / 1000 + 1)
    assert storage.retention.check_once() == 1


@pytest.mark.parametrize(("kept_bytes", "start"), [(10**6, 0), (3500, 0), (3100, 0), (3010, 1), (2100, 1), (0, 4)])
def test_size_retention_keeps_at_least_the_bytes_asked_for(storage, kept_bytes, start):
    storage.add_topic("t", 1, retention_bytes=kept_bytes, retention_ms=-1)
    fill(storage, "t", 4)
    length = storage.manifest.image.find(topic_id("t"), 0, 0).length
    assert 1000 < length < 1030
    storage.retention.check_once()
    assert log_start(storage, "t") == start
    total = storage.manifest.image.partition(topic_id("t"), 0).data_bytes
    assert total >= min(kept_bytes, 4 * length)


def test_compact_only_topics_never_lose_data_to_time_or_size(storage):
    storage.add_topic("c", 1, cleanup_policy="compact", retention_ms=1, retention_bytes=1)
    storage.append("c", 0, batch([b"v"], timestamp=NOW_MS - 1000 * HOUR))
    storage.flush()
    storage.clock.advance(10**6)
    assert storage.retention.check_once() == 0
    both = storage.add_topic("cd", 1, cleanup_policy="compact,delete", retention_ms=1)
    assert both.rules.delete_enabled
    storage.append("cd", 0, batch([b"v"], timestamp=NOW_MS - 1000 * HOUR))
    storage.flush()
    assert storage.retention.check_once() == 1


def test_records_that_are_only_in_the_wal_stay(storage):
    storage.add_topic("t", 1, retention_ms=1)
    storage.append("t", 0, batch([b"v"], timestamp=NOW_MS - 1000))
    storage.sync()
    assert storage.retention.check_once() == 0
    storage.flush()
    assert storage.retention.check_once() == 1
    assert log_start(storage, "t") == 1


def test_objects_are_deleted_after_the_delay_and_never_before_the_log_start_moves(storage):
    storage.add_topic("t", 1, retention_ms=HOUR, file_delete_delay_ms=60_000)
    fill(storage, "t", 4)
    before = keys(storage)
    storage.retention.check_once()
    assert log_start(storage, "t") == 2
    storage.clock.advance(59.9)
    assert storage.retention.delete_once() == 0
    assert keys(storage) == before
    storage.clock.advance(0.1)
    assert storage.retention.delete_once() == 2
    assert len(keys(storage)) == 2
    assert storage.manifest.image.deletions == {}
    assert all(ref.key in keys(storage) for ref in storage.manifest.image.objects_from(topic_id("t"), 0))


def test_a_pack_is_deleted_only_when_no_image_in_it_is_live(tmp_path):
    s = Storage(tmp_path, topics=[]).start()
    retention = Retention(s.table, s.manifest, s.store, s.clock)
    s.add_topic("short", 1, retention_ms=HOUR, file_delete_delay_ms=0)
    s.add_topic("long", 1, retention_ms=5 * HOUR, file_delete_delay_ms=0)
    s.append("short", 0, batch([b"v"]))
    s.append("long", 0, batch([b"v"]))
    s.flush()
    s.clock.advance(2 * 3600)
    assert retention.check_once() == 1
    assert retention.delete_once() == 0
    assert s.stored("long", 0)
    s.clock.advance(4 * 3600)
    assert retention.check_once() == 1
    assert retention.delete_once() == 1
    assert keys(s) == set()
    s.close()


def test_the_delete_queue_survives_a_restart_and_an_outage(storage, tmp_path):
    storage.add_topic("t", 1, retention_ms=HOUR)
    fill(storage, "t", 4)
    storage.retention.check_once()
    storage.clock.advance(61)
    storage.store.outage = True
    with pytest.raises(StoreUnavailable):
        storage.retention.delete_once()
    storage.retention.turn()  # logged, not raised
    assert "outage" in storage.retention.last_error
    storage.store.outage = False
    (tmp_path / "other").mkdir()
    again = Storage(tmp_path / "other", storage.store, epoch=2, data_dir_id="dir-2").start()
    again.add_topic("t", 1, retention_ms=HOUR)
    again.clock.advance(61)
    assert Retention(again.table, again.manifest, again.store, again.clock).delete_once() == 2
    again.close()


def test_nothing_is_deleted_when_the_claim_is_lost(storage):
    storage.add_topic("t", 1, retention_ms=HOUR, file_delete_delay_ms=0)
    fill(storage, "t", 4)
    storage.retention.check_once()
    claim = HeldClaim()
    claim.lost = RuntimeError("superseded")
    retention = Retention(storage.table, storage.manifest, storage.store, storage.clock, claim=claim)
    with pytest.raises(RuntimeError, match="superseded"):
        retention.delete_once()
    assert len(keys(storage)) == 4


def test_a_deleted_topic_leaves_the_bucket_and_its_name_starts_empty(storage):
    storage.add_topic("t", 2, file_delete_delay_ms=1000)
    storage.add_topic("kept", 1)
    fill(storage, "t", 2)
    fill(storage, "kept", 1)
    storage.table.remove_topic(topic_id("t"))
    storage.retention.check_once()
    assert topic_id("t") not in storage.manifest.image.partitions
    storage.clock.advance(1)
    assert storage.retention.delete_once() == 2
    assert len(keys(storage)) == 1
    fresh = storage.table.add_topic("t", bytes(range(16)), 1, storage.table.by_name["kept"].config)
    assert fresh.partitions[0].next_offset == 0
    assert storage.retention.check_once() == 0


def test_new_configs_of_a_topic_cause_a_pass(storage):
    storage.add_topic("t", 1, retention_ms=-1)
    fill(storage, "t", 4)
    storage.retention.start()
    done = threading.Event()
    turn = storage.retention.turn
    storage.retention.turn = lambda: (turn(), done.set())
    config = parse_topic_config({"retention.ms": str(HOUR)})
    storage.table.set_config(topic_id("t"), config)
    storage.retention.on_config(None, config)
    assert done.wait(20)
    storage.retention.stop()
    assert log_start(storage, "t") == 2


def test_the_thread_wakes_when_nudged(storage):
    storage.add_topic("t", 1, retention_ms=HOUR)
    fill(storage, "t", 4)
    done = threading.Event()
    turn = storage.retention.turn
    storage.retention.turn = lambda: (turn(), done.set())
    storage.retention.start()
    storage.retention.nudge()
    assert done.wait(20)
    storage.retention.stop()
    assert log_start(storage, "t") == 2


class WallClock:
    """A manual clock whose wall clock is set back by `back_ms`."""

    def __init__(self, clock):
        self.back_ms = 0
        self.monotonic = clock.monotonic
        self.now_ms = lambda: clock.now_ms() - self.back_ms


def test_a_wall_clock_that_is_set_back_does_not_delay_the_passes(storage):
    clock = WallClock(storage.clock)
    storage.retention = Retention(storage.table, storage.manifest, storage.store, clock)
    storage.add_topic("t", 1, retention_ms=-1, retention_bytes=0)
    fill(storage, "t", 1)
    storage.retention.turn()
    assert log_start(storage, "t") == 1
    fill(storage, "t", 1)
    clock.back_ms = 100 * HOUR
    storage.clock.advance(HOUR / 1000)
    storage.retention.turn()
    assert log_start(storage, "t") == 2


def test_the_thread_survives_an_unexpected_failure(storage, caplog):
    storage.add_topic("t", 1, retention_ms=HOUR)
    fill(storage, "t", 4)
    turn, turns, done = storage.retention.turn, [], threading.Event()

    def failing():
        turns.append(1)
        if len(turns) == 1:
            storage.retention.nudge()
            raise KeyError("a file that is not there")
        turn()
        done.set()

    storage.retention.turn = failing
    storage.retention.start()
    storage.retention.nudge()
    assert done.wait(20)
    storage.retention.stop()
    assert "a file that is not there" in storage.retention.last_error
    assert log_start(storage, "t") == 2


def test_an_expired_reservation_cannot_become_live_while_its_key_is_deleted(storage):
    """The rewrite read the clock before it was paused for a day, or before the clock was corrected."""
    key = klix_key("t", topic_id("t"), 0, 0, 1)
    storage.add_topic("t")
    storage.store.put(KEYS.full(key), b"merged")
    storage.manifest.commit(change_of({"u": [[key, NOW_MS + HOUR]]}))
    storage.clock.advance(HOUR / 1000)
    states = []
    delete = storage.store.delete

    def spied(keys):
        states.append((key in storage.manifest.image.deletions, key in storage.manifest.image.reserved))
        delete(keys)

    storage.store.delete = spied
    assert storage.retention.delete_once() == 1
    assert states == [(True, False)]
    assert key not in storage.manifest.image.deletions
    assert storage.retention.delete_once() == 0
