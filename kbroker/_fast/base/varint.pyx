"""Varints of the Kafka protocol for Python callers: zig-zag base-128, least significant group first.

A 32-bit value takes at most 5 bytes, a 64-bit value at most 10. The decoders return (value, position after it) and
raise ValueError when the bytes end inside the varint or it is longer than that. Bits beyond the width are dropped.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from kbroker._fast.base.cursor cimport Cursor, take_uvarint, take_varint, take_varlong
from kbroker._fast.base.varint cimport VARLONG_BYTES_MAX, put_uvarlong, put_varlong, size_of_varlong


cdef Cursor _at(const uint8_t[::1] data, Py_ssize_t position) except *:
    cdef Cursor c
    c.p = c.end = NULL
    if position < 0 or position > data.shape[0]:
        raise ValueError(f"position {position} is outside the {data.shape[0]} bytes")
    if data.shape[0] > 0:
        c.p = &data[0] + position
        c.end = &data[0] + data.shape[0]
    return c


def encode_varint(int32_t value):
    """Zig-zag varint of a 32-bit value."""
    cdef uint8_t out[VARLONG_BYTES_MAX]
    return out[:put_varlong(out, value) - out]


def encode_varlong(int64_t value):
    """Zig-zag varint of a 64-bit value."""
    cdef uint8_t out[VARLONG_BYTES_MAX]
    return out[:put_varlong(out, value) - out]


def encode_unsigned_varint(uint32_t value):
    """Unsigned varint of a 32-bit value (lengths in flexible protocol versions)."""
    cdef uint8_t out[VARLONG_BYTES_MAX]
    return out[:put_uvarlong(out, value) - out]


def decode_varint(const uint8_t[::1] data, Py_ssize_t position=0):
    """(value, next position) of the zig-zag 32-bit varint at ``position``."""
    cdef Cursor c = _at(data, position)
    cdef const uint8_t* start = c.p
    cdef int32_t value
    if take_varint(&c, &value) < 0:
        raise ValueError(f"no complete varint at position {position}")
    return value, position + (c.p - start)


def decode_varlong(const uint8_t[::1] data, Py_ssize_t position=0):
    """(value, next position) of the zig-zag 64-bit varint at ``position``."""
    cdef Cursor c = _at(data, position)
    cdef const uint8_t* start = c.p
    cdef int64_t value
    if take_varlong(&c, &value) < 0:
        raise ValueError(f"no complete varlong at position {position}")
    return value, position + (c.p - start)


def decode_unsigned_varint(const uint8_t[::1] data, Py_ssize_t position=0):
    """(value, next position) of the unsigned 32-bit varint at ``position``."""
    cdef Cursor c = _at(data, position)
    cdef const uint8_t* start = c.p
    cdef uint32_t value
    if take_uvarint(&c, &value) < 0:
        raise ValueError(f"no complete unsigned varint at position {position}")
    return value, position + (c.p - start)


def size_of(int64_t value):
    """Bytes of the zig-zag varint of ``value``."""
    return size_of_varlong(value)
