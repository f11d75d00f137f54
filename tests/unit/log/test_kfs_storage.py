"""Topics in KafScale's format: pairs as flushed, leftovers at their keys, reading, deletion, names that come back."""

import threading

import pytest

from kbroker._fast.records.records import iter_batches
from kbroker.background.converter import Converter
from kbroker.background.retention import Retention
from kbroker.clock import ManualClock
from kbroker.cluster.image import MetadataImage
from kbroker.cluster.records import TopicCreated
from kbroker.errors import CorruptionError
from kbroker.exchange.bucket.bucket_export import BucketExport
from kbroker.exchange.bucket.kfs_pairs import list_pairs, read_segment
from kbroker.exchange.bucket_log import read_partition
from kbroker.limits import SWEEP_AGE_MS
from kbroker.log.segment_names import DOUBT_SECONDS, SegmentNames
from kbroker.storage.flush.upload import ClaimLost
from kbroker.storage.formats.kfs_index import parse_index
from kbroker.storage.formats.kfs_keys import index_key_of
from kbroker.storage.ledger.ownership import Superseded
from kbroker.storage.manifest.partition_state import KFS
from kbroker.storage.read.object_audit import BucketAudit, audit_image
from kbroker.storage.read.object_reader import ObjectReader
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import StoreUnavailable
from kbroker.storage.stores.store_faults import Fault, FaultyStore, When
from tests.unit.storage.flush.flush_harness import KEYS, NOW_MS, Storage, batch, topic_id
from tests.unit.storage.manifest.changes import change_of

FIRST = "t/0/segment-00000000000000000000.kfs"
FORMAT = {"kbroker_object_format": "kfs"}


def opened(directory, store=None, **options):
    """A broker's storage with what deletes, and what knows names."""
    directory.mkdir(exist_ok=True)
    s = Storage(directory, store or FaultyStore(MemoryStore(ManualClock(NOW_MS))), **options)
    writes = s.flusher.windows.writes_segments
    s.names = SegmentNames(s.table, s.manifest, s.store, KEYS, s.clock, s.claim, writes)
    s.retention = Retention(s.table, s.manifest, s.store, s.clock, claim=s.claim, segments=s.names)
    s.table.on_removed = s.retention.topic_removed
    return s


@pytest.fixture
def storage(tmp_path):
    s = opened(tmp_path / "wal").start()
    s.add_topic("t", 2, **FORMAT)
    yield s
    s.close()


def fill(s, topic="t", partition=0, count=3, size=900):
    for n in range(count):
        s.append(topic, partition, batch([b"%d" % n * size] * 2))
    s.flush()


def keys(s, prefix=""):
    return [KEYS.relative(meta.key) for meta in s.store.list(KEYS.root + prefix) if KEYS.parse(meta.key)]


def audit(s):
    made = BucketAudit(s.store, KEYS, s.manifest.image)
    return list(made.faults()), [KEYS.relative(key) for key in made.orphans]


def read_all(s, topic="t", partition=0):
    reader = ObjectReader(s.store, s.manifest.image, 1 << 26)
    found, offset, end = [], 0, reader.end_offset(topic_id(topic), partition)
    while offset < end:
        answer = reader.read(topic_id(topic), partition, offset, end, 1500)
        assert answer is not None
        found += [bytes(part) for part in answer.parts]
        offset = answer.next_offset
    return b"".join(found)


# -- flush and read ------------------------------------------------------------------------------------------------


def index_of(store, pair):
    return parse_index(store.get(pair.index.key), pair.key.base_offset, pair.segment.size)


def test_a_flush_stores_pairs_before_it_names_them(storage):
    storage.add_topic("other", 1)
    storage.append("other", 0, batch([b"x"]))
    storage.flush()
    storage.append("other", 0, batch([b"x"]))
    storage.append("t", 1, batch([b"y"]))
    expected = [storage.in_wal("t", 1)]
    storage.store.operations.clear()
    fill(storage)
    expected.insert(0, storage.in_wal("t", 0))
    written = [KEYS.relative(key) for operation, key in storage.store.operations if operation == "put"]
    second = FIRST.replace("/0/", "/1/")
    assert set(written[:-1]) == {
        FIRST, index_key_of(FIRST), second, index_key_of(second), "_packs/0000000001-00000000000000000001.pack",
    }  # fmt: skip
    assert written[-1].startswith("_manifest/")
    assert written.index(FIRST) < written.index(index_key_of(FIRST))

    pairs, alone = list_pairs(storage.store, KEYS.root)
    assert [(pair.key.topic, pair.key.partition, pair.key.base_offset) for pair in pairs] == [("t", 0, 0), ("t", 1, 0)]
    assert not alone
    for pair, batches in zip(pairs, expected, strict=True):
        segment, index = read_segment(storage.store, pair), index_of(storage.store, pair)
        assert bytes(segment.body) == batches
        assert segment.header.record_count == sum(header.record_count for header, _ in iter_batches(batches))
        assert segment.header.created_ms == NOW_MS
        assert index.positions[0] == 32
    ref = storage.manifest.image.find(topic_id("t"), 0, 0)
    assert (ref.kind, ref.start, ref.length) == (KFS, 32, len(expected[0]))
    assert audit(storage) == ([], [])


def test_reading_back_by_ranges_blocks_and_timestamps(storage):
    for number in range(3):
        storage.append("t", 0, batch([b"v" * 700] * 3, timestamp=NOW_MS + number))
        storage.append("t", 0, batch([b"w" * 700] * 3, timestamp=NOW_MS + number))
        storage.flush()
    whole = storage.in_wal("t", 0)
    assert read_all(storage) == whole
    state = storage.manifest.image.partition(topic_id("t"), 0)
    assert b"".join(block.data for block in read_partition(storage.store, storage.manifest.image, state)) == whole
    reader = ObjectReader(storage.store, storage.manifest.image, 1 << 26)
    data, next_offset = reader.timestamps.batch_at(topic_id("t"), 0, NOW_MS + 1, 0)
    assert (int.from_bytes(data[:8], "big"), next_offset) == (6, 9)


def test_a_segment_that_is_damaged_is_named_when_it_is_read(storage):
    fill(storage)
    data = bytearray(storage.store.get(KEYS.full(FIRST)))
    data[len(data) // 2] ^= 1
    meta = storage.store.put(KEYS.full(FIRST), bytes(data))
    for file in storage.manifest.image.files.values():
        file.etag = meta.etag  # as if it had been damaged before it was stored
    with pytest.raises(CorruptionError, match=f"{FIRST}.*checksum"):
        read_all(storage)
    assert "checksum" in audit(storage)[0][0]


def test_large_partitions_are_cut_into_segments(tmp_path):
    s = opened(tmp_path / "wal", segment_bytes_max=4000).start()
    s.add_topic("t", 1, **FORMAT)
    fill(s, count=6)
    bases = [ref.base_offset for ref in s.manifest.image.objects_from(topic_id("t"), 0)]
    assert bases == [0, 4, 8]
    assert read_all(s) == s.in_wal("t", 0)
    assert audit(s) == ([], [])
    s.close()


def test_export_to_klite_makes_klix_objects_of_segments(storage):
    fill(storage)
    metadata = MetadataImage().apply(1, [TopicCreated("t", topic_id("t"), 2, {})])
    out, written = MemoryStore(), []
    BucketExport(storage.store, storage.manifest.image, metadata, out, written.append).to_klite(["t"], "c")
    (key,) = [meta.key for meta in out.list("") if meta.key.endswith(".obj")]
    image = out.get(key)
    assert audit_image(image, key) == []
    assert image.startswith(storage.in_wal("t", 0))
    assert (written[0].segments, written[0].bytes, written[0].end_offset) == (1, len(image), 6)


# -- leftovers at a key --------------------------------------------------------------------------------------------


def test_orphans_of_a_crashed_flush_are_replaced(storage):
    for suffix in (FIRST, index_key_of(FIRST)):
        storage.store.put(KEYS.full(suffix), b"of an earlier try")
    fill(storage)
    assert read_all(storage) == storage.in_wal("t", 0)
    assert audit(storage) == ([], [])
    assert storage.claim.checks == 2


@pytest.mark.parametrize("skip", [0, 1])
@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER])
def test_an_upload_without_an_answer_is_tried_again(tmp_path, skip, when):
    s = opened(tmp_path / "wal", waits=lambda seconds: False).start()
    s.add_topic("t", 1, **FORMAT)
    s.store.inject(Fault("put", when, skip=skip, error=StoreUnavailable))
    fill(s)
    assert audit(s) == ([], [])
    assert keys(s) == sorted([FIRST, index_key_of(FIRST)])
    s.close()


def test_a_superseded_owner_replaces_nothing(storage):
    storage.store.put(KEYS.full(FIRST), b"of the new owner, not in the manifest that we know")
    storage.claim.lost = Superseded("another broker")
    with pytest.raises(ClaimLost):
        fill(storage)
    assert storage.store.get(KEYS.full(FIRST)).startswith(b"of the new owner")


def test_a_crash_between_the_pair_and_the_record(tmp_path):
    s = opened(tmp_path / "wal", waits=lambda seconds: False).start()
    s.add_topic("t", 1, **FORMAT)
    s.append("t", 0, batch([b"v"]))
    s.store.inject(Fault("put", When.BEFORE, skip=2, error=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        s.flush()
    s.close()
    assert keys(s) == sorted([FIRST, index_key_of(FIRST)])
    assert audit(s) == ([], sorted([FIRST, index_key_of(FIRST)]))
    again = opened(tmp_path / "wal", s.store, epoch=2)
    again.add_topic("t", 1, **FORMAT)
    again.clock.advance(5)
    again.start()
    again.flush()
    assert read_all(again) == again.in_wal("t", 0)
    assert audit(again) == ([], [])
    again.close()


# -- one of a pair is gone -----------------------------------------------------------------------------------------


def converter(s):
    return Converter(s.table, s.manifest, s.store, KEYS, s.clock, s.claim, broker_epoch=1)


def test_a_lost_index_is_reported_and_rebuilt(storage):
    fill(storage)
    index = storage.store.get(KEYS.full(index_key_of(FIRST)))
    storage.store.delete([KEYS.full(index_key_of(FIRST))])
    (fault,) = audit(storage)[0]
    assert fault.startswith(KEYS.full(index_key_of(FIRST)))
    assert read_all(storage) == storage.in_wal("t", 0)
    converter(storage).sweep_once()
    assert storage.store.get(KEYS.full(index_key_of(FIRST))) == index
    assert audit(storage) == ([], [])


def test_a_damaged_index_is_reported(storage):
    fill(storage)
    key = KEYS.full(index_key_of(FIRST))
    good = storage.store.get(key)
    storage.store.put(key, good[:-4])
    assert [fault for fault in audit(storage)[0] if fault.startswith(key)]
    storage.store.put(key, good[:9] + b"\2" + good[10:] + (1).to_bytes(8, "big") + (40).to_bytes(4, "big"))
    assert audit(storage)[0] == [f"{key}: no batch of offset 1 at byte 40 of the segment"]


def test_an_index_alone_is_reported_and_a_named_segment_that_is_gone_is_a_fault(storage):
    alone = index_key_of(FIRST.replace("t/", "u/"))
    storage.store.put(KEYS.full(alone), b"")
    fill(storage)
    assert audit(storage) == ([], [alone])
    storage.store.delete([KEYS.full(FIRST)])
    assert audit(storage) == ([f"{KEYS.full(FIRST)}: the manifest names it, the bucket does not have it"], [alone])


def test_orphans_are_reported_and_stay_and_pairs_are_none(storage):
    fill(storage)
    orphan = FIRST.replace("t/0", "u/0")
    storage.store.put(KEYS.full(orphan), storage.store.get(KEYS.full(FIRST)))
    storage.clock.advance(SWEEP_AGE_MS / 1000 + 1)
    found = converter(storage).orphan_sweep.sweep_orphans()
    assert [KEYS.relative(meta.key) for meta in found.found] == [orphan]
    assert not found.queued


def test_segments_are_not_merged(storage):
    for _ in range(40):
        fill(storage, count=1, size=10)
    storage.clock.advance(10**6)
    assert converter(storage).run_once() is None
    assert len([key for key in keys(storage) if key.endswith(".kfs")]) == 40


# -- deletion ------------------------------------------------------------------------------------------------------


def test_retention_deletes_both_of_a_pair_after_the_delay(storage):
    fill(storage)
    fill(storage)
    storage.manifest.commit(change_of({"p": {topic_id("t").hex(): {"0": {"s": 6, "g": 60_000}}}}))
    assert storage.retention.delete_once() == 0
    assert FIRST in keys(storage)
    storage.clock.advance(60)
    assert storage.retention.delete_once() == 1
    assert keys(storage) == ["t/0/segment-00000000000000000006.index", "t/0/segment-00000000000000000006.kfs"]
    assert audit(storage) == ([], [])


def test_a_deleted_topic_is_removed_with_its_orphans_and_can_be_created_again(storage):
    neighbour = "t/0/" + "0" * 20 + ".obj"  # nothing that kbroker writes
    fill(storage)
    fill(storage)
    storage.manifest.commit(change_of({"p": {topic_id("t").hex(): {"0": {"s": 6, "g": 60_000}}}}))  # one waits already
    leftover = FIRST.replace("0.kfs", "9.kfs")
    storage.store.put(KEYS.full(leftover), b"")
    assert "can be created when nothing is left" not in storage.names.obstacle("t")
    storage.table.remove_topic(topic_id("t"))
    storage.retention.turn()
    assert keys(storage) == []
    assert not storage.manifest.image.deletions
    assert storage.names.obstacle("t") is None

    storage.store.put(KEYS.full(neighbour), b"")
    assert neighbour in storage.names.obstacle("t")
    storage.store.delete([KEYS.full(neighbour)])
    again = storage.table.add_topic("t", bytes(16), 1, storage.add_topic("shape", 1, **FORMAT).config)
    again.partitions[0].append_bytes(batch([b"anew"]), NOW_MS)
    storage.flush()
    assert storage.manifest.image.find(bytes(16), 0, 0).key == KEYS.full(FIRST)
    assert audit(storage) == ([], [])


def make_again(s):
    assert s.names.obstacle("t") is None
    again = s.table.add_topic("t", bytes(16), 1, s.add_topic("shape", 1, **FORMAT).config)
    again.partitions[0].append_bytes(batch([b"anew"]), NOW_MS)
    s.flush()


@pytest.mark.parametrize("leftover", [False, True])
def test_a_late_deletion_does_not_touch_a_topic_created_again(storage, leftover):
    if leftover:
        storage.store.put(KEYS.full(FIRST), b"")
    else:
        fill(storage)
    storage.store.inject(Fault("delete", When.LATE, key_part="/segment-"))
    storage.table.remove_topic(topic_id("t"))
    storage.retention.turn()
    storage.retention.turn()
    assert keys(storage) == []
    assert "may still be being deleted" in storage.names.obstacle("t")
    storage.clock.advance(DOUBT_SECONDS / 2)
    assert storage.store.land() == 1
    storage.clock.advance(DOUBT_SECONDS / 2)
    make_again(storage)
    assert audit(storage) == ([], [])


def test_a_start_waits_for_a_deletion_that_a_dead_broker_had_begun(tmp_path):
    s = opened(tmp_path / "wal").start()
    s.add_topic("t", 1, **FORMAT)
    fill(s)
    s.store.inject(Fault("delete", When.LATE, key_part="/segment-"))
    s.table.remove_topic(topic_id("t"))
    s.retention.turn()
    s.close()
    again = opened(tmp_path / "wal", s.store, epoch=2).start()
    again.retention.turn()
    assert keys(again) == []
    assert "may still be being deleted" in again.names.obstacle("t")
    again.clock.advance(DOUBT_SECONDS)
    make_again(again)
    again.close()


def test_a_topic_deleted_while_it_is_flushed(storage):
    held = storage.store.inject(
        Fault("put", When.HOLD, key_part=FIRST, release=threading.Event(), reached=threading.Event())
    )
    flush = threading.Thread(target=fill, args=(storage,))
    flush.start()
    assert held.reached.wait(20)
    storage.table.remove_topic(topic_id("t"))
    storage.retention.turn()
    assert "being stored" in storage.names.obstacle("t")
    held.release.set()
    flush.join()
    assert FIRST in keys(storage)
    assert "being deleted" in storage.names.obstacle("t")
    storage.retention.turn()
    assert keys(storage) == []
    assert storage.names.obstacle("t") is None


def test_a_crash_before_a_deleted_topic_was_dropped(storage):
    """The next start knows only its id; the keys of its segments tell the name."""
    fill(storage)
    storage.store.put(KEYS.full(index_key_of(FIRST.replace("/0/", "/1/"))), b"")
    storage.table.on_removed = None
    storage.table.remove_topic(topic_id("t"))
    storage.retention.drop_topic(topic_id("t"), 60_000)
    storage.retention.turn()
    assert keys(storage) == []


def test_a_name_that_is_the_folder_of_another_topic_touches_nothing_there(storage):
    storage.add_topic("klix", 1)
    for _ in range(100):
        storage.append("klix", 0, batch([b"x" * 900]))
    storage.flush()
    name = f"klix-{topic_id('klix').hex()}"
    before = keys(storage, name)
    assert before
    assert f"{name}/0/" in storage.names.obstacle(name)
    storage.names.deleted(name)
    assert storage.names.clear() == 0
    assert keys(storage, name) == before


def test_a_name_created_again_in_another_format_loses_its_old_segments_only(storage):
    fill(storage)
    storage.table.remove_topic(topic_id("t"))
    storage.table.add_topic("t", bytes(16), 1, storage.add_topic("klix", 1).config)
    storage.retention.turn()
    assert keys(storage) == []
    assert storage.table.partition("t", 0) is not None


def test_own_folders_cannot_be_names_of_topics(storage):
    for name in ("_manifest", "_metadata", "_claims", "_packs"):
        assert name in storage.names.obstacle(name)
        assert KEYS.parse(KEYS.full(FIRST.replace("t/", f"{name}/"))) is None
