"""CRC-32C (Castagnoli), the checksum of record batches and of this broker's own formats."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef extern from "crc32c_impl.h" nogil:
    uint32_t kb_crc_update(uint32_t crc, const uint8_t* p, size_t n) noexcept
    uint32_t kb_crc_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b) noexcept
    const char* kb_crc_select(int level_max) noexcept

# Below this, handing the GIL over costs more than the checksum.
cdef enum:
    GIL_RELEASE_BYTES = 16384


cdef uint32_t crc32c_c(uint32_t crc, const uint8_t* p, Py_ssize_t n) noexcept nogil:
    return kb_crc_update(crc, p, <size_t>n)


cdef uint32_t crc32c_combine_c(uint32_t crc_a, uint32_t crc_b, Py_ssize_t length_b) noexcept nogil:
    return kb_crc_combine(crc_a, crc_b, <uint64_t>length_b)


def crc32c(data, uint32_t value=0):
    """CRC-32C of a bytes-like object, continuing from ``value``."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if view.len < GIL_RELEASE_BYTES:
            return kb_crc_update(value, <const uint8_t*>view.buf, <size_t>view.len)
        with nogil:
            value = kb_crc_update(value, <const uint8_t*>view.buf, <size_t>view.len)
        return value
    finally:
        PyBuffer_Release(&view)


def combine(uint32_t a, uint32_t b, Py_ssize_t len_b):
    """CRC of ``A + B`` from ``a`` = crc(A), ``b`` = crc(B) and the length of B in bytes."""
    if len_b < 0:
        raise ValueError("len_b is negative")
    return kb_crc_combine(a, b, <uint64_t>len_b)


def select_implementation(int level_max=2):
    """Chooses the implementation for the whole process and returns its name: a hook for tests of each path.

    Level 0 is the portable one, 1 the CRC instructions, 2 wide vectors; the best present up to it is taken.
    """
    return kb_crc_select(level_max).decode("ascii")


IMPLEMENTATION = select_implementation()
