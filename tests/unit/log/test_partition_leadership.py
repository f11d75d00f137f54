"""One leadership of a partition after another in one broker: how it ends, and what the next one is built from."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kbroker._fast.records.records import iter_batches, iter_records
from kbroker._fast.wal.commit import CallbackWaiter, FastKafkaError
from kbroker.errors import CorruptionError
from kbroker.log import log_table
from kbroker.log.new_leadership import Leadership
from kbroker.log.wal_tail import tail_parts, unflushed_segments
from kbroker.storage.flush.plan import plan_flush
from kbroker.storage.flush.schedule import FlushSettings
from kbroker.storage.manifest.tails import EVERY_EPOCH
from kbroker.storage.wal.seal import SegmentSealer
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


def lead(storage, epoch, tail_epoch=EVERY_EPOCH, place=HERE):
    """As a broker that gives up a handover: resigned to itself, with what the log has; None: with nothing of it."""
    assert storage.table.lead([Leadership(*place, epoch, tail_epoch)]) == []
    return storage.table.partition_by_id(*place)


def refusal(storage, *leadership):
    """The error of a leadership that cannot begin."""
    (refused,) = storage.table.lead([Leadership(*leadership)])
    assert refused.leadership == leadership
    return refused.error


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
    partition = lead(storage, 2, tail_epoch=None)
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


class SealingGate:
    """Segments get no index until it is opened."""

    def __init__(self, monkeypatch):
        self.opened = threading.Event()
        index = SegmentSealer._index

        def wait(sealer, segment, scan):
            assert self.opened.wait(20)
            return index(sealer, segment, scan)

        monkeypatch.setattr(SegmentSealer, "_index", wait)

    def open(self, storage, count):
        """Returns when so many segments are sealed."""
        self.opened.set()
        while len([segment for segment in storage.wal.segments if segment.sealed]) < count:
            storage.wait_for_wal("seal")


def during_the_tail(monkeypatch, action, *, after_parts=1):
    """Runs `action` in the middle of a `lead`, when so many parts of the log's tail have been replayed."""

    def parts(wal, segments):
        for number, part in enumerate(tail_parts(wal, segments)):
            if number == after_parts:
                action()
            yield part

    monkeypatch.setattr(log_table, "tail_parts", parts)


@pytest.fixture
def small(tmp_path):
    """With small segments, of which a few fit in memory."""
    s = Storage(tmp_path, segment_bytes=256 * 1024, arena_bytes=4 << 20).start()
    s.add_topic("t", 2)
    yield s
    s.close()


def fill_segments(storage, count, partitions=(0,)):
    """Appends records of 20,000 bytes to partitions in turn, and returns the values of the first partition."""
    values, numbers = [], itertools.cycle(partitions)
    while storage.wal.head_lsn < count * 256 * 1024:
        index = next(numbers)
        value = b"%d" % len(values) + b"x" * 20_000
        storage.append("t", index, batch([value]))
        if index == 0:
            values.append(value)
    storage.sync()
    return values


@pytest.mark.parametrize("after_parts", [0, 1, 2])
def test_segments_that_are_sealed_while_the_tail_is_read_keep_their_order(small, monkeypatch, after_parts):
    gate = SealingGate(monkeypatch)
    written = fill_segments(small, 3)
    resign(small)
    during_the_tail(monkeypatch, lambda: gate.open(small, 3), after_parts=after_parts)
    partition = lead(small, 2)
    assert len([segment for segment in small.wal.segments if segment.sealed]) >= 3
    assert values(small) == written
    assert list(partition.entries(0, 1 << 60)["base_offset"]) == list(range(len(written)))
    small.append("t", 0, batch([b"b"]))
    small.sync()
    assert values(small) == [*written, b"b"]
    while small.flush():
        pass
    assert stored_values(small) == [*written, b"b"]


def test_what_is_sealed_while_a_leadership_fails_to_begin_is_of_the_one_before(small, monkeypatch):
    gate = SealingGate(monkeypatch)
    fill_segments(small, 2)
    resign(small)
    before = small.table.partition("t", 0)

    def fail():
        gate.open(small, 2)
        raise OSError("the disk")

    during_the_tail(monkeypatch, fail)
    with pytest.raises(OSError, match="the disk"):
        lead(small, 2)
    assert small.table.partition("t", 0) is small.wal.partitions[HERE] is before
    while small.flush():
        pass
    keeper = small.wal.keeper
    with keeper.files.lock:
        while keeper.reclaimer.try_drop_locked():
            pass
    assert before.wal_start_offset() == before.next_offset - 1, "what it has in the segments that are gone is forgotten"


def test_a_flush_takes_no_file_away_from_a_tail_that_is_read(small):
    fill_segments(small, 3)
    while len([segment for segment in small.wal.segments if segment.sealed]) < 3:
        small.wait_for_wal("seal")
    resign(small)
    keeper = small.wal.keeper
    with unflushed_segments(small.wal) as segments:
        expected = [(part.segment.first_lsn, part.scan.group(part.group)) for part in tail_parts(small.wal, segments)]
        while small.flush():
            pass
        with keeper.files.lock:
            while keeper.reclaimer.try_drop_locked():
                pass
        fill_segments(small, 8, partitions=(1,))
        parts = [(part.segment.first_lsn, part.scan.group(part.group)) for part in tail_parts(small.wal, segments)]
        assert parts[: len(expected)] == expected
        assert all(segment.borrows for segment in segments)
    assert not any(segment.borrows for segment in segments)


def test_a_flush_during_the_tail_leaves_a_leadership_whole(small, monkeypatch):
    """Its row is of before the flush, or of after it, but the log has all that the row lacks."""
    written = fill_segments(small, 3)
    resign(small)

    def flush():
        while small.flush():
            pass
        keeper = small.wal.keeper
        with keeper.files.lock:
            while keeper.reclaimer.try_drop_locked():
                pass

    during_the_tail(monkeypatch, flush)
    partition = lead(small, 2)
    assert (partition.next_offset, partition.high_watermark(), partition.flushed_offset) == (len(written),) * 3
    assert small.append("t", 0, batch([b"b"])) == len(written)
    assert small.flush()
    assert stored_values(small) == [*written, b"b"]


def test_many_leaderships_begin_with_one_look_at_the_log(storage, monkeypatch):
    storage.add_topic("u", 3)
    places = [(topic_id("t"), 0), (topic_id("t"), 1), *((topic_id("u"), index) for index in range(3))]
    for number, (topic, index) in enumerate([("t", 0), ("t", 1), ("u", 0), ("u", 1), ("u", 2)]):
        storage.append(topic, index, batch([b"%d" % number]))
    storage.table.resign(places)
    looks = []
    monkeypatch.setattr(log_table, "tail_parts", lambda *given: looks.append(given) or tail_parts(*given))
    led = []
    storage.table.on_led = led.append
    wanted = [Leadership(*place, 2 + n, EVERY_EPOCH) for n, place in enumerate(places)]
    bad = [Leadership(bytes(16), 0, 9, EVERY_EPOCH), Leadership(*places[0], 9, EVERY_EPOCH)]
    refused = storage.table.lead([*wanted, *bad])
    assert [each.leadership for each in refused] == bad
    assert len(looks) == 1
    assert [(partition.topic_id, partition.index) for partition in led] == places
    assert [partition.leader_epoch for partition in led] == [2, 3, 4, 5, 6]
    assert [partition.next_offset for partition in led] == [1] * 5
    assert led == [storage.table.partition_by_id(*place) for place in places]


def test_a_topic_that_is_deleted_while_the_tail_is_read_is_not_led(storage, monkeypatch):
    storage.append("t", 0, batch([b"a"]))
    storage.append("t", 1, batch([b"a"]))
    resign(storage)
    during_the_tail(monkeypatch, lambda: storage.table.remove_topic(topic_id("t")))
    assert isinstance(refusal(storage, *HERE, 2, EVERY_EPOCH), LookupError)
    assert storage.table.partition("t", 0) is None
    assert storage.wal.partitions == {}


def test_configs_that_change_while_the_tail_is_read_count(storage, monkeypatch):
    storage.append("t", 0, batch([b"a"]))
    storage.append("t", 1, batch([b"a"]))
    resign(storage)
    config = parse_topic_config({"kbroker.durability": "object", "max.message.bytes": "12345"})
    during_the_tail(monkeypatch, lambda: storage.table.set_config(topic_id("t"), config))
    partition = lead(storage, 2)
    assert partition.object_durable
    assert partition.rules is storage.table.by_name["t"].rules


def test_what_is_committed_for_a_leadership_reaches_the_next_one(storage, monkeypatch):
    for value in (b"a", b"b", b"c"):
        storage.append("t", 0, batch([value]))
    storage.flush()
    storage.append("t", 0, batch([b"d"]))
    resign(storage)
    old = storage.table.partition("t", 0)

    def move():
        old.log.raise_log_start(1)
        old.log.note_cleaned(1, [])

    during_the_tail(monkeypatch, move, after_parts=0)
    partition = lead(storage, 2)
    assert (partition.log_start_offset, partition.cleaned_offset) == (1, 1), "of a record that its row did not have yet"
    old.log.raise_log_start(2)
    old.log.note_cleaned(3, [])
    assert (partition.log_start_offset, partition.cleaned_offset) == (2, 3)


def test_a_row_is_read_as_of_one_record(storage, monkeypatch):
    """Not its end from before a flush and its producers from after it."""
    storage.append("t", 0, batch([b"a"], producer_id=5, producer_epoch=0, base_sequence=0))
    storage.flush()
    resign(storage)
    image = storage.manifest.image
    free = []

    def look():
        if image.lock.acquire(blocking=False):
            image.lock.release()
            free.append(True)

    class Epochs(tuple):
        """Looks whether another thread could apply a record while they are read."""

        def __iter__(self):
            with ThreadPoolExecutor(1) as pool:
                pool.submit(look).result(20)
            looked.append(True)
            return super().__iter__()

    looked = []
    image.partition(*HERE).leader_epochs = Epochs(image.partition(*HERE).leader_epochs)
    assert lead(storage, 2).producers.rows == 1
    assert (looked, free) == ([True], [])


def test_those_that_wait_are_told_of_the_end_with_no_lock_held(storage):
    config = storage.table.by_name["t"].config
    changed = []

    def change():
        with ThreadPoolExecutor(1) as pool:
            changed.append(pool.submit(storage.table.set_config, topic_id("t"), config).result(20))

    for index in (0, 1):
        storage.table.partition("t", index).waiters.park(CallbackWaiter(change))
    resign(storage)
    assert len(changed) == 1
    storage.table.remove_topic(topic_id("t"))
    assert len(changed) == 3


def test_a_leadership_needs_a_higher_epoch_and_the_end_of_the_one_before(storage):
    assert str(refusal(storage, *HERE, 2, None)) == "t-0 cannot be led in epoch 2 after 1"
    resign(storage)
    assert str(refusal(storage, *HERE, 1, None)) == "t-0 cannot be led in epoch 1 after 1"
    assert isinstance(refusal(storage, bytes(16), 0, 5, None), LookupError)
    assert isinstance(refusal(storage, topic_id("t"), 2, 5, None), LookupError)
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
    assert storage.wal.partitions[HERE] is before
    with path.open("r+b") as file:
        file.write(good)
    assert lead(storage, 2).next_offset == 1


def test_a_tail_that_does_not_follow_on_is_refused(tmp_path, monkeypatch):
    storage = Storage(tmp_path, segment_bytes=256 * 1024, arena_bytes=4 << 20).start()
    try:
        storage.add_topic("t", 1)
        while storage.wal.head_lsn < 2 * 256 * 1024:
            storage.append("t", 0, batch([b"x" * 20_000]))
            storage.sync()
        resign(storage)
        before = storage.table.partition("t", 0)
        monkeypatch.setattr(log_table, "tail_parts", lambda wal, segments: tail_parts(wal, segments[1:]))
        error = refusal(storage, *HERE, 2, EVERY_EPOCH)
        assert isinstance(error, CorruptionError)
        assert str(error).endswith("expected 0")
        monkeypatch.undo()
        assert storage.table.partition("t", 0) is storage.wal.partitions[HERE] is before
        assert refused(before) == NOT_LEADER
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
    partition = lead(storage, 2, place=where)
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
    assert isinstance(refusal(storage, *HERE, 9, EVERY_EPOCH), LookupError)


def test_configs_reach_the_next_leadership(storage):
    resign(storage)
    storage.table.set_config(topic_id("t"), parse_topic_config({"kbroker.durability": "object"}))
    partition = lead(storage, 2)
    assert partition.object_durable
