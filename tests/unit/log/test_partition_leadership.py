"""One leadership of a partition after another in one broker: how it ends, and what the next one is built from."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker._fast.records.records import iter_batches, iter_records
from kbroker._fast.wal.commit import CallbackWaiter, FastKafkaError
from kbroker.errors import CorruptionError
from kbroker.log.wal_tail import tail_parts
from kbroker.storage.flush.plan import plan_flush
from kbroker.storage.flush.schedule import FlushSettings
from kbroker.topic_config import parse_topic_config
from tests.unit.storage.flush.flush_harness import Storage, batch, topic_id

NOT_LEADER = 6
HERE = topic_id("t"), 0


@pytest.fixture
def storage(tmp_path):
    s = Storage(tmp_path).start()
    s.add_topic("t", 2)
    yield s
    s.close()


def lead(storage, epoch, tail=True):
    """As a broker that gives up a handover: resigned to itself, with what the log has."""
    assert storage.wal.sync(20)
    parts = tail_parts(storage.wal, storage.flusher.flushed_lsn) if tail else None
    return storage.table.lead(*HERE, epoch, parts)


def resign(storage):
    storage.table.resign([HERE])


def values(storage):
    """Of all records below the high watermark that the WAL serves."""
    partition = storage.table.partition("t", 0)
    data = partition.read_bytes(partition.wal_start_offset(), partition.high_watermark(), 64 << 20)
    return [bytes(r.value) for _, body in iter_batches(data or b"") for r in iter_records(body)]


def stored_values(storage):
    return [bytes(r.value) for _, body in iter_batches(storage.stored("t", 0)) for r in iter_records(body)]


def refused(partition, data=None):
    with pytest.raises(FastKafkaError) as caught:
        partition.append_bytes(data or batch([b"late"]), 0)
    return caught.value.code


def test_a_resigned_partition_takes_no_append_and_holds_no_producers(storage):
    partition = storage.table.partition("t", 0)
    storage.append("t", 0, batch([b"v"], producer_id=5, producer_epoch=0, base_sequence=0))
    woken, failed, resigned = [], [], []
    partition.waiters.park(CallbackWaiter(lambda: woken.append(partition.leader_epoch)))
    partition.commits.push_callback(1 << 40, failed.append)  # of no partition
    storage.table.on_resigned = lambda *ended: resigned.append(ended)
    resign(storage)
    assert (woken, failed, resigned) == ([-1], [], [(partition, 1)])
    assert refused(partition) == NOT_LEADER
    assert not partition.producers.active_producers()
    assert storage.table.partition("t", 1).leader_epoch == 1
    resign(storage)
    assert resigned == [(partition, 1)]


def test_what_waits_for_the_log_or_for_objects_fails_when_its_partition_is_resigned(storage):
    storage.add_topic("o", 1, **{"kbroker.durability": "object"})
    told = []
    for topic in ("t", "o"):
        partition = storage.table.partition(topic, 0)
        partition.append_bytes(batch([b"v"]), 0, lambda error, topic=topic: told.append((topic, error)))
        storage.table.resign([(topic_id(topic), 0)])
    assert told == [("t", NOT_LEADER), ("o", NOT_LEADER)]
    storage.flush()
    storage.wal.drain_commits()
    assert len(told) == 2


def test_a_clean_handover_to_itself_needs_no_tail(storage):
    storage.append("t", 0, batch([b"a", b"b"]))
    resign(storage)
    assert storage.flush(), "what a resigned partition has in the log is flushed"
    storage.table.drop(*HERE)
    partition = lead(storage, 2, tail=False)
    assert (partition.next_offset, partition.flushed_offset, partition.leader_epoch) == (2, 2, 2)
    assert partition.log.epochs.entries == ((1, 0), (2, 2))
    storage.append("t", 0, batch([b"c"]))
    assert storage.flush()
    assert stored_values(storage) == [b"a", b"b", b"c"]


def test_the_tail_is_taken_from_the_log(storage):
    storage.append("t", 0, batch([b"flushed"]))
    storage.flush()
    storage.append("t", 0, batch([b"a"]))
    storage.append("t", 1, batch([b"other"]))
    storage.append("t", 0, batch([b"b"], producer_id=5, producer_epoch=0, base_sequence=0))
    old = storage.table.partition("t", 0)
    resign(storage)
    partition = lead(storage, 3)
    assert storage.table.partition("t", 0) is partition is not old
    assert refused(old) == NOT_LEADER
    assert (partition.next_offset, partition.high_watermark(), partition.wal_start_offset()) == (3, 3, 0)
    assert values(storage) == [b"flushed", b"a", b"b"]
    assert partition.log.epochs.entries == ((1, 0), (3, 3))
    retried = batch([b"b"], producer_id=5, producer_epoch=0, base_sequence=0)
    assert partition.append_bytes(retried, 0)[0] == 2, "a duplicate of what the tail has"
    storage.append("t", 0, batch([b"c"], producer_id=5, producer_epoch=0, base_sequence=1))
    assert storage.flush()
    assert stored_values(storage) == [b"flushed", b"a", b"b", b"c"]
    assert partition.flushed_offset == 4
    assert (partition.appended_records, old.appended_records) == (4, 3)


def test_an_open_transaction_of_the_tail_stays_open(storage):
    storage.append("t", 0, batch([b"x"], producer_id=5, producer_epoch=0, base_sequence=0, transactional=True))
    resign(storage)
    partition = lead(storage, 2)
    assert (partition.last_stable_offset(), partition.high_watermark()) == (0, 1)
    partition.append_marker(5, 0, 1, False, 0)
    storage.sync()
    assert partition.last_stable_offset() == 2
    assert partition.producers.aborted.entries == [(5, 0, 1, 2)]


def test_a_tail_of_sealed_segments_is_indexed_by_their_files(tmp_path):
    storage = Storage(tmp_path, segment_bytes=256 * 1024, arena_bytes=4 << 20).start()
    try:
        storage.add_topic("t", 1)
        for n in range(40):
            storage.append("t", 0, batch([b"%d" % n + b"x" * 20_000]))
            storage.sync()
        while len([s for s in storage.wal.segments if s.sealed]) < 2:
            storage.wait_for_wal("seal")
        expected = values(storage)
        for epoch in (2, 3):
            resign(storage)
            partition = lead(storage, epoch)
            assert (partition.next_offset, partition.high_watermark()) == (40, 40)
            assert values(storage) == expected
        for n in range(40, 80):
            storage.append("t", 0, batch([b"%d" % n + b"x" * 20_000]))
            storage.sync()
        assert len(values(storage)) == 80
        while storage.flush():
            pass
        assert len(stored_values(storage)) == 80
    finally:
        storage.close()


def test_segments_that_are_sealed_while_the_tail_is_read_are_not_missed(tmp_path):
    storage = Storage(tmp_path, segment_bytes=256 * 1024, arena_bytes=4 << 20).start()
    try:
        storage.add_topic("t", 1)
        storage.add_topic("u", 1)
        storage.append("t", 0, batch([b"a"]))
        resign(storage)
        storage.sync()

        def tail():
            yield from list_of_dense(storage)
            while not storage.wal.segments[0].sealed:  # after it was read as an open one
                storage.append("u", 0, batch([b"x" * 20_000]))
                storage.sync()

        partition = storage.table.lead(*HERE, 2, tail())
        assert storage.wal.segments[0].sealed
        assert values(storage) == [b"a"]
        storage.append("t", 0, batch([b"b"]))
        first = len(storage.wal.segments)
        while not storage.wal.segments[first - 1].sealed:
            storage.append("u", 0, batch([b"x" * 20_000]))
            storage.sync()
        assert values(storage) == [b"a", b"b"]
        assert len(partition.entries(0, 1 << 60)) == 2
    finally:
        storage.close()


def list_of_dense(storage):
    for part in tail_parts(storage.wal, 0):
        assert part.segment.index_fd < 0
        yield part


def test_a_leadership_needs_a_higher_epoch_and_the_end_of_the_one_before(storage):
    with pytest.raises(ValueError, match="t-0 cannot be led in epoch 2 after 1"):
        lead(storage, 2)
    resign(storage)
    with pytest.raises(ValueError, match="t-0 cannot be led in epoch 1 after 1"):
        lead(storage, 1)
    with pytest.raises(KeyError):
        storage.table.lead(bytes(16), 0, 5)
    with pytest.raises(IndexError):
        storage.table.lead(topic_id("t"), 2, 5)
    assert lead(storage, 2).leader_epoch == 2
    with pytest.raises(ValueError, match="led here"):
        storage.table.drop(*HERE)


def test_a_damaged_tail_changes_nothing(storage):
    storage.append("t", 0, batch([b"a" * 5000]))
    resign(storage)
    storage.sync()
    path = Path(storage.wal.segments[0].path)
    with path.open("r+b") as file:
        good = file.read(16384)
        file.seek(4096 + 1000)
        file.write(b"rot")
    before = storage.table.partition("t", 0)
    with pytest.raises(CorruptionError, match="damaged at position 4096"):
        lead(storage, 2)
    assert storage.table.partition("t", 0) is before
    with path.open("r+b") as file:
        file.write(good)
    assert lead(storage, 2).next_offset == 1


def test_a_tail_that_does_not_follow_on_is_refused(tmp_path):
    storage = Storage(tmp_path, segment_bytes=256 * 1024, arena_bytes=4 << 20).start()
    try:
        storage.add_topic("t", 1)
        while storage.wal.head_lsn < 2 * 256 * 1024:
            storage.append("t", 0, batch([b"x" * 20_000]))
            storage.sync()
        resign(storage)
        second = storage.wal.segments[1].first_lsn
        with pytest.raises(CorruptionError, match="expected 0"):
            storage.table.lead(*HERE, 2, tail_parts(storage.wal, second))
        assert refused(storage.table.partition("t", 0)) == NOT_LEADER
        assert lead(storage, 2).next_offset > 12
    finally:
        storage.close()


def test_a_window_that_was_cut_before_the_end_reports_to_the_next_leadership(storage):
    storage.add_topic("o", 1, **{"kbroker.durability": "object"})
    where = topic_id("o"), 0
    old = storage.table.partition("o", 0)
    old.append_bytes(batch([b"v"]), 0)
    storage.sync()
    window = storage.flusher.steps.begin()
    storage.table.resign([where])
    partition = storage.table.lead(*where, 2, tail_parts(storage.wal, storage.flusher.flushed_lsn))
    assert (partition.next_offset, partition.high_watermark()) == (1, 0)
    storage.flusher.steps.finish(window)
    assert partition.high_watermark() == 1


def test_a_plan_finds_the_batches_of_a_leadership_that_has_ended(storage):
    storage.append("t", 0, batch([b"a"]))
    storage.sync()
    resign(storage)
    image = storage.manifest.image
    bounds = FlushSettings().plan
    listed = storage.table.all_partitions()
    partition = lead(storage, 2)
    for partitions in (listed, storage.table.all_partitions()):
        plan = plan_flush(partitions, image, 0, storage.wal.durable_lsn, bounds)
        assert [run.end_offset for planned in plan.objects for run in planned.images] == [1]
    assert partition in storage.table.all_partitions()


def test_a_restart_recovers_what_two_leaderships_wrote(tmp_path):
    storage = Storage(tmp_path, topics=[("t", 2)]).start()
    storage.append("t", 0, batch([b"a"]))
    resign(storage)
    lead(storage, 4)
    storage.append("t", 0, batch([b"b"]))
    storage.sync()
    storage.close()
    again = Storage(tmp_path, storage.store, epoch=5, topics=[("t", 2)]).start()
    try:
        assert values(again) == [b"a", b"b"]
        assert again.table.partition("t", 0).log.epochs.entries == ((1, 0), (4, 1), (5, 2))
    finally:
        again.close()


def test_a_topic_is_deleted_whether_its_partitions_are_led_or_not(storage):
    resign(storage)
    topic = storage.table.by_name["t"]
    storage.table.remove_topic(topic_id("t"))
    assert [refused(partition) for partition in topic.partitions] == [3, 3]
    with pytest.raises(KeyError):
        storage.table.lead(*HERE, 9)


def test_configs_reach_the_next_leadership(storage):
    resign(storage)
    storage.table.set_config(topic_id("t"), parse_topic_config({"kbroker.durability": "object"}))
    partition = lead(storage, 2)
    assert partition.object_durable
