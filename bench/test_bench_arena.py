"""Appends into the arena beside their floor, memcpy of the same bytes. A round is many of them, settled before.

KBROKER_BENCH_BYTES sets the size of the large batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.small_log import NOW_MS, SmallLog
from kbroker._fast.records.records import build_batch

ROUND_BYTES = 2 * 1024 * 1024
SIZES = [1024, int(os.environ.get("KBROKER_BENCH_BYTES", 16 * 1024))]


@pytest.fixture(params=SIZES)
def batch(request: pytest.FixtureRequest) -> bytes:
    return build_batch([(None, os.urandom(request.param - 75), NOW_MS, [])])


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SmallLog]:
    with SmallLog(tmp_path) as log:
        yield log


@pytest.mark.benchmark(group="arena")
def test_append(benchmark: Any, log: SmallLog, batch: bytes) -> None:
    def many() -> None:
        for _ in range(ROUND_BYTES // len(batch)):
            log.append_raw(batch)

    benchmark.pedantic(many, setup=log.settle, rounds=20, warmup_rounds=2)
    assert log.wal.entries > 0


@pytest.mark.benchmark(group="arena")
def test_floor_memcpy(benchmark: Any, batch: bytes) -> None:
    out = memoryview(np.zeros(ROUND_BYTES, dtype=np.uint8).data).cast("B")
    size = len(batch)

    def many() -> None:
        for start in range(0, ROUND_BYTES - size + 1, size):
            out[start : start + size] = batch

    benchmark.pedantic(many, rounds=20, warmup_rounds=2)
