"""Damaged objects: a read gives exactly what was written, or an error; never other bytes, never a crash."""

from __future__ import annotations

import os
import random
import time

from kbroker.errors import CorruptionError
from kbroker.limits import MIB
from kbroker.storage.read.object_reader import ObjectReader
from tests.unit.storage.read.object_bucket import ObjectBucket, batches, topic_id

SECONDS = float(os.environ.get("KBROKER_FUZZ_SECONDS", "3"))
LEADER_EPOCH = range(12, 16)  # of a batch: no CRC of a ranged read covers it
FOREVER = 1 << 62


def damage(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        at = rng.randrange(len(data))
        kind = rng.randrange(4)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            end = min(len(data), at + rng.randrange(1, 40))
            data[at:end] = rng.randbytes(end - at)
        else:
            source = rng.randrange(len(data))
            piece = data[source : source + rng.randrange(1, 200)]
            piece = piece[: len(data) - at]
            data[at : at + len(piece)] = piece


def without_epochs(data: bytes) -> bytes:
    """The batches with their leader epochs blanked."""
    blank, position = bytearray(data), 0
    while position < len(blank):
        for at in LEADER_EPOCH:
            blank[position + at] = 0
        position += 12 + int.from_bytes(blank[position + 8 : position + 12], "big")
    return bytes(blank)


def test_a_damaged_object_is_read_exactly_or_is_an_error() -> None:
    seed = os.environ.get("KBROKER_FUZZ_SEED") or str(random.randrange(1 << 32))
    rng = random.Random(seed)
    end = time.monotonic() + SECONDS
    found = refused = 0
    while time.monotonic() < end:
        bucket = ObjectBucket()
        written = {(topic, partition): batches(0, rng.randrange(1, 30), rng.randrange(1, 4), rng.randrange(1, 900))
                   for topic in ("t", "u") for partition in range(rng.randrange(1, 3))}  # fmt: skip
        keys = [bucket.pack([(*place, data) for place, data in written.items()])]
        if rng.random() < 0.5:
            bucket = ObjectBucket()
            keys = [bucket.klix(*place, data) for place, data in written.items()]
        for key in keys:
            data = bytearray(bucket.store.get(key))
            damage(data, rng)
            bucket.swap(key, bytes(data))
        reader = ObjectReader(bucket.store, bucket.image, 64 * MIB)
        for (topic, partition), expected in written.items():
            offset = 0
            parts = []
            try:
                while batch := reader.read(topic_id(topic), partition, offset, FOREVER, rng.randrange(1, 5000)):
                    assert batch.next_offset > offset, seed
                    parts += batch.parts
                    offset = batch.next_offset
            except CorruptionError:
                refused += 1
                continue
            found += 1
            assert without_epochs(b"".join(parts)) == without_epochs(expected), seed
    assert found
    assert refused
