import pytest
from flush_harness import KEYS, ONCE

from kbroker.clock import ManualClock
from kbroker.errors import CorruptionError
from kbroker.storage.manifest import Manifest
from kbroker.storage.memory_store import MemoryStore
from kbroker.storage.numbered_log import Fenced, NumberedLog
from kbroker.storage.object_store import StoreUnavailable
from kbroker.storage.store_faults import Fault, FaultyStore, When

TOPIC = bytes(range(16))


def open_manifest(store, epoch=1, **options):
    log = NumberedLog(store, KEYS.manifest_dir, epoch, bytes([epoch]) * 16, patience=ONCE)
    manifest = Manifest(log, ManualClock(), root=KEYS.root, **options)
    manifest.load()
    return manifest


def flush_of(base, key=None):
    ref = [0, base, base + 1, 0, 10, 1, 1, 5, 1]
    delta = {"e": base + 1, "l": base + 1, "r": [ref]}
    return {"f": [[key or f"k/{base}.obj", 10, "e", 1]], "p": {TOPIC.hex(): {"0": delta}}}


def offsets(manifest):
    return [ref.base_offset for ref in manifest.image.objects_from(TOPIC, 0)]


@pytest.fixture
def store():
    return FaultyStore(MemoryStore())


def test_records_and_checkpoints_are_loaded_again(store):
    manifest = open_manifest(store, checkpoint_records=4)
    for base in range(11):
        record = manifest.commit(flush_of(base))
        assert record.time_ms == ManualClock().now_ms()
        assert offsets(open_manifest(store, epoch=0)) == list(range(base + 1))
    assert sum(meta.key.endswith(".ckp") for meta in store.list(KEYS.manifest_dir)) == 2
    assert manifest.commit(lambda image: None) is None


def test_a_change_that_does_not_fit_is_never_written(store):
    manifest = open_manifest(store)
    manifest.commit(flush_of(0))
    puts = len(store.operations)
    with pytest.raises(CorruptionError, match="new manifest record"):
        manifest.commit(flush_of(7))
    assert len(store.operations) == puts
    manifest.commit(flush_of(1))
    assert offsets(manifest) == [0, 1]


@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER])
def test_what_is_in_doubt_comes_first(store, when):
    manifest = open_manifest(store)
    manifest.commit(flush_of(0))
    called = []
    store.inject(Fault("put", when))
    store.inject(Fault("get", times=3))
    with pytest.raises(StoreUnavailable):
        manifest.commit(flush_of(1), lambda: called.append(offsets(manifest)))
    assert offsets(manifest) == [0]
    store.outage = True
    with pytest.raises(StoreUnavailable):
        manifest.commit(flush_of(2))
    store.outage = False
    store._faults.clear()
    manifest.commit(flush_of(2))
    assert offsets(manifest) == [0, 1, 2]
    assert called == [[0]]  # before the image showed it
    assert offsets(open_manifest(store, epoch=0)) == [0, 1, 2]


def test_fenced_is_told_once_and_stays(store):
    told = []
    manifest = open_manifest(store, on_fenced=told.append)
    manifest.commit(flush_of(0))
    successor = open_manifest(store, epoch=2)
    successor.commit(flush_of(1, "k/other.obj"))
    for _ in range(2):
        with pytest.raises(Fenced):
            manifest.commit(flush_of(1))
    assert len(told) == 1
    assert offsets(manifest) == [0]
    successor.commit(flush_of(2))
    assert offsets(open_manifest(store, epoch=0)) == [0, 1, 2]


def test_a_checkpoint_that_fails_is_only_late(store):
    manifest = open_manifest(store, checkpoint_records=2)
    store.inject(Fault("put", key_part=".ckp"))
    for base in range(5):
        manifest.commit(flush_of(base))
    assert sum(meta.key.endswith(".ckp") for meta in store.list(KEYS.manifest_dir)) >= 1
    assert offsets(open_manifest(store, epoch=0)) == list(range(5))


def test_an_unknown_kind_of_record_stops_the_load(store):
    log = NumberedLog(store, KEYS.manifest_dir, 1, bytes(16), patience=ONCE)
    log.load(lambda *_: None, lambda *_: None)
    log.append("something new", {})
    with pytest.raises(CorruptionError, match="something new"):
        open_manifest(store, epoch=2)


def test_a_store_that_cannot_be_read_stops_the_load(store):
    open_manifest(store).commit(flush_of(0))
    store.outage = True
    with pytest.raises(StoreUnavailable):
        open_manifest(store, epoch=2)
