"""A manifest record of many append parts: encoded, decoded, checked and applied to an image.

KBROKER_BENCH_PARTS sets the number of parts; each has one reference, every third one producer, and PARTS_A_PACK of them
share an object.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from kbroker.storage.formats.object_keys import pack_key
from kbroker.storage.manifest.checked_columns import check_columns
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.leadership import Mode, Move, NewPartition, Registration
from kbroker.storage.manifest.partition_state import ProducerEntry, RefRow, pack_times
from kbroker.storage.manifest.record import FileEntry, ManifestRecord, PartitionDelta
from kbroker.storage.manifest.record_apply import apply_payload, apply_record
from kbroker.storage.manifest.record_check import check_record
from kbroker.storage.manifest.record_decode import read_record
from kbroker.storage.manifest.record_encode import encode_record

PARTS = int(os.environ.get("KBROKER_BENCH_PARTS", 1000))
PARTS_A_PACK = 80
TOPICS = [bytes([n]) * 16 for n in range(10)]


def led_image() -> ManifestImage:
    """All partitions, led by number 1 under epoch 5."""
    image = ManifestImage("root/")
    places = [(TOPICS[n % len(TOPICS)], n // len(TOPICS)) for n in range(PARTS)]
    registration = Registration(1, "a", 1, "n", "p", "r", "l", "v", True)
    rows = tuple(NewPartition(*place, Mode.OBJECT) for place in places)
    moves = tuple(Move(*place, 1, 5, ("a", 5), False, False) for place in places)
    apply_record(image, ManifestRecord(1, registrations=(registration,)))
    apply_record(image, ManifestRecord(1, new_partitions=rows, moves=moves))
    return image


def appends(serial: int) -> ManifestRecord:
    """The record of the serial-th flush of all partitions."""
    packs = (PARTS + PARTS_A_PACK - 1) // PARTS_A_PACK
    files = tuple(
        FileEntry(pack_key(7, serial * packs + n), PARTS_A_PACK * 1000, f"{serial * packs + n:032x}", n)
        for n in range(packs)
    )
    partitions = {}
    for n in range(PARTS):
        base = serial * 10
        row = RefRow(
            base, base + 10, n % PARTS_A_PACK * 1000, 1000, n * 7919, 5, 1_700_000_000_000 + serial, 10,
            pack_times(200, 0), n // PARTS_A_PACK,
        )  # fmt: skip
        producers: tuple[ProducerEntry, ...] = ()
        if n % 3 == 0:
            producers = ((n, 0, -1, 1_700_000_000_000, -1, ((serial, base + 9, 9, 1_700_000_000_000),)),)
        partitions[TOPICS[n % len(TOPICS)], n // len(TOPICS)] = PartitionDelta(
            0, None, base + 10, base + 10, None, (), (), producers, (), (row,), number=1, leader_epoch=5
        )
    return ManifestRecord(1_700_000_000_000, None, files, partitions, (), (), ())


@pytest.mark.benchmark(group="manifest-record")
def test_encode(benchmark: Any) -> None:
    benchmark(encode_record, appends(0))


@pytest.mark.benchmark(group="manifest-record")
def test_decode(benchmark: Any) -> None:
    benchmark(read_record, encode_record(appends(0)), "record")


@pytest.mark.benchmark(group="manifest-record")
def test_check_a_record(benchmark: Any) -> None:
    benchmark(check_record, led_image(), appends(0), "record")


@pytest.mark.benchmark(group="manifest-record")
def test_decode_and_check_columns(benchmark: Any) -> None:
    benchmark(check_columns, led_image(), encode_record(appends(0)), "record")


def each_time(benchmark: Any, call: Any, made: Any) -> None:
    """Runs `call` with an image and the next record that fits it."""
    image, serial = led_image(), iter(range(1_000_000))
    benchmark.pedantic(call, setup=lambda: ((image, made(appends(next(serial))), "record"), {}), rounds=50)


@pytest.mark.benchmark(group="manifest-record")
def test_check_and_apply_a_record(benchmark: Any) -> None:
    def run(image: ManifestImage, record: ManifestRecord, name: str) -> None:
        check_record(image, record, name)
        apply_record(image, record)

    each_time(benchmark, run, lambda record: record)


@pytest.mark.benchmark(group="manifest-record")
def test_decode_check_and_apply_columns(benchmark: Any) -> None:
    each_time(benchmark, apply_payload, encode_record)
