"""Append and commit beside their floor: one pwrite and one fdatasync of as many bytes on the same disk.

The floor's file is written once before, as the log's segments are, so that a sync carries no metadata.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.small_log import NOW_MS, SmallLog
from kbroker._fast.records.records import build_batch

COMMIT_BYTES = [1024, 64 * 1024, 1024 * 1024]
PAGE_BYTES = 4096


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SmallLog]:
    with SmallLog(tmp_path) as log:
        log.settle()
        yield log


@pytest.mark.benchmark(group="wal")
@pytest.mark.parametrize("size", COMMIT_BYTES)
def test_append_and_commit(benchmark: Any, log: SmallLog, size: int) -> None:
    batch = build_batch([(None, os.urandom(size - 75), NOW_MS, [])])

    def commit() -> None:
        log.append_raw(batch)
        assert log.wal.sync(30)

    benchmark.pedantic(commit, rounds=30, warmup_rounds=3)


@pytest.mark.benchmark(group="wal")
@pytest.mark.parametrize("size", COMMIT_BYTES)
def test_floor_pwrite_and_fdatasync(benchmark: Any, tmp_path: Path, size: int) -> None:
    whole = -(-size // PAGE_BYTES) * PAGE_BYTES
    data = os.urandom(whole)
    space = 33 * whole
    descriptor = os.open(tmp_path / "floor", os.O_CREAT | os.O_RDWR, 0o600)
    position = 0

    def commit() -> None:
        nonlocal position
        os.pwrite(descriptor, data, position % space)
        os.fdatasync(descriptor)
        position += whole

    try:
        os.pwrite(descriptor, bytes(space), 0)
        os.fsync(descriptor)
        benchmark.pedantic(commit, rounds=30, warmup_rounds=3)
    finally:
        os.close(descriptor)


@pytest.mark.benchmark(group="wal-read")
def test_read_back_from_memory(benchmark: Any, log: SmallLog) -> None:
    log.append(build_batch([(None, os.urandom(16 * 1024), NOW_MS, [])]))
    log.settle()
    end = log.partition.next_offset
    assert len(benchmark(log.partition.read_bytes, 0, end, 1 << 20)) > 16 * 1024


@pytest.mark.benchmark(group="wal-read")
def test_floor_memcpy(benchmark: Any) -> None:
    data = bytearray(os.urandom(16 * 1024))
    benchmark(bytes, data)
