"""Manifest records of version 3: hostile columns are refused by name, and good ones are what the twin says."""

from __future__ import annotations

import json
import random
import struct
import time
from collections.abc import Callable
from os import environ
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.errors import CorruptionError
from kbroker.storage.formats.object_keys import Author, authored_pack_key, klix_key, pack_key
from kbroker.storage.manifest import partition_state
from kbroker.storage.manifest.checkpoints.checkpoint import read_checkpoint, write_checkpoint
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.leadership import NO_EPOCH, NO_LEADER, Mode, ModeChange, Move, NewPartition, Registration
from kbroker.storage.manifest.partition_state import BLOCK_ROWS, SPAN_MAX, RefRow, pack_times
from kbroker.storage.manifest.record import FileEntry, ManifestRecord, PartitionDelta, parse_record
from kbroker.storage.manifest.record_apply import apply_payload, apply_record
from kbroker.storage.manifest.record_check import check_record
from kbroker.storage.manifest.record_columns import HEADER, TABLES
from kbroker.storage.manifest.record_decode import read_record
from kbroker.storage.manifest.record_encode import encode_json, encode_record, without_times
from tests.reference import manifest_record_twin as twin

SECONDS = float(environ.get("KBROKER_FUZZ_SECONDS", "2"))
TOPICS = [bytes([n]) * 16 for n in range(3)]
INT32, INT64 = (1 << 31) - 1, (1 << 63) - 1

offsets = st.integers(0, 1 << 40) | st.integers(0, INT64)
optional = st.none() | offsets
pairs = st.lists(st.tuples(offsets, offsets), max_size=3).map(tuple)
timestamps = st.integers(0, 1 << 41) | st.integers(-INT64, INT64)
authors = st.builds(Author, st.integers(1, 10**10 - 1), offsets)
keys = st.builds(
    klix_key, st.sampled_from(["t", "other"]), st.sampled_from(TOPICS), st.integers(0, 99), offsets, st.integers(0, 9),
    author=st.none() | authors,
)  # fmt: skip
names = (
    keys
    | st.builds(pack_key, st.integers(1, 10**10 - 1), st.integers(0, 99))
    | st.builds(authored_pack_key, authors, st.integers(0, 9))
    | st.text("abc/", min_size=1, max_size=9).filter(lambda text: not text.startswith("/"))
)
etags = st.sampled_from(["", "e", '"0123456789abcdef0123456789abcdef-3"', "0" * 32, "1f-0", "ü"])
files = st.builds(FileEntry, names, st.integers(1 << 20, INT64), etags, st.integers(0, (1 << 32) - 1))
batches = st.tuples(st.integers(-1, INT32), offsets, st.integers(0, INT32), timestamps)
producers = st.tuples(
    offsets, st.integers(-1, (1 << 15) - 1), st.integers(-1, INT32), timestamps, st.integers(-1, INT64),
    st.lists(batches, max_size=5).map(tuple),
)  # fmt: skip
aborted = st.tuples(offsets, st.integers(0, 99), st.integers(99, INT64), offsets)
modes = st.sampled_from(Mode)
moves = st.builds(
    Move, st.sampled_from(TOPICS), st.integers(0, INT32), st.integers(-1, INT64), st.integers(0, INT32),
    st.none() | st.tuples(st.text("ab", max_size=9), st.integers(0, INT32)), st.booleans(), st.booleans(),
)  # fmt: skip
texts = st.text("abcü", max_size=9)
registrations = st.builds(
    Registration, st.integers(1, INT64), texts, st.integers(0, INT32), texts, texts, texts, texts, texts, st.booleans()
)
keys_due = st.lists(st.tuples(names.filter(lambda key: ".." not in key), offsets), max_size=2).map(tuple)


@st.composite
def references(draw: Any, objects: int) -> RefRow:
    base, count = draw(st.integers(0, 1 << 40)), draw(st.integers(1, 1 << 40))
    start, length = draw(st.integers(0, 1 << 19)), draw(st.integers(1, 1 << 19))
    span_ms, late_ms = draw(st.integers(-1, SPAN_MAX)), draw(st.integers(-1, SPAN_MAX))
    newest = draw(st.integers(-INT64 + SPAN_MAX, INT64))
    return RefRow(
        base, base + count, start, length, draw(st.integers(0, (1 << 32) - 1)), draw(st.integers(-1, INT32)), newest,
        draw(offsets), pack_times(span_ms, late_ms), draw(st.integers(0, objects - 1)),
    )  # fmt: skip


@st.composite
def records(draw: Any) -> ManifestRecord:
    named = tuple(draw(st.lists(files, max_size=4)))
    rows = st.lists(references(len(named)), max_size=3).map(tuple) if named else st.just(())
    deltas = st.builds(
        PartitionDelta, offsets, optional, optional, optional, st.none() | pairs, pairs,
        st.lists(aborted, max_size=2).map(tuple), st.lists(producers, max_size=2).map(tuple),
        st.lists(offsets, max_size=2).map(tuple), rows, optional, st.lists(offsets, max_size=2).map(tuple), optional,
        st.integers(-1, INT64), st.integers(-1, INT32),
    )  # fmt: skip
    partitions = draw(st.dictionaries(st.tuples(st.sampled_from(TOPICS), st.integers(0, INT32)), deltas, max_size=4))
    mode_rows = st.tuples(st.sampled_from(TOPICS), st.integers(0, INT32), modes)
    return ManifestRecord(
        draw(offsets),
        draw(st.none() | st.tuples(texts, offsets)),
        named,
        partitions,
        tuple(draw(st.lists(st.tuples(st.sampled_from(TOPICS), offsets), max_size=2))),
        draw(keys_due),
        tuple(key for key, _ in draw(keys_due)),
        draw(keys_due),
        tuple(draw(st.lists(registrations, max_size=2))),
        tuple(draw(st.lists(st.integers(1, INT64), max_size=2))),
        tuple(draw(st.lists(moves, max_size=2))),
        tuple(ModeChange(*row) for row in draw(st.lists(mode_rows, max_size=2))),
        tuple(NewPartition(*row) for row in draw(st.lists(mode_rows, max_size=2))),
    )


@given(records())
@settings(deadline=None)
def test_a_record_is_read_as_it_was_written_and_as_the_twin_reads_it(record: ManifestRecord) -> None:
    data = encode_record(record)
    assert data == twin.encode(record)
    assert read_record(data, "record 7") == twin.decode(data) == record


@given(records())
@settings(deadline=None)
def test_a_record_without_leaders_is_read_from_json_as_it_was_written(record: ManifestRecord) -> None:
    partitions = {
        place: delta._replace(number=NO_LEADER, leader_epoch=NO_EPOCH) for place, delta in record.partitions.items()
    }
    dropped = tuple(dict(record.dropped_topics).items())
    plain = ManifestRecord(
        record.time_ms, record.wal, record.files, partitions, dropped, record.queued, record.deleted, record.reserved
    )
    for version, expected in ((1, without_times(plain)), (2, plain)):
        stored = json.loads(json.dumps(encode_json(plain, version)))
        assert stored["v"] == version
        assert parse_record(stored, "record 7") == expected


@pytest.mark.parametrize(
    "content",
    [
        {"fences": (1,)},
        {"modes": (ModeChange(TOPICS[0], 0, Mode.WAL),)},
        {"partitions": {(TOPICS[0], 0): PartitionDelta(number=1, leader_epoch=1)}},
    ],
)
def test_json_cannot_say_which_broker_leads(content: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="version 2 cannot say which broker leads"):
        encode_json(ManifestRecord(**content), 2)


def test_a_value_that_its_column_cannot_hold_is_never_written() -> None:
    row = RefRow(0, 1, 0, 1, -1, 1, 1, 1, 0, 0)
    partitions = {(TOPICS[0], 0): PartitionDelta(added=(row,))}
    record = ManifestRecord(files=(FileEntry("k", 1, "e", 1),), partitions=partitions)
    with pytest.raises(ValueError, match="column crc32c of table added"):
        encode_record(record)


def plausible(draw: random.Random, image: ManifestImage, serial: int) -> ManifestRecord:
    """A record that fits: appends with producers and transactions, new log starts, and now and then leadership."""
    named: list[FileEntry] = []
    partitions: dict[tuple[bytes, int], PartitionDelta] = {}
    for state in draw.sample(image.states(), draw.randint(0, min(4, len(image.states())))):
        end, rows = state.end_offset, []
        for _ in range(draw.randint(0, 2)):
            if not named or draw.random() < 0.5:
                counter = serial * 10 + len(named)
                key = draw.choice([pack_key(3, counter), authored_pack_key(Author(3, counter)), f"k-{counter}"])
                named.append(FileEntry(key, 100, draw.choice(["0" * 32, "e"]), 7))
            row = RefRow(end, end + 5, 0, 100, 9, 1, 1000, 5, pack_times(4, 0), len(named) - 1)
            rows.append(row)
            end = row.end_offset
        producers = [(draw.randint(0, 5), 0, -1, 5, -1, ((0, 1, 0, 5),) * draw.randint(0, 5))] * draw.randint(0, 1)
        start = state.log_start_offset + draw.randint(0, 9) if draw.random() < 0.1 else None
        sender = draw.choice([(-1, -1), (state.leader, state.leader_epoch if state.leader > 0 else -1)])
        partitions[state.topic_id, state.partition] = PartitionDelta(
            0, start, end, None if draw.random() < 0.5 else end, draw.choice([None, (), ((7, 3),)]), (),
            ((5, 1, 2, 3),) * (draw.random() < 0.1), tuple(producers), (), tuple(rows), number=sender[0],
            leader_epoch=sender[1],
        )  # fmt: skip
    used = {row.file for delta in partitions.values() for row in delta.added}
    assert len(used) == len(named)
    made = tuple(
        NewPartition(topic_id, at, Mode.OBJECT)
        for topic_id, at in {(draw.choice(TOPICS), draw.randrange(4))}
        if image.partition(topic_id, at) is None
    )
    number, epoch = image.last_number + 1, image.leader_epoch + 1
    moved = [state for state in image.states() if draw.random() < 0.2]
    leaders = [number for number in image.numbers if not image.is_fenced(number)]
    return ManifestRecord(
        serial, ("d", serial), tuple(named), partitions, (), (), (),
        registrations=(Registration(number, draw.choice("abc"), 1, "n", "p", "r", "l", "v", False),),
        moves=tuple(
            Move(state.topic_id, state.partition, draw.choice([-1, *leaders]), epoch, ("a", epoch), False, False)
            for state in moved
        ),
        modes=tuple(ModeChange(state.topic_id, state.partition, Mode.WAL) for state in moved),
        new_partitions=made,
    )  # fmt: skip


def flip(draw: random.Random, data: bytearray) -> None:
    for _ in range(draw.randint(1, 3)):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def truncate(draw: random.Random, data: bytearray) -> None:
    del data[draw.randrange(len(data)) :]


def extend(draw: random.Random, data: bytearray) -> None:
    data += draw.randbytes(draw.randint(1, 20))


def recount(draw: random.Random, data: bytearray) -> None:
    at = 16 + 4 * draw.randrange(len(TABLES))
    struct.pack_into("<I", data, at, draw.choice([0, 1, 2, 1 << 31, (1 << 32) - 1]))


def reorder(draw: random.Random, data: bytearray) -> None:
    """Swaps two pieces behind the header."""
    size = draw.choice([1, 4, 8, 16])
    if len(data) < HEADER.size + 2 * size:
        return
    one, two = (draw.randrange(HEADER.size, len(data) - size) for _ in range(2))
    data[one : one + size], data[two : two + size] = data[two : two + size], data[one : one + size]


def spoil(draw: random.Random, data: bytearray) -> None:
    """Puts an extreme number anywhere."""
    code, value = draw.choice(
        [("<q", -1), ("<q", -(1 << 63)), ("<q", INT64), ("<i", -1), ("<i", INT32), ("<I", 1 << 31)]
    )
    if len(data) >= struct.calcsize(code):
        struct.pack_into(code, data, draw.randrange(len(data) - struct.calcsize(code) + 1), value)


DAMAGES: list[Callable[[random.Random, bytearray], None]] = [flip, truncate, extend, recount, reorder, spoil]


def test_damaged_columns_are_refused_by_name_or_fit() -> None:
    draw = random.Random(environ.get("KBROKER_FUZZ_SEED", "6"))
    until = time.monotonic() + SECONDS
    accepted = refused = serial = 0
    image = ManifestImage("root/")
    while time.monotonic() < until or min(accepted, refused) <= 20:
        serial += 1
        if serial % 50 == 0:
            image = ManifestImage("root/")
        record = plausible(draw, image, serial)
        good = encode_record(record)
        for _ in range(4):
            data = bytearray(good)
            draw.choice(DAMAGES)(draw, data)
            name = f"record {serial}"
            try:
                found = read_record(bytes(data), name)
            except CorruptionError as error:
                assert name in str(error)  # noqa: PT017
                refused += 1
                continue
            assert read_record(encode_record(found), name) == found
            before = write_checkpoint(image)
            again = read_checkpoint(before, "root/", "checkpoint 5")
            try:
                apply_payload(again, bytes(data), name)
            except CorruptionError as error:
                assert name in str(error)  # noqa: PT017
                assert write_checkpoint(again) == before
            else:
                read_checkpoint(write_checkpoint(again), "root/", "checkpoint 5")
        apply_payload(image, good, f"record {serial}")
        accepted += 1
    assert accepted > 20
    assert refused > 20


@pytest.mark.parametrize("block_rows", [4, BLOCK_ROWS])
def test_records_give_the_same_image_in_memory_and_as_bytes(monkeypatch: pytest.MonkeyPatch, block_rows: int) -> None:
    monkeypatch.setattr(partition_state, "BLOCK_ROWS", block_rows)
    draw = random.Random(7)
    one, two = ManifestImage("root/"), ManifestImage("root/")
    for serial in range(1, 200):
        record = plausible(draw, one, serial)
        check_record(one, record, f"record {serial}")
        apply_record(one, record)
        apply_payload(two, encode_record(record), f"record {serial}")
        assert write_checkpoint(one) == write_checkpoint(two)
    assert one.reference_count > 200
    assert one.memory_bytes == two.memory_bytes
