"""Registrations, fences, moves, modes and new partitions: what records may say of them, and what follows."""

import json

import pytest

from kbroker.errors import CorruptionError
from kbroker.storage.manifest.checkpoints.checkpoint import read_checkpoint, write_checkpoint
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.leadership import (
    NO_LEADER,
    Mode,
    ModeChange,
    Move,
    NewPartition,
    Registered,
    Registration,
)
from kbroker.storage.manifest.partition_state import RefRow
from kbroker.storage.manifest.record import FileEntry, ManifestRecord, PartitionDelta
from kbroker.storage.manifest.record_apply import apply_payload, apply_record
from kbroker.storage.manifest.record_check import check_record

TOPIC = bytes(range(16))
NO_CHANGE = PartitionDelta(0, None, None, None, None, (), (), (), (), ())


def registration(number, directory="a", *, fences=True):
    return Registration(number, directory, 1, f"nonce-{number}", "place", "rack", "host:9092", "1.0", fences)


def move(leader, epoch, *, partition=0, tail=None, clean=False):
    return Move(TOPIC, partition, leader, epoch, tail, clean, False)


def record(**content):
    return ManifestRecord(**({"time_ms": 5000, "wal": None, "files": (), "partitions": {}} | DELETIONS | content))


DELETIONS = {"dropped_topics": (), "queued": (), "deleted": ()}


def apply(image, **content):
    made = record(**content)
    check_record(image, made, "record 7")
    apply_record(image, made)


def append(image, base, end, **changes):
    """An object of partition 0."""
    row = RefRow(base, end, 0, 100, 9, 1, 1000, end - base, 0, 0)
    delta = NO_CHANGE._replace(end_offset=end, added=(row,), **changes)
    apply(image, files=(FileEntry(f"k-{base}", 100, "e", 7),), partitions={(TOPIC, 0): delta})


def led():
    """Directories a (number 1, which leads partition 0 under epoch 5, with offsets 0 to 10) and b (number 2)."""
    image = ManifestImage()
    apply(image, registrations=(registration(1), registration(2, "b")))
    apply(image, new_partitions=(NewPartition(TOPIC, 0, Mode.OBJECT),))
    apply(image, moves=(move(1, 5, tail=("a", 5)),))
    append(image, 0, 10, number=1, leader_epoch=5)
    return image


def refused(image, match, **content):
    before = write_checkpoint(image)
    with pytest.raises(CorruptionError, match=f"record 7.*{match}"):
        apply(image, **content)
    assert write_checkpoint(image) == before


def test_a_move_starts_an_epoch_at_the_end_of_the_row():
    image = led()
    apply(image, moves=(move(2, 6, tail=("b", 6)),))
    state = image.partition(TOPIC, 0)
    assert (state.leader, state.leader_epoch, state.tail, state.is_clean) == (2, 6, ("b", 6), False)
    assert state.leader_epochs == ((5, 0), (6, 10))
    assert image.leader_epoch == 6
    assert image.registrations["b"] == Registered(registration(2, "b"), used=True)


def test_a_move_without_a_tail_keeps_the_tail():
    image = led()
    apply(image, moves=(move(NO_LEADER, 6, clean=True),))
    state = image.partition(TOPIC, 0)
    assert (state.leader, state.tail, state.is_clean) == (NO_LEADER, ("a", 5), True)


def test_reach_of_an_epoch_is_where_the_next_one_starts():
    image = led()
    apply(image, moves=(move(2, 6),))
    state = image.partition(TOPIC, 0)
    assert [state.reach(epoch) for epoch in (4, 5, 6)] == [-1, 10, 10]
    append(image, 10, 12)
    assert [state.reach(epoch) for epoch in (4, 5, 6)] == [-1, 10, 12]


def test_an_epoch_without_offsets_leaves_the_history_with_the_next_move():
    image = led()
    apply(image, moves=(move(2, 6),))
    apply(image, moves=(move(1, 7),))
    assert image.partition(TOPIC, 0).leader_epochs == ((5, 0), (7, 10))


@pytest.mark.parametrize(
    ("begun", "epochs"),
    [
        (((6, 14),), ((5, 0), (6, 14))),  # all of them are the tail's
        (((6, 12),), ((5, 0), (6, 12))),
        (((6, 10),), ((5, 0), (6, 10))),
        ((), ((5, 0), (6, 10))),
    ],
)
def test_an_epoch_begins_behind_the_entries_of_the_tail_that_its_leader_appends(begun, epochs):
    image = led()
    apply(image, moves=(move(1, 6),))
    append(image, 10, 14, number=1, leader_epoch=6, leader_epochs=begun)
    assert image.partition(TOPIC, 0).leader_epochs == epochs
    again = read_checkpoint(write_checkpoint(image), "", "checkpoint 7")
    assert again.partition(TOPIC, 0).leader_epochs == epochs


def test_epochs_of_the_tail_that_no_object_had_come_before_the_one_of_the_leader():
    image = led()
    for epoch in (6, 7, 8):
        apply(image, moves=(move(1, epoch),))
    append(image, 10, 14, number=1, leader_epoch=8, leader_epochs=((6, 11), (8, 14)))
    append(image, 14, 20, number=1, leader_epoch=8, leader_epochs=((7, 14), (8, 18)))
    state = image.partition(TOPIC, 0)
    assert state.leader_epochs == ((5, 0), (6, 11), (7, 14), (8, 18))
    assert [state.reach(epoch) for epoch in (5, 8)] == [11, 20]
    assert image.leader_epoch == 8


def test_an_epoch_of_the_tail_outlives_a_log_start_at_the_end_of_its_objects():
    image = led()
    apply(image, moves=(move(1, 6),))
    apply(image, partitions={(TOPIC, 0): NO_CHANGE._replace(log_start_offset=10, number=1, leader_epoch=6)})
    append(image, 10, 14, number=1, leader_epoch=6, leader_epochs=((6, 12),))
    assert image.partition(TOPIC, 0).leader_epochs == ((5, 10), (6, 12))


@pytest.mark.parametrize(
    "begun",
    [
        ((5, 12),),  # without that of the leader
        ((5, 10), (6, 12)),  # one that objects have, again
        ((6, 9),),  # below the end of the objects
        ((6, 15),),  # above the new one
        ((6, 12), (7, 13)),  # one that no move has given
        ((6, 13), (6, 14)),
    ],
)
def test_epochs_of_the_tail_that_do_not_fit_are_refused(begun):
    image = led()
    apply(image, moves=(move(1, 6),))
    row = RefRow(10, 14, 0, 100, 9, 1, 1000, 4, 0, 0)
    delta = NO_CHANGE._replace(end_offset=14, added=(row,), number=1, leader_epoch=6, leader_epochs=begun)
    refused(image, "epoch", files=(FileEntry("k", 100, "e", 7),), partitions={(TOPIC, 0): delta})


def test_an_epoch_that_objects_have_is_not_said_again():
    image = led()
    row = RefRow(10, 14, 0, 100, 9, 1, 1000, 4, 0, 0)
    delta = NO_CHANGE._replace(end_offset=14, added=(row,), number=1, leader_epoch=5, leader_epochs=((5, 12),))
    refused(image, "epoch", files=(FileEntry("k", 100, "e", 7),), partitions={(TOPIC, 0): delta})


def test_a_mode_change_raises_the_version():
    image = led()
    for version, mode in enumerate((Mode.WAL, Mode.OBJECT), start=1):
        apply(image, modes=(ModeChange(TOPIC, 0, mode),))
        state = image.partition(TOPIC, 0)
        assert (state.mode, state.mode_version) == (mode, version)


def test_a_registration_fences_the_earlier_number_of_its_directory():
    image = led()
    apply(image, registrations=(registration(3),))
    assert [image.is_fenced(number) for number in (0, 1, 2, 3, 4)] == [False, True, False, False, False]
    assert [image.directory_of(number) for number in (1, 2, 3)] == [None, "b", "a"]
    assert image.registrations["a"] == Registered(registration(3))
    assert image.last_number == 3


def test_a_registration_that_fences_nothing_leaves_the_earlier_number_to_a_fence():
    image = led()
    apply(image, registrations=(registration(3, fences=False),))
    assert [image.directory_of(number) for number in (1, 3)] == ["a", "a"]
    assert not image.is_fenced(1)
    apply(image, fences=(1,))
    assert image.is_fenced(1)
    assert not image.is_fenced(3)
    assert not image.registrations["a"].fenced


def test_a_fence_marks_the_directory_until_it_registers_again():
    image = led()
    apply(image, fences=(1,))
    assert image.registrations["a"] == Registered(registration(1), used=True, fenced=True)
    assert image.directory_of(1) == "a"
    apply(image, registrations=(registration(3),))
    assert image.registrations["a"] == Registered(registration(3))
    assert image.is_fenced(1)


@pytest.mark.parametrize(
    ("match", "content"),
    [
        ("broker number 2 follows 2", {"registrations": (registration(2, "c"),)}),
        ("broker number 3 follows 4", {"registrations": (registration(4, "c"), registration(3, "d"))}),
        ("registered twice", {"registrations": (registration(3, "c"), registration(4, "c"))}),
        ("fences broker number 9, which is not known", {"fences": (9,)}),
        ("gets leader epoch 5, the last one was 5", {"moves": (move(2, 5),)}),
        ("moved to broker number 9, which is not known", {"moves": (move(9, 6),)}),
        ("moved to broker number 2, which is fenced", {"moves": (move(2, 6),), "fences": (2,)}),
        ("moved to broker number 1, which is fenced", {"moves": (move(1, 6),), "registrations": (registration(3),)}),
        ("moved to broker number 3, which is not", {"moves": (move(3, 6),), "registrations": (registration(3),)}),
        ("moved twice", {"moves": (move(1, 6), move(2, 7))}),
        ("is moved, and has no row", {"moves": (move(1, 6, partition=1),)}),
        ("given a mode, and has no row", {"modes": (ModeChange(TOPIC, 1, Mode.WAL),)}),
        ("given a mode twice", {"modes": (ModeChange(TOPIC, 0, Mode.WAL),) * 2}),
        ("is dropped and moved", {"moves": (move(1, 6),), "dropped_topics": ((TOPIC, 0),)}),
        ("exists", {"new_partitions": (NewPartition(TOPIC, 0, Mode.WAL),)}),
        ("made twice", {"new_partitions": (NewPartition(TOPIC, 1, Mode.WAL),) * 2}),
        (
            "dropped and gets",
            {"new_partitions": (NewPartition(TOPIC, 1, Mode.WAL),), "dropped_topics": ((TOPIC, 0),)},
        ),
        ("is changed, and has no row", {"partitions": {(TOPIC, 1): NO_CHANGE}}),
        (
            "is made and changed|has no row",
            {"partitions": {(TOPIC, 1): NO_CHANGE}, "new_partitions": (NewPartition(TOPIC, 1, Mode.WAL),)},
        ),
        ("from broker number 2", {"partitions": {(TOPIC, 0): NO_CHANGE._replace(number=2, leader_epoch=5)}}),
        ("from broker number 1", {"partitions": {(TOPIC, 0): NO_CHANGE._replace(number=1, leader_epoch=4)}}),
    ],
)
def test_a_record_that_breaks_a_rule_changes_nothing(match, content):
    refused(led(), match, **content)


def test_a_fenced_sender_is_refused():
    image = led()
    apply(image, fences=(1,))
    refused(image, "from broker number 1", partitions={(TOPIC, 0): NO_CHANGE._replace(number=1, leader_epoch=5)})


def test_a_move_to_a_fenced_number_is_refused_after_the_fence():
    image = led()
    apply(image, fences=(2,))
    refused(image, "number 2, which is fenced", moves=(move(2, 6),))


def test_a_dropped_topic_gets_no_row_again():
    image = led()
    apply(image, dropped_topics=((TOPIC, 0),))
    refused(image, "topic was dropped", new_partitions=(NewPartition(TOPIC, 0, Mode.WAL),))


def test_a_new_partition_may_get_its_leader_in_the_same_record():
    image = led()
    apply(image, new_partitions=(NewPartition(TOPIC, 1, Mode.REPLICATED),), moves=(move(2, 6, partition=1),))
    state = image.partition(TOPIC, 1)
    assert (state.leader, state.mode, state.leader_epochs) == (2, Mode.REPLICATED, ((6, 0),))


def test_a_checkpoint_keeps_leadership():
    image = led()
    apply(image, registrations=(registration(3, "b", fences=False), registration(4, "c")), fences=(1,))
    apply(image, new_partitions=(NewPartition(TOPIC, 1, Mode.OBJECT),))
    apply(image, moves=(move(NO_LEADER, 6, clean=True),), modes=(ModeChange(TOPIC, 0, Mode.WAL),))
    payload = json.loads(json.dumps(write_checkpoint(image)))
    again = read_checkpoint(payload, "", "checkpoint 9")
    assert payload["v"] == 3
    assert json.loads(json.dumps(write_checkpoint(again))) == payload
    assert again.registrations == image.registrations
    assert again.numbers == image.numbers == {1: "a", 2: "b", 3: "b", 4: "c"}
    assert (again.last_number, again.leader_epoch) == (4, 6)
    for partition in (0, 1):
        assert fields(again.partition(TOPIC, partition)) == fields(image.partition(TOPIC, partition))


def fields(state):
    names = ("leader", "leader_epoch", "mode", "mode_version", "tail", "is_clean", "leader_epochs")
    return [getattr(state, name) for name in names]


def test_a_checkpoint_without_leadership_stays_of_version_2():
    image = ManifestImage()
    apply_payload(image, {"v": 2, "t": 1, "p": {TOPIC.hex(): {"0": {"h": [[3, 0], [8, 0]]}}}})
    payload = json.loads(json.dumps(write_checkpoint(image)))
    assert payload["v"] == 2
    assert image.leader_epoch == read_checkpoint(payload, "", "checkpoint 9").leader_epoch == 8


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("n", 1),
        ("n", None),
        ("h", 4),
        ("h", -2),
        ("i", []),
        ("o", [[1, "a"]]),
        ("o", [[9, "a"]]),
        ("o", [[1, "unknown"]]),
        ("o", None),
    ],
)
def test_a_checkpoint_with_brokers_that_cannot_be_is_refused(key, value):
    payload = json.loads(json.dumps(write_checkpoint(led()))) | {key: value}
    if key == "i":
        payload["n"] = 0
    with pytest.raises(CorruptionError, match="checkpoint 9"):
        read_checkpoint(payload, "", "checkpoint 9")
