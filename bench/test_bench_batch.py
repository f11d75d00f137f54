"""Validation of a produced batch beside its floors: CRC alone, and a C loop that only sums the bytes.

The codecs stand beside their own decompression. KBROKER_BENCH_BYTES sets the size of a batch.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.compression import CODECS, decompress_pieces
from kbroker._fast.records.record_batch import validate
from kbroker._fast.records.records import build_batch, iter_batches, iter_records

NOW = 1_700_000_000_000
BATCH_BYTES = int(os.environ.get("KBROKER_BENCH_BYTES", 16 * 1024))


def batch_of(record_bytes: int, codec: str = "none") -> bytes:
    line = (b"the quick brown fox jumps over the lazy dog, " * (record_bytes // 45 + 1))[:record_bytes]
    count = max(1, BATCH_BYTES // record_bytes)
    return build_batch([(None, line, NOW + i, []) for i in range(count)], codec=codec)


@pytest.fixture(params=[100, 1024])
def batch(request: pytest.FixtureRequest) -> bytes:
    return batch_of(request.param)


@pytest.mark.benchmark(group="batch")
def test_validate(benchmark: Any, batch: bytes) -> None:
    assert benchmark(validate, batch, now_ms=NOW).error_code == 0


@pytest.mark.benchmark(group="batch")
def test_floor_crc(benchmark: Any, batch: bytes) -> None:
    benchmark(crc32c, batch)


@pytest.mark.benchmark(group="batch")
def test_floor_sum_of_bytes(benchmark: Any, batch: bytes) -> None:
    benchmark(np.frombuffer(batch, dtype=np.uint8).sum)


@pytest.mark.benchmark(group="batch-compressed")
@pytest.mark.parametrize("codec", list(CODECS)[1:])
def test_validate_compressed(benchmark: Any, codec: str) -> None:
    assert benchmark(validate, batch_of(100, codec), now_ms=NOW).error_code == 0


@pytest.mark.benchmark(group="batch-compressed")
@pytest.mark.parametrize("codec", list(CODECS)[1:])
def test_floor_decompress(benchmark: Any, codec: str) -> None:
    body = batch_of(100, codec)[61:]
    benchmark(lambda: sum(map(len, decompress_pieces(CODECS[codec], body))))


@pytest.mark.benchmark(group="batch-python")
def test_build(benchmark: Any) -> None:
    content: list[Any] = [(b"key", bytes(100), NOW, [])] * 100
    benchmark(build_batch, content)


@pytest.mark.benchmark(group="batch-python")
def test_iter_records(benchmark: Any) -> None:
    batch = batch_of(100)
    benchmark(lambda: sum(1 for _ in iter_records(batch)))


@pytest.mark.benchmark(group="batch-python")
def test_iter_batches(benchmark: Any) -> None:
    batches = batch_of(100) * 100
    assert benchmark(lambda: sum(1 for _ in iter_batches(batches))) == 100
