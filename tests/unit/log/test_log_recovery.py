import random

import pytest

from kbroker._fast.partition.aborted_transactions import aborted_between
from kbroker._fast.wal.commit import FastKafkaError
from kbroker.background.deleted_topics import drop_deleted_topics
from kbroker.background.retention import Retention
from kbroker.cluster.image import DeletedTopic
from kbroker.errors import StartError
from kbroker.log.log_starts import LogStarts
from kbroker.log.segment_names import SegmentNames
from kbroker.storage.flush.upload import FlushStopped
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.store_faults import Fault, FaultyStore, When
from tests.unit.storage.flush.flush_harness import KEYS, KIB, NOW_MS, Storage, batch, topic_id
from tests.unit.storage.manifest.changes import change_of

DAY_MS = 86_400_000
TOPICS = [("t", 3), ("u", 1)]
PARTITIONS = [("t", 0), ("t", 1), ("t", 2), ("u", 0)]


@pytest.fixture
def start(tmp_path):
    running = []

    def starter(store, *, directory="wal", **options):
        (tmp_path / directory).mkdir(exist_ok=True)
        options.setdefault("topics", TOPICS)
        storage = Storage(tmp_path / directory, store, waits=lambda seconds: True, **options)
        running.append(storage)
        return storage.start()

    yield starter
    for storage in running:
        storage.close()


def everything(storage, topic, partition):
    """All batches: from objects up to the flushed end, from the WAL beyond."""
    hot = storage.table.partition(topic, partition)
    data = storage.stored(topic, partition)
    offset = hot.log.flushed_end
    while offset < hot.next_offset:
        piece = hot.read_bytes(offset, hot.next_offset, 1)
        data += piece
        offset = int.from_bytes(piece[:8], "big") + int.from_bytes(piece[23:27], "big") + 1
    return data


def write(storage, seed, rounds=30, sent=None):
    rng = random.Random(seed)
    for _ in range(rounds):
        topic, partition = rng.choice(PARTITIONS)
        storage.append(topic, partition, batch([rng.randbytes(rng.choice([5, 400, 60_000]))]))
    storage.sync()


STEPS = [
    (part, when, skip)
    for part, skips in (("_packs/", 1), (".obj", 2), ("_manifest/", 1))
    for when in (When.BEFORE, When.AFTER)
    for skip in range(skips)
]


@pytest.mark.parametrize(("part", "when", "skip"), STEPS)
def test_a_crash_at_any_write_of_a_flush_loses_and_repeats_nothing(start, part, when, skip):
    store = MemoryStore()
    s = start(FaultyStore(store), pack_below_bytes=128 * KIB)
    write(s, 1)
    s.flush()
    write(s, 2)
    expected = {where: everything(s, *where) for where in PARTITIONS}
    s.store.inject(Fault("put", when, key_part=part, skip=skip))
    s.store.inject(Fault("get", key_part="_manifest/", times=1 << 30))  # the fate of the record stays unknown
    s.store.inject(Fault("head", times=1 << 30))
    with pytest.raises(FlushStopped):
        s.flusher.run_once()
    s.close()
    for epoch in (2, 3):
        again = start(store, epoch=epoch, pack_below_bytes=128 * KIB)
        assert {where: everything(again, *where) for where in PARTITIONS} == expected
        for topic, partition in PARTITIONS:
            hot = again.table.partition(topic, partition)
            assert hot.append_bytes(batch([b"next"]), 0)[0] == hot.next_offset - 1
        again.sync()
        expected = {where: everything(again, *where) for where in PARTITIONS}
        again.flush()
        assert {where: again.stored(*where) for where in PARTITIONS} == expected
        again.close()


def test_after_the_disk_is_lost_the_bucket_has_one_moment_and_epochs_go_up(start):
    store = MemoryStore()
    s = start(store)
    write(s, 1)
    s.append("t", 0, batch([b"p"], producer_id=4, producer_epoch=0, base_sequence=0))
    s.flush()
    flushed = {where: s.stored(*where) for where in PARTITIONS}
    write(s, 2)
    s.close()
    again = start(store, directory="other", data_dir_id="dir-2", epoch=2)
    assert {where: everything(again, *where) for where in PARTITIONS} == flushed
    hot = again.table.partition("t", 0)
    assert hot.producers.snapshot()[0][0] == 4
    end = hot.next_offset
    assert end == hot.log.flushed_end
    assert again.append("t", 0, batch([b"after"])) == end
    assert hot.log.epochs.entries == ((1, 0), (2, end))
    assert hot.log.end_offset_for(1) == (1, end)
    again.flush()
    assert again.manifest.image.partition(topic_id("t"), 0).leader_epochs == ((1, 0), (2, end))
    assert again.manifest.image.wal_flushed_lsn("dir-1") is not None


@pytest.mark.parametrize("disk_lost", [False, True])
def test_a_replaying_producer_goes_on_after_a_clean_stop_until_it_was_silent_for_a_day(start, disk_lost):
    store = MemoryStore()

    def write(storage, sequence):
        old = batch([b"x"], timestamp=1_000_000, producer_id=4, producer_epoch=0, base_sequence=sequence)
        return storage.append("t", 0, old)

    def restart(epoch, seconds_later):
        nonlocal s
        s.flush()
        s.manifest.checkpoint()
        s.close()
        now = s.clock.now_ms() - NOW_MS
        s = start(store, epoch=epoch, **({"directory": f"d{epoch}", "data_dir_id": f"d{epoch}"} if disk_lost else {}))
        s.clock.advance(now / 1000 + seconds_later)
        s.table.partition("t", 0).producers.expire(s.clock.now_ms(), DAY_MS)

    s = start(store)
    assert [write(s, 0), write(s, 1)] == [0, 1]
    restart(2, 3600)
    assert write(s, 1) == 1  # a duplicate
    with pytest.raises(FastKafkaError) as refused:
        write(s, 3)
    assert refused.value.code == 45
    assert write(s, 2) == 2
    restart(3, 24 * 3600 - 1)
    assert write(s, 2) == 2
    restart(4, 1)
    assert s.table.partition("t", 0).producers.snapshot() == []
    assert s.table.image.partition(topic_id("t"), 0).producers != {}  # until the next checkpoint
    s.manifest.checkpoint()
    assert s.table.image.partition(topic_id("t"), 0).producers == {}


@pytest.mark.parametrize("disk_lost", [False, True])
def test_aborted_transactions_are_known_after_a_restart_and_go_with_the_log_start(start, disk_lost):
    store = MemoryStore()
    s = start(store)
    s.append("t", 0, batch([b"x"], producer_id=4, producer_epoch=0, base_sequence=0, transactional=True))
    hot = s.table.partition("t", 0)
    hot.append_marker(4, 0, 0, False, 0)
    s.sync()
    expected = aborted_between(hot.producers.aborted.entries, 0, 2)
    assert expected == [(4, 0)]
    s.flush()
    s.close()
    again = start(store, epoch=2, **({"directory": "other", "data_dir_id": "dir-2"} if disk_lost else {}))
    hot = again.table.partition("t", 0)
    assert aborted_between(hot.producers.aborted.entries, 0, 2) == expected
    hot.log.raise_log_start(2)
    assert aborted_between(hot.producers.aborted.entries, 0, 2) == []


def test_replayed_batches_restore_their_epochs(start):
    store = MemoryStore()
    s = start(store, epoch=1)
    s.append("t", 0, batch([b"a"] * 3))
    s.sync()
    s.close()
    s = start(store, epoch=2)
    s.append("t", 0, batch([b"b"] * 2))
    s.sync()
    s.close()
    s = start(store, epoch=5)
    assert s.table.partition("t", 0).log.epochs.entries == ((1, 0), (2, 3), (5, 5))
    assert s.recovered.wal.batches == 2


def test_a_wal_that_does_not_follow_on_the_objects_stops_the_start(start):
    store = MemoryStore()
    s = start(store)
    s.append("t", 0, batch([b"a"]))
    s.sync()
    empty = {key: store.get(key) for key in [m.key for m in store.list("")]}
    s.flush()
    s.append("t", 0, batch([b"b"]))
    s.sync()
    s.close()
    other = MemoryStore()  # a bucket with the flushed position, but without the first record
    for key, data in empty.items():
        other.put(key, data)
    stale = start(other, directory="unused", data_dir_id="dir-1", epoch=3)
    stale.manifest.commit(change_of({"w": ["dir-1", s.flusher.flushed_lsn]}))
    stale.close()
    with pytest.raises(StartError, match=r"t-0 has base offset 1, expected 0"):
        start(other, epoch=4)


def test_log_start_beyond_what_was_flushed_survives_the_loss_of_the_disk(start):
    store = MemoryStore()
    s = start(store)
    s.append("t", 0, batch([b"a"] * 4))
    s.flush()
    s.append("t", 0, batch([b"b"] * 6))
    s.sync()
    moves = LogStarts(s.table, s.manifest, s.clock)
    moved = moves.move([(s.table.partition("t", 0), 10)], 1000)
    moves.turn()
    moved.result(0)
    s.close()
    kept = start(store, epoch=2)
    assert kept.table.partition("t", 0).next_offset == 10
    kept.close()
    lost = start(store, directory="other", data_dir_id="dir-2", epoch=3)
    hot = lost.table.partition("t", 0)
    assert (hot.log_start_offset, hot.next_offset) == (10, 10)
    assert lost.append("t", 0, batch([b"c"])) == 10
    lost.flush()
    assert lost.manifest.image.partition(topic_id("t"), 0).end_offset == 11


def drop(s, retention, *names, object_format="klix"):
    """As a start does with topics that metadata remembers as deleted."""
    segments = SegmentNames(s.table, s.manifest, s.store, KEYS, s.clock, s.claim, lambda topic: False)
    deleted = {topic_id(name): DeletedTopic(name, object_format) for name in names}
    return drop_deleted_topics(s.table, retention.drop_topic, segments, deleted, 60_000), segments


def test_batches_of_a_topic_that_metadata_does_not_know_are_skipped_with_a_warning(start, caplog):
    store = MemoryStore()
    s = start(store)
    write(s, 1)
    s.close()
    again = start(store, epoch=2, topics=[("t", 3)])
    skipped = again.recovered.wal.unknown_batches
    assert list(skipped) == [topic_id("u")]
    said = [record.getMessage() for record in caplog.records]
    assert f"{skipped.total()} batches in the log are of topics that metadata does not know: " \
           f"{topic_id('u').hex()}; they are skipped" in said  # fmt: skip


def test_objects_of_unknown_topics_are_kept_and_those_of_deleted_ones_go(start):
    store = MemoryStore()
    s = start(store)
    write(s, 1)
    s.flush()
    s.close()
    again = start(store, epoch=2, topics=[("t", 3)])
    assert again.recovered.unknown_topics == [topic_id("u")]
    retention = Retention(again.table, again.manifest, store, again.clock)
    assert drop(again, retention)[0] == 0
    retention.check_once()
    assert topic_id("u") in again.manifest.image.partitions
    assert drop(again, retention, "u")[0] == 1
    retention.check_once()
    assert topic_id("u") not in again.manifest.image.partitions
    assert drop(again, retention, "u")[0] == 0  # known to be dropped
    with pytest.raises(StartError, match="deleted and in use"):
        drop(again, retention, "t")


def test_a_kill_leaves_no_orphans_of_a_topic_deleted_during_its_first_flush(start):
    s = start(MemoryStore(), topics=[])
    leftover = KEYS.full("s/0/segment-00000000000000000000.kfs")
    s.store.put(leftover, b"of a flush that was killed")
    retention = Retention(s.table, s.manifest, s.store, s.clock)
    dropped, segments = drop(s, retention, "s", object_format="kfs")
    assert dropped == 1
    retention.check_once()
    assert topic_id("s") in s.manifest.image.dropped  # so the sweep knows what it finds of it
    assert segments.obstacle("s")
    segments.clear()
    assert segments.obstacle("s") is None
