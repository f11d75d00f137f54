"""Fuzz: KLIX tails of any content parse, ask for more, or are named as corrupt."""

from __future__ import annotations

import os
import random
import time

from kbroker._fast.records.records import build_batch
from kbroker.errors import CorruptionError
from kbroker.storage.formats.klix import KlixFooter, NeedMore, encode_object
from tests.reference import klix_twin as twin

SECONDS = float(os.environ.get("KBROKER_FUZZ_SECONDS", "1"))


def test_mutated_tails_parse_or_are_corrupt() -> None:
    rng = random.Random(os.environ.get("KBROKER_FUZZ_SEED", "footers"))
    data = b"".join(build_batch([(None, b"x" * n, 1000 + n % 7, [])], base_offset=2 * n) for n in range(30))
    image = encode_object(data)
    deadline = time.monotonic() + SECONDS
    tried = 0
    while time.monotonic() < deadline or tried < 200:
        tried += 1
        tail = bytearray(image[-rng.randrange(len(image) + 1) :])
        for _ in range(rng.randrange(4)):
            if tail:
                tail[rng.randrange(max(0, len(tail) - 1000), len(tail))] = rng.choice([0, 0xFF, rng.randrange(256)])
        size = rng.choice([len(image), len(tail), rng.randrange(2 * len(image))])
        try:
            footer = KlixFooter.parse(bytes(tail), size)
        except CorruptionError:
            continue
        if isinstance(footer, NeedMore):
            assert len(tail) < footer.tail_bytes <= size
            continue
        entries = [twin.TwinEntry(*(int(v) for v in entry)) for entry in footer.entries]
        assert twin.is_valid(entries, footer.data_length)
        for _ in range(5):
            offset, timestamp = rng.randrange(-1, 70), rng.randrange(990, 1020)
            assert footer.find_offset(offset) == twin.find_offset(entries, offset)
            assert footer.find_timestamp(timestamp) == twin.find_timestamp(entries, timestamp)
