"""Merging of objects over a real log, manifest and store: what is merged, failures at each step, what readers see."""

import contextlib
import gc
import random
import threading

import pytest

from kbroker._fast.records.records import iter_batches, iter_records
from kbroker.background.compaction_cleaner import Cleaner
from kbroker.background.compaction_round import CleanerSettings
from kbroker.background.converter import RETRY_SECONDS, Converter, ConverterSettings, MergeStopped
from kbroker.background.retention import Retention
from kbroker.clock import ManualClock
from kbroker.storage.formats.object_keys import PackKey
from kbroker.storage.ledger.numbered_log import Fenced, NumberedLog
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.read.object_audit import BucketAudit
from kbroker.storage.read.object_reader import ObjectReader
from kbroker.storage.rewrite.merge_plan import MergeLimits
from kbroker.storage.rewrite.merger import MergerSettings
from kbroker.storage.rewrite.object_swap import PartitionLocks
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import StoreUnavailable
from kbroker.storage.stores.store_faults import Fault, FaultyStore, When
from tests.unit.storage.flush.flush_harness import KEYS, KIB, MIB, NOW_MS, ONCE, Storage, batch, topic_id
from tests.unit.storage.manifest.changes import change_of, evaluate_twice

DAY = 86_400.0
NOISE = random.Random(5).randbytes(2 * MIB)
BOUNDS = MergeLimits(fan_in=4, below_bytes=(32 * MIB, 256 * MIB))


class MergingStore(FaultyStore):
    """Calls `before_put` with the key of each put. An outage begins with a KeyboardInterrupt: the process has died."""

    def __init__(self, memory):
        super().__init__(memory)
        self.memory = memory
        self.before_put = lambda key: None

    def _run(self, operation, key, bytes_out, call):
        if operation == "put":
            self.before_put(key)
        try:
            return super()._run(operation, key, bytes_out, call)
        except KeyboardInterrupt:
            self.outage = True
            raise


def opened(directory, memory=None, clock=None, **options):
    """A broker's storage over a memory store that has its clock; `start` is still to be called."""
    directory.mkdir(exist_ok=True)
    clock = clock or ManualClock(NOW_MS)
    s = Storage(directory, MergingStore(memory or MemoryStore(clock)), clock=clock, **options)
    s.retention = Retention(s.table, s.manifest, s.store, s.clock)
    return s


@pytest.fixture
def storage(tmp_path):
    s = opened(tmp_path / "wal").start()
    yield s
    s.close()


def converter(s, *, epoch=1, bounds=BOUNDS, rate=0.0, locks=None, busy=lambda: False, wait=None, **merger):
    settings = ConverterSettings(io_bytes_per_second=rate, bounds=bounds, merger=MergerSettings(**merger))
    return Converter(
        s.table, s.manifest, s.store, KEYS, s.clock, s.claim, broker_epoch=epoch, settings=settings, locks=locks,
        busy=busy, wait=wait,
    )  # fmt: skip


def write(s, *values, topic="t", partition=0, flush=True, **options):
    s.append(topic, partition, batch(values, timestamp=s.clock.now_ms(), **options))
    if flush:
        s.flush()
        s.clock.advance(1)


def refs(s, topic="t", partition=0):
    return list(s.manifest.image.objects_from(topic_id(topic), partition))


def values(s, topic="t", partition=0):
    return [record.value for _, data in iter_batches(s.stored(topic, partition)) for record in iter_records(data)]


def keys(s):
    return {meta.key for meta in s.store.list(KEYS.root) if KEYS.parse(meta.key)}


def packs(s):
    return {key for key in keys(s) if isinstance(KEYS.parse(key), PackKey)}


def live_keys(s):
    return {KEYS.full(key) for key in s.manifest.image.live_keys()}


def audit(s, image=None):
    return list(BucketAudit(s.store, KEYS, image or s.manifest.image).faults())


def reloaded(s):
    manifest = Manifest(NumberedLog(s.store, KEYS.manifest_dir, 0, bytes(16), retries=ONCE), s.clock, root=KEYS.root)
    return manifest.load()


def sweep(s, c):
    """Days go by: reservations end, sweeps run, and what is due is deleted."""
    for _ in range(5):
        s.clock.advance(DAY)
        c.sweep_once()
        s.retention.delete_once()


def test_images_of_packs_become_one_object_and_the_packs_go(storage):
    storage.add_topic("t", 2)
    for n in range(4):
        write(storage, b"a%d" % n, b"b%d" % n, flush=False)
        write(storage, b"c%d" % n, partition=1)
    before = storage.stored("t", 0), storage.stored("t", 1)
    assert len(packs(storage)) == 4
    report = converter(storage).run_once()
    assert (report.merges, report.objects_replaced, report.objects_written, report.bytes_copied) == (2, 8, 2, 0)
    assert (storage.stored("t", 0), storage.stored("t", 1)) == before
    (ref,) = refs(storage)
    assert (ref.base_offset, ref.end_offset, ref.record_count) == (0, 8, 8)
    assert KEYS.parse(ref.key)[2:5] == (0, 0, 1)
    assert audit(storage) == audit(storage, reloaded(storage)) == []
    assert len(packs(storage)) == 4  # for readers in flight
    storage.clock.advance(59)
    assert storage.retention.delete_once() == 0
    storage.clock.advance(2)
    assert storage.retention.delete_once() == 4
    assert packs(storage) == set()
    assert keys(storage) == live_keys(storage)
    assert not storage.manifest.image.reserved
    assert converter(storage).run_once() is None


def test_a_pack_stays_while_one_image_in_it_is_live(storage):
    storage.add_topic("t", 2)
    write(storage, b"quiet", partition=1, flush=False)
    for n in range(4):
        write(storage, b"v%d" % n)
    c = converter(storage)
    c.run_once()
    storage.clock.advance(100)
    storage.retention.delete_once()
    assert len(packs(storage)) == 1
    assert values(storage, partition=1) == [b"quiet"]
    storage.clock.advance(3600)  # it has waited long enough for adjacent ones
    assert c.run_once().merges == 1
    storage.clock.advance(100)
    storage.retention.delete_once()
    assert packs(storage) == set()
    assert values(storage, partition=1) == [b"quiet"]
    assert audit(storage) == []


def test_many_small_results_share_a_pack_until_the_second_merge(storage):
    storage.add_topic("t", 20)
    c = converter(storage)
    jobs = []
    for n in range(16):
        for partition in range(20):
            write(storage, b"%d-%d" % (partition, n), partition=partition, flush=False)
        storage.flush()
        storage.clock.advance(1)
        while (report := c.run_once()) is not None:
            jobs.append((report.merges, report.objects_written))
    assert jobs == [(20, 1)] * 4 + [(20, 20)]
    storage.clock.advance(100)
    storage.retention.delete_once()
    assert packs(storage) == set()
    assert all(len(refs(storage, partition=partition)) == 1 for partition in range(20))
    assert values(storage, partition=7) == [b"7-%d" % n for n in range(16)]
    assert {KEYS.parse(key).generation for key in keys(storage)} == {2}
    assert audit(storage) == []
    flushed = storage.flusher.metrics.bytes.total()
    assert c.metrics.bytes_sent + flushed <= 3 * flushed


def test_a_pack_of_merged_images_is_named_by_its_generation(storage):
    storage.add_topic("t", 20)
    for _ in range(4):
        for partition in range(20):
            write(storage, b"x", partition=partition, flush=False)
        storage.flush()
    converter(storage).run_once()
    assert {KEYS.parse(ref.key) for ref in refs(storage)} == {PackKey(1, 0, 1)}
    assert audit(storage) == audit(storage, reloaded(storage)) == []


def large(s, *sizes):
    """One KLIX object of each size, and a few records in packs between them."""
    start = 0
    for size in sizes:
        count = max(1, size // (500 * KIB))
        for _ in range(count):
            s.append("t", 0, batch([NOISE[start : start + size // count]]))
            start += 1_009  # each record is another
        s.flush()
        s.clock.advance(1)


def test_large_objects_are_copied_by_the_store(storage):
    storage.add_topic("t", 1)
    large(storage, 6 * MIB, 7 * MIB, 40 * KIB, 30 * KIB, 12 * MIB)
    before = storage.stored("t", 0)
    report = converter(storage, buffer_bytes=4 * MIB).run_once()
    assert storage.stored("t", 0) == before
    assert report.objects_replaced == 5
    assert report.bytes_copied > 15 * MIB
    assert report.bytes_sent < 5.2 * MIB  # the two small ones and what makes a part of them, the index
    assert len(refs(storage)) == 1
    assert audit(storage) == audit(storage, reloaded(storage)) == []
    assert [op for op, _ in storage.store.operations].count("create_multipart") == 1
    assert list(storage.store.list_multipart("")) == []


class OddCopies(MemoryStore):
    """Returns another CRC of what it copied, or none; and may copy the wrong bytes."""

    def __init__(self, told, wrong, clock):
        super().__init__(clock)
        self.told = told
        self.wrong = wrong

    def upload_part_copy(self, key, upload_id, number, source_key, start, length, *, if_match=None):
        start += self.wrong
        part = super().upload_part_copy(key, upload_id, number, source_key, start, length, if_match=if_match)
        told = {"nothing": None, "of the source": self.head(source_key).crc32c, "anything": 7}[self.told]
        odd = part._replace(crc32c=told)
        self._uploads[upload_id].parts[number] = (odd, self._uploads[upload_id].parts[number][1])
        return odd


@pytest.mark.parametrize("told", ["nothing", "of the source", "anything"])
@pytest.mark.parametrize("wrong", [0, 1])
def test_copies_without_a_useful_crc_from_the_store_are_read_back(tmp_path, told, wrong):
    clock = ManualClock(NOW_MS)
    s = opened(tmp_path, OddCopies(told, wrong, clock), clock).start()
    s.add_topic("t", 1)
    large(s, 6 * MIB, 6 * MIB, 6 * MIB, 6 * MIB)
    before, named = s.stored("t", 0), keys(s)
    c = converter(s, buffer_bytes=4 * MIB)
    report = c.run_once()
    assert (report is None) == bool(wrong)
    assert s.stored("t", 0) == before
    if wrong:
        assert "00000-1-" in c.metrics.last_error
        s.clock.advance(3600)
        s.retention.delete_once()
        assert keys(s) == named
        assert c.run_once() is None  # not tried again before the next start
    s.close()


def test_a_damaged_input_stays_and_the_others_are_merged(storage):
    storage.add_topic("t", 3)
    for _ in range(4):
        for partition in range(3):
            write(storage, b"value", partition=partition, flush=False)
        storage.flush()
        storage.clock.advance(1)
    ref = refs(storage, partition=1)[2]
    good = storage.store.get(ref.key)
    bad = bytearray(good)
    bad[ref.start + 70] ^= 1
    meta = storage.store.put(ref.key, bytes(bad))
    files = storage.manifest.image.files
    files.set_etag(files.keys.place_of(KEYS.relative(ref.key)), meta.etag)
    c = converter(storage)
    c.run_once()
    assert [len(refs(storage, partition=partition)) for partition in range(3)] == [1, 4, 1]
    assert ref.key in c.metrics.last_error
    assert c.run_once() is None
    assert values(storage, partition=2) == [b"value"] * 4


def test_the_batches_of_a_merge_fit_into_one_index(storage):
    storage.add_topic("t", 1)
    for _ in range(4):
        for _ in range(5):
            write(storage, b"x" * 50_000, flush=False)
        storage.flush()
    c = converter(storage, buffer_bytes=100, object_batches_max=12)
    assert c.run_once().objects_replaced == 2
    assert len(refs(storage)) == 3
    assert c.run_once() is None
    storage.add_topic("u", 1)
    for _ in range(4):
        for _ in range(5):
            write(storage, b"x" * 50_000, topic="u", flush=False)
        storage.flush()
    assert all(not ref.key.endswith(".pack") for ref in refs(storage, "u"))
    c = converter(storage, buffer_bytes=100, object_batches_max=7)
    while c.run_once():
        pass
    assert len(refs(storage, "u")) == 4
    assert c.metrics.failures == 0


@pytest.mark.parametrize("deleted", [False, True])
def test_a_failed_merge_is_retried_under_another_key(storage, deleted):
    """A deletion of what it released may arrive late, from an owner that was paused while another one took over."""
    storage.add_topic("t", 1)
    for n in range(4):
        write(storage, b"%d" % n)
    storage.store.inject(Fault("put", When.AFTER, key_part="/00000000000000000000-1"))
    c = converter(storage)
    assert c.run_once() is None
    (given_up,) = storage.manifest.image.deletions
    assert KEYS.full(given_up) in keys(storage)  # the store had taken it
    if deleted:
        storage.clock.advance(3600)
        assert storage.retention.delete_once() == 1
    storage.clock.advance(RETRY_SECONDS + 1)
    assert c.run_once().objects_written == 1
    (ref,) = refs(storage)
    assert KEYS.relative(ref.key) != given_up
    assert KEYS.parse(ref.key).generation == 1  # or it would never be merged a second time
    storage.store.delete([KEYS.full(given_up)])
    assert values(storage) == [b"0", b"1", b"2", b"3"]


def test_a_merge_that_waits_for_another_record_counts_once(storage, monkeypatch):
    storage.add_topic("t", 2)
    for n in range(4):
        write(storage, b"%d" % n, flush=False)
        write(storage, b"%d" % n, partition=1)
    evaluate_twice(storage.manifest, monkeypatch)
    report = converter(storage).run_once()
    assert (report.merges, report.obsolete, report.objects_replaced, report.objects_written) == (2, 0, 8, 2)
    assert values(storage) == [b"0", b"1", b"2", b"3"]


def test_inputs_that_change_during_a_merge_are_not_swapped(storage):
    storage.add_topic("t", 2)
    for _ in range(4):
        write(storage, b"x", flush=False)
        write(storage, b"y", partition=1)
    c = converter(storage)

    def delete_records(key):
        if "/1/00000000000000000000-1-" in key:
            storage.manifest.commit(change_of({"p": {topic_id("t").hex(): {"0": {"s": 2}}}}))
            storage.table.partition("t", 0).log.raise_log_start(2)

    storage.store.before_put = delete_records
    report = c.run_once()
    storage.store.before_put = lambda key: None
    assert (report.merges, report.obsolete) == (1, 1)
    assert len(refs(storage)) == 2
    assert len(refs(storage, partition=1)) == 1
    storage.clock.advance(3600)
    storage.retention.delete_once()
    assert keys(storage) == live_keys(storage)
    assert not storage.manifest.image.reserved
    assert audit(storage) == []


def test_a_topic_deleted_during_a_merge_leaves_no_objects(storage):
    topic = storage.add_topic("t", 1)
    for _ in range(4):
        write(storage, b"x")
    release, reached = threading.Event(), threading.Event()
    storage.store.inject(Fault("put", When.HOLD, key_part="/00000000000000000000-1-", release=release, reached=reached))
    c = converter(storage)
    worker = threading.Thread(target=c.run_once)
    worker.start()
    assert reached.wait(20)
    storage.table.remove_topic(topic.topic_id)
    storage.retention.drop_topic(topic.topic_id, 0)
    storage.retention.check_once()
    release.set()
    worker.join(20)
    assert refs(storage) == []
    storage.clock.advance(3600)
    storage.retention.delete_once()
    assert keys(storage) == set()


def test_objects_written_by_compaction_are_not_merged(storage):
    storage.add_topic("t", 1, cleanup_policy="compact", min_cleanable_dirty_ratio=0, segment_ms=1)
    cleaner = Cleaner(
        storage.table, storage.manifest, storage.store, KEYS, storage.clock,
        settings=CleanerSettings(io_bytes_per_second=0.0),
    )  # fmt: skip
    for n in range(3):
        write(storage, b"%d" % n)
    assert cleaner.run_once()
    cleaned = refs(storage)
    for n in range(4):
        write(storage, b"%d" % n)
    assert converter(storage).run_once().objects_replaced == 4
    assert refs(storage)[: len(cleaned)] == cleaned
    assert len(refs(storage)) == len(cleaned) + 1
    storage.clock.advance(1)
    assert cleaner.run_once().objects_replaced == len(cleaned) + 1
    assert audit(storage) == []


def test_only_one_rewrite_works_on_a_partition_at_a_time(storage):
    storage.add_topic("t", 1)
    for _ in range(4):
        write(storage, b"x")
    locks = PartitionLocks()
    c = converter(storage, locks=locks)
    assert locks.acquire((topic_id("t"), 0))
    assert c.run_once() is None
    locks.release((topic_id("t"), 0))
    assert c.run_once()
    assert locks.acquire((topic_id("t"), 0))


def test_retention_bounds_what_one_object_covers(storage):
    storage.add_topic("t", 1, retention_ms=8 * 1_200_000, segment_ms=10**12)
    for _ in range(8):
        write(storage, b"x")
        storage.clock.advance(600 - 1)
    converter(storage).run_once()
    assert [ref.record_count for ref in refs(storage)] == [3, 3, 1, 1]


def test_merging_waits_while_flushes_have_a_backlog_and_ends_at_a_stop(storage):
    storage.add_topic("t", 1)
    for _ in range(4):
        write(storage, b"x")
    asked = threading.Event()

    def busy():
        asked.set()
        return True

    c = converter(storage, busy=busy)
    before = keys(storage)
    c.start()
    assert asked.wait(20)
    c.stop()
    assert keys(storage) == before
    assert len(refs(storage)) == 4
    with pytest.raises(MergeStopped):
        c.run_once()


def test_merging_waits_for_flushes_for_a_limited_time(storage):
    storage.add_topic("t", 1)
    for _ in range(4):
        write(storage, b"x")
    waited = []

    def wait(seconds):
        waited.append(seconds)
        storage.clock.advance(seconds)

    c = converter(storage, busy=lambda: True, wait=wait)
    assert c.run_once() is not None
    assert sum(waited) == pytest.approx(600, abs=1)
    assert len(refs(storage)) == 1


def test_the_rate_holds_and_changes_at_run_time(storage):
    storage.add_topic("t", 1)
    for _ in range(4):
        write(storage, bytes(40_000))
    waited = []

    def wait(seconds):
        waited.append(seconds)
        storage.clock.advance(seconds)

    c = converter(storage, rate=1e6, wait=wait)
    for _ in range(2):
        c.acquire(100_000)
    assert sum(waited) == pytest.approx(0.1, rel=0.1)
    c.configure(ConverterSettings(enabled=False, io_bytes_per_second=1e5))
    assert c.run_once() is None
    c.acquire(100_000)
    del waited[:]
    c.acquire(1)
    assert sum(waited) == pytest.approx(1, rel=0.1)


# -- failures --------------------------------------------------------------------------------------------------------


def history(s, *, copied):
    """Two partitions with something to merge, one of them by a multipart upload when `copied`."""
    s.add_topic("t", 2)
    if copied:
        large(s, 5300 * KIB, 10 * KIB, 5300 * KIB, 20 * KIB)
    else:
        for n in range(4):
            write(s, b"a%d" % n, flush=False)
            write(s, b"b%d" % n, partition=1)
    return [s.stored("t", partition) for partition in range(2)]


def settings_of(copied):
    return {"buffer_bytes": 1 * MIB} if copied else {}


def requests_of_a_job(tmp_path, copied):
    s = opened(tmp_path).start()
    history(s, copied=copied)
    s.store.operations.clear()
    assert converter(s, **settings_of(copied)).run_once()
    s.close()
    return [operation for operation, _ in s.store.operations]


@pytest.mark.parametrize("copied", [False, True], ids=["put", "multipart"])
@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER])
@pytest.mark.parametrize("dies", [False, True], ids=["goes on", "dies"])
def test_a_failure_of_any_request_loses_and_leaks_nothing(tmp_path, copied, when, dies):
    """Each request fails, before or after its effect; the broker continues, or dies with it and another one starts."""
    requests = requests_of_a_job(tmp_path / "probe", copied)
    for number, operation in enumerate(requests):
        fail_once(tmp_path / f"{number}", number, f"request {number}, {operation}", copied, when, dies)
        gc.collect()  # closes the files of its logs


def fail_once(directory, number, where, copied, when, dies):
    s = opened(directory).start()
    expected = history(s, copied=copied)
    c = converter(s, **settings_of(copied))
    s.store.inject(Fault("*", when, skip=number, error=KeyboardInterrupt if dies else StoreUnavailable))
    if dies:
        with contextlib.suppress(KeyboardInterrupt):
            c.run_once()
        s.close()
        s = opened(directory, s.store.memory, s.clock, epoch=2)
        s.add_topic("t", 2)
        s.start()
        c = converter(s, epoch=2, **settings_of(copied))
    else:
        c.run_once()
    assert [s.stored("t", partition) for partition in range(2)] == expected, where
    assert audit(s) == [], where
    s.clock.advance(RETRY_SECONDS + 1)
    while c.run_once():
        pass
    assert [len(refs(s, partition=partition)) for partition in range(2)] == ([1, 0] if copied else [1, 1]), where
    sweep(s, c)
    assert keys(s) == live_keys(s), where
    assert list(s.store.list_multipart("")) == [], where
    assert not s.manifest.image.reserved, where
    assert not s.manifest.image.deletions, where
    assert [s.stored("t", partition) for partition in range(2)] == expected, where
    assert audit(s) == audit(s, reloaded(s)) == [], where
    s.close()


def test_a_merge_is_retried_after_an_outage(storage):
    storage.add_topic("t", 1)
    for n in range(4):
        write(storage, b"%d" % n)
    storage.store.outage = True
    c = converter(storage)
    assert c.run_once() is None
    assert c.metrics.failures == 1
    assert c.run_once() is None  # not at once
    storage.store.outage = False
    storage.clock.advance(RETRY_SECONDS)
    assert c.run_once()
    assert values(storage) == [b"0", b"1", b"2", b"3"]


def test_a_superseded_broker_merges_nothing(storage):
    history(storage, copied=False)
    log = NumberedLog(storage.store, KEYS.manifest_dir, 2, bytes(16), retries=ONCE)
    Manifest(log, storage.clock, root=KEYS.root).load()
    log.seal_previous()
    before = keys(storage)
    with pytest.raises(Fenced):
        converter(storage).run_once()
    assert keys(storage) == before


# -- readers ---------------------------------------------------------------------------------------------------------


def read_all(reader, s, partition=0, on_read=lambda: None):
    found, offset = [], 0
    end = s.manifest.image.partition(topic_id("t"), partition).end_offset
    while offset < end:
        piece = reader.read(topic_id("t"), partition, offset, end, 1)
        assert piece is not None
        on_read()
        for _, data in iter_batches(b"".join(piece.parts), check_crc=True):
            found += [record.value for record in iter_records(data)]
        assert piece.base_offset == offset
        offset = piece.next_offset
    return found


def test_readers_see_no_hole_while_objects_are_swapped_and_deleted(storage):
    storage.add_topic("t", 1, file_delete_delay_ms=0)
    c = converter(storage, bounds=MergeLimits(fan_in=4, count_max=8), buffer_bytes=3000)
    for n in range(64):
        for i in range(3):
            write(storage, b"%d-%d" % (n, i), flush=False)
        storage.flush()
        storage.clock.advance(1)
    expected = [b"%d-%d" % (n, i) for n in range(64) for i in range(3)]
    reader = ObjectReader(storage.store, storage.manifest.image, 4 * MIB)
    merged = 0

    def swap():
        nonlocal merged
        if c.run_once():
            merged += 1
        storage.clock.advance(1)
        storage.retention.delete_once()

    assert read_all(reader, storage, on_read=swap) == expected
    assert merged >= 2
    cold = ObjectReader(storage.store, storage.manifest.image, 4 * MIB)
    assert read_all(cold, storage) == expected
    assert keys(storage) == live_keys(storage)


def test_concurrent_readers_see_no_hole(storage):
    storage.add_topic("t", 1, file_delete_delay_ms=0)
    failures, ended = [], threading.Event()
    write(storage, b"0")

    def read():
        while not ended.is_set():
            try:
                found = read_all(ObjectReader(storage.store, storage.manifest.image, 4 * MIB), storage)
                assert found == [b"%d" % n for n in range(len(found))]
            except Exception as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    c = converter(storage)
    for n in range(1, 120):
        write(storage, b"%d" % n)
        c.run_once()
        storage.retention.delete_once()
    ended.set()
    for thread in threads:
        thread.join(20)
    assert failures == []
    assert c.metrics.jobs > 20
