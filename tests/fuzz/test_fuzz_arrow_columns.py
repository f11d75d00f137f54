"""Damaged batches: the Arrow decoder and `iter_records` accept the same bytes and see the same records."""

from __future__ import annotations

import os
import random

import pytest

from kbroker._fast.records.record_batch import CorruptRecordsError
from kbroker._fast.records.record_rows import RowReader
from kbroker._fast.records.records import build_batch, iter_records, seal
from kbroker.pipeline.columns import BatchMaker

NOW = 1_700_000_000_000
ROUNDS = int(os.environ.get("KBROKER_FUZZ_SECONDS", "4")) * 500
CODECS = ("none", "none", "none", "gzip", "snappy", "lz4", "zstd")
HEADER_BYTES = 61


def damaged(chosen: random.Random) -> bytes:
    records = [
        (
            chosen.choice((None, b"key", chosen.randbytes(100))),
            chosen.choice((None, b"", chosen.randbytes(chosen.randrange(400)))),
            NOW + number,
            [("h", chosen.choice((None, b"", b"xyz")))] * chosen.randrange(3),
        )
        for number in range(chosen.randrange(1, 12))
    ]
    batch = bytearray(build_batch(records, codec=chosen.choice(CODECS)))
    for _ in range(chosen.randrange(4)):
        # Of the header only fields that the decoder judges itself: magic and codec have other tests.
        place = chosen.choice((*range(23, 27), *range(57, 61), *range(HEADER_BYTES, len(batch))))
        batch[place] = chosen.choice((0, 1, 0x7F, 0x80, 0xFF, chosen.randrange(256)))
    if chosen.random() < 0.2:
        del batch[chosen.randrange(HEADER_BYTES, len(batch)) :]
    if chosen.random() < 0.1:
        batch += chosen.randbytes(chosen.randrange(1, 20))
    seal(batch)
    return bytes(batch)


def oracle(batch: bytes) -> list[tuple] | None:
    try:
        return [
            (record.offset, record.timestamp, record.key, record.value, list(record.headers))
            for record in iter_records(batch)
        ]
    except ValueError:
        return None


def decoded(batch: bytes) -> list[tuple] | None:
    maker = BatchMaker(("offset", "timestamp", "key", "value", "headers"), "t", 0)
    builder, reader = maker.builder(), RowReader()
    reader.open(batch)
    try:
        reader.fill(builder)
    except CorruptRecordsError:
        return None
    made = maker.take(builder)
    if made is None:
        return []
    made.validate(full=True)
    stamps = made.column("timestamp").cast("int64").to_pylist()
    return [
        (row["offset"], stamp // 1000, row["key"], row["value"], [(h["key"], h["value"]) for h in row["headers"] or ()])
        for row, stamp in zip(made.drop_columns(["timestamp"]).to_pylist(), stamps, strict=True)
    ]


@pytest.mark.parametrize("seed", range(4))
def test_damaged_batches_are_judged_as_by_iter_records(seed: int) -> None:
    chosen = random.Random(seed)
    refused = 0
    for number in range(ROUNDS // 4):
        batch = damaged(chosen)
        found, wanted = decoded(batch), oracle(batch)
        if found is None and wanted is not None:
            # A column of microseconds has a smaller range than a record's timestamp.
            assert any(abs(row[1]) > (1 << 63) // 1000 - 1 for row in wanted), (seed, number)
            continue
        assert found == wanted, (seed, number)
        refused += wanted is None
    assert 0 < refused < ROUNDS // 4
