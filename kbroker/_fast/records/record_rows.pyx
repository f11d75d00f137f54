"""Reads record batches into Arrow columns.

The bytes come from a bucket or from a broker and are hostile: every length is checked by the record parser, every
column grows by what was really there. The caller has checked the CRCs.
"""

from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

from kbroker import limits
from kbroker._fast.base.cursor cimport Cursor, cursor_of, left, take_varint
from kbroker._fast.base.invariant cimport invariant
from kbroker._fast.records.arrow_columns cimport (
    FAULT_COLUMN_FULL,
    FAULT_NO_MEMORY,
    FAULT_TIMESTAMP,
    ColumnBuilder,
)
from kbroker._fast.records.compression import DecompressionError
from kbroker._fast.records.compression cimport PlainStream
from kbroker._fast.records.record cimport (
    REASON_NONE,
    REASON_OFFSET_DELTA,
    REASON_RECORD_COUNT_LESS,
    REASON_RECORD_COUNT_MORE,
    RECORD_INCOMPLETE,
    RecordView,
    take_record,
)
from kbroker._fast.records.record_batch cimport (
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    CONTROL,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    parse_header,
)
from kbroker._fast.records.record_batch import CorruptRecordsError, reason_text

cdef enum:
    RECORD_BYTES_MIN = 7          # length, attributes, two deltas, two lengths, header count: a byte each
    COUNTED_ROWS_MAX = 1 << 20    # of a batch whose records are not parsed
    # Small enough to stay in a core's cache between decompression and the copy into the columns.
    PLAIN_BYTES = 1 << 18
    PLAIN_BYTES_KEPT = 1 << 20    # a larger block was for one record
    SIZED_BYTES = 1 << 14         # records read between two looks at the columns' size
    # A record is decompressed, in the columns, and in memory that Spark reads.
    RECORD_COPIES = 3

_FAULTS = {
    RECORD_INCOMPLETE: "the record ends beyond the batch",
    FAULT_TIMESTAMP: "its timestamp is beyond what a column of microseconds can hold",
    FAULT_COLUMN_FULL: "a column would be larger than 2 GiB",
}


class RecordTooLarge(Exception):
    """A record takes more memory than the room given; `needed_bytes` would be enough for it."""

    def __init__(self, what, record_bytes, needed_bytes):
        super().__init__(what)
        self.record_bytes = record_bytes
        self.needed_bytes = needed_bytes


cdef class RowReader:
    def __cinit__(self):
        self.plain.base = NULL
        self.plain.size = self.plain.capacity = 0

    def __init__(self, *, int64_t stop_offset=INT64_MAX, int64_t lowest_timestamp=INT64_MIN,
                 int64_t highest_timestamp=INT64_MAX):
        self.stop_offset = stop_offset
        self.lowest_timestamp = lowest_timestamp
        self.highest_timestamp = highest_timestamp

    def __dealloc__(self):
        free(self.plain.base)

    def open(self, const uint8_t[::1] batches not None, *, int64_t first_offset=0, aborted=None,
             int64_t room_bytes=INT64_MAX):
        """Goes on with other batches. Rows below `first_offset` are left out, and with `aborted`, ranges (first, last
        offset) by producer id, those of aborted transactions; control batches always are.

        `room_bytes` is for the codec, for what is decompressed, and for the rows of `fill` in two Arrow batches.
        """
        self.batches = batches
        self.first_offset = first_offset
        self.aborted = aborted
        self.room_bytes = room_bytes
        self.position = 0
        self.is_open = False
        self.stream = None

    def fill(self, ColumnBuilder columns not None, int64_t rows_max=INT64_MAX, int64_t bytes_max=INT64_MAX):
        """Adds rows until there are `rows_max` or about `bytes_max` bytes: True; False once all batches are read.

        Raises CorruptRecordsError with the position of the batch, and RecordTooLarge; then drop the reader.
        """
        while columns.rows < rows_max and columns.size() < bytes_max:
            if self.is_open:
                self.read_batch(columns, rows_max, bytes_max)
            elif self.position < self.batches.shape[0]:
                self.next_batch(columns)
            else:
                return False
        return True

    cdef int next_batch(self, ColumnBuilder columns) except -1:
        """Opens the next batch, unless it is not wanted or its header says all."""
        if parse_header(&self.batches[self.position], self.batches.shape[0] - self.position, &self.info) != 0:
            raise CorruptRecordsError("no complete record batch of format v2", self.position)
        if (
            self.info.last_offset_delta < 0 or self.info.record_count < 0 or self.info.base_offset < 0
            or self.info.base_offset > INT64_MAX - 1 - self.info.last_offset_delta
        ):
            raise CorruptRecordsError("negative record count, offset or last offset delta", self.position)
        if self.info.record_count == 0 and self.info.size != BATCH_HEADER_BYTES:
            raise CorruptRecordsError(reason_text(REASON_RECORD_COUNT_MORE), self.position)
        if not self.is_wanted():
            self.position += self.info.size
        elif self.is_counted(columns):
            # Its CRC covers the count, which was checked when the batch was produced.
            if columns.put_counted(&self.info) != 0:
                raise MemoryError
            self.position += self.info.size
        else:
            self.open_batch()
        return 0

    cdef bint is_wanted(self) except -1:
        if (
            self.info.record_count == 0
            or self.info.attributes & CONTROL
            or self.info.base_offset >= self.stop_offset
            or self.info.base_offset + self.info.last_offset_delta < self.first_offset
            or self.info.max_timestamp < self.lowest_timestamp
        ):
            return False
        if self.aborted is not None and self.info.attributes & TRANSACTIONAL:
            for first, last in self.aborted.get(self.info.producer_id, ()):
                if first <= self.info.base_offset <= last:
                    return False
        return True

    cdef bint is_counted(self, ColumnBuilder columns) noexcept:
        """Whether the header says all there is to know: no column differs from record to record."""
        if columns.differs_by_record() or self.info.record_count > COUNTED_ROWS_MAX:
            return False
        if self.info.attributes & CODEC_MASK == 0 and \
                <int64_t>self.info.record_count * RECORD_BYTES_MIN > self.info.size - BATCH_HEADER_BYTES:
            return False
        return (
            self.info.base_offset >= self.first_offset
            and self.info.base_offset + self.info.last_offset_delta < self.stop_offset
            and self.lowest_timestamp == INT64_MIN
            and self.highest_timestamp == INT64_MAX
        )

    cdef int open_batch(self) except -1:
        cdef int codec = self.info.attributes & CODEC_MASK
        cdef Py_ssize_t begin = self.position + BATCH_HEADER_BYTES
        cdef Py_ssize_t end = self.position + self.info.size
        cdef int64_t working_bytes = 0
        if codec == 0:
            self.c = cursor_of(&self.batches[self.position] + BATCH_HEADER_BYTES, end - begin)
            if <int64_t>self.info.record_count * RECORD_BYTES_MIN > left(&self.c):
                raise CorruptRecordsError(reason_text(REASON_RECORD_COUNT_LESS), self.position)
        else:
            try:
                self.stream = PlainStream(
                    codec, memoryview(self.batches)[begin:end], limits.DECOMPRESSED_BATCH_BYTES_MAX)
            except DecompressionError as error:
                raise CorruptRecordsError(str(error), self.position) from None
            working_bytes = self.stream.working_bytes + PLAIN_BYTES
            self.c = cursor_of(self.plain.base, 0)
        self.record_bytes_max = (self.room_bytes - working_bytes) // RECORD_COPIES
        if self.record_bytes_max < RECORD_BYTES_MIN:
            raise RecordTooLarge(
                f"the batch at offset {self.info.base_offset} takes {working_bytes} bytes to decompress",
                self.info.size, working_bytes + PLAIN_BYTES)
        self.records_left = self.info.record_count
        self.is_open = True
        return 0

    cdef int read_batch(self, ColumnBuilder columns, int64_t rows_max, int64_t bytes_max) except -1:
        """The rows of the open batch, until it ends or the columns are full."""
        cdef int fault
        invariant(not self.running)
        while True:
            self.running = True
            with nogil:
                fault = self.decode(columns, rows_max, bytes_max)
            self.running = False
            if fault == RECORD_INCOMPLETE and self.stream is not None and self.refill() > 0:
                continue
            if fault != REASON_NONE:
                self.fail(fault)
            if self.records_left == 0:
                self.end_batch()
            return 0

    cdef int end_batch(self) except -1:
        if left(&self.c) != 0 or (self.stream is not None and self.refill() > 0):
            raise CorruptRecordsError(reason_text(REASON_RECORD_COUNT_MORE), self.position)
        self.stream = None
        self.is_open = False
        self.position += self.info.size
        if self.plain.capacity > PLAIN_BYTES_KEPT:
            free(self.plain.base)
            self.plain.base = NULL
            self.plain.capacity = 0
        return 0

    cdef Py_ssize_t refill(self) except -1:
        """Decompresses more, after what is left of the piece; how many bytes, 0 at the end."""
        cdef Cursor at = self.c
        cdef Py_ssize_t rest = left(&self.c)
        cdef int32_t length = 0
        cdef int64_t needed = PLAIN_BYTES
        cdef Py_ssize_t count
        cdef uint8_t* base
        if take_varint(&at, &length) == 0 and length > 0:
            needed = max(needed, at.p - self.c.p + <int64_t>length)
            if needed - rest > max(self.stream.total_left, <int64_t>PLAIN_BYTES):
                self.fail(RECORD_INCOMPLETE)
            if needed > PLAIN_BYTES and needed > self.record_bytes_max:
                self.needed_bytes = needed
                self.fail(FAULT_RECORD_SIZE)
        if rest:
            memmove(self.plain.base, self.c.p, rest)
        if needed > self.plain.capacity:
            base = <uint8_t*>realloc(self.plain.base, needed)
            if base == NULL:
                raise MemoryError
            self.plain.base = base
            self.plain.capacity = needed
        try:
            count = self.stream.read(self.plain.base + rest, self.plain.capacity - rest)
        except DecompressionError as error:
            raise CorruptRecordsError(str(error), self.position) from None
        self.c = cursor_of(self.plain.base, rest + count)
        return count

    cdef int decode(self, ColumnBuilder columns, int64_t rows_max, int64_t bytes_max) noexcept nogil:
        """Rows of whole records. 0 when the columns are full or no records are left; else a REASON_ or a FAULT_."""
        cdef RecordView record
        cdef int64_t offset, timestamp, unsized = 0
        cdef const uint8_t* start
        cdef int fault
        while self.records_left > 0 and columns.rows < rows_max:
            start = self.c.p
            fault = take_record(&self.c, &record)
            if fault != REASON_NONE:
                return fault
            if self.c.p - start > self.record_bytes_max:
                self.needed_bytes = self.c.p - start
                return FAULT_RECORD_SIZE
            if record.offset_delta < 0 or record.offset_delta > self.info.last_offset_delta:
                return REASON_OFFSET_DELTA
            offset = self.info.base_offset + record.offset_delta
            timestamp = self.info.max_timestamp
            if not self.info.attributes & LOG_APPEND_TIME:
                timestamp = <int64_t>(<uint64_t>self.info.base_timestamp + <uint64_t>record.timestamp_delta)
            if (
                offset >= self.first_offset and offset < self.stop_offset
                and timestamp >= self.lowest_timestamp and timestamp <= self.highest_timestamp
            ):
                fault = columns.put_row(&self.info, &record, offset, timestamp)
                if fault != REASON_NONE:
                    return fault
            self.records_left -= 1
            unsized += self.c.p - start
            if unsized >= SIZED_BYTES:
                unsized = 0
                if columns.size() >= bytes_max:
                    return REASON_NONE
        return REASON_NONE

    cdef int fail(self, int fault) except -1:
        """Raises what a fault of a record means."""
        if fault == FAULT_NO_MEMORY:
            raise MemoryError
        if fault == FAULT_RECORD_SIZE:
            raise RecordTooLarge(
                f"a record of {self.needed_bytes} bytes in the batch at offset {self.info.base_offset}",
                self.needed_bytes,
                RECORD_COPIES * (self.needed_bytes - self.record_bytes_max) + self.room_bytes)
        text = _FAULTS.get(fault) or reason_text(fault)
        good = self.info.record_count - self.records_left
        raise CorruptRecordsError(f"the record after {good} good ones: {text}", self.position)
