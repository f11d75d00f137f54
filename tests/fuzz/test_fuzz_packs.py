"""Fuzz: pack directories of any content parse, ask for more, or are named as corrupt; what parses obeys the rules."""

from __future__ import annotations

import os
import random
import struct
import time

from kbroker._fast.base.crc32c import crc32c
from kbroker.errors import CorruptionError
from kbroker.storage.formats.klix import NeedMore
from kbroker.storage.formats.pack import PackDirectory, PackImage, encode_directory

SECONDS = float(os.environ.get("KBROKER_FUZZ_SECONDS", "1"))


def reseal(tail: bytearray) -> None:
    """Corrects the CRC for the directory that the footer claims, so that the checks after it are reached."""
    _position, length, _count = struct.unpack_from(">QQI", tail, len(tail) - 32)
    start = max(0, len(tail) - 32 - length)
    struct.pack_into(">I", tail, len(tail) - 12, crc32c(tail[start : len(tail) - 12]))


def test_mutated_directories_parse_or_are_corrupt() -> None:
    rng = random.Random(os.environ.get("KBROKER_FUZZ_SEED", "packs"))
    topics = sorted(rng.randbytes(16) for _ in range(4))
    images = [
        PackImage(topic, partition, 100 * k, 100 * k + 50, 500 * (partition * 2 + k + 6 * t), 500, 0, 0)
        for t, topic in enumerate(topics)
        for partition in range(3)
        for k in range(2)
    ]
    good = encode_directory(images)
    size = 500 * len(images) + len(good)
    deadline = time.monotonic() + SECONDS
    tried = parsed = 0
    while time.monotonic() < deadline or tried < 200:
        tried += 1
        tail = bytearray(good)
        for _ in range(rng.randrange(3)):
            tail[rng.randrange(len(tail))] = rng.choice([0, 0xFF, rng.randrange(256)])
        if rng.random() < 0.2:
            del tail[: rng.randrange(len(tail))]
        if rng.random() < 0.7 and len(tail) >= 32:
            reseal(tail)
        claimed = size if rng.random() < 0.8 else rng.randrange(2 * size)
        try:
            directory = PackDirectory.parse(bytes(tail), claimed)
        except CorruptionError:
            continue
        if isinstance(directory, NeedMore):
            assert len(tail) < directory.tail_bytes <= claimed
            continue
        parsed += 1
        assert encode_directory(list(directory)) == bytes(tail[-len(directory) * 64 - 32 :])
        for image in directory:
            assert directory.find(image.topic_id, image.partition, image.base_offset) == image
    assert parsed > 0
