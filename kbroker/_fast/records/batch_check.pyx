"""Checks whole record batches that were read back from storage, without the GIL: header, CRC, offsets, index."""

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t

from kbroker._fast.base.crc32c cimport crc32c_c
from kbroker._fast.base.endian cimport load_i32, load_i64, load_u32
from kbroker._fast.records.footer cimport (
    ENTRY_BASE_OFFSET,
    ENTRY_BYTES,
    ENTRY_LAST_OFFSET_DELTA,
    ENTRY_LENGTH,
    ENTRY_MAX_TIMESTAMP,
    ENTRY_RECORD_COUNT,
)
from kbroker._fast.records.record_batch cimport AT_ATTRIBUTES, BatchInfo, parse_header

cdef enum:
    BAD_HEADER = 1
    BAD_CRC = 2
    BAD_OFFSET = 3
    BAD_COUNTS = 4
    NOT_INDEXED = 5
    INDEX_DIFFERS = 6

_FAULTS = (
    "",
    "no complete record batch of format v2",
    "the CRC of the record batch does not match",
    "the base offset is below the end of the batch before, or overflows",
    "negative record count or last offset delta",
    "the index has no entry for this batch",
    "the index entry does not match this batch",
)


class BatchError(ValueError):
    """A batch that is not what it should be. ``position`` is its first byte in the buffer, ``index`` its number."""

    def __init__(self, message, position, index):
        super().__init__(f"batch {index} at byte {position}: {message}")
        self.position = position
        self.index = index


cdef int _entry_differs(const uint8_t* entry, const BatchInfo* info) noexcept nogil:
    # The highest timestamp of a batch without records means nothing: writers differ in it.
    return (
        load_i64(entry + ENTRY_BASE_OFFSET) != info.base_offset
        or load_u32(entry + ENTRY_LENGTH) != info.size
        or load_i32(entry + ENTRY_LAST_OFFSET_DELTA) != info.last_offset_delta
        or load_i32(entry + ENTRY_RECORD_COUNT) != info.record_count
        or (info.record_count > 0 and load_i64(entry + ENTRY_MAX_TIMESTAMP) != info.max_timestamp)
    )


cdef int _judge(const uint8_t* p, Py_ssize_t left, int64_t expected, BatchInfo* info) noexcept nogil:
    """What is wrong with the batch at p, index into _FAULTS. `info` is filled in when it is 0."""
    if parse_header(p, left, info) != 0:
        return BAD_HEADER
    if info.last_offset_delta < 0 or info.record_count < 0:
        return BAD_COUNTS
    if info.base_offset < expected or info.base_offset > INT64_MAX - 1 - info.last_offset_delta:
        return BAD_OFFSET
    if crc32c_c(0, p + AT_ATTRIBUTES, <Py_ssize_t>info.size - AT_ATTRIBUTES) != info.crc:
        return BAD_CRC
    return 0


def check_batches(const uint8_t[::1] buffer not None, int64_t expected_base_offset, const uint8_t[::1] index=None):
    """How many batches fill ``buffer``; BatchError at the first one that is wrong.

    Each must be complete, with a right CRC and a base offset at or above ``expected_base_offset`` and above the batch
    before. With ``index``, the big-endian KLIX index entries of just these batches, each must be as its entry says.
    """
    cdef Py_ssize_t end = buffer.shape[0]
    cdef Py_ssize_t entries = -1 if index is None else index.shape[0] // ENTRY_BYTES
    cdef Py_ssize_t position = 0, count = 0
    cdef const uint8_t* data = NULL
    cdef const uint8_t* entry = NULL
    cdef int64_t expected = expected_base_offset
    cdef int fault = 0
    cdef BatchInfo info
    if end > 0:
        data = &buffer[0]
    if entries > 0:
        entry = &index[0]
    with nogil:
        while position < end:
            fault = _judge(data + position, end - position, expected, &info)
            if fault == 0 and entries >= 0:
                if count >= entries:
                    fault = NOT_INDEXED
                elif _entry_differs(entry + count * ENTRY_BYTES, &info):
                    fault = INDEX_DIFFERS
            if fault != 0:
                break
            expected = info.base_offset + info.last_offset_delta + 1
            position += info.size
            count += 1
    if fault != 0:
        raise BatchError(_FAULTS[fault], position, count)
    if entries > count:
        raise BatchError(f"the index has {entries} entries for {count} batches", position, count)
    return count
