"""Hostile batches: the collector finds the right records or reports corruption."""

from __future__ import annotations

import os
import random
import time

from kbroker._fast.records.newest_records import NewestRecords, next_offset_of
from kbroker._fast.records.record_batch import CorruptRecordsError
from kbroker._fast.records.records import build_batch, build_control_batch, seal

SECONDS = float(os.environ.get("KBROKER_FUZZ_SECONDS", 2))


def some_batch(chance: random.Random) -> bytearray:
    if chance.random() < 0.2:
        return bytearray(
            build_control_batch(
                chance.randrange(2),
                producer_id=chance.randrange(3),
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp_ms=0,
            )
        )
    records = [
        (chance.randbytes(chance.randrange(20)), chance.randbytes(chance.randrange(40)), 0, None)
        for _ in range(chance.randrange(1, 5))
    ]
    transactional = chance.random() < 0.5
    codec = chance.choice(["none", "none", "gzip", "snappy", "lz4", "zstd"])
    return bytearray(
        build_batch(records, codec=codec, transactional=transactional, producer_id=chance.randrange(3) * transactional)
    )


def test_mutated_batches_with_a_valid_crc_are_read_or_corrupt() -> None:
    chance = random.Random(20)
    refused = taken = 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        collector = NewestRecords()
        for _ in range(8):
            batch = some_batch(chance)
            for _ in range(chance.randrange(3)):
                batch[chance.randrange(17, len(batch))] = chance.randrange(256)
            seal(batch)
            try:
                next_offset_of(batch)
                collector.feed(bytes(batch))
                taken += 1
            except CorruptRecordsError:
                refused += 1
        offsets = [record[0] for record in collector.take()]
        assert offsets == sorted(offsets)
    assert refused > 20
    assert taken > 20


def test_random_bytes_are_corrupt() -> None:
    chance = random.Random(21)
    end = time.monotonic() + SECONDS / 2
    while time.monotonic() < end:
        noise = chance.randbytes(chance.randrange(1, 200))
        try:
            NewestRecords().feed(noise)
        except CorruptRecordsError:
            continue
        raise AssertionError(noise.hex())
