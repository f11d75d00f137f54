"""A partition's append and reads beside their floors: the batch's CRC, memcpy, and numpy's binary search."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.small_log import NOW_MS, SmallLog
from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.records import build_batch

APPENDS = 200
BATCHES = int(os.environ.get("KBROKER_BENCH_ENTRIES", 2000))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SmallLog]:
    with SmallLog(tmp_path) as log:
        yield log


@pytest.fixture(params=[100, 4096])
def batch(request: pytest.FixtureRequest) -> bytes:
    return build_batch([(None, os.urandom(request.param), NOW_MS, [])])


@pytest.mark.benchmark(group="partition-append")
def test_append(benchmark: Any, log: SmallLog, batch: bytes) -> None:
    def many() -> None:
        for _ in range(APPENDS):
            log.append(batch)

    benchmark.pedantic(many, setup=log.settle, rounds=20, warmup_rounds=2)
    assert log.partition.next_offset >= APPENDS


@pytest.mark.benchmark(group="partition-append")
def test_append_of_an_idempotent_producer(benchmark: Any, log: SmallLog) -> None:
    rounds = iter(range(22))
    record = [(None, bytes(100), NOW_MS, [])]
    batches: list[bytes] = []

    def prepare() -> None:
        log.settle()
        first = next(rounds) * APPENDS
        batches[:] = [
            build_batch(record, producer_id=7, producer_epoch=0, base_sequence=first + i) for i in range(APPENDS)
        ]

    def many() -> None:
        for batch in batches:
            log.append(batch)

    benchmark.pedantic(many, setup=prepare, rounds=20, warmup_rounds=2)


@pytest.mark.benchmark(group="partition-append")
def test_floor_crc_and_memcpy(benchmark: Any, batch: bytes) -> None:
    out = memoryview(bytearray(APPENDS * len(batch)))
    size = len(batch)

    def many() -> None:
        for i in range(APPENDS):
            crc32c(batch)
            out[i * size : (i + 1) * size] = batch

    benchmark.pedantic(many, rounds=20, warmup_rounds=2)


@pytest.fixture
def filled(log: SmallLog) -> SmallLog:
    batch = build_batch([(None, bytes(1000), NOW_MS, [])])
    for _ in range(BATCHES):
        log.append(batch)
    log.wal.sync(30)
    return log


@pytest.mark.benchmark(group="partition-read")
def test_plan_of_one_batch(benchmark: Any, filled: SmallLog) -> None:
    plan = benchmark(filled.partition.read_plan, BATCHES // 2, BATCHES, 1)
    assert len(plan.references()) == 1


@pytest.mark.benchmark(group="partition-read")
def test_floor_binary_search(benchmark: Any) -> None:
    offsets = np.arange(BATCHES)
    assert benchmark(offsets.searchsorted, BATCHES // 2) == BATCHES // 2


@pytest.mark.benchmark(group="partition-read")
def test_read_of_many_batches(benchmark: Any, filled: SmallLog) -> None:
    data = benchmark(filled.partition.read_bytes, 0, BATCHES, 256 * 1024)
    assert len(data) > 200 * 1024


@pytest.mark.benchmark(group="partition-read")
def test_floor_memcpy(benchmark: Any) -> None:
    benchmark(bytes, bytearray(256 * 1024))


@pytest.mark.benchmark(group="partition-watermark")
def test_high_watermark(benchmark: Any, filled: SmallLog) -> None:
    assert benchmark(filled.partition.high_watermark) == BATCHES
