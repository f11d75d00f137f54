"""Fuzz: klite's metadata logs of any content parse or are named as corrupt."""

from __future__ import annotations

import os
import random
import struct
import time

from kbroker._fast.base.crc32c import crc32c
from kbroker.errors import CorruptionError
from kbroker.exchange.bucket.klite_metadata import KliteTopic, encode_metadata_log, parse_metadata_log
from kbroker.limits import PARTITIONS_PER_TOPIC_MAX

SECONDS = float(os.environ.get("KBROKER_FUZZ_SECONDS", "1"))


def reseal(data: bytearray) -> None:
    at = 0
    while at + 8 <= len(data):
        length = struct.unpack_from(">I", data, at)[0]
        if not 4 < length <= len(data) - at - 4:
            return
        struct.pack_into(">I", data, at + 4, crc32c(bytes(data[at + 8 : at + 4 + length])))
        at += 4 + length


def test_mutated_logs_parse_or_are_corrupt() -> None:
    rng = random.Random(os.environ.get("KBROKER_FUZZ_SEED", "klite"))
    topics = [KliteTopic(f"t{n}", bytes([n + 1]) * 16, n + 1, {"a": "b"} if n else {}, {0: 7}) for n in range(3)]
    offsets = {("g", "t1", 0): (5, "m"), ("h", "t2", 1): (6, "")}
    good = encode_metadata_log(topics, offsets, 4000)
    parsed = parse_metadata_log(good)
    assert (list(parsed.topics.values()), parsed.offsets, parsed.next_producer_id) == (topics, offsets, 4000)
    deadline = time.monotonic() + SECONDS
    taken = tried = 0
    while time.monotonic() < deadline or tried < 300:
        tried += 1
        data = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.choice([0, 1, 2, 0x7F, 0xFF, rng.randrange(256)])
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        if rng.random() < 0.8:
            reseal(data)
        try:
            found = parse_metadata_log(bytes(data))
        except CorruptionError:
            continue
        taken += 1
        assert all(0 < topic.partitions <= PARTITIONS_PER_TOPIC_MAX for topic in found.topics.values())
        assert all(len(topic.topic_id) == 16 for topic in found.topics.values())
    assert 0 < taken < tried
