import itertools
import json
import pickle
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.errors import CorruptionError
from kbroker.storage.formats.object_keys import klix_key, pack_key
from kbroker.storage.manifest.checkpoints.checkpoint import read_checkpoint, write_checkpoint
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.partition_state import SPAN_MAX, TIMES_UNKNOWN, PartitionState, RefRow, times_of
from kbroker.storage.manifest.record_apply import apply_payload
from kbroker.storage.read.object_reader import cache_beside

TOPIC = bytes(range(16))
HEX = TOPIC.hex()
OTHER = bytes(16)


def klix(base, generation=0, topic_id=TOPIC, partition=0):
    return klix_key("t", topic_id, partition, base, generation)


def file(key, size=100):
    return [key, size, f"etag-{key[-12:]}", 7]


def ref(number, base, end, *, start=0, length=100, timestamp=1000):
    return [number, base, end, start, length, 9, 1, timestamp, end - base]


def record(files=(), partitions=None, **other):
    """partitions: {partition number: delta} of TOPIC."""
    payload = {"v": 1, "t": 5000, "f": [list(f) for f in files], **other}
    if partitions is not None:
        payload["p"] = {HEX: {str(number): delta for number, delta in partitions.items()}}
    return json.loads(json.dumps(payload))


def live_references(image, key):
    return image.files.live[image.files.keys.place_of(key)]


def flushed(*bounds):
    """An image with objects of partition 0 that start and end at the bounds."""
    image = ManifestImage("root/")
    for base, end in itertools.pairwise(bounds):
        apply_payload(image, record([file(klix(base))], {0: {"e": end, "l": end, "r": [ref(0, base, end)]}}))
    return image


def test_find_gives_the_object_of_an_offset():
    image = flushed(0, 10, 25, 30)
    found = image.find(TOPIC, 0, 12)
    assert (found.base_offset, found.end_offset, found.key) == (10, 25, "root/" + klix(10))
    assert (found.kind, found.etag, found.created_ms, found.record_count) == ("klix", "etag-00000010.obj", 5000, 15)
    assert [r.base_offset for r in image.objects_from(TOPIC, 0, 24)] == [10, 25]
    assert image.find(TOPIC, 0, 30) is None
    assert image.find(OTHER, 0, 0) is None
    assert image.partition(TOPIC, 0).end_offset == 30


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (record([file(klix(31))], {0: {"r": [ref(0, 31, 40)]}}), "follows 30"),
        (record([file(klix(29))], {0: {"r": [ref(0, 29, 40)]}}), "replaces offsets"),
        (record([file(klix(30))], {0: {"e": 41, "r": [ref(0, 30, 40)]}}), "end offset 41"),
        (record([file(klix(30))], {0: {"e": 40, "l": 41, "r": [ref(0, 30, 40)]}}), "last stable offset"),
        (record([file(klix(30))], {0: {"r": [ref(0, 30, 40, length=101)]}}), "beyond the end"),
        (record([file(klix(30))], {0: {"r": [ref(1, 30, 40)]}}), "not an integer from 0 to 0"),
        (record([file(klix(30))], {0: {"r": [ref(0, 30, 30)]}}), "is empty"),
        (record([file(klix(30))], {}), "holds data of no partition"),
        (record([file(klix(10))], {0: {"r": [ref(0, 30, 40)]}}), "named by an earlier record"),
        (record([], {0: {"e": 20}}), "end offset 20"),
        (record([], {0: {"m": [11]}}), "which is not there"),
        (record([], {0: {"m": [10]}}), "replaces offsets"),
        (record([], {0: {"m": [10, 10]}}), "twice"),
        (record([], {0: {"h": [[3, 5], [3, 9]]}}), "leader epoch"),
        (record([], {0: {"a": [[1, 9, 8, 8]]}}), "ends at 8 before"),
        (record([], {0: {"s": -1}}), "not an integer"),
        (record([], {0: {"s": True}}), "not an integer"),
        (record([], {"-1": {}}), "not a partition number"),
        (record([], {"01": {}}), "not a partition number"),
        (record([file("../up")], {0: {"r": [ref(0, 30, 40)]}}), "not a key below the root"),
        ({"v": 4, "t": 1}, "newer than this kbroker"),
        ({"t": 1}, "v: None"),
        ([], "not an object"),
        (record(w=["dir", 5]) | {"w": ["dir"]}, "a list of 2"),
        (record([], {}, d={HEX: 0}) | {"p": {HEX: {"0": {}}}}, "dropped and changed"),
    ],
)
def test_a_record_that_does_not_fit_is_refused_by_name_and_changes_nothing(bad, message):
    image = flushed(0, 10, 25, 30)
    before = write_checkpoint(image)
    with pytest.raises(CorruptionError, match=message) as caught:
        apply_payload(image, bad, "manifest record 77")
    assert "manifest record 77" in str(caught.value)
    assert write_checkpoint(image) == before


def test_wal_position_never_decreases():
    image = flushed(0, 10)
    apply_payload(image, record(w=["dir-a", 500]))
    assert image.wal_flushed_lsn("dir-a") == 500
    assert image.wal_flushed_lsn("dir-b") is None
    with pytest.raises(CorruptionError, match="goes back"):
        apply_payload(image, record(w=["dir-a", 499]))
    apply_payload(image, record(w=["dir-b", 1]))


def test_log_start_drops_objects_below_it_and_queues_their_keys():
    image = flushed(0, 10, 25, 30)
    apply_payload(image, record([], {0: {"h": [[1, 0], [2, 12], [3, 26]], "a": [[5, 2, 8, 9], [6, 11, 26, 27]]}}))
    apply_payload(image, record([], {0: {"s": 26, "g": 60}}))
    state = image.partition(TOPIC, 0)
    assert (state.log_start_offset, state.object_count, state.data_bytes) == (26, 1, 100)
    assert state.leader_epochs == ((3, 26),)
    assert state.aborted == ((6, 11, 26, 27),)
    assert image.deletions == {klix(0): 5060, klix(10): 5060}
    assert image.find(TOPIC, 0, 0).base_offset == 25
    assert image.due_deletions(5059, 10) == []
    assert image.due_deletions(5060, 10) == [klix(0), klix(10)]
    assert image.due_deletions(5060, 1) == [klix(0)]
    apply_payload(image, record(x=[klix(0)]))
    assert image.deletions == {klix(10): 5060}
    with pytest.raises(CorruptionError, match="log start offset goes back"):
        apply_payload(image, record([], {0: {"s": 25}}))


def test_log_start_above_the_flushed_end():
    image = flushed(0, 10)
    apply_payload(image, record([], {0: {"s": 15}}))
    assert image.partition(TOPIC, 0).end_offset == 10
    in_order = record([file(klix(10))], {0: {"r": [ref(0, 10, 20)], "e": 20}})
    after_loss = record([file(klix(15))], {0: {"r": [ref(0, 15, 20)], "e": 20}})
    for payload in (in_order, after_loss):
        other = read_checkpoint(json.loads(json.dumps(write_checkpoint(image))), "", "c")
        apply_payload(other, payload)
        assert other.partition(TOPIC, 0).end_offset == 20
    with pytest.raises(CorruptionError, match="follows 10"):
        apply_payload(image, record([file(klix(16))], {0: {"r": [ref(0, 16, 20)], "e": 20}}))


def test_a_pack_is_deleted_when_no_image_in_it_is_live():
    image = ManifestImage()
    key = pack_key(1, 0)
    deltas = {n: {"e": 5, "r": [ref(0, 0, 5, start=n * 100)]} for n in range(3)}
    apply_payload(image, record([file(key, 300)], deltas))
    assert live_references(image, key) == 3
    assert image.find(TOPIC, 2, 3).start == 200
    apply_payload(image, record([], {0: {"s": 5}, 1: {"s": 5, "g": 9}}))
    assert live_references(image, key) == 1
    assert not image.deletions
    apply_payload(image, record(d={HEX: 70}))
    assert image.deletions == {key: 5070}
    assert not image.is_live(key)
    assert image.partition(TOPIC, 2) is None


def test_rewritten_objects_replace_what_they_cover():
    image = flushed(0, 10, 25, 30)
    apply_payload(image, record([file(klix(0, 1))], {0: {"m": [0, 10], "r": [ref(0, 0, 25)], "g": 3}}))
    assert [(r.base_offset, r.end_offset) for r in image.objects_from(TOPIC, 0)] == [(0, 25), (25, 30)]
    assert set(image.deletions) == {klix(0), klix(10)}
    with pytest.raises(CorruptionError, match="replaces offsets"):
        apply_payload(image, record([file(klix(0, 2))], {0: {"m": [0], "r": [ref(0, 0, 24)]}}))


def test_a_key_waiting_for_deletion_is_not_named_again():
    image = flushed(0, 10)
    apply_payload(image, record([], {0: {"s": 10}}))
    with pytest.raises(CorruptionError, match="earlier record"):
        apply_payload(image, record([file(klix(0))], {1: {"r": [ref(0, 0, 5)]}}))


def full_image():
    image = flushed(0, 10, 25)
    producers = [[7, 1, -1, 4000, -1, [[4, 9, 0, 4000]]], [8, 0, 3, 10, 12, []]]
    apply_payload(image, record([], {0: {"o": [[8, 12]], "l": 12, "h": [[1, 0], [4, 10]], "b": producers}}))
    apply_payload(
        image, record([file(pack_key(1, 0), 200)], {1: {"e": 3, "r": [ref(0, 0, 3)]}, 2: {"r": [ref(0, 0, 4)]}})
    )
    apply_payload(image, record([], {0: {"s": 11, "g": 60}}, w=["dir", 4096], q=[["left/over", 99]]))
    return image


def test_checkpoint_round_trip():
    image = full_image()
    payload = json.loads(json.dumps(write_checkpoint(image)))
    again = read_checkpoint(payload, "root/", "checkpoint 9")
    assert json.loads(json.dumps(write_checkpoint(again))) == payload
    assert list(again.objects_from(TOPIC, 0)) == list(image.objects_from(TOPIC, 0))
    assert again.partition(TOPIC, 0).producers == image.partition(TOPIC, 0).producers
    assert again.partition(TOPIC, 0).open_transactions == ((8, 12),)
    assert live_references(again, pack_key(1, 0)) == 2
    assert again.deletions == {klix(0): 5060, "left/over": 99}
    apply_payload(again, record([file(klix(25))], {0: {"e": 30, "r": [ref(0, 25, 30)]}}))
    assert again.find(TOPIC, 0, 26).key == "root/" + klix(25)


@pytest.mark.parametrize("damage", ["v", "f", "p", "w", "q"])
def test_checkpoint_without_a_part_is_refused(damage):
    payload = json.loads(json.dumps(write_checkpoint(full_image())))
    del payload[damage]
    with pytest.raises(CorruptionError, match="checkpoint 9"):
        read_checkpoint(payload, "", "checkpoint 9")


@pytest.mark.parametrize("version", [1, 2])
def test_references_without_times_know_none(version):
    image = ManifestImage()
    apply_payload(image, record([file(klix(0))], {0: {"e": 5, "r": [ref(0, 0, 5)]}}, v=version))
    found = image.find(TOPIC, 0, 0)
    assert (found.min_timestamp, found.late_ms) == (TIMES_UNKNOWN, -1)
    assert image.partition(TOPIC, 0).row(0).reference() == [*ref(0, 0, 5), -1, -1]


@pytest.mark.parametrize(
    "times",
    [[-2, 0], [0, -2], [SPAN_MAX + 1, 0], [0, SPAN_MAX + 1], [0], [0, 0, 0], ["1", 0], [None, None], [0.0, 0]],
)
def test_times_that_cannot_be_are_corruption_of_the_record(times):
    payload = record([file(klix(0))], {0: {"e": 5, "r": [[*ref(0, 0, 5), *times]]}}, v=2)
    with pytest.raises(CorruptionError, match=f"record 7: partition {HEX}/0"):
        apply_payload(ManifestImage(), payload, "record 7")


def test_a_smallest_timestamp_below_all_numbers_is_corruption_of_the_record():
    low = -(1 << 63) + 1
    for span_ms in (0, 1):
        payload = record([file(klix(0))], {0: {"e": 5, "r": [[*ref(0, 0, 5, timestamp=low), span_ms, 0]]}}, v=2)
        if span_ms:
            with pytest.raises(CorruptionError, match=r"record 7: .* smallest timestamp"):
                apply_payload(ManifestImage(), payload, "record 7")
        else:
            apply_payload(ManifestImage(), payload, "record 7")


@given(st.integers(-(1 << 63) + 1, (1 << 63) - 1), st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-1, 1 << 64))
def test_times_of_a_row_are_what_it_was_given_or_not_known(newest, smallest, late_ms):
    row = RefRow(0, 5, 0, 100, 9, 1, newest, 5, times_of(newest, smallest, late_ms), 0)
    assert row.min_timestamp in (smallest, TIMES_UNKNOWN)
    assert row.late_ms in (late_ms, -1)
    if 0 <= newest - smallest <= SPAN_MAX:
        assert row.min_timestamp == smallest
    if late_ms <= SPAN_MAX:
        assert row.late_ms == late_ms
    apply_payload(image := ManifestImage(), record([file(klix(0))], {0: {"e": 5, "r": [row.reference()]}}, v=2))
    assert image.partition(TOPIC, 0).row(0) == row


def test_checkpoint_of_a_newer_version_is_refused_by_name():
    payload = write_checkpoint(full_image()) | {"v": 4}
    with pytest.raises(CorruptionError, match="checkpoint 9: manifest version 4 is newer"):
        read_checkpoint(payload, "", "checkpoint 9")


def test_silent_producers_expire_unless_a_transaction_is_open():
    image = full_image()
    image.expire_producers(5000 + 100, 100)
    assert set(image.partition(TOPIC, 0).producers) == {8}


def test_a_producer_with_old_timestamps_expires_by_the_record_that_named_it():
    image = ManifestImage()
    entries = [[number, 0, -1, timestamp, -1, []] for number, timestamp in ((1, 10), (2, 7000), (3, 10))]
    apply_payload(image, record([], {0: {"b": entries}}))  # at 5000
    apply_payload(image, record([], {0: {"b": entries[2:]}}, t=6000))
    for expiry_ms, left in ((5999, {1, 2, 3}), (6000, {2, 3}), (6999, {2, 3}), (7000, {2}), (8000, set())):
        image.changed.clear()
        before = set(image.partition(TOPIC, 0).producers)
        image.expire_producers(expiry_ms, 1000)
        assert set(image.partition(TOPIC, 0).producers) == set(image.partition(TOPIC, 0).producers.written()) == left
        assert bool(image.changed) == (left != before)
        image = read_checkpoint(json.loads(json.dumps(write_checkpoint(image))), "", "checkpoint 1")


def test_producers_of_a_checkpoint_without_times_expire_from_the_first_look():
    image = full_image()
    state = image.partition(TOPIC, 0)
    assert set(state.producers) == {7, 8}
    for producer_id in state.producers:
        state.producers.set_written_ms(producer_id, -1)
    image = read_checkpoint(json.loads(json.dumps(write_checkpoint(image))), "", "checkpoint 1")
    state = image.partition(TOPIC, 0)
    assert state.producers.written() == {}
    assert len(list(state.live_producers(10**9, 100))) == 2
    image.changed.clear()
    image.expire_producers(10**9, 100)
    assert set(state.producers) == {7, 8}
    assert image.changed == {(TOPIC, 0)}  # so that the next checkpoint tells it
    image.expire_producers(10**9 + 100, 100)
    assert set(state.producers) == {8}  # has an open transaction


def test_a_reference_takes_little_memory():
    import tracemalloc

    image = ManifestImage()
    first = {n: {"r": [ref(0, 0, 5, start=n * 100)]} for n in range(1000)}
    apply_payload(image, record([file(pack_key(1, 0), 10**9)], first))
    tracemalloc.start()
    for flush in range(1, 21):
        deltas = {n: {"r": [ref(0, flush * 5, flush * 5 + 5, start=n * 100)]} for n in range(1000)}
        payload = record([file(pack_key(1, flush), 10**9)], deltas)
        apply_payload(image, payload)
        del payload, deltas
    grown = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert grown / 20_000 < 150  # bytes per reference


def test_compaction_replaces_many_objects_by_few_and_moves_the_clean_offset():
    image = flushed(0, 10, 25, 30, 44)
    apply_payload(image, record(u=[[klix(0, 1), 9000], [klix(20, 1), 9000]]))
    assert image.reserved == {klix(0, 1): 9000, klix(20, 1): 9000}
    swap = {"r": [ref(0, 0, 20), ref(1, 20, 30)], "m": [25, 0, 10], "c": 28, "g": 100}
    apply_payload(image, record([file(klix(0, 1)), file(klix(20, 1))], {0: swap}))
    assert [(r.base_offset, r.end_offset) for r in image.objects_from(TOPIC, 0)] == [(0, 20), (20, 30), (30, 44)]
    assert image.partition(TOPIC, 0).clean_offset == 28
    assert image.reserved == {}
    assert image.deletions == {klix(0): 5100, klix(10): 5100, klix(25): 5100}
    again = read_checkpoint(json.loads(json.dumps(write_checkpoint(image))), "root/", "checkpoint 1")
    assert again.partition(TOPIC, 0).clean_offset == 28


def test_a_reservation_ends_when_the_key_is_named_abandoned_or_expired():
    image = flushed(0, 10)
    apply_payload(image, record(u=[[klix(0, 1), 9000], [klix(0, 2), 9000], [klix(0, 3), 9500]]))
    apply_payload(image, record(q=[[klix(0, 2), 6000]]))
    assert image.deletions == {klix(0, 2): 6000}
    assert image.due_deletions(8999, 10) == [klix(0, 2)]
    assert image.due_deletions(9000, 10) == [klix(0, 2), klix(0, 1)]
    again = read_checkpoint(json.loads(json.dumps(write_checkpoint(image))), "root/", "checkpoint 1")
    assert again.reserved == {klix(0, 1): 9000, klix(0, 3): 9500}
    apply_payload(image, record(x=[klix(0, 1), klix(0, 2)]))
    assert image.reserved == {klix(0, 3): 9500}
    assert image.deletions == {}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (record(u=[[klix(0), 1]]), "cannot be reserved"),
        (record(u=[[klix(0, 1), 1]]), "cannot be reserved"),
        (record(u=[[klix(0, 9), 1]]), "cannot be reserved"),
        (record([file(klix(10))], {0: {"r": [ref(0, 10, 20)]}}, u=[[klix(10), 1]]), "cannot be reserved"),
        (record(u=[["/etc", 1]]), "not a key"),
        (record(u=[[klix(0, 2)]]), "list of 2"),
        (record(partitions={0: {"c": 4}}), "clean offset 4"),
        (record(partitions={0: {"c": 11}}), "clean offset 11"),
        (record(partitions={0: {"k": ["x"]}}), "not an integer"),
    ],
)
def test_reservations_and_clean_offsets_that_cannot_be_are_refused(bad, message):
    image = flushed(0, 10)
    apply_payload(image, record(partitions={0: {"c": 5}}, u=[[klix(0, 1), 9000]], q=[[klix(0, 9), 9000]]))
    with pytest.raises(CorruptionError, match=message):
        apply_payload(image, bad)


def test_aborted_transactions_without_batches_leave_the_list():
    image = flushed(0, 10)
    apply_payload(image, record(partitions={0: {"a": [[7, 1, 3, 4], [8, 2, 5, 6], [7, 6, 8, 9]]}}))
    apply_payload(image, record(partitions={0: {"k": [3, 8], "a": [[9, 1, 9, 10]]}}))
    assert image.partition(TOPIC, 0).aborted == ((8, 2, 5, 6), (9, 1, 9, 10))


def test_memory_of_the_manifest_is_taken_from_the_cache_of_reads():
    image = full_image()
    assert image.memory_bytes > 72
    before = image.memory_bytes
    assert cache_beside(image, 64 << 20) == 64 << 20  # a small one is not counted
    key = klix_key("t", TOPIC, 9, 0)
    delta = {"r": [[0, 0, 1, 0, 10, 1, 1, 1, 1]]}
    apply_payload(image, {"v": 1, "t": 1, "f": [[key, 10, "e", 1]], "p": {HEX: {"9": delta}}})
    assert image.memory_bytes >= before + 2 * 72
    taken = SimpleNamespace(memory_bytes=(4 << 20) + 1000)
    assert cache_beside(taken, 1 << 20) == (1 << 20) - 1000
    taken.memory_bytes = 1 << 30
    assert cache_beside(taken, 1 << 20) == 1 << 19


def test_a_state_is_pickled_whole():
    """Tasks of Spark get it."""
    state = PartitionState(b"t" * 16, 3, 7)
    state.end_offset, state.leader, state.data_bytes = 9, 5, 11
    state.aborted, state.tail, state.leader_epochs = ((1, 2, 3, 4),), ("directory", 4), ((4, 7),)
    copy = pickle.loads(pickle.dumps(state))
    names = [name for name in dir(state) if not name.startswith("_") and not callable(getattr(state, name))]
    assert {"aborted", "tail", "end_offset", "blocks"} < set(names)
    for name in names:
        if name != "producers":
            assert getattr(copy, name) == getattr(state, name), name
    assert list(copy.producers) == list(state.producers)
