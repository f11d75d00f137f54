"""Log compaction over objects: rounds, the swap, failures at each step, and what readers see."""

import random
import threading

import pytest

from kbroker._fast.records.compact_scan import KeyScan
from kbroker._fast.records.key_map import KeyMap
from kbroker._fast.records.record_batch import CorruptRecordsError
from kbroker._fast.records.records import build_batch, build_control_batch, iter_batches, iter_records
from kbroker._fast.wal.commit import FastKafkaError
from kbroker.background.compaction_cleaner import RETRY_SECONDS, Cleaner
from kbroker.background.compaction_round import CleanerSettings, RoundStopped
from kbroker.background.retention import Retention
from kbroker.log.cold_read import ColdReader
from kbroker.storage.formats.object_keys import parse_key
from kbroker.storage.ledger.numbered_log import Fenced, NumberedLog
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.read.object_audit import BucketAudit
from kbroker.storage.read.object_reader import ObjectReader
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.store_faults import Fault, FaultyStore, When
from tests.reference.compaction_history import History, Model
from tests.reference.compaction_twin import parse, split
from tests.unit.storage.flush.flush_harness import KEYS, NOW_MS, ONCE, Storage, topic_id

DAY_MS = 86_400_000
COMPACT = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0, "segment_ms": 1}


@pytest.fixture
def storage(tmp_path):
    (tmp_path / "wal").mkdir()
    s = Storage(tmp_path / "wal", FaultyStore(MemoryStore())).start()
    s.directory = tmp_path / "wal"
    s.retention = Retention(s.table, s.manifest, s.store, s.clock)
    yield s
    s.close()


def cleaner(s, **settings):
    settings = {"io_bytes_per_second": 0.0, **settings}
    return Cleaner(s.table, s.manifest, s.store, KEYS, s.clock, settings=CleanerSettings(**settings))


def records(*pairs, timestamp=NOW_MS, **options):
    return build_batch([(key, value, timestamp, ()) for key, value in pairs], **options)


def write(s, *pairs, topic="t", **options):
    offset = s.append(topic, 0, records(*pairs, **options))
    s.flush()
    s.clock.advance(1)
    return offset


def contents(s, topic="t"):
    """offset -> (key, value) of the data records in objects."""
    found = {}
    for header, batch in iter_batches(s.stored(topic, 0), check_crc=True):
        if not header.is_control:
            found |= {record.offset: (record.key, record.value) for record in iter_records(batch)}
    return found


def state(s, topic="t"):
    return s.manifest.image.partition(topic_id(topic), 0)


def keys(s):
    return {meta.key for meta in s.store.list(KEYS.root) if KEYS.parse(meta.key)}


def live_keys(s):
    return {KEYS.full(key) for key in s.manifest.image.live_keys()}


def audit(s):
    return list(BucketAudit(s.store, KEYS, s.manifest.image).faults())


def reloaded(s):
    manifest = Manifest(NumberedLog(s.store, KEYS.manifest_dir, 0, bytes(16), retries=ONCE), s.clock, root=KEYS.root)
    return manifest.load()


def test_the_newest_value_of_each_key_stays_at_its_offset(storage):
    storage.add_topic("t", 1, **COMPACT)
    write(storage, (b"a", b"1"), (b"b", b"1"))
    write(storage, (b"a", b"2"), (b"c", b"1"))
    write(storage, (b"b", b"2"))
    report = cleaner(storage).run_once()
    assert contents(storage) == {2: (b"a", b"2"), 3: (b"c", b"1"), 4: (b"b", b"2")}
    assert (report.records_read, report.records_kept, report.objects_replaced, report.objects_written) == (5, 3, 3, 1)
    assert state(storage).clean_offset == state(storage).end_offset == 5
    ref = storage.manifest.image.find(topic_id("t"), 0, 0)
    assert KEYS.parse(ref.key)[:5] == ("t", topic_id("t"), 0, 0, 1)
    assert (ref.base_offset, ref.end_offset, ref.record_count) == (0, 5, 3)
    assert audit(storage) == []
    assert cleaner(storage).run_once() is None  # nothing is dirty


def test_a_newer_value_replaces_one_in_the_clean_part(storage):
    storage.add_topic("t", 1, **COMPACT)
    write(storage, (b"a", b"1"), (b"b", b"1"))
    assert cleaner(storage).run_once()
    write(storage, (b"a", b"2"))
    assert cleaner(storage).run_once()
    assert contents(storage) == {1: (b"b", b"1"), 2: (b"a", b"2")}
    assert KEYS.parse(storage.manifest.image.find(topic_id("t"), 0, 0).key).generation == 2


def test_unflushed_records_are_not_compacted(storage):
    storage.add_topic("t", 1, **COMPACT)
    write(storage, (b"a", b"1"))
    storage.append("t", 0, records((b"a", b"2")))
    storage.sync()
    storage.clock.advance(1)
    assert cleaner(storage).run_once()
    assert contents(storage) == {0: (b"a", b"1")}


def test_tombstones_are_removed_by_the_second_round_after_their_retention(storage):
    storage.add_topic("t", 1, delete_retention_ms=DAY_MS, **COMPACT)
    write(storage, (b"a", b"1"), (b"b", b"1"))
    write(storage, (b"a", None))
    c = cleaner(storage)
    assert c.run_once()
    assert contents(storage) == {1: (b"b", b"1"), 2: (b"a", None)}
    horizon = [h.base_timestamp for h, _ in iter_batches(storage.stored("t", 0)) if h.has_delete_horizon]
    assert horizon == [storage.clock.now_ms() + DAY_MS]
    write(storage, (b"x", b"1"))
    assert c.run_once()
    assert contents(storage)[2] == (b"a", None)
    storage.clock.advance(DAY_MS / 1000)
    write(storage, (b"y", b"1"))
    assert c.run_once()
    assert contents(storage) == {1: (b"b", b"1"), 3: (b"x", b"1"), 4: (b"y", b"1")}
    assert audit(storage) == []


def test_an_aborted_record_never_wins_and_an_open_transaction_stops_the_round(storage):
    storage.add_topic("t", 1, **COMPACT)
    write(storage, (b"a", b"committed"), (b"b", b"1"))
    options = {"producer_id": 9, "producer_epoch": 0, "transactional": True}
    write(storage, (b"a", b"aborted"), base_sequence=0, **options)
    marker = {"producer_id": 9, "producer_epoch": 0, "coordinator_epoch": 1, "timestamp_ms": NOW_MS}
    storage.append("t", 0, build_control_batch(0, **marker))
    write(storage, (b"b", b"2"))
    write(storage, (b"c", b"open"), base_sequence=1, **options)
    write(storage, (b"b", b"3"))
    assert state(storage).last_stable_offset == 5
    assert cleaner(storage).run_once()
    assert state(storage).clean_offset == 5
    assert contents(storage) == {0: (b"a", b"committed"), 4: (b"b", b"2"), 5: (b"c", b"open"), 6: (b"b", b"3")}
    assert [entry[:3] for entry in state(storage).aborted] == [(9, 2, 3)]  # its batches were met in this round
    storage.append("t", 0, build_control_batch(1, **marker))
    write(storage, (b"d", b"1"))
    assert cleaner(storage).run_once()
    assert contents(storage) == {0: (b"a", b"committed"), 5: (b"c", b"open"), 6: (b"b", b"3"), 8: (b"d", b"1")}
    assert audit(storage) == []


def test_the_aborted_list_shrinks_when_nothing_can_show_the_records_any_more(storage):
    storage.add_topic("t", 1, **COMPACT)
    options = {"producer_id": 9, "producer_epoch": 0}
    write(storage, (b"a", b"x"), base_sequence=0, transactional=True, **options)
    storage.append("t", 0, build_control_batch(0, coordinator_epoch=1, timestamp_ms=NOW_MS, **options))
    write(storage, (b"b", b"1"))
    c = cleaner(storage, producer_id_expiration_ms=1)
    assert c.run_once()
    write(storage, (b"c", b"1"))
    partition = storage.table.partition("t", 0)
    assert len(partition.producers.aborted.entries) == 1  # for a read that began before the round
    known = partition.producers.aborted.entries
    assert partition.read_bytes(0, 4, 1000) is None  # the WAL has the aborted record, and does not serve it
    assert c.run_once()
    assert state(storage).aborted == ()
    assert reloaded(storage).partition(topic_id("t"), 0).aborted == ()
    assert partition.producers.aborted.entries == []
    assert [entry[0] for entry in known] == [9]  # for a reader that has begun with it


POLICIES = [
    {},
    {"min_compaction_lag_ms": 3_000},
    {"min_cleanable_dirty_ratio": 0.5, "max_compaction_lag_ms": DAY_MS},
    {"cleanup_policy": "compact,delete", "retention_ms": 2 * DAY_MS},
    {"cleanup_policy": "compact,delete", "retention_bytes": 4_000, "min_compaction_lag_ms": 1_000},
    {"cleanup_policy": "compact,delete", "retention_ms": DAY_MS, "min_cleanable_dirty_ratio": 0.3,
     "max_compaction_lag_ms": DAY_MS},
]  # fmt: skip


@pytest.mark.parametrize("policy", range(len(POLICIES)))
def test_rounds_of_random_histories_equal_the_model(tmp_path, policy):
    for seed in range(100 * policy, 100 * policy + 6):
        (tmp_path / str(seed)).mkdir()
        s = Storage(tmp_path / str(seed), pack_below_bytes=random.Random(seed).choice([0, 64 * 1024])).start()
        config = {**COMPACT, "delete_retention_ms": DAY_MS, "segment_bytes": 1 << 20, **POLICIES[policy]}
        s.add_topic("t", 1, **config)
        try:
            _random_history(s, seed, config)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        finally:
            s.close()


def _random_history(s, seed, config):
    history = History(seed, null_keys=False)
    model, rng, taken = Model(history, DAY_MS), random.Random(seed), 0
    retention = Retention(s.table, s.manifest, s.store, s.clock)
    c = cleaner(s, dedupe_buffer_bytes=rng.choice([24 * 20, 1 << 20]), read_bytes=rng.choice([300, 4 << 20]))
    for turn in range(7):
        for _ in range(rng.randrange(1, 15)):
            history.step()
        if turn == 6:
            history.end_all()
        for batch in history.batches[taken:]:
            s.append("t", 0, batch)
            if rng.random() < 0.2:
                s.flush()
        taken = len(history.batches)
        s.flush()
        s.clock.advance(rng.choice([1, 5, DAY_MS / 1000 + 1]) if turn < 6 else DAY_MS / 1000 + 5)
        retention.check_once()
        while c.run_once():
            _check_round(s, model, config)
        assert audit(s) == []
        if turn == 6 or not ("min_cleanable_dirty_ratio" in POLICIES[seed // 100] or "lag" in str(config)):
            # What retention deletes in between need not be compacted.
            assert max(state(s).clean_offset, state(s).log_start_offset) >= history.last_stable_offset
        history.now_ms = max(history.now_ms, s.clock.now_ms())
        s.clock.advance(61)
        retention.delete_once()
        assert keys(s) == live_keys(s)
    assert c.metrics.failures == 0


def _check_round(s, model, config):
    now_ms, log_start = s.clock.now_ms(), state(s).log_start_offset
    model.check([parse(batch) for batch in split(s.stored("t", 0))], state(s).clean_offset, now_ms, log_start)
    if "delete" not in config["cleanup_policy"]:
        assert log_start == 0
    lag_ms = config.get("min_compaction_lag_ms", 0)
    young = [offset for offset, record in model.history.written.items() if record.timestamp > now_ms - lag_ms]
    assert not lag_ms or all(offset >= state(s).clean_offset for offset in young), "a young record was compacted"


def test_batches_of_older_formats_are_never_appended(storage):
    """Magic 0 and 1 are refused where batches come in, so that compaction knows one format."""
    storage.add_topic("t", 1, **COMPACT)
    for magic in (0, 1):
        batch = bytearray(records((b"a", b"1")))
        batch[16] = magic
        with pytest.raises(FastKafkaError):
            storage.append("t", 0, bytes(batch))
    with pytest.raises(CorruptRecordsError):
        KeyScan(KeyMap(1000), 0, 10).feed(bytes(batch))


def test_a_read_continues_across_gaps_and_across_a_swap(storage):
    storage.add_topic("t", 1, file_delete_delay_ms=0, **COMPACT)
    for n in range(20):
        write(storage, (b"k%d" % (n % 2), b"%d" % n))
    reader = ColdReader(ObjectReader(storage.store, storage.manifest.image, 4 << 20))
    log = storage.table.partition("t", 0).log
    first = reader.read(log, 0, 20, 1)
    assert [r.offset for r in iter_records(first[0])] == [0]
    assert cleaner(storage).run_once()
    assert storage.retention.delete_once() == 1 + 19
    offset, seen = 1, []
    while offset < 20:
        for part in reader.read(log, offset, 20, 1):
            for header, batch in iter_batches(part, check_crc=True):
                seen += [record.offset for record in iter_records(batch)]
                offset = header.next_offset
    assert seen == [18, 19]
    reader.close()


def test_large_outputs_are_cut_and_sent_in_parts(storage):
    storage.add_topic("t", 1, segment_bytes=1 << 20, **COMPACT)
    rng = random.Random(1)
    for n in range(30):
        storage.append("t", 0, records((b"k%d" % (n % 28), rng.randbytes(120_000))))
        if n % 9 == 8:
            storage.flush()
    storage.flush()
    storage.clock.advance(1)
    report = cleaner(storage, read_bytes=300_000, part_bytes=5 << 20).run_once()
    assert report.objects_written == 4
    refs = list(storage.manifest.image.objects_from(topic_id("t"), 0))
    assert all(ref.length <= 1 << 20 for ref in refs)
    assert refs[0].base_offset == 0
    assert refs[-1].end_offset == 30
    assert sorted(contents(storage)) == list(range(2, 30))
    assert audit(storage) == []
    storage.table.set_config(topic_id("t"), storage.add_topic("other", 1, **COMPACT).config)
    for n in range(8):
        storage.append("t", 0, records((b"k%d" % n, rng.randbytes(500_000))))
    write(storage, (b"last", b""))
    storage.store.operations.clear()
    assert cleaner(storage, part_bytes=5 << 20).run_once().objects_written == 1
    assert [name for name, _ in storage.store.operations if name == "upload_part"] == ["upload_part"] * 2
    assert sorted(contents(storage)) == list(range(8, 28)) + list(range(30, 39))
    assert audit(storage) == []


def test_a_round_that_changes_nothing_keeps_the_object(storage):
    storage.add_topic("t", 1, **COMPACT)
    write(storage, (b"a", b"1"))
    c = cleaner(storage)
    c.run_once()  # makes an object of the image in the pack
    write(storage, (b"b", b"1"))
    c.run_once()
    before = keys(storage)
    state(storage).clean_offset = 0
    storage.clock.advance(1)
    assert c.run_once().objects_written == 0
    assert keys(storage) == before
    assert state(storage).clean_offset == 2


def test_a_full_map_takes_several_rounds(storage):
    storage.add_topic("t", 1, **COMPACT)
    for n in range(40):
        write(storage, (b"k%d" % (n % 20), b"%d" % n))
    c = cleaner(storage, dedupe_buffer_bytes=24 * 10)
    ends = []
    while report := c.run_once():
        ends.append(report.clean_offset)
    assert ends == [9, 18, 27, 36, 40]
    assert sorted(contents(storage)) == list(range(20, 40))


def test_a_batch_with_more_keys_than_the_map_leaves_the_partition_alone(storage):
    storage.add_topic("t", 1, **COMPACT)
    write(storage, *((b"k%d" % n, b"") for n in range(100)))
    c = cleaner(storage, dedupe_buffer_bytes=24 * 10)
    assert c.run_once() is None
    assert "dedupe.buffer.size" in c.metrics.last_error
    assert c.metrics.uncleanable_partitions == 1
    assert len(contents(storage)) == 100


@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER])
@pytest.mark.parametrize("number", [0, 1, 2])  # the reservation, the object, the swap
def test_a_failed_request_leaves_the_old_or_the_new_state_and_no_orphan(storage, number, when):
    storage.add_topic("t", 1, file_delete_delay_ms=0, **COMPACT)
    write(storage, (b"a", b"1"), (b"b", b"1"))
    write(storage, (b"a", b"2"))
    c = cleaner(storage)
    storage.store.inject(Fault("put", when, skip=number))
    c.run_once()
    storage.clock.advance(RETRY_SECONDS)
    storage.manifest.settle()
    compacted = {1: (b"b", b"1"), 2: (b"a", b"2")}
    assert contents(storage) in ({0: (b"a", b"1"), **compacted}, compacted)
    assert audit(storage) == []
    c.run_once()
    assert contents(storage) == compacted
    # The manifest's log tells its own success from a failure; of an object nothing but its name would be known.
    assert c.metrics.failures == (0 if when is When.AFTER and number != 1 else 1)
    storage.clock.advance(DAY_MS / 1000)
    storage.retention.delete_once()
    assert keys(storage) == live_keys(storage)
    assert storage.manifest.image.reserved == {}


def test_a_crash_in_a_round_leaves_a_reservation_that_expires(storage):
    storage.add_topic("t", 1, file_delete_delay_ms=0, **COMPACT)
    write(storage, (b"a", b"1"))
    write(storage, (b"a", b"2"))
    # The process ends after the upload: neither swap nor clean-up happens.
    storage.store.inject(Fault("put", skip=2, error=KeyboardInterrupt))
    c = cleaner(storage)
    with pytest.raises(KeyboardInterrupt):
        c.run_once()
    image = reloaded(storage)
    (orphan,) = image.reserved
    assert parse_key(orphan)[2:5] == (0, 0, 1)
    assert KEYS.full(orphan) in keys(storage)
    storage.close()
    after = Storage(storage.directory, storage.store, epoch=2)
    try:
        after.manifest.copy.state.image = image
        after.add_topic("t", 1, file_delete_delay_ms=0, **COMPACT)
        after.clock.advance(3)
        assert BucketAudit(after.store, KEYS, image).orphans == []
        retention = Retention(after.table, after.manifest, after.store, after.clock)
        assert retention.delete_once() == 0
        after.clock.advance(DAY_MS / 1000)
        assert retention.delete_once() == 1
        assert KEYS.full(orphan) not in keys(after)
    finally:
        after.close()


def test_a_superseded_broker_swaps_nothing(storage):
    storage.add_topic("t", 1, **COMPACT)
    write(storage, (b"a", b"1"))
    write(storage, (b"a", b"2"))
    successor = NumberedLog(storage.store, KEYS.manifest_dir, 2, b"n" * 16, retries=ONCE)
    successor.load(lambda *_: None, lambda *_: None)
    successor.seal_previous()
    before = keys(storage)
    with pytest.raises(Fenced):
        cleaner(storage).run_once()
    assert keys(storage) == before


def test_a_log_start_that_moves_during_a_round_makes_it_obsolete(storage):
    storage.add_topic("t", 1, **{**COMPACT, "cleanup_policy": "compact,delete", "file_delete_delay_ms": 0})
    write(storage, (b"a", b"1"))
    write(storage, (b"a", b"2"))
    write(storage, (b"a", b"3"))

    c = cleaner(storage)
    real = c.pacer.acquire
    calls = []

    def acquire(count):
        calls.append(count)
        if len(calls) == 7:  # three reads in each pass, then the write
            storage.table.partition("t", 0).log.raise_log_start(2)
            storage.retention.check_once()
        real(count)

    c.pacer.acquire = acquire
    assert c.run_once() is None
    assert "changed while" in c.metrics.last_error
    storage.clock.advance(RETRY_SECONDS)
    assert c.run_once()
    assert contents(storage) == {2: (b"a", b"3")}
    storage.clock.advance(601)
    storage.retention.delete_once()
    assert keys(storage) == live_keys(storage)


def test_a_stop_ends_a_round_early_and_leaves_nothing(storage):
    storage.add_topic("t", 1, **COMPACT)
    write(storage, (b"a", b"1"))
    write(storage, (b"a", b"2"))
    c = cleaner(storage)
    c.stop()
    before = keys(storage)
    with pytest.raises(RoundStopped):
        c.run_once()
    assert keys(storage) == before


def test_a_damaged_batch_leaves_the_partition_as_it_is(storage):
    storage.add_topic("t", 1, **COMPACT)
    storage.add_topic("u", 1, **COMPACT)
    write(storage, (b"a", b"1"))
    ref = storage.manifest.image.find(topic_id("t"), 0, 0)
    data = bytearray(storage.store.get(ref.key))
    data[ref.start + 70] ^= 1
    etag = storage.store.put(ref.key, bytes(data)).etag
    for file in storage.manifest.image.files.values():
        file.etag = etag
    write(storage, (b"a", b"2"), topic="u")
    c = cleaner(storage)
    for _ in range(3):
        c.run_once()
        storage.clock.advance(RETRY_SECONDS)
    assert c.metrics.uncleanable_partitions == 1
    assert c.metrics.failures == 1
    assert state(storage, "u").clean_offset == 1
    assert storage.manifest.image.find(topic_id("t"), 0, 0).key == ref.key


def test_only_compacted_topics_with_a_large_dirty_part_are_due(storage):
    storage.add_topic("d", 1, cleanup_policy="delete", min_cleanable_dirty_ratio=0, segment_ms=1)
    storage.add_topic("t", 1, cleanup_policy="compact", segment_ms=3_600_000)
    write(storage, (b"a", b"1"), topic="d")
    write(storage, (b"a", b"1"))
    c = cleaner(storage)
    assert c.run_once() is None  # young and small
    storage.clock.advance(3600)
    assert c.run_once()
    for n in range(31):
        write(storage, (b"k%d" % n, b"1"))
        assert c.run_once() is None
    write(storage, (b"k", b"1"))
    assert c.run_once()  # many objects
    write(storage, (b"a", b"2"))
    storage.clock.advance(3600)
    assert c.run_once() is None  # not dirty enough
    config = {"max_compaction_lag_ms": 3_600_000, "cleanup_policy": "compact"}
    storage.table.set_config(topic_id("t"), storage.add_topic("other", 1, **config).config)
    assert c.run_once()  # too old


def test_young_records_wait_for_the_lag(storage):
    storage.add_topic("t", 1, min_compaction_lag_ms=10_000, **COMPACT)
    write(storage, (b"a", b"1"))
    write(storage, (b"a", b"2"), timestamp=NOW_MS + 5_000)
    storage.clock.advance(9)
    c = cleaner(storage)
    assert c.run_once()
    assert state(storage).clean_offset == 1
    storage.clock.advance(5)
    assert c.run_once()
    assert contents(storage) == {1: (b"a", b"2")}


def test_the_dirtiest_partition_is_first(storage):
    for name in ("t", "u"):
        storage.add_topic(name, 1, **COMPACT)
        write(storage, (b"a", b"1" * 5000), topic=name)
    c = cleaner(storage)
    assert c.run_once()
    assert c.run_once()
    write(storage, (b"a", b"1"), topic="t")
    write(storage, (b"a", b"1" * 9000), topic="u")
    assert c.run_once()
    assert (state(storage, "t").clean_offset, state(storage, "u").clean_offset) == (1, 2)


def test_a_deleted_topic_is_not_compacted(storage):
    storage.add_topic("t", 1, **COMPACT)
    write(storage, (b"a", b"1"))
    write(storage, (b"a", b"2"))
    c = cleaner(storage)
    partition = storage.table.partition("t", 0)
    real = c.pacer.acquire

    def acquire(count):
        partition.mark_deleted()
        real(count)

    c.pacer.acquire = acquire
    assert c.run_once() is None
    assert state(storage).clean_offset == 0


def test_the_longest_backoff_is_no_overflow(storage):
    class Stop(threading.Event):
        def wait(self, timeout=None):
            assert timeout <= threading.TIMEOUT_MAX
            self.set()
            return True

    paused = cleaner(storage, backoff_ms=2**63 - 1)
    paused._stop = Stop()
    paused._run()
    assert paused._stop.is_set()
