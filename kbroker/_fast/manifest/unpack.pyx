"""Reads the tables of a manifest record as rows of int64; GIL held."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy


def unpack_rows(bytes data, Py_ssize_t position, str codes, int64_t[:, ::1] rows):
    """Fills ``rows`` from columns, one after another from ``position`` on; ``codes``: their types, as of struct.

    Returns the position behind them. Little-endian, as every machine that kbroker runs on.
    """
    cdef Py_ssize_t column, row, count = rows.shape[0]
    cdef const char* at
    cdef Py_UCS4 code
    if rows.shape[1] != len(codes):
        raise ValueError("not a type for each column")
    for column, code in enumerate(codes):
        size = _size(code)
        if position < 0 or position + count * size > PyBytes_GET_SIZE(data):
            raise ValueError(f"{PyBytes_GET_SIZE(data)} bytes do not hold {count} rows from {position} on")
        at = PyBytes_AS_STRING(data) + position
        for row in range(count):
            rows[row, column] = _value(at, code)
            at += size
        position += count * size
    return position


cdef Py_ssize_t _size(Py_UCS4 code) except -1:
    if code == "q":
        return 8
    if code == "i" or code == "I":
        return 4
    if code == "h":
        return 2
    if code == "B":
        return 1
    raise ValueError(f"no type {code}")


cdef inline int64_t _value(const char* at, Py_UCS4 code) noexcept:
    cdef int64_t long_
    cdef int32_t int_
    cdef uint32_t unsigned
    cdef int16_t short_
    if code == "q":
        memcpy(&long_, at, 8)
        return long_
    if code == "i":
        memcpy(&int_, at, 4)
        return int_
    if code == "I":
        memcpy(&unsigned, at, 4)
        return unsigned
    if code == "h":
        memcpy(&short_, at, 2)
        return short_
    return <uint8_t>at[0]
