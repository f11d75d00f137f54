"""KLIX footers and pack directories beside their floors: memcpy, and numpy's search over native integers.

KBROKER_BENCH_ENTRIES sets the number of index entries.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from kbroker.storage.formats.klix import BATCH_DTYPE, KlixFooter, encode_footer
from kbroker.storage.formats.pack import PackDirectory, PackImage, encode_directory

ENTRIES = int(os.environ.get("KBROKER_BENCH_ENTRIES", 2000))


@pytest.fixture(scope="module")
def entries() -> np.ndarray:
    table = np.zeros(ENTRIES, dtype=BATCH_DTYPE)
    table["base_offset"] = np.arange(ENTRIES) * 10
    table["size"], table["last_offset_delta"], table["record_count"] = 1000, 9, 10
    table["max_timestamp"] = np.arange(ENTRIES) * 1000
    return table


@pytest.fixture(scope="module")
def footer(entries: np.ndarray) -> KlixFooter:
    encoded = encode_footer(entries)
    parsed = KlixFooter.parse(encoded, 1000 * ENTRIES + len(encoded))
    assert isinstance(parsed, KlixFooter)
    return parsed


@pytest.mark.benchmark(group="footer-encode")
def test_encode(benchmark: Any, entries: np.ndarray) -> None:
    benchmark(encode_footer, entries)


@pytest.mark.benchmark(group="footer-encode")
def test_floor_memcpy(benchmark: Any, entries: np.ndarray) -> None:
    benchmark(entries.tobytes)


@pytest.mark.benchmark(group="footer-parse")
def test_parse(benchmark: Any, entries: np.ndarray) -> None:
    encoded = encode_footer(entries)
    benchmark(KlixFooter.parse, encoded, 1000 * ENTRIES + len(encoded))


@pytest.mark.benchmark(group="footer-search")
def test_find_offset(benchmark: Any, footer: KlixFooter) -> None:
    assert benchmark(footer.find_offset, ENTRIES * 5) == ENTRIES // 2


@pytest.mark.benchmark(group="footer-search")
def test_floor_searchsorted(benchmark: Any, entries: np.ndarray) -> None:
    benchmark(np.ascontiguousarray(entries["base_offset"]).searchsorted, ENTRIES * 5)


@pytest.mark.benchmark(group="footer-search")
def test_find_timestamp_at_the_end(benchmark: Any, footer: KlixFooter) -> None:
    assert benchmark(footer.find_timestamp, (ENTRIES - 1) * 1000) == ENTRIES - 1


@pytest.fixture(scope="module")
def directory() -> PackDirectory:
    images = [PackImage(bytes(16), i, 0, 100, 1000 * i, 1000, 0, 0) for i in range(ENTRIES)]
    tail = encode_directory(images)
    parsed = PackDirectory.parse(tail, 1000 * ENTRIES + len(tail))
    assert isinstance(parsed, PackDirectory)
    return parsed


@pytest.mark.benchmark(group="pack")
def test_pack_parse(benchmark: Any, directory: PackDirectory) -> None:
    tail = encode_directory(list(directory))
    benchmark(PackDirectory.parse, tail, 1000 * ENTRIES + len(tail))


@pytest.mark.benchmark(group="pack")
def test_pack_find(benchmark: Any, directory: PackDirectory) -> None:
    assert benchmark(directory.find, bytes(16), ENTRIES // 2, 50) is not None
