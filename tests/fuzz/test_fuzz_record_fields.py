"""Records of version 3 with one field another, cut, reordered, or of another cluster: check, apply, image.

Each is refused by name and changes nothing, or leaves an image that keeps its invariants.
"""

from __future__ import annotations

import copy
import itertools
import json
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kbroker.errors import CorruptionError
from kbroker.storage.formats.object_keys import klix_key, pack_key
from kbroker.storage.manifest.checkpoints.checkpoint import read_checkpoint, write_checkpoint
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.leadership import Mode, ModeChange, Move, NewPartition, Registration
from kbroker.storage.manifest.partition_state import RefRow, pack_times
from kbroker.storage.manifest.record import FileEntry, ManifestRecord, PartitionDelta
from kbroker.storage.manifest.record_apply import apply_payload
from kbroker.storage.manifest.record_columns import HEADER, TABLES
from kbroker.storage.manifest.record_encode import encode_record
from tests.fuzz.test_fuzz_manifest_columns import plausible
from tests.reference.image_invariants import check_image

T, U, V, W = (bytes([n]) * 16 for n in b"tuvw")
NAME = "record 9"
FIELD_CODES = {"<i8": "<q", "<u8": "<Q", "<i4": "<i", "<u4": "<I", "<i2": "<h", "u1": "<B", "V16": "16s"}
EXTREMES = (-1, 0, 1, 2, 3, 5, 7, 11, 12, 19, 20, 21, 1 << 15, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, -(1 << 63))
VALUES = (
    None,
    True,
    -1,
    0,
    1,
    2,
    1 << 31,
    1 << 63,
    1.5,
    "",
    "a",
    "/a",
    "../a",
    "x" * 2_000,
    "\ud800",
    [],
    [1],
    {},
    {"a": 1},
)


def registered(number: int, directory_id: str) -> Registration:
    return Registration(number, directory_id, number, f"n{number}", "place", "", "", "1", True)


def row(base: int, end: int, file: int, epoch: int = 11) -> RefRow:
    return RefRow(base, end, 100 * file, 100, 9, epoch, 1_000, end - base, pack_times(4, 0), file)


def cluster() -> ManifestImage:
    """Numbers 1 and 2 of directories a1 and a2; number 1 leads two partitions of T, with data, and one of U."""
    image = ManifestImage("root/")
    seen = 0

    def add(**content: Any) -> None:
        nonlocal seen
        seen += 1
        apply_payload(image, encode_record(ManifestRecord(time_ms=seen, **content)), f"record {seen}")

    places = ((T, 0), (T, 1), (U, 0))
    add(registrations=(registered(1, "a1"), registered(2, "a2")))
    add(new_partitions=(*(NewPartition(*place, Mode.OBJECT) for place in places), NewPartition(W, 0, Mode.WAL)))
    add(moves=tuple(Move(*place, 1, 11 + n, ("a1", 11 + n), False, False) for n, place in enumerate(places)))
    for n, base in enumerate((0, 10)):
        parts = {place: PartitionDelta(end_offset=base + 10, added=(row(base, base + 10, at),),
                                       aborted=((5, base, base + 1, base + 2),))
                 for at, place in enumerate(places[:2])}  # fmt: skip
        files = tuple(FileEntry(pack_key(1, 10 * n + at), 1_000, "0" * 32, 7) for at in range(2))
        add(files=files, partitions=parts)
    add(moves=(Move(U, 0, 1, 14, None, False, False),))
    add(reserved=(("reserved", 5), ("wanted", 6)), queued=(("dead", 7), ("gone", 8)), wal=("a1", 50))
    check_image(image)
    return image


def rich_record() -> ManifestRecord:
    """It says something in every table and under every key."""
    batches = ((3, 25, 0, 5), (4, 29, 0, 6))
    producers = ((7, 0, -1, 6, -1, batches), (8, 1, 2, 5, 22, ()))
    appended = PartitionDelta(
        end_offset=30, last_stable_offset=22, open_transactions=((8, 22),), producers=producers,
        added=(row(20, 25, 0), row(25, 30, 1)), number=1, leader_epoch=11,
    )  # fmt: skip
    replaced = PartitionDelta(
        grace_ms=9, log_start_offset=3, removed=(0, 10), added=(row(0, 20, 1, 12),), clean_offset=20, horizon_ms=70,
        aborted=((6, 12, 13, 14),), aborted_gone=(1,), number=1, leader_epoch=12,
    )  # fmt: skip
    tail = PartitionDelta(
        end_offset=8, last_stable_offset=8, leader_epochs=((13, 0), (14, 6)), added=(row(0, 8, 2, 14),), number=1,
        leader_epoch=14,
    )  # fmt: skip
    files = (
        FileEntry(pack_key(1, 40), 1_000, '"0123456789abcdef0123456789abcdef-3"', 7),
        FileEntry("wanted", 1_000, "e", 7),
        FileEntry(klix_key("u", U, 0, 0, 1), 1_000, "0" * 32, 7),
    )
    return ManifestRecord(
        100, ("a1", 60), files, {(T, 0): appended, (T, 1): replaced, (U, 0): tail}, ((W, 4),), (("orphan", 70),),
        ("dead",), (("next", 80),), (registered(3, "a3"), registered(4, "a2")), (2,),
        (Move(T, 0, 1, 20, ("a1", 20), False, False), Move(U, 0, -1, 21, None, True, False)),
        (ModeChange(T, 0, Mode.WAL),), (NewPartition(V, 0, Mode.OBJECT),),
    )  # fmt: skip


class Bench:
    """One image, to which every variant of a record is applied."""

    def __init__(self) -> None:
        self.before = write_checkpoint(cluster())
        self.image = self.copy()
        self.accepted = self.refused = 0

    def copy(self) -> ManifestImage:
        return read_checkpoint(self.before, "root/", "checkpoint 8")

    def take(self, payload: Any, why: object) -> None:
        try:
            apply_payload(self.image, payload, NAME)
        except CorruptionError as error:
            assert NAME in str(error), why  # noqa: PT017
            assert write_checkpoint(self.image) == self.before, why
            self.refused += 1
        else:
            check_image(self.image)
            stored = write_checkpoint(self.image)
            assert write_checkpoint(read_checkpoint(stored, "root/", "checkpoint 9")) == stored, why
            self.image = self.copy()
            self.accepted += 1


@pytest.fixture(scope="module")
def good() -> bytes:
    return encode_record(rich_record())


def tables_of(data: bytes) -> tuple[int, list[int]]:
    """Where the tables begin, and how many rows each has."""
    _, _, json_bytes, _, *rows, _ = HEADER.unpack_from(data)
    return HEADER.size + json_bytes, rows


def columns_of(data: bytes) -> Iterator[tuple[str, str, int, int]]:
    """Each column: its table's and its own name, where it begins, its rows."""
    at, rows = tables_of(data)
    for (table, columns), count in zip(TABLES.items(), rows, strict=True):
        assert count, f"table {table} is empty"
        for column, code in columns:
            yield f"{table}.{column}", FIELD_CODES[code], at, count
            at += struct.calcsize(FIELD_CODES[code]) * count
    assert at == len(data)


def test_record_fits_as_it_is(good: bytes) -> None:
    bench = Bench()
    bench.take(good, "as it is")
    assert bench.accepted == 1


def test_every_number_of_every_table_may_be_another(good: bytes) -> None:
    bench = Bench()
    for name, code, at, count in columns_of(good):
        size = struct.calcsize(code)
        present = [struct.unpack_from(code, good, at + n * size)[0] for n in range(count)]
        for n, value in enumerate(present):
            near = (T, U, V, W, bytes(16)) if code == "16s" else (*EXTREMES, value - 1, value + 1)
            for other in {*near, *present} - {value}:
                data = bytearray(good)
                try:
                    struct.pack_into(code, data, at + n * size, other)
                except struct.error:
                    continue  # no such number in this column
                bench.take(bytes(data), (name, n, other))
    assert bench.accepted > 100
    assert bench.refused > 1_000


def test_every_number_of_the_header_may_be_another(good: bytes) -> None:
    bench = Bench()
    fields = HEADER.unpack_from(good)
    for n, value in enumerate(fields):
        for other in {*EXTREMES, value - 1, value + 1} - {value}:
            try:
                header = HEADER.pack(*fields[:n], other, *fields[n + 1 :])
            except struct.error:
                continue
            bench.take(header + good[HEADER.size :], ("header", n, other))
    assert bench.refused > 100


def test_every_cut_is_refused(good: bytes) -> None:
    bench = Bench()
    for length in range(len(good)):
        bench.take(good[:length], length)
    bench.take(good + b"\0", "longer")
    assert bench.accepted == 0


def test_rows_and_columns_may_be_in_another_order(good: bytes) -> None:
    bench = Bench()
    found = list(columns_of(good))
    for table in TABLES:
        columns = [column for column in found if column[0].startswith(table + ".")]
        for one in range(columns[0][3]):
            for two in range(one):
                data = bytearray(good)
                for _, code, at, _ in columns:
                    size = struct.calcsize(code)
                    a, b = at + one * size, at + two * size
                    data[a : a + size], data[b : b + size] = data[b : b + size], data[a : a + size]
                bench.take(bytes(data), (table, one, two))
        for (_, code, at, count), (_, other, to, _) in itertools.pairwise(columns):
            size = count * struct.calcsize(code)
            if struct.calcsize(code) == struct.calcsize(other):
                data = bytearray(good)
                data[at : at + size], data[to : to + size] = data[to : to + size], data[at : at + size]
                bench.take(bytes(data), (table, at, to))
    assert bench.refused > 10


# -- the JSON --------------------------------------------------------------------------------------------------------


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """To everything within."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*path, key)
        yield from paths(item, (*path, key))


def replace(value: Any) -> Callable[[Any, Any], None]:
    return lambda owner, key: owner.__setitem__(key, value)


def double(owner: Any, key: Any) -> None:
    if isinstance(owner, list):
        owner.append(owner[key])


def reverse(owner: Any, key: Any) -> None:
    if isinstance(owner[key], list):
        owner[key].reverse()


CHANGES: tuple[Callable[[Any, Any], None], ...] = (
    *map(replace, VALUES), lambda owner, key: owner.__delitem__(key), double, reverse
)  # fmt: skip


def with_json(good: bytes, about: Any) -> bytes:
    at, _ = tables_of(good)
    text = json.dumps(about).encode()
    fields = list(HEADER.unpack_from(good))
    fields[2] = len(text)
    return HEADER.pack(*fields) + text + good[at:]


def test_every_value_of_the_json_may_be_another(good: bytes) -> None:
    bench = Bench()
    at, _ = tables_of(good)
    about = json.loads(good[HEADER.size : at])
    assert about.keys() == set("koewdqxuicnml")
    for path in paths(about):
        for n, change in enumerate(CHANGES):
            changed = copy.deepcopy(about)
            owner = changed
            for key in path[:-1]:
                owner = owner[key]
            change(owner, path[-1])
            if changed != about:
                bench.take(with_json(good, changed), (path, n))
    for whole in VALUES:
        bench.take(with_json(good, whole), whole)
    assert bench.accepted > 100
    assert bench.refused > 500


# -- another cluster -------------------------------------------------------------------------------------------------


def test_record_of_another_cluster_is_refused_or_leaves_the_image_whole() -> None:
    draw = random.Random(44)
    accepted = refused = 0
    for _ in range(10):
        images = ManifestImage("root/"), ManifestImage("root/")
        for serial in range(1, 30):
            payloads = [encode_record(plausible(draw, image, serial)) for image in images]
            for image, other in zip(images, reversed(payloads), strict=True):
                before = write_checkpoint(image)
                again = read_checkpoint(before, "root/", "checkpoint 8")
                try:
                    apply_payload(again, other, NAME)
                except CorruptionError as error:
                    assert NAME in str(error)  # noqa: PT017
                    assert write_checkpoint(again) == before
                    refused += 1
                else:
                    accepted += 1
                check_image(again)
            for image, own in zip(images, payloads, strict=True):
                apply_payload(image, own, NAME)
                check_image(image)
    assert accepted > 10
    assert refused > 100
