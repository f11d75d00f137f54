"""The index entries of a KLIX object: encode, verify and search, over the stored big-endian bytes without a copy.

    offset size field
    0      8    baseOffset i64
    8      4    bytePosition u32      of the batch, from the start of the object
    12     4    batchLength u32       of the whole batch
    16     4    lastOffsetDelta i32
    20     8    maxTimestamp i64
    28     4    recordCount i32

The searches rely on `verify`, but stay inside the buffer whatever it holds.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kbroker._fast.base.endian cimport load_i32, load_i64, load_u32, store_i32, store_i64, store_u32
from kbroker._fast.records.footer cimport (
    ENTRY_BASE_OFFSET,
    ENTRY_BYTES,
    ENTRY_LAST_OFFSET_DELTA,
    ENTRY_LENGTH,
    ENTRY_MAX_TIMESTAMP,
    ENTRY_POSITION,
    ENTRY_RECORD_COUNT,
)
from kbroker._fast.records.record_batch cimport BATCH_HEADER_BYTES, BatchInfo, parse_header

cdef enum:
    POSITION_MAX = 0xFFFFFFFF

# What _entry_fault finds, in its order.
_FAULTS = (
    "",
    "the batch length is smaller than a batch header",
    "the byte position leaves a gap or overlaps",
    "the base offset is not above the last offset of the entry before",
    "the last offset delta is negative or overflows",
    "the record count is negative or larger than the offset range",
    "the batch ends beyond what a 32-bit position can reach",
)


class FooterError(ValueError):
    """Index entries that cannot be right. ``entry`` is the index of the first bad one, or -1."""

    def __init__(self, message, entry=-1):
        super().__init__(message if entry < 0 else f"index entry {entry}: {message}")
        self.entry = entry


cdef int _entry_fault(const uint8_t* entry, int64_t position, int64_t previous_last_offset) noexcept nogil:
    """Index into _FAULTS: what is wrong with an entry whose batch must start at `position`."""
    cdef int64_t base_offset = load_i64(entry + ENTRY_BASE_OFFSET)
    cdef int64_t length = load_u32(entry + ENTRY_LENGTH)
    cdef int64_t delta = load_i32(entry + ENTRY_LAST_OFFSET_DELTA)
    cdef int64_t records = load_i32(entry + ENTRY_RECORD_COUNT)
    if length < BATCH_HEADER_BYTES:
        return 1
    if load_u32(entry + ENTRY_POSITION) != position:
        return 2
    if base_offset <= previous_last_offset:
        return 3
    if delta < 0 or base_offset > INT64_MAX - 1 - delta:
        return 4
    if records < 0 or records > delta + 1:
        return 5
    if position + length > POSITION_MAX:
        return 6
    return 0


cdef int64_t _last_offset(const uint8_t* entry) noexcept nogil:
    return <int64_t>(<uint64_t>load_i64(entry + ENTRY_BASE_OFFSET) + <uint64_t>load_i32(entry + ENTRY_LAST_OFFSET_DELTA))


cdef Py_ssize_t _count(const uint8_t[::1] entries) except -1:
    if entries.shape[0] % ENTRY_BYTES != 0:
        raise FooterError(f"{entries.shape[0]} bytes are not a whole number of entries")
    return entries.shape[0] // ENTRY_BYTES


def encode(const int64_t[:] base_offsets, const uint32_t[:] lengths, const int32_t[:] last_offset_deltas,
           const int64_t[:] max_timestamps, const int32_t[:] record_counts):
    """The entries of batches that follow each other from position 0. FooterError when they break a rule."""
    cdef Py_ssize_t n = base_offsets.shape[0]
    cdef Py_ssize_t i
    cdef int64_t position = 0
    cdef int64_t last_offset = -1
    cdef int fault
    cdef uint8_t* entry
    if not n == lengths.shape[0] == last_offset_deltas.shape[0] == max_timestamps.shape[0] == record_counts.shape[0]:
        raise ValueError("arrays of different length")
    out = PyBytes_FromStringAndSize(NULL, n * ENTRY_BYTES)
    entry = <uint8_t*><char*>out
    for i in range(n):
        store_i64(entry + ENTRY_BASE_OFFSET, base_offsets[i])
        store_u32(entry + ENTRY_POSITION, <uint32_t>position)
        store_u32(entry + ENTRY_LENGTH, lengths[i])
        store_i32(entry + ENTRY_LAST_OFFSET_DELTA, last_offset_deltas[i])
        store_i64(entry + ENTRY_MAX_TIMESTAMP, max_timestamps[i])
        store_i32(entry + ENTRY_RECORD_COUNT, record_counts[i])
        fault = _entry_fault(entry, position, last_offset)
        if fault:
            raise FooterError(_FAULTS[fault], i)
        position += lengths[i]
        last_offset = _last_offset(entry)
        entry += ENTRY_BYTES
    return out


def encode_batches(const uint8_t[::1] batches not None):
    """The entries of the record batches that fill ``batches``; FooterError when these are not whole batches."""
    cdef Py_ssize_t end = batches.shape[0]
    cdef Py_ssize_t position = 0
    cdef BatchInfo info
    cdef uint8_t entry[ENTRY_BYTES]
    cdef int64_t last_offset = -1
    cdef Py_ssize_t n = 0
    cdef int fault
    out = bytearray()
    while position < end:
        if parse_header(&batches[position], end - position, &info) != 0:
            raise FooterError(f"no complete record batch at byte {position}", n)
        store_i64(entry + ENTRY_BASE_OFFSET, info.base_offset)
        store_u32(entry + ENTRY_POSITION, <uint32_t>position)
        store_u32(entry + ENTRY_LENGTH, info.size)
        store_i32(entry + ENTRY_LAST_OFFSET_DELTA, info.last_offset_delta)
        store_i64(entry + ENTRY_MAX_TIMESTAMP, info.max_timestamp)
        store_i32(entry + ENTRY_RECORD_COUNT, info.record_count)
        fault = _entry_fault(entry, position, last_offset)
        if fault:
            raise FooterError(_FAULTS[fault], n)
        out += entry[:ENTRY_BYTES]
        last_offset = _last_offset(entry)
        position += info.size
        n += 1
    return bytes(out)


def verify(const uint8_t[::1] entries not None, int64_t data_length):
    """Checks every entry, and that the batches end at ``data_length``. FooterError names the first bad entry."""
    position, _ = verify_part(entries, 0, -1)
    if position != data_length:
        raise FooterError(f"the entries end at byte {position}, the data at {data_length}")


def verify_part(const uint8_t[::1] entries not None, int64_t position, int64_t last_offset):
    """Checks some entries of an index; the batches before them end at ``position`` and ``last_offset``.

    Returns the same of these. FooterError names the first bad entry.
    """
    cdef Py_ssize_t n = _count(entries)
    cdef Py_ssize_t i
    cdef int fault = 0
    cdef const uint8_t* entry
    if n > 0:
        with nogil:
            entry = &entries[0]
            for i in range(n):
                fault = _entry_fault(entry, position, last_offset)
                if fault:
                    break
                position += load_u32(entry + ENTRY_LENGTH)
                last_offset = _last_offset(entry)
                entry += ENTRY_BYTES
        if fault:
            raise FooterError(_FAULTS[fault], i)
    return position, last_offset


def find_offset(const uint8_t[::1] entries not None, int64_t offset):
    """Index of the first entry whose last offset is at least ``offset``; the number of entries if there is none."""
    cdef Py_ssize_t low = 0
    cdef Py_ssize_t high = _count(entries)
    cdef Py_ssize_t middle
    if high == 0:
        return 0
    cdef const uint8_t* base = &entries[0]
    while low < high:
        middle = (low + high) // 2
        if _last_offset(base + middle * ENTRY_BYTES) < offset:
            low = middle + 1
        else:
            high = middle
    return low


def find_timestamp(const uint8_t[::1] entries not None, int64_t timestamp, Py_ssize_t start=0):
    """Index of the first entry from ``start`` on with a max timestamp of at least ``timestamp``, or their number.

    Timestamps are the clients' and need not grow, so this is a scan.
    """
    cdef Py_ssize_t n = _count(entries)
    cdef Py_ssize_t i = max(start, 0)
    cdef const uint8_t* base
    if i < n:
        base = &entries[0] + ENTRY_MAX_TIMESTAMP
        with nogil:
            while i < n and load_i64(base + i * ENTRY_BYTES) < timestamp:
                i += 1
    return min(i, n)


def find_max_timestamp(const uint8_t[::1] entries not None):
    """Index of the first entry that has the highest max timestamp; -1 without entries."""
    cdef Py_ssize_t n = _count(entries)
    cdef Py_ssize_t i
    cdef Py_ssize_t best = -1
    cdef int64_t highest = INT64_MIN
    cdef int64_t timestamp
    for i in range(n):
        timestamp = load_i64(&entries[i * ENTRY_BYTES + ENTRY_MAX_TIMESTAMP])
        if best < 0 or timestamp > highest:
            best = i
            highest = timestamp
    return best
