"""One pass over the batches of a flush: CRCs checked, header fields collected, without the GIL and without whole objects
in memory. Layout of the batch header: Kafka protocol guide, record batch v2."""
from libc.string cimport memcpy

from kbroker.lazy_numpy import np

from kbroker._fast.base.crc32c cimport crc32c_c, crc32c_combine_c
from kbroker._fast.base.cursor cimport Cursor, cursor_of
from kbroker._fast.base.endian cimport load_i16, load_i32, load_i64, load_u32
from kbroker._fast.records.marker cimport MARKER_NONE, take_marker
from kbroker._fast.records.record_batch cimport AT_ATTRIBUTES, BATCH_HEADER_BYTES, CONTROL
from kbroker._fast.records.time_bounds cimport HEADER_UNCHECKED, min_timestamp_of

cdef enum:
    COMBINED_BYTES_MIN = 2048   # of a smaller batch, reading its bytes again costs less than combining CRCs

PROBLEMS = (
    "",
    "its index entry is shorter than a batch header",
    "base offset differs from the index",
    "size differs from the index",
    "magic is not 2",
    "CRC does not match",
    "last offset differs from the index",
    "negative record count",
    "control record does not parse",
    "more bytes than the index has batches",
)


class BatchScanError(ValueError):
    """A batch is not what its index entry says, or its CRC is wrong. `index` is its place in the entries."""

    def __init__(self, index, problem):
        super().__init__(f"batch {index}: {problem}")
        self.index = index
        self.problem = problem


cdef class BatchScan:

    def __init__(self, entries, Py_ssize_t feed_bytes_max, int64_t disorder_ms=HEADER_UNCHECKED):
        """``disorder_ms``: how far, at most, a record's timestamp is below its batch's base timestamp; -1: not known, -2:
        nor is it known whether headers are right."""
        if entries.dtype.itemsize != sizeof(ScanEntry) or not entries.flags.c_contiguous or entries.ndim != 1:
            raise ValueError("entries must be a contiguous array of 32-byte index entries")
        if feed_bytes_max < 1:
            raise ValueError("feed_bytes_max must be positive")
        self.entries = entries
        self.count = len(entries)
        self.feed_bytes_max = feed_bytes_max
        self.disorder_ms = disorder_ms
        # A feed ends at most one batch that began earlier, and batches are at least a header long.
        columns = min(feed_bytes_max // BATCH_HEADER_BYTES + 2, self.count)
        self.record_counts = np.zeros(self.count, np.int32)
        self.min_timestamps = np.zeros(self.count, np.int64)
        self.leader_epochs = np.zeros(columns, np.int32)
        self.attributes = np.zeros(columns, np.int16)
        self.producer_ids = np.zeros(columns, np.int64)
        self.producer_epochs = np.zeros(columns, np.int16)
        self.base_sequences = np.zeros(columns, np.int32)
        self.marker_types = np.zeros(columns, np.int16)
        self.coordinator_epochs = np.zeros(columns, np.int32)
        self.entry = <const ScanEntry*><size_t>entries.ctypes.data
        self.record_count = <int32_t*><size_t>self.record_counts.ctypes.data
        self.min_timestamp = <int64_t*><size_t>self.min_timestamps.ctypes.data
        self.leader_epoch = <int32_t*><size_t>self.leader_epochs.ctypes.data
        self.attribute = <int16_t*><size_t>self.attributes.ctypes.data
        self.producer_id = <int64_t*><size_t>self.producer_ids.ctypes.data
        self.producer_epoch = <int16_t*><size_t>self.producer_epochs.ctypes.data
        self.base_sequence = <int32_t*><size_t>self.base_sequences.ctypes.data
        self.marker_type = <int16_t*><size_t>self.marker_types.ctypes.data
        self.coordinator_epoch = <int32_t*><size_t>self.coordinator_epochs.ctypes.data

    def feed(self, data):
        """Takes the next bytes; returns how many batches ended in them. BatchScanError for a batch that is not right."""
        cdef const uint8_t[::1] view = data
        cdef Py_ssize_t ended
        cdef int problem = PROBLEM_NONE
        if view.shape[0] == 0:
            return 0
        if view.shape[0] > self.feed_bytes_max:
            raise ValueError("feed is larger than feed_bytes_max")
        with nogil:
            ended = self.walk(&view[0], view.shape[0], False, 0, &problem)
        self.raise_problem(problem)
        return ended

    cdef int raise_problem(self, int problem) except -1:
        if problem != PROBLEM_NONE:
            raise BatchScanError(self.done, PROBLEMS[problem])
        return 0

    cdef Py_ssize_t walk(self, const uint8_t* p, Py_ssize_t n, bint trusted, Py_ssize_t ended,
                         int* problem) noexcept nogil:
        cdef int64_t room, take, skip
        cdef int64_t size
        self.position += n
        while n > 0:
            if self.done >= self.count:
                problem[0] = PROBLEM_SURPLUS
                return ended
            size = self.entry[self.done].size
            if size < BATCH_HEADER_BYTES:
                problem[0] = PROBLEM_ENTRY_SIZE
                return ended
            take = min(<int64_t>n, size - self.into_batch)
            room = SCAN_CAPTURE_BYTES - self.into_batch
            if room > 0:
                memcpy(self.capture + self.into_batch, p, min(take, room))
            skip = max(<int64_t>0, AT_ATTRIBUTES - self.into_batch)
            if trusted and size >= COMBINED_BYTES_MIN:
                self.carried = True
            elif take > skip:
                self.batch_crc = crc32c_c(self.batch_crc, p + skip, take - skip)
            if size < COMBINED_BYTES_MIN:
                self.crc = crc32c_c(self.crc, p, take)
            self.into_batch += take
            if p != NULL:
                p += take
            n -= take
            if self.into_batch == size:
                problem[0] = self._end_batch(ended)
                if problem[0] != PROBLEM_NONE:
                    return ended
                if size >= COMBINED_BYTES_MIN:
                    self.crc = crc32c_c(self.crc, self.capture, AT_ATTRIBUTES)
                    self.crc = crc32c_combine_c(self.crc, self.batch_crc, size - AT_ATTRIBUTES)
                ended += 1
                self.done += 1
                self.into_batch = 0
                self.batch_crc = 0
                self.carried = False
        return ended

    cdef int _end_batch(self, Py_ssize_t column) noexcept nogil:
        """Judges the batch in `capture`; fills its columns."""
        cdef const uint8_t* p = self.capture
        cdef const ScanEntry* entry = self.entry + self.done
        cdef int32_t marker_type = MARKER_NONE, coordinator_epoch = -1
        cdef Cursor record
        if load_i64(p) != entry.base_offset:
            return PROBLEM_BASE_OFFSET
        if <int64_t>load_i32(p + 8) + 12 != entry.size:
            return PROBLEM_SIZE
        if p[16] != 2:
            return PROBLEM_MAGIC
        if self.carried:
            self.batch_crc = load_u32(p + 17)
        elif load_u32(p + 17) != self.batch_crc:
            return PROBLEM_CRC
        if load_i32(p + 23) != entry.last_offset_delta or entry.last_offset_delta < 0:
            return PROBLEM_LAST_OFFSET
        if load_i32(p + 57) < 0:
            return PROBLEM_RECORD_COUNT
        self.record_count[self.done] = load_i32(p + 57)
        self.min_timestamp[self.done] = min_timestamp_of(
            load_i16(p + 21), load_i32(p + 57), load_i64(p + 27), load_i64(p + 35), self.disorder_ms)
        self.leader_epoch[column] = load_i32(p + 12)
        self.attribute[column] = load_i16(p + 21)
        self.producer_id[column] = load_i64(p + 43)
        self.producer_epoch[column] = load_i16(p + 51)
        self.base_sequence[column] = load_i32(p + 53)
        if load_i16(p + 21) & CONTROL and load_i32(p + 57) > 0:
            record = cursor_of(p + BATCH_HEADER_BYTES, min(<int64_t>entry.size, SCAN_CAPTURE_BYTES) - BATCH_HEADER_BYTES)
            if take_marker(&record, &marker_type, &coordinator_epoch) < 0:
                return PROBLEM_MARKER
        self.marker_type[column] = <int16_t>marker_type
        self.coordinator_epoch[column] = coordinator_epoch
        return PROBLEM_NONE
