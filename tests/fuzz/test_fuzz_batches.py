"""Fuzz: the validator answers any records of a client with a code, in bounded time and memory."""

from __future__ import annotations

import os
import random
import time
import tracemalloc

import pytest

from kbroker import limits
from kbroker._fast.records import compression
from kbroker._fast.records.recode import recode
from kbroker._fast.records.record_batch import CorruptRecordsError, validate
from kbroker._fast.records.records import build_batch, iter_batches, iter_records, parse_marker, seal
from tests.reference import record_twin as twin

SECONDS = float(os.environ.get("KBROKER_FUZZ_SECONDS", "2"))
NOW = 1_700_000_000_000
CODES = {0, 2, 10, 32, 76, 87}


def corpus(rng: random.Random, count: int) -> list[bytes]:
    def record(i: int) -> tuple[bytes | None, bytes, int, list[tuple[str, bytes | None]]]:
        key = rng.choice([None, rng.randbytes(rng.randrange(20))])
        return key, rng.randbytes(rng.randrange(200)), NOW + i, [("h", b"1")] * (i % 4)

    return [
        build_batch([record(i) for i in range(rng.randrange(1, 30))], codec=rng.choice(list(compression.CODECS)))
        for _ in range(count)
    ]


def mutate(rng: random.Random, batch: bytes, others: list[bytes]) -> bytearray:
    out = bytearray(batch)
    for _ in range(rng.randrange(1, 5)):
        start = rng.randrange(len(out)) if out else 0
        match rng.randrange(5):
            case 0:
                out[start : start + 1] = bytes([rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])])
            case 1:
                del out[start : start + rng.randrange(1, 9)]
            case 2:
                out[start:start] = rng.randbytes(rng.randrange(1, 9))
            case 3:
                other = rng.choice(others)
                out[start : start + 20] = other[start : start + 20]
            case 4:
                out[start : start + 5] = b"\xff\xff\xff\xff\x0f"
    if len(out) >= 61 and rng.random() < 0.9:
        seal(out)
    return out


def test_mutated_batches_are_answered_with_a_code() -> None:
    rng = random.Random(os.environ.get("KBROKER_FUZZ_SEED", "batches"))
    batches = corpus(rng, 40)
    deadline = time.monotonic() + SECONDS
    tried = 0
    while time.monotonic() < deadline or tried < 200:
        tried += 1
        batch = mutate(rng, rng.choice(batches), batches)
        rules = {"compacted": rng.random() < 0.3, "log_append_time": rng.random() < 0.3}
        before = bytes(batch)
        outcome = validate(batch, now_ms=NOW, **rules)
        assert outcome.error_code in CODES, before.hex()
        assert batch == before
        if len(batch) < 61 or batch[22] & 7 == 0:
            expected = twin.validate(before, now_ms=NOW, **rules)
            assert outcome.error_code == expected.error_code, before.hex()
        if outcome.renumber:
            before = recode(before, batch[22] & 7, renumber=True)
            assert not validate(before, now_ms=NOW, **rules).renumber
        for read in (iter_records, iter_batches):
            try:
                assert len(list(read(before))) <= len(before) * 1100
            except CorruptRecordsError:
                assert outcome.error_code != 0, before.hex()
        try:
            parse_marker(before)
        except CorruptRecordsError:
            pass


@pytest.mark.parametrize("codec", [1, 3, 4])
@pytest.mark.parametrize("shape", ["one huge record", "zeros", "endless records"])
def test_decompression_bombs_are_refused_in_bounded_memory(
    codec: int, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tens of megabytes from a few kilobytes end in INVALID_RECORD without taking them all into memory."""
    cap = 20_000_000
    monkeypatch.setattr(limits, "DECOMPRESSED_BATCH_BYTES_MAX", cap)
    record = twin.encode_record(twin.TwinRecord(0, 0, None, b"", []))
    content = {
        "one huge record": twin.encode_varint(40_000_000)
        + b"\0\0\0\x01"
        + twin.encode_varint(39_000_000)
        + bytes(40_000_000),
        "zeros": bytes(40_000_000),
        "endless records": record * (40_000_000 // len(record)),
    }[shape]
    body = compression.compress(codec, content)
    batch = twin.pack_header(body, attributes=codec, last_offset_delta=2**31 - 2, record_count=2**31 - 1)
    del content
    tracemalloc.start()
    try:
        assert validate(batch, now_ms=NOW).error_code == 87
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
        with pytest.raises(CorruptRecordsError):
            list(iter_records(batch))
        assert tracemalloc.get_traced_memory()[1] < 3 * cap
    finally:
        tracemalloc.stop()
