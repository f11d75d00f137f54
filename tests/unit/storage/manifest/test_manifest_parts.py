"""Checkpoints in parts: which are written again, which are deleted, and what damage does."""

import json
import random
from pathlib import Path

import pytest

import kbroker.storage.manifest.checkpoints.checkpoint as checkpoints
import kbroker.storage.manifest.checkpoints.parts as parts
from kbroker.clock import ManualClock
from kbroker.errors import CorruptionError
from kbroker.storage.formats.object_keys import klix_key, pack_key
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.manifest import partition_state
from kbroker.storage.manifest.checkpoints.checkpoint import read_checkpoint, write_checkpoint
from kbroker.storage.manifest.checkpoints.part import PartKind, decode_part, encode_part
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.manifest.partition_state import SPAN_MAX, TIMES_UNKNOWN
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import StoreUnavailable
from kbroker.storage.stores.store_faults import Fault, FaultyStore, When
from tests.unit.storage.flush.flush_harness import KEYS, ONCE
from tests.unit.storage.manifest.changes import change_of

TOPIC = bytes(range(16))
PARTS = KEYS.root + "_manifest_parts/"


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Every part an object of its own; blocks of 8 references, a part each."""
    monkeypatch.setattr(parts, "INLINE_BYTES_MAX", 0)
    monkeypatch.setattr(partition_state, "BLOCK_ROWS", 8)
    monkeypatch.setattr(checkpoints, "BLOCK_PART_ROWS", 8)
    monkeypatch.setattr(checkpoints, "PART_WEIGHT", 32)


@pytest.fixture
def store():
    return FaultyStore(MemoryStore())


def opened(store, epoch=1):
    log = NumberedLog(store, KEYS.manifest_dir, epoch, bytes([epoch]) * 16, retries=ONCE)
    manifest = Manifest(log, ManualClock(), root=KEYS.root, checkpoint_records=10**6)
    manifest.load()
    return manifest


def flush(manifest, partition, topic_id=TOPIC):
    state = manifest.image.partition(topic_id, partition)
    base = state.end_offset if state else 0
    delta = {"e": base + 2, "l": base + 2, "r": [[0, base, base + 2, 0, 10, 1, 1, 5 + base, 2]]}
    key = klix_key("t", topic_id, partition, base)
    manifest.commit(change_of({"f": [[key, 10, "ab" * 16, 1]], "p": {topic_id.hex(): {str(partition): delta}}}))


def names(store):
    """All parts in the store."""
    return {meta.key for meta in store.list(PARTS)}


def named(store):
    """The parts that the newest checkpoint names."""
    payload = write_of(store)
    return {f"{PARTS}{part[0]}.part" for kind in "fbp" for part in payload[kind]}


def refs(manifest):
    return {
        (state.topic_id, state.partition): list(manifest.image.objects_from(state.topic_id, state.partition))
        for state in manifest.image.states()
    }


def test_only_what_has_changed_is_written_again(store):
    manifest = opened(store)
    for _ in range(20):
        flush(manifest, 0)
    for partition in range(1, 40):
        flush(manifest, partition)
    manifest.checkpoint()
    first = names(store)
    assert len(first) > 6
    flush(manifest, 0)
    manifest.checkpoint()
    # The chunk of objects, and the part that the partition is in: its two full blocks stay.
    assert len(names(store) - first) == 2
    assert refs(opened(store, 0)) == refs(manifest)


def test_parts_of_the_newest_two_checkpoints_stay(store):
    manifest = opened(store)
    seen = []
    for _ in range(4):
        flush(manifest, 0)
        manifest.checkpoint()
        seen.append(named(store))
    assert names(store) == seen[-1] | seen[-2]


def test_a_successor_writes_parts_of_its_own_and_deletes_the_others(store):
    manifest = opened(store)
    flush(manifest, 0)
    manifest.checkpoint()
    old = names(store)
    successor = opened(store, 2)
    flush(successor, 1)
    successor.checkpoint()
    assert names(store) > old
    assert names(store) - old == named(store)
    flush(successor, 1)
    successor.checkpoint()
    assert not names(store) & old
    assert refs(opened(store, 0)) == refs(successor)


def test_parts_of_a_checkpoint_with_an_unknown_outcome_stay(store):
    manifest = opened(store)
    flush(manifest, 0)
    manifest.checkpoint()
    flush(manifest, 0)
    before = names(store)
    store.inject(Fault("put", key_part=".ckp"))
    with pytest.raises(StoreUnavailable):
        manifest.checkpoint()
    doubted = names(store) - before
    assert doubted
    for checkpoints_since in (1, 2):
        flush(manifest, 0)
        manifest.checkpoint()
        assert bool(names(store) >= doubted) is (checkpoints_since == 1)


def test_a_late_deletion_hits_no_newer_part_with_the_same_content(store):
    manifest = opened(store)
    flush(manifest, 0)
    for number, checkpoint in enumerate((lambda: None, manifest.checkpoint)):
        topic_id = bytes([number]) * 16
        flush(manifest, 0, topic_id)
        checkpoint()
        flush(manifest, 0, topic_id)
        if number:
            store.inject(Fault("delete", When.LATE, key_part=PARTS))
        checkpoint()
        manifest.commit(change_of({"d": {topic_id.hex(): 0}}))
        manifest.checkpoint()  # the second time it says the same as the first
    manifest.commit(change_of({"d": {"ff" * 16: 0}}))
    manifest.checkpoint()
    assert store.land() == 1
    assert refs(opened(store, 0)) == refs(manifest)


def test_a_part_that_cannot_be_stored_is_tried_again(store):
    manifest = opened(store)
    flush(manifest, 0)
    store.inject(Fault("put", key_part=".part"))
    with pytest.raises(StoreUnavailable):
        manifest.checkpoint()
    manifest.checkpoint()
    assert refs(opened(store, 0)) == refs(manifest)


@pytest.mark.parametrize("damage", [b"", b"x", None])
def test_a_checkpoint_with_a_damaged_or_missing_part_is_skipped(store, damage):
    manifest = opened(store)
    for _ in range(2):
        flush(manifest, 0)
        manifest.checkpoint()
    flush(manifest, 0)
    for name in sorted(named(store)):
        data = store.get(name)
        if damage is None:
            store.delete([name])
        else:
            store.put(name, data[:-1] + damage)
        assert refs(opened(store, 0)) == refs(manifest)  # from the checkpoint before, and the records
        store.put(name, data)
    assert refs(opened(store, 0)) == refs(manifest)


def test_a_checkpoint_that_was_replaced_while_it_was_read_is_read_again(store):
    manifest = opened(store)
    flush(manifest, 0)
    manifest.checkpoint()
    reader = Manifest(NumberedLog(store, KEYS.manifest_dir, 0, bytes(16), retries=ONCE), ManualClock(), root=KEYS.root)
    get = store.get

    def replaced_get(key, *arguments, **options):
        if key.endswith(".part"):
            metas = [*store.list(KEYS.manifest_dir), *store.list(PARTS)]
            store.delete([meta.key for meta in metas if meta.key.endswith((".ckp", ".part"))])
        return get(key, *arguments, **options)

    store.get = replaced_get
    with pytest.raises(StoreUnavailable, match="replaced"):
        reader.load()


def write_of(store):
    found = []
    log = NumberedLog(store, KEYS.manifest_dir, 0, bytes(16), retries=ONCE)
    log.load(lambda number, payload: found.append(payload), lambda *_: None)
    return found[-1]


def test_dropped_topics_leave_their_part_and_are_remembered(store):
    manifest = opened(store)
    flush(manifest, 0)
    flush(manifest, 0, bytes(16))
    manifest.checkpoint()
    manifest.commit(change_of({"d": {bytes(16).hex(): 5, "ff" * 16: 0}}))
    manifest.checkpoint()
    again = opened(store, 0)
    assert refs(again) == refs(manifest)
    assert set(again.image.dropped) == {bytes(16), b"\xff" * 16}


def test_deletions_that_are_never_due_can_be_read_again(store):
    manifest = opened(store)
    flush(manifest, 0)
    flush(manifest, 0, bytes(16))
    longest = 2**63 - 1  # file.delete.delay.ms
    manifest.commit(change_of({"p": {TOPIC.hex(): {"0": {"s": 2, "g": longest}}}}))
    manifest.commit(change_of({"d": {bytes(16).hex(): longest}}))
    assert len(manifest.image.deletions) == 2
    payload = json.loads(json.dumps(write_checkpoint(manifest.image)))
    assert read_checkpoint(payload, KEYS.root, "checkpoint 5").deletions == manifest.image.deletions


def test_checkpoints_of_version_1_are_read():
    payload = json.loads((Path(__file__).parent / "manifest_checkpoint_v1.json").read_text())
    image = read_checkpoint(payload, "root/", "checkpoint 9")
    assert [(ref.key, ref.etag, ref.size) for ref in image.objects_from(TOPIC, 0)] == [
        ("root/" + klix_key("t", TOPIC, 0, 10), "etag-00000010.obj", 100)
    ]
    assert image.files.live[image.files.keys.place_of(pack_key(1, 0))] == 2
    assert image.deletions == {klix_key("t", TOPIC, 0, 0): 5060, "left/over": 99}
    assert image.partition(TOPIC, 0).open_transactions == ((8, 12),)
    assert set(image.partition(TOPIC, 0).producers) == {7, 8}
    again = read_checkpoint(json.loads(json.dumps(write_checkpoint(image))), "root/", "checkpoint 10")
    assert list(again.objects_from(TOPIC, 2)) == list(image.objects_from(TOPIC, 2))
    del payload["f"][0]
    with pytest.raises(CorruptionError, match="checkpoint 9"):
        read_checkpoint(payload, "root/", "checkpoint 9")


def test_parts_of_version_1_are_read_and_know_no_times():
    folder = Path(__file__).parent
    image = read_checkpoint(json.loads((folder / "manifest_checkpoint_parts_v1.json").read_text()), "root/", "c")
    same = read_checkpoint(json.loads((folder / "manifest_checkpoint_v1.json").read_text()), "root/", "c")
    for partition in (0, 2):
        found = list(image.objects_from(TOPIC, partition))
        assert found == list(same.objects_from(TOPIC, partition))
        assert {(ref.min_timestamp, ref.late_ms) for ref in found} == {(TIMES_UNKNOWN, -1)}


def test_times_go_through_a_checkpoint(store):
    manifest = opened(store)
    wanted = []
    for partition, (span_ms, late_ms) in enumerate(
        [(-1, -1), (0, 0), (5, -1), (-1, 5), (SPAN_MAX, SPAN_MAX), (1 << 31, 1 << 31)]
    ):
        row = [0, 0, 2, 0, 10, 1, 1, 1_000, 2, span_ms, late_ms]
        key = klix_key("t", TOPIC, partition, 0)
        delta = {"e": 2, "l": 2, "r": [row]}
        manifest.commit(change_of({"f": [[key, 10, "e", 1]], "p": {TOPIC.hex(): {str(partition): delta}}}))
        wanted.append((1_000 - span_ms if span_ms >= 0 else TIMES_UNKNOWN, late_ms))
    manifest.checkpoint()
    loaded = opened(store, 0)
    assert refs(loaded) == refs(manifest)
    found = [loaded.image.find(TOPIC, partition, 0) for partition in range(len(wanted))]
    assert [(ref.min_timestamp, ref.late_ms) for ref in found] == wanted


def test_a_smallest_timestamp_below_all_numbers_is_corruption(store):
    manifest = opened(store)
    row = [0, 0, 2, 0, 10, 1, 1, -(1 << 63) + 4, 2, 3, 0]
    file = [klix_key("t", TOPIC, 0, 0), 10, "e", 1]
    manifest.commit(change_of({"f": [file], "p": {TOPIC.hex(): {"0": {"e": 2, "r": [row]}}}}))
    payload = json.loads(json.dumps(write_checkpoint(manifest.image)))
    part = decode_part(parts.b64decode(payload["p"][0][3]), PartKind.PARTITIONS, "p")
    columns = [column.copy() for column in part.columns]
    columns[9][0] += 1
    data = encode_part(PartKind.PARTITIONS, {"p": part.about["p"]}, columns)
    payload["p"][0] = parts.PartRef("0" * 32, len(data), parts.crc32c(data), data).to_json()
    with pytest.raises(CorruptionError, match=r"checkpoint 5.*smallest timestamp of row 0"):
        read_checkpoint(payload, KEYS.root, "checkpoint 5")


def test_checkpoints_follow_the_clock(store):
    log = NumberedLog(store, KEYS.manifest_dir, 1, bytes(16), retries=ONCE)
    clock = ManualClock()
    manifest = Manifest(log, clock, root=KEYS.root)
    manifest.load()
    counts = []
    for _ in range(40):
        flush(manifest, 0)
        clock.advance(20)
        counts.append(log.last_number - log.checkpoint_number)
    assert max(counts) <= 9  # a start reads no more
    assert log.last_number / sum(count == 0 for count in counts) >= 5
    for _ in range(40):
        flush(manifest, 0)
    assert log.last_number - log.checkpoint_number > 30  # a burst does not write it all the time


def test_a_change_inside_of_a_part_is_found(store):
    """With right checksums: every value of every column is checked, or does not matter."""
    manifest = opened(store)
    for partition in range(3):
        for _ in range(9):
            flush(manifest, partition)
    delta = {"r": [[0, 0, 5, 0, 9, 1, 1, 1, 1]]}
    manifest.commit(change_of({"f": [["odd", 50, "odd", 1]], "p": {TOPIC.hex(): {"9": delta}}}))
    manifest.checkpoint()
    payload = write_of(store)
    rng = random.Random(7)
    refused = 0
    for _ in range(600):
        changed = json.loads(json.dumps(payload))
        kind, which = rng.choice([("f", PartKind.FILES), ("b", PartKind.BLOCK), ("p", PartKind.PARTITIONS)])
        at = rng.randrange(len(changed[kind]))
        name = changed[kind][at][0]
        part = decode_part(store.get(f"{PARTS}{name}.part"), which, name)
        columns = [column.copy() for column in part.columns]
        column = rng.choice([column for column in columns if len(column)] or columns)
        if len(column):
            column[rng.randrange(len(column))] = rng.choice([0, 1, 2, 2**31 - 1, int(column[0]) ^ 1])
            if column.dtype.kind == "i":
                column[rng.randrange(len(column))] = rng.choice([-1, -2, -3, 2**31 - 2, int(column[0])])
        about = {key: value for key, value in part.about.items() if key != "n"}
        data = encode_part(which, about, columns)
        changed[kind][at] = parts.PartRef(name, len(data), parts.crc32c(data), data).to_json()
        folder = parts.PartFolder(store, PARTS)
        try:
            image = read_checkpoint(changed, KEYS.root, "checkpoint 5", folder)
        except CorruptionError as error:
            refused += 1
            assert "checkpoint 5" in str(error)  # noqa: PT017
            continue
        for state in image.states():
            found = list(image.objects_from(state.topic_id, state.partition))
            assert [ref.base_offset for ref in found[1:]] == [ref.end_offset for ref in found[:-1]]
            assert all(ref.start + ref.length <= ref.size for ref in found)
        assert all(file.live > 0 and image.files.keys.place_of(file.key) is not None for file in image.files.values())
        write_checkpoint(image)
    assert refused > 200


@pytest.mark.parametrize("value", [[], ["x", 1, 1], ["0" * 32, -1, 1], ["0" * 32, 1, 1, "%"], ["0" * 32, 1, 1], "x"])
@pytest.mark.parametrize("kind", ["f", "b", "p"])
def test_an_impossible_part_is_refused(store, kind, value):
    manifest = opened(store)
    flush(manifest, 0)
    payload = json.loads(json.dumps(write_checkpoint(manifest.image)))
    payload[kind] = [value]
    with pytest.raises(CorruptionError, match="checkpoint 5"):
        read_checkpoint(payload, "", "checkpoint 5")
