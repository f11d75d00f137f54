"""CRC-32C: each implementation against the crc32c package and the plain twin."""

from __future__ import annotations

import platform
from collections.abc import Iterator

import crc32c as package
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._fast.base import crc32c as fast
from tests.reference import record_twin

DATA = bytes((i * 7 + (i >> 8) * 13) & 0xFF for i in range(40_000))


LEVELS = [0, 1, 2]


@pytest.fixture(params=LEVELS)
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    yield fast.select_implementation(request.param)
    fast.select_implementation()


def test_golden_vectors(implementation: str) -> None:
    assert fast.crc32c(b"123456789") == 0xE3069283
    assert fast.crc32c(b"") == 0
    # RFC 3720, appendix B.4.
    assert fast.crc32c(bytes(32)) == 0x8A9136AA
    assert fast.crc32c(b"\xff" * 32) == 0x62A8AB43
    assert fast.crc32c(bytes(range(32))) == 0x46DD794E


def test_every_length_and_alignment(implementation: str) -> None:
    for length in [*range(200), *range(500, 900), *range(3000, 3130), 6144, 6145, 9999, 30_000]:
        for start in (0, 1, 5):
            piece = DATA[start : start + length]
            assert fast.crc32c(piece) == package.crc32c(piece), (start, length)


def test_levels_are_in_effect() -> None:
    try:
        names = [fast.select_implementation(level) for level in LEVELS]
    finally:
        assert fast.select_implementation() == fast.IMPLEMENTATION == names[-1]
    assert names[0] == "portable"
    if platform.machine() in ("x86_64", "aarch64"):
        assert names[1] in ("sse4.2", "armv8")


@given(st.binary(max_size=5000), st.integers(0, 2**32 - 1), st.sampled_from(LEVELS))
def test_equals_package_with_any_start_value(data: bytes, value: int, level: int) -> None:
    fast.select_implementation(level)
    try:
        assert fast.crc32c(data, value) == package.crc32c(data, value)
    finally:
        fast.select_implementation()


@given(st.binary(max_size=300))
def test_equals_twin(data: bytes) -> None:
    assert fast.crc32c(data) == record_twin.crc32c(data)


@given(st.binary(max_size=5000), st.binary(max_size=5000), st.sampled_from(LEVELS))
def test_combine(a: bytes, b: bytes, level: int) -> None:
    fast.select_implementation(level)
    try:
        assert fast.combine(package.crc32c(a), package.crc32c(b), len(b)) == package.crc32c(a + b)
    finally:
        fast.select_implementation()


def test_combine_with_gigabytes_of_zeros(implementation: str) -> None:
    # Two ways over the same 4 GiB: doubling a block of zeros 22 times, and one step.
    block = bytes(1024)
    crc, length = package.crc32c(block), len(block)
    for _ in range(22):
        crc, length = fast.combine(crc, crc, length), length * 2
    rest = fast.combine(fast.combine(0, package.crc32c(block), 1024), 0, 0)
    assert rest == package.crc32c(block)
    half = package.crc32c(block)
    for k in range(21):
        half = fast.combine(half, half, 1024 << k)
    assert fast.combine(half, half, length // 2) == crc


def test_combine_refuses_a_negative_length() -> None:
    with pytest.raises(ValueError, match="negative"):
        fast.combine(1, 2, -1)


def test_takes_any_contiguous_buffer() -> None:
    expected = package.crc32c(b"abc")
    assert fast.crc32c(bytearray(b"abc")) == fast.crc32c(memoryview(b"xabc")[1:]) == expected
    with pytest.raises(TypeError):
        fast.crc32c("abc")  # type: ignore[arg-type]
