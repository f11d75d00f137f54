"""CRC-32C beside its floors: the crc32c package, and memcpy of the same bytes.

Tiny by default; KBROKER_BENCH_BYTES sets the size of the large case.
"""

from __future__ import annotations

import os
from typing import Any

import crc32c as package
import pytest

from kbroker._fast.base import crc32c as fast

SIZES = [100, 1024, 16 * 1024, int(os.environ.get("KBROKER_BENCH_BYTES", 1024 * 1024))]


@pytest.fixture(params=SIZES)
def data(request: pytest.FixtureRequest) -> bytes:
    return os.urandom(request.param)


@pytest.mark.benchmark(group="crc")
def test_crc32c(benchmark: Any, data: bytes) -> None:
    assert benchmark(fast.crc32c, data) == package.crc32c(data)


@pytest.mark.benchmark(group="crc")
def test_floor_crc32c_package(benchmark: Any, data: bytes) -> None:
    benchmark(package.crc32c, data)


@pytest.mark.benchmark(group="crc")
def test_floor_memcpy(benchmark: Any, data: bytes) -> None:
    out = bytearray(len(data))

    def copy() -> None:
        out[:] = data

    benchmark(copy)


@pytest.mark.benchmark(group="crc-combine")
def test_combine(benchmark: Any) -> None:
    benchmark(fast.combine, 0x12345678, 0x9ABCDEF0, 1_000_000)
