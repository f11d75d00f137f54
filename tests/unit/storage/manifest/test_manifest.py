import random
import threading

import pytest

from kbroker.clock import ManualClock
from kbroker.errors import CorruptionError
from kbroker.storage.ledger.numbered_log import Fenced, NumberedLog
from kbroker.storage.ledger.numbered_log_format import decode_frame
from kbroker.storage.manifest import partition_state
from kbroker.storage.manifest.checkpoints import checkpoint as manifest_checkpoint
from kbroker.storage.manifest.checkpoints import parts as manifest_parts
from kbroker.storage.manifest.checkpoints.checkpoint import read_checkpoint
from kbroker.storage.manifest.checkpoints.parts import PartFolder
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.manifest.record_encode import encode_record
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import StoreUnavailable
from kbroker.storage.stores.store_faults import Fault, FaultyStore, When
from tests.unit.storage.flush.flush_harness import KEYS, ONCE
from tests.unit.storage.manifest.changes import change_of

TOPIC = bytes(range(16))


def log_of(store, epoch=1):
    return NumberedLog(store, KEYS.manifest_dir, epoch, bytes([epoch]) * 16, retries=ONCE)


def open_manifest(store, epoch=1, log=None, **options):
    manifest = Manifest(log or log_of(store, epoch), ManualClock(), root=KEYS.root, **options)
    manifest.load()
    return manifest


def flush_of(base, key=None):
    ref = [0, base, base + 1, 0, 10, 1, 1, 5, 1]
    delta = {"e": base + 1, "l": base + 1, "r": [ref]}
    return change_of({"f": [[key or f"k/{base}.obj", 10, "e", 1]], "p": {TOPIC.hex(): {"0": delta}}})


def offsets(manifest):
    return [ref.base_offset for ref in manifest.image.objects_from(TOPIC, 0)]


@pytest.fixture
def store():
    return FaultyStore(MemoryStore())


def test_records_and_checkpoints_are_loaded_again(store):
    manifest = open_manifest(store, checkpoint_records=4)
    for base in range(11):
        assert manifest.commit(flush_of(base))
        assert offsets(open_manifest(store, epoch=0)) == list(range(base + 1))
    assert sum(meta.key.endswith(".ckp") for meta in store.list(KEYS.manifest_dir)) == 2
    assert not manifest.commit(lambda image: None)


def test_records_in_json_and_in_columns_are_loaded_as_one_log(store):
    versions = iter([1, 3, 2, 3, 3])
    manifest = open_manifest(store, record_version=lambda: next(versions))
    for base in range(5):
        manifest.commit(flush_of(base))
    assert offsets(open_manifest(store, epoch=0)) == list(range(5))
    keys = [meta.key for meta in store.list(KEYS.manifest_dir) if meta.key.endswith(".rec")]
    payloads = [decode_frame(store.get(key), key).content.get("payload") for key in keys[1:]]
    assert [payload["v"] if isinstance(payload, dict) else "columns" for payload in payloads] == [
        1, "columns", 2, "columns", "columns",
    ]  # fmt: skip


def test_a_record_in_columns_that_is_in_doubt_is_settled_with_the_same_bytes(store):
    manifest = open_manifest(store, record_version=lambda: 3)
    manifest.commit(flush_of(0))
    store.inject(Fault("put", When.AFTER))
    store.inject(Fault("get", times=3))
    with pytest.raises(StoreUnavailable):
        manifest.commit(flush_of(1))
    store.heal()
    manifest.commit(flush_of(2))
    assert offsets(manifest) == offsets(open_manifest(store, epoch=0)) == [0, 1, 2]


def test_a_record_in_columns_of_a_newer_version_is_refused_by_name(store):
    log = log_of(store)
    log.load(lambda *_: None, lambda *_: None)
    log.append("manifest", (4).to_bytes(2, "little") + bytes(100))
    with pytest.raises(CorruptionError, match="manifest record 2: manifest version 4 is newer than this kbroker knows"):
        open_manifest(store, epoch=2)


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
def test_a_record_in_doubt_is_settled_before_the_next(store, when):
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
    store.heal()
    manifest.commit(flush_of(2))
    assert offsets(manifest) == [0, 1, 2]
    assert called == [[0]]  # before the image showed it
    assert offsets(open_manifest(store, epoch=0)) == [0, 1, 2]


def test_what_else_appends_to_the_log_is_committed_beside_and_settled_by_the_next_commit(store):
    manifest = open_manifest(store)
    told = []

    def append(base):
        with manifest.lock:
            manifest.copy.append(encode_record(flush_of(base)), None, told.append)

    append(0)
    manifest.commit(flush_of(1))
    store.inject(Fault("put", When.AFTER))
    store.inject(Fault("get", times=3))
    with pytest.raises(StoreUnavailable):
        append(2)
    store.heal()
    assert (offsets(manifest), told) == ([0, 1], [2])
    manifest.commit(flush_of(3))
    assert (offsets(manifest), told) == ([0, 1, 2, 3], [2, 4])
    assert offsets(open_manifest(store, epoch=0)) == [0, 1, 2, 3]
    assert (manifest.records, manifest.records_since_checkpoint) == (4, 4)


def test_a_commit_waits_for_what_else_is_being_appended(store, monkeypatch):
    manifest = open_manifest(store)
    manifest.commit(flush_of(0))
    waiting, wait_idle, put = threading.Event(), manifest.copy.wait_idle, store.put

    def told_wait():
        waiting.set()
        wait_idle()

    def slow_put(*arguments, **options):
        if not committing.ident:
            committing.start()
            assert waiting.wait(20)
        return put(*arguments, **options)

    committing = threading.Thread(target=manifest.commit, args=(flush_of(2),))
    monkeypatch.setattr(manifest.copy, "wait_idle", told_wait)
    store.put = slow_put
    with manifest.lock:
        manifest.copy.append(encode_record(flush_of(1)))
    committing.join(20)
    assert offsets(manifest) == offsets(open_manifest(store, epoch=0)) == [0, 1, 2]


def test_a_writer_that_has_resigned_ends_the_commits_as_well(store):
    told = []
    manifest = open_manifest(store, on_fenced=told.append)
    for base in range(4):
        manifest.commit(flush_of(base))
    with manifest.lock:
        manifest.copy.write_as(0)
    manifest.close()  # without a checkpoint
    for _ in range(2):
        with pytest.raises(Fenced, match="resigned"):
            manifest.commit(flush_of(4))
    assert told == [manifest.fenced]
    assert offsets(open_manifest(store, epoch=0)) == [0, 1, 2, 3]


def test_nothing_is_committed_on_an_image_that_has_half_a_record(store):
    manifest = open_manifest(store)
    manifest.commit(flush_of(0))

    def fail():
        raise MemoryError

    with pytest.raises(MemoryError):
        manifest.commit(flush_of(1), fail)
    with pytest.raises(CorruptionError, match="applied in part"):
        manifest.commit(flush_of(1, "k/other.obj"))
    assert offsets(open_manifest(store, epoch=0)) == [0, 1]


def test_fenced_is_reported_once_and_is_permanent(store):
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


def test_a_checkpoint_that_fails_is_written_later(store):
    manifest = open_manifest(store, checkpoint_records=2)
    store.inject(Fault("put", key_part=".ckp"))
    for base in range(5):
        manifest.commit(flush_of(base))
    assert sum(meta.key.endswith(".ckp") for meta in store.list(KEYS.manifest_dir)) >= 1
    assert offsets(open_manifest(store, epoch=0)) == list(range(5))


def test_an_unknown_kind_of_record_stops_the_load(store):
    log = NumberedLog(store, KEYS.manifest_dir, 1, bytes(16), retries=ONCE)
    log.load(lambda *_: None, lambda *_: None)
    log.append("something new", {})
    with pytest.raises(CorruptionError, match="something new"):
        open_manifest(store, epoch=2)


def test_a_store_that_cannot_be_read_stops_the_load(store):
    open_manifest(store).commit(flush_of(0))
    store.outage = True
    with pytest.raises(StoreUnavailable):
        open_manifest(store, epoch=2)


# -- checkpoints beside commits --------------------------------------------------------------------------------


def background_checkpoints(manifest):
    """Checkpoints that are due wait in the list that is returned."""
    due = []
    manifest.checkpoint_in_background(due.append)
    return due


def checkpoint_of(store):
    """Number and base offsets of the newest checkpoint."""
    found = []
    log = NumberedLog(store, KEYS.manifest_dir, 0, bytes(16), retries=ONCE)
    log.load(lambda number, payload: found.append((number, payload)), lambda *_: None)
    number, payload = found[-1]
    image = read_checkpoint(payload, KEYS.root, "checkpoint", PartFolder(store, KEYS.root + "_manifest_parts/"))
    return number, [ref.base_offset for ref in image.objects_from(TOPIC, 0)]


def test_a_commit_does_not_wait_for_the_checkpoint_that_it_makes_due(store):
    manifest = open_manifest(store, checkpoint_records=3)
    due = background_checkpoints(manifest)
    for base in range(7):
        manifest.commit(flush_of(base))
    assert len(due) == 1  # one at a time
    assert not any(meta.key.endswith(".ckp") for meta in store.list(KEYS.manifest_dir))
    due.pop()()
    assert checkpoint_of(store) == (8, list(range(7)))
    manifest.commit(flush_of(7))
    assert not due  # the records in between have been counted off


@pytest.mark.parametrize("at", ["_manifest_parts", ".ckp"])
def test_commits_go_on_while_a_checkpoint_is_written_and_are_not_in_it(store, monkeypatch, at):
    monkeypatch.setattr(manifest_parts, "INLINE_BYTES_MAX", 0)
    manifest = open_manifest(store, checkpoint_records=3)
    due = background_checkpoints(manifest)
    for base in range(3):
        manifest.commit(flush_of(base))
    reached, go_on = threading.Event(), threading.Event()
    put = store.put

    def slow_put(key, *arguments, **options):
        if at in key and not reached.is_set():
            reached.set()
            assert go_on.wait(20)
        return put(key, *arguments, **options)

    store.put = slow_put
    writer = threading.Thread(target=due.pop())
    writer.start()
    assert reached.wait(20)
    for base in range(3, 8):
        manifest.commit(flush_of(base))
    assert not due
    go_on.set()
    writer.join(20)
    # The seal is number 1: a checkpoint of number 4 has three records.
    assert checkpoint_of(store) == (4, [0, 1, 2])
    assert offsets(open_manifest(store, epoch=0)) == list(range(8))
    manifest.commit(flush_of(8))
    assert len(due) == 1  # six records since
    due.pop()()
    assert checkpoint_of(store) == (10, list(range(9)))
    assert offsets(open_manifest(store, epoch=0)) == list(range(9))


def test_a_failed_background_checkpoint_does_not_fail_the_commit(store):
    told = []
    manifest = open_manifest(store, checkpoint_records=4, on_fenced=told.append)
    due = background_checkpoints(manifest)
    for base in range(4):
        manifest.commit(flush_of(base))
    store.inject(Fault("put", key_part=".ckp"))
    due.pop()()  # raises nothing, and is tried again later
    for base in range(4, 6):
        manifest.commit(flush_of(base))
    assert len(due) == 1
    store.inject(Fault("put", When.AFTER, times=4))
    store.inject(Fault("get", times=4))
    with pytest.raises(StoreUnavailable):
        manifest.commit(flush_of(6))
    due.pop()()  # a record is in doubt: nothing is written
    assert not any(meta.key.endswith(".ckp") for meta in store.list(KEYS.manifest_dir))
    store.heal()
    manifest.settle()
    assert offsets(manifest) == list(range(7))
    for base in range(7, 9):
        manifest.commit(flush_of(base))
    assert len(due) == 1
    open_manifest(store, epoch=2).commit(flush_of(9))
    with pytest.raises(Fenced):
        manifest.commit(flush_of(9))
    due.pop()()
    assert len(told) == 1
    assert offsets(open_manifest(store, epoch=0)) == list(range(10))


def test_a_fence_found_by_a_checkpoint_is_reported(store):
    told, log = [], log_of(store)
    manifest = open_manifest(store, log=log, checkpoint_records=1, on_fenced=told.append)
    due = background_checkpoints(manifest)
    manifest.commit(flush_of(0))
    open_manifest(store, epoch=2).commit(flush_of(1))
    with pytest.raises(Fenced) as found:
        log.append("manifest", {})
    due.pop()()
    assert told == [found.value]
    with pytest.raises(Fenced):
        manifest.commit(flush_of(1))
    assert len(told) == 1


def test_a_commit_succeeds_without_a_thread_for_its_checkpoint(store):
    manifest = open_manifest(store, checkpoint_records=2)

    def refuse(call):
        raise RuntimeError("can't start new thread")

    manifest.checkpoint_in_background(refuse)
    for base in range(5):
        assert manifest.commit(flush_of(base))
    manifest.checkpoint_in_background()
    for base in range(5, 8):
        manifest.commit(flush_of(base))
    manifest.close()  # waits for it
    assert offsets(open_manifest(store, epoch=0)) == list(range(8))


def test_closing_leaves_few_records_after_a_checkpoint_and_writes_no_more(store):
    manifest = open_manifest(store, checkpoint_records=4)
    due = background_checkpoints(manifest)
    for base in range(4):
        manifest.commit(flush_of(base))
    manifest.close()
    assert checkpoint_of(store) == (5, [0, 1, 2, 3])
    puts = len(store.operations)
    due.pop()()
    assert len(store.operations) == puts
    # A start that changes nothing leaves its seal; a checkpoint is written when there are more than two objects.
    for epoch in range(2, 8):
        log = log_of(store, epoch)
        successor = open_manifest(store, log=log)
        assert log.last_number - log.checkpoint_number <= 2
        successor.seal()
        successor.close()
    assert log.checkpoint_number >= 9
    store.outage = True
    successor.close()


def test_a_checkpoint_has_the_state_of_its_number_while_commits_go_on(monkeypatch):
    """At every request of a checkpoint something else changes; what is stored is the state of its number."""
    monkeypatch.setattr(manifest_parts, "INLINE_BYTES_MAX", 0)
    monkeypatch.setattr(partition_state, "BLOCK_ROWS", 8)
    monkeypatch.setattr(manifest_checkpoint, "BLOCK_PART_ROWS", 8)
    monkeypatch.setattr(manifest_checkpoint, "PART_WEIGHT", 16)
    monkeypatch.setattr(manifest_checkpoint, "THREADS", 1)
    rng, store = random.Random(3), FaultyStore(MemoryStore())
    log = log_of(store)
    manifest = open_manifest(store, log=log, checkpoint_records=10**6)
    ends, states = [0] * 12, {}
    put = store.put

    def change(times):
        for _ in range(times):
            partition = rng.randrange(len(ends))
            base = ends[partition]
            ends[partition] += 1
            delta = {"e": base + 1, "l": base + 1, "r": [[0, base, base + 1, 0, 10, 1, 1, 5, 1]]}
            if rng.random() < 0.1:
                delta["s"] = base
            record = {"f": [[f"k{partition}/{base}", 10, "e", 1]], "p": {TOPIC.hex(): {str(partition): delta}}}
            manifest.commit(change_of(record))
            states[log.last_number] = image_of(manifest)

    def image_of(found):
        return [list(found.image.objects_from(TOPIC, partition)) for partition in range(len(ends))]

    def busy_put(key, *arguments, **options):
        if busy and (".part" in key or ".ckp" in key):
            busy.pop()
            changing = threading.Thread(target=change, args=(rng.randrange(3),))
            changing.start()
            changing.join(20)
            assert not changing.is_alive()
        return put(key, *arguments, **options)

    store.put = busy_put
    busy = []
    for turn in range(12):
        change(rng.randrange(1, 25))
        busy = [None] * rng.randrange(6)
        if turn % 4 == 2:
            store.inject(Fault("put", key_part=".part"))
            with pytest.raises(StoreUnavailable):
                manifest.checkpoint()
        store.heal()
        manifest.checkpoint()
        busy = []
        number = log.checkpoint_number
        assert image_of(open_manifest(store, epoch=0)) == image_of(manifest)
        for meta in [*store.list(KEYS.manifest_dir + "/0000000001-")]:  # the checkpoint alone
            if int(meta.key[-24:-4]) > number:
                kept = store.get(meta.key)
                store.delete([meta.key])
                busy.append((meta.key, kept))
        assert image_of(open_manifest(store, epoch=0)) == states[number]
        for key, kept in busy:
            put(key, kept)
