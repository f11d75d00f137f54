"""Varints against the golden vectors and the plain twin."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._fast.base import varint
from tests.reference import record_twin

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(-1, "01"), (64, "8001"), (-65, "8101"), (2147483647, "feffffff0f"), (0, "00"), (-(2**31), "ffffffff0f")],
)
def test_golden_vectors(value: int, encoded: str) -> None:
    assert varint.encode_varint(value).hex() == encoded
    assert varint.decode_varint(bytes.fromhex(encoded)) == (value, len(encoded) // 2)


@given(INT32, st.binary(max_size=3))
def test_varint_round_trip(value: int, after: bytes) -> None:
    encoded = varint.encode_varint(value)
    assert encoded == record_twin.encode_varint(value)
    assert varint.decode_varint(encoded + after) == (value, len(encoded))
    assert varint.size_of(value) == len(encoded)


@given(INT64)
def test_varlong_round_trip(value: int) -> None:
    encoded = varint.encode_varlong(value)
    assert encoded == record_twin.encode_varint(value)
    assert varint.decode_varlong(b"\xff" + encoded, 1) == (value, 1 + len(encoded))
    assert varint.size_of(value) == len(encoded)


@given(st.integers(0, 2**32 - 1))
def test_unsigned_round_trip(value: int) -> None:
    encoded = varint.encode_unsigned_varint(value)
    assert varint.decode_unsigned_varint(encoded) == (value, len(encoded))


@given(st.binary(max_size=12), st.sampled_from([32, 64]))
def test_any_bytes_decode_as_the_twin_says(data: bytes, bits: int) -> None:
    decode = varint.decode_varint if bits == 32 else varint.decode_varlong
    try:
        expected = record_twin.decode_varint(data, 0, bits)
    except record_twin.BadRecord:
        with pytest.raises(ValueError, match="no complete"):
            decode(data)
    else:
        assert decode(data) == expected


@pytest.mark.parametrize("data", [b"", b"\x80", b"\x80" * 5, b"\xff" * 5 + b"\x00"])
def test_cut_off_or_too_long(data: bytes) -> None:
    with pytest.raises(ValueError, match="varint"):
        varint.decode_varint(data)
    with pytest.raises(ValueError, match="varint"):
        varint.decode_unsigned_varint(data)


def test_varlong_of_eleven_bytes_is_too_long() -> None:
    assert varint.decode_varlong(b"\xff" * 9 + b"\x01") == (-(2**63), 10)
    with pytest.raises(ValueError, match="varlong"):
        varint.decode_varlong(b"\xff" * 10 + b"\x00")


def test_position_outside_the_buffer() -> None:
    for position in (-1, 3):
        with pytest.raises(ValueError, match="outside"):
            varint.decode_varint(b"\x00\x00", position)
