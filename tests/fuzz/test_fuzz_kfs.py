"""Fuzz: KafScale segments and indexes of any content parse or are named as corrupt; what parses obeys the rules."""

from __future__ import annotations

import os
import random
import struct
import time

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.records import build_batch
from kbroker.errors import CorruptionError
from kbroker.storage.formats.kfs import FOOTER_BYTES, HEADER_BYTES, batches_of, encode_segment, parse_segment
from kbroker.storage.formats.kfs_index import encode_index, parse_index, rebuild_index

SECONDS = float(os.environ.get("KBROKER_FUZZ_SECONDS", "1"))
SEED = os.environ.get("KBROKER_FUZZ_SEED", "kfs")


def mutate(rng: random.Random, data: bytearray) -> None:
    for _ in range(rng.randrange(3)):
        at = rng.randrange(len(data))
        match rng.randrange(3):
            case 0:
                data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            case 1:
                data[at:at] = rng.randbytes(rng.randrange(1, 5))
            case _:
                del data[at : at + rng.randrange(1, 5)]


def segment(rng: random.Random) -> bytes:
    base = rng.choice([0, 5, 1 << 40])
    pieces = []
    for _ in range(rng.randrange(1, 6)):
        count = rng.randrange(1, 90)
        pieces.append(build_batch([(None, b"v", 5, None)] * count, base_offset=base))
        base += count + rng.choice([0, 0, 3])
    return encode_segment(b"".join(pieces), 7)


def test_segments_of_any_content_parse_or_are_corrupt() -> None:
    rng = random.Random(SEED)
    deadline = time.monotonic() + SECONDS
    parsed = tried = 0
    while time.monotonic() < deadline or tried < 200:
        tried += 1
        data = bytearray(segment(rng))
        mutate(rng, data)
        if rng.random() < 0.7 and len(data) >= HEADER_BYTES + FOOTER_BYTES:
            body = data[HEADER_BYTES:-FOOTER_BYTES]
            struct.pack_into(">I", data, len(data) - FOOTER_BYTES, crc32c(bytes(body)))
        try:
            found = parse_segment(bytes(data))
        except CorruptionError:
            continue
        parsed += 1
        headers = [header for _, header in batches_of(found.body)]
        assert headers[0].base_offset == found.header.base_offset
        assert headers[-1].next_offset == found.end_offset
        index = parse_index(rebuild_index(found), found.header.base_offset, len(data))
        assert set(index.offsets) <= {header.base_offset for header in headers}
    assert 0 < parsed < tried


def test_indexes_of_any_content_parse_or_are_corrupt() -> None:
    rng = random.Random(f"{SEED} index")
    deadline = time.monotonic() + SECONDS
    parsed = tried = 0
    while time.monotonic() < deadline or tried < 200:
        tried += 1
        whole = segment(rng)
        found = parse_segment(whole)
        batches = [(at, head.size, head.base_offset, head.record_count) for at, head in batches_of(found.body)]
        data = bytearray(encode_index(batches, rng.choice([1, 10, 100])))
        mutate(rng, data)
        try:
            index = parse_index(bytes(data), found.header.base_offset, len(whole))
        except CorruptionError:
            continue
        parsed += 1
        for offset in (0, found.header.base_offset, found.end_offset, rng.randrange(1 << 62)):
            position, length = index.span(offset, len(whole))
            assert HEADER_BYTES <= position < position + length <= len(whole)
    assert 0 < parsed < tried
