"""The compact job's passes: the same batches, byte for byte, as the broker's own compactor leaves."""

import random

import pytest

from kbroker._fast.records.compact_filter import BatchFilter
from kbroker._fast.records.compact_scan import KeyScan
from kbroker._fast.records.compact_slices import (
    TransactionScan,
    aborted_with_batches,
    key_entries,
    put_entries,
    set_open_producers,
)
from kbroker._fast.records.key_map import KeyMap
from kbroker._fast.records.record_batch import CorruptRecordsError
from kbroker._fast.records.records import build_batch, build_control_batch, iter_batches
from kbroker.pipeline.jobs.compact_plan import cut_slices, plan_partition
from tests.reference.compaction_history import History
from tests.unit.pipeline.slice_compaction import DAY_MS, Side
from tests.unit.storage.flush.flush_harness import KEYS, NOW_MS, topic_id


@pytest.mark.parametrize("seed", range(10))
def test_random_histories_are_compacted_as_by_the_broker(tmp_path, seed):
    """Every batch, the end of the clean part, and the list of aborted transactions, round after round."""
    broker, job = Side(tmp_path / "broker", seed), Side(tmp_path / "job", seed)
    history, rng, taken, rounds = History(seed, null_keys=False), random.Random(seed), 0, 0
    try:
        for number in range(6):
            for _ in range(rng.randrange(1, 15)):
                history.step()
            if number % 3 == 2:
                history.end_all()
            cuts = [rng.random() < 0.3 for _ in history.batches[taken:]]
            for batch, cut in zip(history.batches[taken:], cuts, strict=True):
                for side in (broker, job):
                    side.s.append("t", 0, batch)
                    if cut:
                        side.s.flush()
            taken = len(history.batches)
            pause = rng.choice([1, 5, DAY_MS / 1000 + 1])
            slice_bytes = rng.choice([1, 700, 1 << 30])
            for side in (broker, job):
                side.s.flush()
                side.s.clock.advance(pause)
            done = broker.by_broker(), job.by_job(slice_bytes, read_bytes=rng.choice([300, 4 << 20]))
            assert done[0] == done[1]
            rounds += done[0]
            assert job.s.stored("t", 0) == broker.s.stored("t", 0)
            assert job.state().clean_offset == broker.state().clean_offset
            assert job.state().aborted == broker.state().aborted
            assert job.state().horizon_ms >= broker.state().horizon_ms, "tombstones get a round of their own"
            for side in (broker, job):
                side.check()
        assert rounds >= 2
    finally:
        broker.s.close()
        job.s.close()


@pytest.fixture
def side(tmp_path):
    found = Side(tmp_path / "side", 0)
    yield found
    found.s.close()


def test_offsets_of_empty_slices_go_to_their_neighbours(side):
    for number in range(12):
        side.write((b"k%d" % (number % 3), b"%d" % number))
    assert side.by_job(1)
    refs = list(side.s.manifest.image.objects_from(topic_id("t"), 0))
    found = [(ref.base_offset, ref.end_offset, ref.record_count) for ref in refs]
    assert found == [(0, 10, 1), (10, 11, 1), (11, 12, 1)]
    assert [KEYS.parse(ref.key).base_offset for ref in refs] == [0, 10, 11]
    assert side.contents() == {9: b"9", 10: b"10", 11: b"11"}
    side.check()


def test_a_key_of_the_clean_part_is_superseded_by_the_dirty_one(side):
    side.write((b"a", b"1"), (b"b", b"1"))
    assert side.by_job(1)
    side.write((b"a", b"2"))
    assert side.by_job(1)
    assert side.contents() == {1: b"1", 2: b"2"}
    assert not side.by_job(1)  # nothing is dirty


def test_one_object_that_loses_nothing_stays(side):
    side.write((b"a", b"1"))
    assert side.by_job(1 << 30)
    before = {meta.key for meta in side.s.store.list(KEYS.root) if KEYS.parse(meta.key)}
    side.state().clean_offset = 0
    assert side.by_job(1 << 30)
    assert {meta.key for meta in side.s.store.list(KEYS.root) if KEYS.parse(meta.key)} == before
    assert side.state().clean_offset == 1


def test_a_slice_takes_whole_objects_up_to_its_size(side):
    for number in range(5):
        side.write((b"k", b"%d" % number))
    config = side.s.table.by_name["t"].config
    plan = plan_partition(side.s.manifest.image, side.state(), config, side.s.clock.now_ms(), DAY_MS)
    length = plan.inputs[0].length
    assert [len(item.refs) for item in cut_slices([plan], 2 * length)] == [2, 2, 1]
    assert [len(item.refs) for item in cut_slices([plan], 1)] == [1] * 5


# -- what is taken out of the passes, and put into them -----------------------------------------------------------


def test_entries_of_a_map_fill_another_one():
    secret = bytes(range(16))
    one, other = KeyMap(24 * 100, secret), KeyMap(24 * 200, secret)
    for number in range(50):
        one.put(b"k%d" % number, number)
    other.put(b"k7", 1000)
    put_entries(other, *key_entries(one))
    assert {number: other.get(b"k%d" % number) for number in range(50)} == {n: n for n in range(50)} | {7: 1000}
    assert len(other) == 50
    low, high, offset = key_entries(one)
    with pytest.raises(ValueError, match="more keys"):
        put_entries(KeyMap(24 * 10, secret), low, high, offset)
    with pytest.raises(ValueError, match="negative"):
        put_entries(KeyMap(24 * 100, secret), low, high, offset - 100)
    with pytest.raises(ValueError, match="unequal"):
        put_entries(other, low, high, offset[1:])


def transactional(offset, **options):
    records = [(b"k", b"v", NOW_MS, ())]
    return build_batch(
        records, base_offset=offset, producer_id=9, producer_epoch=0, base_sequence=0, transactional=True, **options
    )


def marker(offset, kind=1):
    return build_control_batch(
        kind, producer_id=9, producer_epoch=0, coordinator_epoch=1, timestamp_ms=NOW_MS, base_offset=offset
    )


def test_a_scan_reports_transactions_open_after_its_slice():
    scan = TransactionScan(100)
    scan.feed(build_batch([(b"k", b"v", NOW_MS, ())], base_offset=0))
    assert scan.producers == {}
    scan.feed(transactional(1, codec="zstd"))
    assert scan.producers == {9: True}
    scan.feed(marker(2))
    assert scan.producers == {9: False}
    scan.feed(transactional(100))  # beyond the end
    assert scan.producers == {9: False}
    with pytest.raises(CorruptRecordsError):
        scan.feed(marker(3)[:-5])


def test_a_marker_knows_of_data_in_an_earlier_slice():
    """Without it the marker would get a delete horizon in the first round, and go while its data is still there."""
    for producers, horizon in (([9], False), ([], True)):
        batches = BatchFilter(KeyMap(24 * 10), 10, NOW_MS, DAY_MS)
        set_open_producers(batches, producers)
        batches.feed(marker(5))
        ((header, _),) = iter_batches(batches.take()[0])
        assert header.has_delete_horizon is horizon


def test_a_slice_reports_the_aborted_transactions_with_batches_in_it():
    aborted = [(9, 1, 2), (9, 5, 6)]
    batches = BatchFilter(KeyMap(24 * 10), 10, NOW_MS, DAY_MS, aborted)
    batches.feed(transactional(5))
    assert aborted_with_batches(batches) == [6]
    scan = KeyScan(KeyMap(24 * 10), 0, 10, aborted)
    scan.feed(transactional(5))
    assert scan.next_offset == 6
