import random
import threading

import pytest

from kbroker import limits
from kbroker._fast.records.records import build_control_batch
from kbroker.clock import ManualClock
from kbroker.errors import CorruptionError
from kbroker.storage.flush.admission import Admission
from kbroker.storage.flush.body import ObjectBuilder
from kbroker.storage.flush.plan import PlanLimits
from kbroker.storage.flush.schedule import PRESSURE_SHARE, FlushSchedule, FlushSettings
from kbroker.storage.flush.upload import ClaimLost, FlushStopped
from kbroker.storage.flush.window import FlushWindow
from kbroker.storage.formats.object_keys import PackKey, klix_key
from kbroker.storage.ledger.numbered_log import Fenced, NumberedLog
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import ChecksumMismatch
from kbroker.storage.stores.store_faults import Fault, FaultyStore, When
from tests.unit.storage.flush.flush_harness import KEYS, KIB, MIB, NOW_MS, ONCE, Storage, batch, topic_id


@pytest.fixture
def start(tmp_path):
    running = []

    def starter(*args, **options):
        storage = Storage(options.pop("directory", tmp_path / "wal"), *args, **options)
        running.append(storage)
        return storage.start()

    (tmp_path / "wal").mkdir()
    yield starter
    for storage in running:
        storage.close()


def data_keys(storage):
    return [meta.key for meta in storage.store.list(KEYS.root) if KEYS.parse(meta.key)]


def live_keys(image: ManifestImage) -> set[str]:
    """The data objects that the manifest names."""
    return {KEYS.full(key) for key in image.live_keys()}


def image_from_bucket(store) -> ManifestImage:
    manifest = Manifest(NumberedLog(store, KEYS.manifest_dir, 0, bytes(16), retries=ONCE), None, root=KEYS.root)
    return manifest.load()


def test_objects_hold_what_was_appended_from_interleaved_partitions(start):
    s = start(topics=[("a", 5), ("b", 2)], arena_bytes=16 * MIB, segment_bytes=4 * MIB)
    rng = random.Random(1)
    for turn in range(3):
        for _ in range(120):
            topic, partition = rng.choice([("a", n) for n in range(5)] + [("b", 0)])
            size = rng.choice([0, 10, 1000, 20_000])
            s.append(topic, partition, batch([rng.randbytes(size)] * rng.randint(1, 4)))
        s.append("b", 1, batch([rng.randbytes(3 * MIB)]))  # larger than a chunk and than a block of the scan
        expected = {(t, p): s.in_wal(t, p) for t, p in [("a", n) for n in range(5)] + [("b", 0), ("b", 1)]}
        assert s.flush()
        for (topic, partition), data in expected.items():
            assert s.stored(topic, partition)[-len(data) :] == data, (turn, topic, partition)
        assert not s.flush()
    assert s.flusher.flushed_lsn == s.wal.flushed_lsn == s.manifest.image.wal_flushed_lsn("dir-1")
    image = image_from_bucket(s.store)
    for partition in range(5):
        assert list(image.objects_from(topic_id("a"), partition)) == list(
            s.manifest.image.objects_from(topic_id("a"), partition)
        )
    kinds = {ref.kind for n in range(5) for ref in image.objects_from(topic_id("a"), n)}
    assert kinds == {"klix", "pack"}


def test_small_partitions_share_one_pack_and_without_packs_each_has_its_own_object(start, tmp_path):
    for pack_below, packs, objects in ((64 * KIB, 1, 1), (0, 0, 40)):
        directory = tmp_path / str(pack_below)
        directory.mkdir()
        s = start(topics=[("t", 40)], pack_below_bytes=pack_below, directory=directory)
        for partition in range(40):
            s.append("t", partition, batch([b"v" * partition]))
        s.flush()
        assert s.flusher.metrics.objects == {"pack": packs} if packs else {"klix": objects}
        assert len(data_keys(s)) == objects
        for partition in range(40):
            assert s.stored("t", partition) == s.in_wal("t", partition)


def test_objects_are_cut_at_batch_boundaries(start):
    s = start(topics=[("t", 1)], object_bytes_max=100 * KIB)
    for _ in range(50):
        s.append("t", 0, batch([b"v" * 9_000]))
    s.append("t", 0, batch([b"v" * 150_000]))  # alone above the bound
    s.flush()
    refs = list(s.manifest.image.objects_from(topic_id("t"), 0))
    assert len(refs) > 4
    assert all(ref.length <= 100 * KIB for ref in refs[:-1])
    assert refs[-1].record_count == 1
    assert sum(ref.record_count for ref in refs) == 51
    assert s.stored("t", 0) == s.in_wal("t", 0)


def test_a_backlog_is_flushed_in_windows_that_end_at_entries(start):
    s = start(topics=[("t", 3)], window_bytes_max=96 * KIB, window_batches_max=40)
    rng = random.Random(2)
    for _ in range(400):
        s.append("t", rng.randrange(3), batch([rng.randbytes(rng.choice([1, 900, 5000]))]))
    expected = [s.in_wal("t", n) for n in range(3)]
    flushes = 0
    s.sync()
    while s.flusher.run_once():
        flushes += 1
    assert flushes > 10
    assert [s.stored("t", n) for n in range(3)] == expected
    assert s.flusher.flushed_lsn == s.wal.durable_lsn


def test_ten_thousand_partitions_take_few_puts(start):
    s = start(FaultyStore(MemoryStore()), topics=[("t", 10_000)], arena_bytes=16 * MIB, segment_bytes=4 * MIB)
    data = batch([b"little"])
    for partition in range(10_000):
        s.append("t", partition, data)
    s.sync()
    s.store.operations.clear()
    assert s.flusher.run_once()
    assert sum(operation == "put" for operation, _ in s.store.operations) <= 20
    for partition in (0, 4_999, 9_999):
        assert s.stored("t", partition) == s.in_wal("t", partition)


def test_damage_in_the_wal_is_named_and_never_uploaded(start):
    s = start(topics=[("t", 1), ("u", 1)])
    s.append("t", 0, batch([b"good"]))
    s.append("t", 0, batch([b"to be damaged"]))
    s.append("u", 0, batch([b"other"]))
    s.sync()
    entry = s.table.partition("t", 0).entries(0, s.wal.durable_lsn)[1]
    s.wal.arena.array[int(entry["lsn"]) + 70] ^= 1
    with pytest.raises(CorruptionError, match=f"position {entry['lsn']}: batch of t-0 at offset 1: CRC"):
        s.flusher.run_once()
    assert data_keys(s) == []
    assert s.flusher.flushed_lsn == 0
    s.flusher.start()
    assert not s.flusher.flush(wait=True, timeout=20)
    assert isinstance(s.stopped[0], CorruptionError)
    assert "CRC" in s.flusher.metrics.last_error


def test_damage_in_memory_that_is_trusted_is_refused_by_the_store_and_then_named(start):
    s = start(topics=[("t", 1)], settings=FlushSettings(store_checks_crc=True, paced=False), waits=lambda _: False)
    s.append("t", 0, batch([b"v" * 5000]))
    s.sync()
    entry = s.table.partition("t", 0).entries(0, s.wal.durable_lsn)[0]
    s.wal.arena.array[int(entry["lsn"]) + 4000] ^= 1
    with pytest.raises(ChecksumMismatch):
        s.flusher.run_once()
    s.flusher.start()
    assert not s.flusher.flush(wait=True, timeout=20)
    assert isinstance(s.stopped[0], CorruptionError)
    assert "offset 0: CRC" in s.flusher.metrics.last_error
    assert data_keys(s) == []


def test_damage_in_a_file_is_refused_by_the_store_and_then_named(start, tmp_path):
    s = start(topics=[("t", 1), ("u", 1)], settings=FlushSettings(store_checks_crc=True, paced=False),
              waits=lambda _: False)  # fmt: skip
    s.append("t", 0, batch([b"v" * 100_000]))
    for _ in range(10):
        s.append("u", 0, batch([b"v" * 900_000]))
    s.sync()
    lsn = int(s.table.partition("t", 0).entries(0, s.wal.durable_lsn)[0]["lsn"])
    assert lsn < s.wal.resident_lsn
    with open(min((tmp_path / "wal").glob("*.wal")), "r+b") as file:
        file.seek(4096 + lsn + 50_000)
        file.write(b"damage")
    with pytest.raises(ChecksumMismatch):
        s.flusher.run_once()
    s.flusher.start()
    assert not s.flusher.flush(wait=True, timeout=20)
    assert isinstance(s.stopped[0], CorruptionError)
    assert f"WAL position {lsn}: batch of t-0 at offset 0: CRC" in s.flusher.metrics.last_error
    assert s.flusher.flushed_lsn == 0


def test_a_body_damaged_in_transit_is_sent_again(start):
    s = start(FaultyStore(MemoryStore()), topics=[("t", 1)], waits=lambda seconds: False)
    s.append("t", 0, batch([b"v" * 5000]))
    s.sync()
    s.store.inject(Fault("put", key_part="_packs/", times=5, error=ChecksumMismatch))
    assert s.flusher.run_once()
    assert s.stored("t", 0) == s.in_wal("t", 0)


@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER])
@pytest.mark.parametrize("part", ["_packs/", ".obj", "_manifest/"])
def test_a_failed_write_is_retried_until_it_is_committed(start, part, when):
    s = start(FaultyStore(MemoryStore()), topics=[("t", 3)], waits=lambda seconds: False)
    for flush in range(2):
        for partition in range(3):
            s.append("t", partition, batch([b"v" * (100_000 if partition == 2 else 10)]))
        s.sync()
        if flush:
            s.store.inject(Fault("put", when, key_part=part, times=3))
        assert s.flusher.run_once()
    for partition in range(3):
        assert s.stored("t", partition) == s.in_wal("t", partition)
    assert s.flusher.steps.guard.retries > 0 or (part, when) == ("_manifest/", When.AFTER)
    assert len(data_keys(s)) == 4  # no second copy of what had arrived
    assert set(data_keys(s)) == live_keys(image_from_bucket(s.store))
    assert not s.fenced


def test_an_outage_only_delays_and_the_claim_is_read_before_the_next_upload(start):
    events = []

    def wait(seconds):
        events.append(seconds)
        if len(events) == 30:
            s.store.outage = False
        return False

    s = start(FaultyStore(MemoryStore()), topics=[("t", 1)], waits=wait)
    s.append("t", 0, batch([b"before"]))
    s.flush()
    assert s.claim.checks == 0
    s.store.outage = True
    s.append("t", 0, batch([b"during"]))
    s.sync()
    assert s.flusher.run_once()
    assert s.claim.checks >= 1
    assert max(events) <= 20
    assert s.stored("t", 0) == s.in_wal("t", 0)


def test_positions_that_a_start_skipped_begin_no_flush_and_lift_no_limit(start):
    settings = FlushSettings(wal_bytes=4 * MIB, flush_seconds=60, total_bytes=2 * MIB)
    for epoch in (1, 2, 3):  # each skips the rest of its segment at least
        s = start(topics=[("t", 1)], epoch=epoch)
        s.append("t", 0, batch([b"v"]))
        s.sync()
        s.close()
    s = start(topics=[("t", 1)], settings=settings, epoch=4)
    held = s.wal.bytes_between(0, s.wal.durable_lsn)
    assert s.recovered.wal.batches == 3
    assert s.wal.durable_lsn > settings.wal_bytes * PRESSURE_SHARE > held
    assert s.flusher.unflushed_bytes == s.wal.unflushed_bytes == held
    assert not s.flusher.pressure
    assert s.flusher.due() is None
    schedule = FlushSchedule(settings, s.wal, s.table, s.clock)
    assert schedule.pace(0, urgent=False) == limits.UPLOAD_BYTES_PER_SECOND_MIN
    assert s.flush()
    assert s.flusher.unflushed_bytes == 0


def test_a_superseded_owner_uploads_nothing_after_an_outage(start):
    s = start(FaultyStore(MemoryStore()), topics=[("t", 1)], waits=lambda seconds: False)
    s.append("t", 0, batch([b"v"]))
    s.sync()
    s.store.inject(Fault("put", When.BEFORE))
    s.claim.lost = RuntimeError("epoch 2 has the claim")
    with pytest.raises(ClaimLost, match="epoch 2"):
        s.flusher.run_once()
    assert data_keys(s) == []
    s.store.inject(Fault("put", When.BEFORE))
    s.flusher.start()
    assert not s.flusher.flush(timeout=20)
    assert isinstance(s.stopped[0], ClaimLost)
    assert s.flusher.flushed_lsn == 0  # the WAL is kept


def test_a_fenced_owner_stops_and_keeps_its_wal(start, tmp_path):
    s = start(topics=[("t", 1)])
    s.append("t", 0, batch([b"first"]))
    s.flush()
    log = NumberedLog(s.store, KEYS.manifest_dir, 2, bytes([2]) * 16, retries=ONCE)
    successor = Manifest(log, s.clock, root=KEYS.root)
    successor.load()
    log.seal_previous()
    s.append("t", 0, batch([b"second"]))
    s.sync()
    flushed = s.flusher.flushed_lsn
    with pytest.raises(Fenced):
        s.flusher.run_once()
    assert len(s.fenced) == 1
    assert s.flusher.flushed_lsn == flushed < s.wal.durable_lsn
    assert image_from_bucket(s.store).partition(topic_id("t"), 0).end_offset == 1


def test_an_orphan_of_an_earlier_crash_is_not_overwritten(start):
    s = start(topics=[("t", 1)], pack_below_bytes=0)
    orphan = KEYS.full(klix_key("t", topic_id("t"), 0, 0))
    s.store.put(orphan, b"from a flush without a record", if_none_match=True)
    s.append("t", 0, batch([b"v"]))
    s.flush()
    assert s.store.get(orphan) == b"from a flush without a record"
    assert s.manifest.image.find(topic_id("t"), 0, 0).key == KEYS.full(klix_key("t", topic_id("t"), 0, 0, 1))
    assert set(data_keys(s)) == live_keys(s.manifest.image) | {orphan}


def test_a_record_in_doubt_is_settled_by_the_next_flush(start):
    s = start(FaultyStore(MemoryStore()), topics=[("t", 1)], waits=lambda seconds: True)
    s.append("t", 0, batch([b"one"]))
    s.sync()
    s.store.inject(Fault("put", When.AFTER, key_part="_manifest/", skip=1))  # the first is the seal
    s.store.inject(Fault("get", When.BEFORE, key_part="_manifest/", times=9))
    with pytest.raises(FlushStopped):
        s.flusher.run_once()
    assert s.flusher.flushed_lsn == 0
    s.store.heal()
    s.append("t", 0, batch([b"two"]))
    s.flush()
    assert [(r.base_offset, r.end_offset) for r in s.manifest.image.objects_from(topic_id("t"), 0)] == [(0, 1), (1, 2)]
    assert s.stored("t", 0) == s.in_wal("t", 0)
    assert len(data_keys(s)) == 2


def test_data_of_a_topic_deleted_before_or_during_a_flush(start, monkeypatch):
    s = start(FaultyStore(MemoryStore()), topics=[("gone", 1), ("going", 2), ("kept", 1)], pack_below_bytes=64 * KIB)
    for topic, partition, size in (("gone", 0, 10), ("going", 0, 10), ("going", 1, 99_999), ("kept", 0, 10)):
        s.append(topic, partition, batch([b"v" * size]))
    s.sync()
    s.table.remove_topic(topic_id("gone"))
    results = FlushWindow.results

    def during(window):
        files = results(window)
        s.table.remove_topic(topic_id("going"))
        return files

    monkeypatch.setattr(FlushWindow, "results", during)
    assert s.flusher.run_once()
    image = s.manifest.image
    assert set(image.partitions) == {topic_id("kept")}
    assert list(image.deletions) == [klix_key("going", topic_id("going"), 1, 0)]
    assert s.stored("kept", 0)
    assert s.flusher.flushed_lsn == s.wal.durable_lsn


def test_the_record_has_producers_epochs_and_transactions(start):
    s = start(topics=[("t", 1)])
    for turn in range(7):
        s.append("t", 0, batch([b"v"] * 2, producer_id=9, producer_epoch=1, base_sequence=turn * 2))
    s.append("t", 0, batch([b"open"], producer_id=5, producer_epoch=0, base_sequence=0, transactional=True))
    s.append("t", 0, batch([b"abort"], producer_id=6, producer_epoch=2, base_sequence=0, transactional=True))
    s.append("t", 0, build_control_batch(0, producer_id=6, producer_epoch=2, coordinator_epoch=4, timestamp_ms=NOW_MS))
    s.flush()
    state = s.manifest.image.partition(topic_id("t"), 0)
    hot = {entry[0]: (*entry[:5], tuple(entry[5])) for entry in s.table.partition("t", 0).producers.snapshot()}
    assert {key: entry[:3] for key, entry in state.producers.items()} == {k: e[:3] for k, e in hot.items()}
    assert {key: entry[4:] for key, entry in state.producers.items()} == {k: e[4:] for k, e in hot.items()}
    assert state.open_transactions == ((5, 14),)
    assert (state.last_stable_offset, state.end_offset) == (14, 17)
    assert state.aborted == ((6, 15, 16, 14),)
    assert state.leader_epochs == ((1, 0),)
    s.append("t", 0, build_control_batch(1, producer_id=5, producer_epoch=0, coordinator_epoch=4, timestamp_ms=NOW_MS))
    s.flush()
    assert state.open_transactions == ()
    assert state.last_stable_offset == 18
    assert image_from_bucket(s.store).partition(topic_id("t"), 0).producers == state.producers


def test_a_flush_is_due_by_age_size_pressure_or_request(start):
    settings = FlushSettings(
        flush_bytes=100 * KIB,
        flush_seconds=60,
        total_bytes=400 * KIB,
        wal_bytes=2 * MIB,
        paced=False,
        plan=PlanLimits(),
    )
    s = start(topics=[("t", 8)], settings=settings)
    flusher = s.flusher
    assert flusher.due() is None
    s.append("t", 0, batch([b"v"]))
    s.sync()
    assert flusher.due() is None
    s.clock.advance(59)
    assert flusher.due() is None
    s.clock.advance(1)
    assert flusher.due() == "age"
    s.flush()
    assert flusher.due() is None
    s.append("t", 1, batch([b"v" * 60_000]))
    s.append("t", 2, batch([b"v" * 60_000]))
    s.sync()
    assert flusher.due() is None
    s.append("t", 1, batch([b"v" * 60_000]))
    s.sync()
    assert flusher.due() == "partition size"
    s.flush()
    for partition in range(8):
        s.append("t", partition, batch([b"v" * 60_000]))
    s.sync()
    assert flusher.due() == "size"
    for partition in range(8):
        s.append("t", partition, batch([b"v" * 80_000]))
    s.sync()
    assert flusher.due() == "WAL pressure"
    s.flush()
    s.append("t", 0, batch([b"v"]))
    s.sync()
    assert not flusher.flush(wait=False)
    assert flusher.due() == "request"


def test_held_producers_count_as_pressure_while_there_is_something_to_flush(start, monkeypatch):
    """The log then stops filling only because they wait."""
    s = start(topics=[("t", 1)], settings=FlushSettings())
    s.append("t", 0, batch([b"x"]))
    s.sync()
    assert not s.flusher.pressure
    with monkeypatch.context() as patch:
        patch.setattr(Admission, "held", True)
        assert s.flusher.pressure  # between two windows as well
    assert s.flusher.run_once()
    monkeypatch.setattr(Admission, "held", True)
    assert not s.flusher.pressure


def test_uploads_follow_what_comes_in_and_have_no_limit_under_pressure(start):
    settings = FlushSettings(flush_seconds=1, wal_bytes=64 * MIB, plan=PlanLimits())
    s = start(topics=[("t", 1)], settings=settings)

    def pace_after(mebibytes, seconds):
        for _ in range(mebibytes):
            s.append("t", 0, batch([b"v" * (MIB - 4 * KIB)]))
        s.sync()
        s.clock.advance(seconds)
        return s.flusher.steps.pacer.rate / MIB

    assert pace_after(0, 1) == 16  # the slowest
    assert pace_after(20, 10) == pytest.approx(20 + 2, rel=0.01)  # backlog and input
    assert pace_after(4, 60) == pytest.approx(24, rel=0.01)  # the backlog alone
    assert pace_after(9, 1) == 0


def test_the_thread_flushes_on_request_and_at_stop(start):
    s = start(topics=[("t", 1)])
    s.flusher.start()
    s.append("t", 0, batch([b"one"]))
    s.sync()
    assert s.flusher.flush(timeout=20)
    assert s.manifest.image.partition(topic_id("t"), 0).end_offset == 1
    s.append("t", 0, batch([b"two"]))
    s.sync()
    assert s.flusher.stop(flush=True, timeout=20)
    assert s.manifest.image.partition(topic_id("t"), 0).end_offset == 2


class WalProxy:
    """A WAL with other methods in place of some."""

    def __init__(self, wal, **replaced):
        self._wal = wal
        vars(self).update(replaced)

    def __getattr__(self, name):
        return getattr(self._wal, name)


class SlowWal(WalProxy):
    """A WAL whose durable position does not move until a thread waits for it."""

    def __init__(self, wal):
        super().__init__(wal, durable_lsn=wal.durable_lsn)

    def sync(self, timeout):
        assert self._wal.sync(timeout)
        self.durable_lsn = self._wal.durable_lsn
        return True


def test_the_last_flush_includes_appends_that_are_not_durable_yet(start):
    s = start(topics=[("t", 1)], flushed_wal=SlowWal)
    s.flusher.start()
    s.append("t", 0, batch([b"one"]))
    assert s.flusher.stop(flush=True, timeout=20)
    assert s.manifest.image.partition(topic_id("t"), 0).end_offset == 1


def test_stop_ends_a_flush_that_cannot_reach_the_store(start):
    s = start(FaultyStore(MemoryStore()), topics=[("t", 1)])
    s.append("t", 0, batch([b"one"]))
    s.sync()
    reached = threading.Event()
    s.store.inject(Fault("put", times=1 << 30, reached=reached))
    s.flusher.start()
    s.flusher.flush(wait=False)
    assert reached.wait(20)
    assert not s.flusher.stop(flush=True, timeout=0)
    assert s.flusher.flushed_lsn == 0


def test_packs_have_new_numbers_in_each_flush(start):
    s = start(topics=[("t", 2)], pack_bytes_max=200)
    for _ in range(2):
        s.append("t", 0, batch([b"v" * 100]))
        s.append("t", 1, batch([b"v" * 100]))
        s.flush()
    assert [KEYS.parse(key) for key in data_keys(s)] == [PackKey(1, number) for number in range(4)]


def test_unknown_failures_are_raised_after_all_uploads_ended(start):
    s = start(FaultyStore(MemoryStore()), topics=[("t", 4)], pack_below_bytes=0)
    for partition in range(4):
        s.append("t", partition, batch([b"v"]))
    s.sync()
    s.store.inject(Fault("put", error=RuntimeError, skip=1))
    with pytest.raises(RuntimeError, match="injected"):
        s.flusher.run_once()
    assert s.flusher.flushed_lsn == 0
    s.flush()
    for partition in range(4):
        assert s.stored("t", partition) == s.in_wal("t", partition)


def test_uploads_that_must_be_read_first_are_paced(start):
    """Over a connection that takes bytes from memory only."""
    clock, sent_at = ManualClock(NOW_MS), []

    def read_batches_into(*arguments):
        sent_at.append(clock.monotonic())
        return s.wal.read_batches_into(*arguments)

    def flushed(wal):
        return WalProxy(wal, read_batches_into=read_batches_into, send_batches=lambda *arguments: 0)

    s = start(topics=[("t", 1)], clock=clock, waits=clock.advance, flushed_wal=flushed,
              settings=FlushSettings(wal_bytes=256 * MIB, plan=PlanLimits()))  # fmt: skip
    for _ in range(16):
        s.append("t", 0, batch([b"v" * (MIB - 4 * KIB)]))
    s.sync()
    assert s.flusher.run_once()
    assert 120 <= len(sent_at) <= 128  # pieces of 128 KiB
    assert sent_at[-1] - sent_at[0] == pytest.approx(16 / 16, rel=0.2)  # less what could have gone while it was checked


def test_the_check_of_batches_is_paced(start, monkeypatch):
    clock = ManualClock(NOW_MS)
    checked: list[tuple[float, int]] = []
    rates: list[int] = []

    def feed_batches(scan, limit, rate, trusted):
        rates.append(rate)
        fed = s.wal.feed_batches(scan, limit, rate)
        checked.append((clock.monotonic(), fed))
        return fed

    s = start(topics=[("t", 1)], clock=clock, waits=clock.advance,
              flushed_wal=lambda wal: WalProxy(wal, feed_batches=feed_batches),
              settings=FlushSettings(wal_bytes=256 * MIB, plan=PlanLimits()))  # fmt: skip
    for _ in range(60):
        s.append("t", 0, batch([b"v" * (100 * KIB)]))
    s.sync()
    monkeypatch.setattr(limits, "FLUSH_FEED_BYTES", MIB)
    assert s.flusher.run_once()
    assert sum(fed for _, fed in checked) > 60 * 100 * KIB
    assert all(rate == 16 * MIB for rate in rates)  # as what is sent; the log's own clock is not the test's
    assert len(checked) <= 8  # a call spreads what it feeds by itself
    before = sum(fed for _, fed in checked[:-2])
    assert checked[-1][0] - checked[0][0] == pytest.approx(before / (16 * MIB), rel=0.1)


def test_a_lost_claim_ends_the_building_of_objects(start, monkeypatch):
    plan = PlanLimits(pack_below_bytes=0, object_bytes_max=64 * KIB)
    s = start(FaultyStore(MemoryStore()), topics=[("t", 1)], waits=lambda seconds: False,
              settings=FlushSettings(paced=False, upload_threads=3, plan=plan))  # fmt: skip
    for _ in range(40):
        s.append("t", 0, batch([b"v" * 60 * KIB]))
    s.sync()
    built = []
    build = ObjectBuilder.build

    def lose_and_build(builder, planned):
        s.claim.lost = RuntimeError("another broker owns the cluster")
        built.append(planned)
        return build(builder, planned)

    monkeypatch.setattr(ObjectBuilder, "build", lose_and_build)
    s.store.inject(Fault("put", times=1 << 30))  # after a failure the claim is read before the next attempt
    with pytest.raises(ClaimLost):
        s.flusher.run_once()
    assert 1 <= len(built) <= 4  # no more than wait to be stored, and the one for which there was no room
