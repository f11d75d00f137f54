"""Sweeps: unfinished uploads and orphans; what is ours and superseded goes, what cannot be proven stays."""

import pytest

from kbroker._fast.base.crc32c import crc32c
from kbroker.clock import ManualClock
from kbroker.limits import SWEEP_AGE_MS
from kbroker.storage.formats.klix import encode_object
from kbroker.storage.formats.object_keys import Author, authored_pack_key, klix_key, pack_key
from kbroker.storage.formats.pack import PackImage, encode_directory
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.ledger.ownership import Superseded
from kbroker.storage.manifest.leadership import Registration
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.manifest.partition_state import RefRow
from kbroker.storage.manifest.record import FileEntry, ManifestRecord, PartitionDelta
from kbroker.storage.rewrite.orphans import QUEUE_GRACE_MS, OrphanSweep
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import PART_BYTES_MIN
from tests.unit.storage.flush.flush_harness import KEYS, NOW_MS, ONCE, HeldClaim
from tests.unit.storage.manifest.changes import change_of
from tests.unit.storage.read.object_bucket import ObjectBucket, batches, topic_id

OLD_SECONDS = SWEEP_AGE_MS / 1000 + 1


class Place:
    """A bucket with a partition "t"-0 of offsets 0 to 30, in two objects, as broker epoch 5 sees it."""

    def __init__(self):
        self.clock = ManualClock(NOW_MS)
        self.store = MemoryStore(self.clock)
        self.claim = HeldClaim()
        made = ObjectBucket(self.store)
        self.live = [made.klix("t", 0, batches(0, 5)), made.klix("t", 0, batches(15, 5))]
        log = NumberedLog(self.store, KEYS.manifest_dir, 5, bytes(16), retries=ONCE)
        self.version = 2
        self.manifest = Manifest(log, self.clock, root=KEYS.root, record_version=lambda: self.version)
        self.manifest.load()
        for payload in made.payloads:
            self.manifest.commit(change_of({key: payload[key] for key in ("f", "p")}))
        self.orphan_sweep = OrphanSweep(self.manifest, self.store, KEYS, self.clock, self.claim, broker_epoch=5)

    def put(self, key, data):
        self.store.put(KEYS.full(key), data)
        return KEYS.full(key)

    def sweep(self):
        found = self.orphan_sweep.sweep_orphans()
        return [meta.key for meta in found.found], [KEYS.full(key) for key in found.queued]


@pytest.fixture
def place():
    return Place()


def pack_of(topic, partition, data):
    image = encode_object(data)
    end = 3 * (len(data) // len(batches(0, 1)))
    base = int.from_bytes(data[:8], "big")
    return image + encode_directory(
        [PackImage(topic_id(topic), partition, base, base + end, 0, len(image), crc32c(image), NOW_MS)]
    )


def leftover(topic="t", partition=0, base=3, generation=1):
    return klix_key(topic, topic_id(topic), partition, base, generation)


def test_a_superseded_orphan_is_reported_and_deleted_after_a_grace_time(place):
    orphan = place.put(leftover(), encode_object(batches(3, 2)))
    assert place.sweep() == ([], [])  # it may be being written
    place.clock.advance(OLD_SECONDS)
    assert place.sweep() == ([orphan], [orphan])
    assert place.claim.checks == 1
    assert place.manifest.image.deletions == {KEYS.relative(orphan): place.clock.now_ms() + QUEUE_GRACE_MS}
    assert place.sweep() == ([], [])  # it is queued
    assert place.store.head(orphan)


@pytest.mark.parametrize(
    ("key", "data"),
    [
        (leftover(base=27), encode_object(batches(27, 2))),  # ends beyond the manifest's end offset
        (leftover(base=30, generation=0), encode_object(batches(30, 2))),
        (leftover("other"), encode_object(batches(3, 2))),  # of a topic that is not in the manifest
        (leftover(partition=1), encode_object(batches(3, 2))),
        (leftover(), b"not an object"),
        (pack_key(5, 0), pack_of("t", 0, batches(3, 2))),  # of our own epoch: a flush may be storing it
        (pack_key(6, 0), pack_of("t", 0, batches(3, 2))),
        (pack_key(4, 0), pack_of("t", 1, batches(3, 2))),
        (pack_key(4, 0), b"not a pack"),
    ],
)
def test_what_cannot_be_proven_is_reported_and_stays(place, key, data):
    orphan = place.put(key, data)
    place.clock.advance(OLD_SECONDS)
    assert place.sweep() == ([orphan], [])
    assert not place.manifest.image.deletions


def test_orphans_of_a_dropped_topic_are_deleted(place):
    orphan = place.put(leftover("other", base=70), encode_object(batches(70, 2)))
    pack = place.put(pack_key(4, 0), pack_of("other", 1, batches(3, 2)))
    place.manifest.commit(change_of({"d": {topic_id("other").hex(): 0}}))
    assert place.sweep() == ([], [])  # it may be being written
    place.clock.advance(OLD_SECONDS)
    assert place.sweep() == ([pack, orphan], [pack, orphan])


def test_only_packs_of_earlier_epochs_are_deleted(place):
    orphan = place.put(pack_key(4, 7), pack_of("t", 0, batches(3, 2)))
    merged = place.put(pack_key(4, 7, 1), pack_of("t", 0, batches(3, 2)))
    place.clock.advance(OLD_SECONDS)
    assert place.sweep() == ([merged, orphan], [merged, orphan])


def registered(number, directory):
    return Registration(number, directory, 1, f"nonce-{number}", "place", "rack", "host:9092", "1.0", True)


@pytest.fixture
def brokers(place):
    """Number 1 is fenced by the next start of its directory, number 3; 2 and 3 are not fenced."""
    place.version = 3
    for number, directory in ((1, "a"), (2, "b"), (3, "a")):
        place.manifest.commit(ManifestRecord(registrations=(registered(number, directory),)))


@pytest.mark.usefixtures("brokers")
@pytest.mark.parametrize("number", [2, 3, 4])
def test_what_a_broker_may_still_name_stays(place, number):
    """A lower number than another's proves nothing, nor does it that other objects have all its offsets."""
    author = Author(number, 0)
    kept = [
        place.put(authored_pack_key(author), pack_of("t", 0, batches(3, 2))),
        place.put(klix_key("t", topic_id("t"), 0, 3, author=author), encode_object(batches(3, 2))),
    ]
    place.store.create_multipart(KEYS.full(authored_pack_key(Author(number, 1))))
    place.clock.advance(OLD_SECONDS)
    assert place.sweep() == (kept, [])
    assert place.orphan_sweep.sweep_uploads() == 0


@pytest.mark.usefixtures("brokers")
def test_what_a_fenced_broker_left_is_deleted(place):
    """Also offsets that no other object has: no record can name it any more."""
    author = Author(1, 0)
    left = [
        place.put(authored_pack_key(author), b"not even a pack"),
        place.put(klix_key("t", topic_id("t"), 0, 300, author=author), encode_object(batches(300, 2))),
    ]
    place.store.create_multipart(KEYS.full(authored_pack_key(Author(1, 1))))
    assert place.sweep() == ([], [])
    place.clock.advance(OLD_SECONDS)
    assert place.sweep() == (left, left)
    assert place.orphan_sweep.sweep_uploads() == 1


@pytest.mark.usefixtures("brokers")
def test_objects_that_the_manifest_names_are_no_orphans_with_a_fenced_number(place):
    state = place.manifest.image.partition(topic_id("t"), 0)
    base, data = state.end_offset, encode_object(batches(state.end_offset, 2))
    key = klix_key("t", topic_id("t"), 0, base, author=Author(1, 0))
    meta = place.store.head(place.put(key, data))
    row = RefRow(base, base + 6, 0, len(data), crc32c(data), 1, NOW_MS, 6, 0, 0)
    delta = PartitionDelta(end_offset=base + 6, added=(row,))
    file = FileEntry(key, len(data), meta.etag, crc32c(data))
    place.manifest.commit(ManifestRecord(files=(file,), partitions={(topic_id("t"), 0): delta}))
    place.clock.advance(OLD_SECONDS)
    assert place.sweep() == ([], [])


def test_an_orphan_stays_while_the_objects_in_its_place_are_missing(place):
    """A manifest that was set back names what is gone, and does not know what holds the data."""
    orphan = place.put(leftover(base=12), encode_object(batches(12, 2)))
    place.clock.advance(OLD_SECONDS)
    data = place.store.get(place.live[1])
    place.store.delete([place.live[1]])
    assert place.sweep() == ([orphan], [])
    place.store.put(place.live[1], bytes(len(data)))
    assert place.sweep() == ([orphan], []), "other bytes"
    place.store.put(place.live[1], data)
    assert place.sweep() == ([orphan], [orphan]), "the same bytes under another ETag, as after a restore"


def test_what_lies_below_the_log_start_is_superseded(place):
    orphan = place.put(leftover(base=0), encode_object(batches(0, 2)))
    place.manifest.commit(change_of({"p": {topic_id("t").hex(): {"0": {"s": 15}}}}))
    place.store.delete([place.live[0]])
    place.clock.advance(OLD_SECONDS)
    assert orphan in place.sweep()[1]


def test_what_deleterecords_has_passed_is_not_superseded_before_it_is_flushed(place):
    """A flush that began before may be storing it: once queued, its key could never be named."""
    in_flight = place.put(leftover(base=30, generation=0), encode_object(batches(30, 2)))
    place.manifest.commit(change_of({"p": {topic_id("t").hex(): {"0": {"s": 36}}}}))
    place.clock.advance(OLD_SECONDS)
    found, queued = place.sweep()
    assert in_flight in found
    assert not queued


def test_live_queued_and_reserved_objects_and_foreign_keys_are_no_orphans(place):
    queued = place.put(leftover(generation=2), encode_object(batches(3, 2)))
    reserved = place.put(leftover(generation=3), encode_object(batches(3, 2)))
    for key in ("notes.txt", "_claims/0000000005.json", "_probe/1", "_metadata/x"):
        place.put(key, b"{}")
    known = {"q": [[KEYS.relative(queued), NOW_MS * 2]], "u": [[KEYS.relative(reserved), NOW_MS * 2]]}
    place.manifest.commit(change_of(known))
    place.clock.advance(OLD_SECONDS)
    assert place.sweep() == ([], [])


def test_only_the_owner_sweeps(place):
    place.put(leftover(), encode_object(batches(3, 2)))
    upload = place.store.create_multipart(KEYS.full(leftover()))
    place.clock.advance(OLD_SECONDS)
    place.claim.lost = Superseded("by another")
    with pytest.raises(Superseded):
        place.orphan_sweep.sweep_orphans()
    with pytest.raises(Superseded):
        place.orphan_sweep.sweep_uploads()
    assert [found.upload_id for found in place.store.list_multipart("")] == [upload]
    assert not place.manifest.image.deletions


def test_unfinished_uploads_of_our_keys_are_dropped_when_they_are_old(place):
    ours = [KEYS.full(leftover()), KEYS.full(pack_key(3, 1, 1))]
    for key in ours:
        upload = place.store.create_multipart(key)
        place.store.upload_part(key, upload, 1, bytes(PART_BYTES_MIN))
    foreign = [KEYS.full("backup/of/mine.obj"), "elsewhere/" + leftover(), KEYS.root[:-1] + "2/" + leftover()]
    for key in foreign:
        place.store.create_multipart(key)
    assert place.orphan_sweep.sweep_uploads() == 0
    place.clock.advance(OLD_SECONDS)
    young = KEYS.full(leftover(base=15))
    place.store.create_multipart(young)
    place.manifest.commit(change_of({"u": [[KEYS.relative(ours[0]), NOW_MS * 2]]}))
    assert place.orphan_sweep.sweep_uploads() == 1
    place.manifest.commit(change_of({"x": [KEYS.relative(ours[0])]}))
    assert place.orphan_sweep.sweep_uploads() == 1
    assert sorted(upload.key for upload in place.store.list_multipart("")) == sorted([*foreign, young])
