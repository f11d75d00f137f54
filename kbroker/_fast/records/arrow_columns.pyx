"""Record batches to the buffers of Arrow columns, with no Python object per record.

The bytes come from a bucket or from a broker and are hostile: every length is checked by the record parser, every
column grows by what was really there. What `take` returns can be handed to Arrow without a copy.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from kbroker import limits
from kbroker._fast.records.compression import DecompressionError, decompress_into
from kbroker._fast.base.cursor cimport Cursor, cursor_of, left, take_bytes, take_varint
from kbroker._fast.base.invariant cimport invariant
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
    BatchInfo,
    parse_header,
)
from kbroker._fast.records.record_batch import CorruptRecordsError, reason_text

COLUMNS = ("key", "value", "offset", "timestamp", "timestampType", "headers")
HEADER_KEYS = "headers.key"
HEADER_VALUES = "headers.value"

cdef enum:
    RECORD_BYTES_MIN = 7      # length, attributes, two deltas, two lengths, header count: a byte each
    FIRST_CAPACITY = 4096
    MICROS_PER_MILLI = 1000
    COUNTED_ROWS_MAX = 1 << 20    # of a batch whose records are not parsed

_FAULTS = {
    RECORD_INCOMPLETE: "the record ends beyond the batch",
    FAULT_TIMESTAMP: "its timestamp is beyond what a column of microseconds can hold",
    FAULT_COLUMN_FULL: "a column would be larger than 2 GiB",
}


# -- growing memory -------------------------------------------------------------------------------------------

cdef inline int reserve(Growable* g, Py_ssize_t more) noexcept nogil:
    """Room for `more` bytes after `size`. 0 or FAULT_NO_MEMORY; the content stays."""
    cdef Py_ssize_t capacity
    cdef uint8_t* base
    if g.capacity - g.size >= more:
        return 0
    capacity = max(<Py_ssize_t>FIRST_CAPACITY, g.capacity)
    while capacity - g.size < more:
        capacity *= 2
    base = <uint8_t*>realloc(g.base, capacity)
    if base == NULL:
        return FAULT_NO_MEMORY
    g.base = base
    g.capacity = capacity
    return 0


cdef inline void drop(Growable* g) noexcept nogil:
    free(g.base)
    g.base = NULL
    g.size = g.capacity = 0


cdef inline int put_i32(Growable* g, int32_t value) noexcept nogil:
    if reserve(g, 4) != 0:
        return FAULT_NO_MEMORY
    (<int32_t*>(g.base + g.size))[0] = value
    g.size += 4
    return 0


cdef inline int put_i64(Growable* g, int64_t value) noexcept nogil:
    if reserve(g, 8) != 0:
        return FAULT_NO_MEMORY
    (<int64_t*>(g.base + g.size))[0] = value
    g.size += 8
    return 0


cdef inline int put_bit(Growable* g, int64_t index, bint valid) noexcept nogil:
    """Bit `index`, which is the next one."""
    if index & 7 == 0:
        if reserve(g, 1) != 0:
            return FAULT_NO_MEMORY
        g.base[g.size] = 0
        g.size += 1
    if valid:
        g.base[g.size - 1] |= <uint8_t>(1 << (index & 7))
    return 0


cdef inline int put_bytes(BytesColumn* column, int64_t index, const uint8_t* p, int32_t length) noexcept nogil:
    """Entry `index`, the next one; a length below 0 is null."""
    if put_bit(&column.validity, index, length >= 0) != 0:
        return FAULT_NO_MEMORY
    if length < 0:
        column.nulls += 1
    elif length > 0:
        if length > INT32_MAX - column.data.size:
            return FAULT_COLUMN_FULL
        if reserve(&column.data, length) != 0:
            return FAULT_NO_MEMORY
        memcpy(column.data.base + column.data.size, p, length)
        column.data.size += length
    return put_i32(&column.offsets, <int32_t>column.data.size)


cdef inline void drop_column(BytesColumn* column) noexcept nogil:
    drop(&column.validity)
    drop(&column.offsets)
    drop(&column.data)
    column.nulls = 0


cdef class ColumnBuffer:
    def __cinit__(self):
        self.bytes.base = NULL
        self.bytes.size = self.bytes.capacity = 0

    def __dealloc__(self):
        free(self.bytes.base)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.bytes.base, self.bytes.size, 1, flags)

    def __len__(self):
        return self.bytes.size


cdef ColumnBuffer hand_over(Growable* g):
    cdef ColumnBuffer buffer
    # A buffer needs an address even where a column has no bytes.
    if reserve(g, 1) != 0:
        raise MemoryError
    buffer = ColumnBuffer.__new__(ColumnBuffer)
    buffer.bytes = g[0]
    g.base = NULL
    g.size = g.capacity = 0
    return buffer


cdef tuple hand_over_column(BytesColumn* column):
    nulls = column.nulls
    buffers = (hand_over(&column.validity) if nulls else None, hand_over(&column.offsets), hand_over(&column.data))
    drop_column(column)
    return nulls, buffers


# -- batches --------------------------------------------------------------------------------------------------

cdef bint is_aborted(const BatchInfo* info, object aborted) except -1:
    """Whether the manifest names the transaction of this batch as aborted; `aborted` has ranges by producer id."""
    if not info.attributes & TRANSACTIONAL:
        return False
    for first, last in aborted.get(info.producer_id, ()):
        if first <= info.base_offset <= last:
            return True
    return False


cdef int open_batch(const uint8_t* p, Py_ssize_t n, Py_ssize_t position, BatchInfo* info) except -1:
    """Reads the header of a whole batch, n bytes before the end of the buffer, or raises."""
    if parse_header(p, n, info) != 0:
        raise CorruptRecordsError("no complete record batch of format v2", position)
    if (
        info.last_offset_delta < 0 or info.record_count < 0 or info.base_offset < 0
        or info.base_offset > INT64_MAX - 1 - info.last_offset_delta
    ):
        raise CorruptRecordsError("negative record count, offset or last offset delta", position)
    return 0


cdef class ColumnBuilder:
    def __cinit__(self):
        self.plain = bytearray()
        self.rows = 0
        self.header_rows = self.header_nulls = 0

    def __init__(self, columns):
        self.wanted = 0
        for name in columns:
            self.wanted |= 1 << COLUMNS.index(name)
        self.free_columns()
        self.open_columns()

    def __dealloc__(self):
        self.free_columns()

    cdef int open_columns(self) except -1:
        """Every offsets column begins with a 0."""
        cdef int failed = 0
        self.rows = self.header_rows = self.header_nulls = 0
        if self.wanted & WANT_KEY:
            failed |= put_i32(&self.key.offsets, 0)
        if self.wanted & WANT_VALUE:
            failed |= put_i32(&self.value.offsets, 0)
        if self.wanted & WANT_HEADERS:
            failed |= put_i32(&self.list_offsets, 0)
            failed |= put_i32(&self.header_key.offsets, 0)
            failed |= put_i32(&self.header_value.offsets, 0)
        if failed:
            raise MemoryError
        return 0

    cdef void free_columns(self) noexcept:
        drop_column(&self.key)
        drop_column(&self.value)
        drop_column(&self.header_key)
        drop_column(&self.header_value)
        drop(&self.offset)
        drop(&self.timestamp)
        drop(&self.timestamp_type)
        drop(&self.list_validity)
        drop(&self.list_offsets)

    @property
    def nbytes(self):
        """Bytes in all columns."""
        return (
            self.key.data.size + self.key.offsets.size + self.value.data.size + self.value.offsets.size
            + self.offset.size + self.timestamp.size + self.timestamp_type.size + self.list_offsets.size
            + self.header_key.data.size + self.header_key.offsets.size
            + self.header_value.data.size + self.header_value.offsets.size)

    def add(self, const uint8_t[::1] batches not None, Py_ssize_t position=0, *, int64_t first_offset=0,
            int64_t stop_offset=INT64_MAX, int64_t lowest_timestamp=INT64_MIN, int64_t highest_timestamp=INT64_MAX,
            aborted=None, int64_t rows_max=INT64_MAX, int64_t bytes_max=INT64_MAX):
        """Adds the records of whole batches from byte `position` on; returns where it stopped.

        It stops at the end, or after the batch that made `rows_max` or `bytes_max` full. Control batches are left
        out, and with `aborted`, ranges (first, last offset) by producer id, those of aborted transactions. The caller
        checks CRCs. Raises CorruptRecordsError with the position of the batch; then drop the builder.
        """
        cdef Py_ssize_t end = batches.shape[0]
        cdef BatchInfo info
        cdef RowBounds bounds
        bounds.first_offset = first_offset
        bounds.stop_offset = stop_offset
        bounds.lowest_timestamp = lowest_timestamp
        bounds.highest_timestamp = highest_timestamp
        if position < 0 or position > end:
            raise ValueError("position is outside the buffer")
        while position < end and self.rows < rows_max and self.nbytes < bytes_max:
            open_batch(&batches[position], end - position, position, &info)
            if info.record_count == 0 and info.size != BATCH_HEADER_BYTES:
                raise CorruptRecordsError(reason_text(REASON_RECORD_COUNT_MORE), position)
            if (
                info.record_count > 0
                and not info.attributes & CONTROL
                and info.base_offset < stop_offset
                and info.base_offset + info.last_offset_delta >= first_offset
                and info.max_timestamp >= lowest_timestamp
                and not (aborted is not None and is_aborted(&info, aborted))
            ):
                if self.is_counted(&info, &bounds):
                    self.add_counted(&info)
                else:
                    self.add_batch(&batches[position], position, batches, &info, &bounds)
            position += info.size
        return position

    cdef bint is_counted(self, const BatchInfo* info, const RowBounds* bounds) noexcept:
        """Whether the header of a batch says all there is to know: no column differs from record to record."""
        if self.wanted & ~WANT_TIMESTAMP_TYPE or info.record_count > COUNTED_ROWS_MAX:
            return False
        if info.attributes & CODEC_MASK == 0 and \
                <int64_t>info.record_count * RECORD_BYTES_MIN > info.size - BATCH_HEADER_BYTES:
            return False
        return (
            info.base_offset >= bounds.first_offset
            and info.base_offset + info.last_offset_delta < bounds.stop_offset
            and bounds.lowest_timestamp == INT64_MIN
            and bounds.highest_timestamp == INT64_MAX
        )

    cdef int add_counted(self, const BatchInfo* info) except -1:
        """As many rows as the header says; its CRC covers them, their number was checked when they were produced."""
        cdef int32_t i
        if self.wanted & WANT_TIMESTAMP_TYPE:
            for i in range(info.record_count):
                if put_i32(&self.timestamp_type, 1 if info.attributes & LOG_APPEND_TIME else 0) != 0:
                    raise MemoryError
        self.rows += info.record_count
        return 0

    cdef int add_batch(self, const uint8_t* p, Py_ssize_t position, const uint8_t[::1] batches,
                       const BatchInfo* info, const RowBounds* bounds) except -1:
        """The batch at p, which is byte `position` of `batches`."""
        cdef Cursor c
        cdef int fault
        cdef int64_t rows = self.rows
        cdef Py_ssize_t plain_bytes
        cdef int codec = info.attributes & CODEC_MASK
        if codec == 0:
            c = cursor_of(p + BATCH_HEADER_BYTES, <Py_ssize_t>info.size - BATCH_HEADER_BYTES)
        else:
            body = memoryview(batches)[position + BATCH_HEADER_BYTES:position + info.size]
            try:
                plain_bytes = decompress_into(codec, body, self.plain, limits.DECOMPRESSED_BATCH_BYTES_MAX)
            except DecompressionError as error:
                raise CorruptRecordsError(str(error), position) from None
            c = cursor_of(<const uint8_t*>PyByteArray_AS_STRING(self.plain), plain_bytes)
        if <int64_t>info.record_count * RECORD_BYTES_MIN > left(&c):
            raise CorruptRecordsError(reason_text(REASON_RECORD_COUNT_LESS), position)
        invariant(not self.running)
        self.running = True
        with nogil:
            fault = self.decode(info, &c, bounds)
        self.running = False
        if fault == FAULT_NO_MEMORY:
            raise MemoryError
        if fault != REASON_NONE:
            text = _FAULTS.get(fault) or reason_text(fault)
            raise CorruptRecordsError(f"the record after {self.rows - rows} good ones: {text}", position)
        return 0

    cdef int decode(self, const BatchInfo* info, Cursor* c, const RowBounds* bounds) noexcept nogil:
        """The records of one batch. 0, a REASON_ or a FAULT_; rows before the bad record are complete."""
        cdef RecordView record
        cdef int64_t offset, timestamp
        cdef int32_t i
        cdef int fault
        for i in range(info.record_count):
            fault = take_record(c, &record)
            if fault != REASON_NONE:
                return fault
            if record.offset_delta < 0 or record.offset_delta > info.last_offset_delta:
                return REASON_OFFSET_DELTA
            offset = info.base_offset + record.offset_delta
            timestamp = info.max_timestamp
            if not info.attributes & LOG_APPEND_TIME:
                timestamp = <int64_t>(<uint64_t>info.base_timestamp + <uint64_t>record.timestamp_delta)
            if (
                offset < bounds.first_offset or offset >= bounds.stop_offset
                or timestamp < bounds.lowest_timestamp or timestamp > bounds.highest_timestamp
            ):
                continue
            fault = self.put_row(info, &record, offset, timestamp)
            if fault != 0:
                return fault
        return REASON_NONE if left(c) == 0 else REASON_RECORD_COUNT_MORE

    cdef int put_row(self, const BatchInfo* info, const RecordView* record, int64_t offset,
                     int64_t timestamp) noexcept nogil:
        cdef int fault = 0
        if self.wanted & WANT_TIMESTAMP:
            # Judged first, so that a row that is refused leaves no column longer than the others.
            if timestamp > INT64_MAX // MICROS_PER_MILLI or timestamp < -(INT64_MAX // MICROS_PER_MILLI):
                return FAULT_TIMESTAMP
            fault = put_i64(&self.timestamp, timestamp * MICROS_PER_MILLI)
        if fault == 0 and self.wanted & WANT_KEY:
            fault = put_bytes(&self.key, self.rows, record.key, record.key_length)
        if fault == 0 and self.wanted & WANT_VALUE:
            fault = put_bytes(&self.value, self.rows, record.value, record.value_length)
        if fault == 0 and self.wanted & WANT_OFFSET:
            fault = put_i64(&self.offset, offset)
        if fault == 0 and self.wanted & WANT_TIMESTAMP_TYPE:
            fault = put_i32(&self.timestamp_type, 1 if info.attributes & LOG_APPEND_TIME else 0)
        if fault == 0 and self.wanted & WANT_HEADERS:
            fault = self.put_headers(record)
        if fault == 0:
            self.rows += 1
        return fault

    cdef int put_headers(self, const RecordView* record) noexcept nogil:
        """The headers of a row; a record without any has a null list. take_record has checked every length."""
        cdef Cursor c = record.headers
        cdef int32_t i, key_length, value_length
        cdef const uint8_t* key
        cdef const uint8_t* value
        cdef int fault = 0
        for i in range(record.header_count):
            key_length = value_length = -1
            take_varint(&c, &key_length)
            key = take_bytes(&c, key_length)
            take_varint(&c, &value_length)
            value = take_bytes(&c, value_length) if value_length > 0 else NULL
            fault = put_bytes(&self.header_key, self.header_rows, key, key_length)
            if fault == 0:
                fault = put_bytes(&self.header_value, self.header_rows, value, value_length)
            if fault != 0:
                return fault
            self.header_rows += 1
        if self.header_rows > INT32_MAX:
            return FAULT_COLUMN_FULL
        fault = put_bit(&self.list_validity, self.rows, record.header_count > 0)
        if record.header_count == 0:
            self.header_nulls += 1
        return fault if fault != 0 else put_i32(&self.list_offsets, <int32_t>self.header_rows)

    def take(self):
        """(rows, {column: (nulls, buffers)}) of everything added, in Arrow's order of buffers; then it is empty.

        A column of bytes has (validity or None, offsets, data); the headers a list's (validity or None, offsets), and
        their keys and values two columns of their own; the others (None, values).
        """
        rows, wanted = self.rows, self.wanted
        taken = {}
        if wanted & WANT_KEY:
            taken["key"] = hand_over_column(&self.key)
        if wanted & WANT_VALUE:
            taken["value"] = hand_over_column(&self.value)
        if wanted & WANT_OFFSET:
            taken["offset"] = (0, (None, hand_over(&self.offset)))
        if wanted & WANT_TIMESTAMP:
            taken["timestamp"] = (0, (None, hand_over(&self.timestamp)))
        if wanted & WANT_TIMESTAMP_TYPE:
            taken["timestampType"] = (0, (None, hand_over(&self.timestamp_type)))
        if wanted & WANT_HEADERS:
            nulls = self.header_nulls
            validity = hand_over(&self.list_validity) if nulls else None
            taken["headers"] = (nulls, (validity, hand_over(&self.list_offsets)))
            taken[HEADER_KEYS] = hand_over_column(&self.header_key)
            taken[HEADER_VALUES] = hand_over_column(&self.header_value)
        self.free_columns()
        self.open_columns()
        return rows, taken
