"""The buffers of Arrow columns, filled record by record, with no Python object per record.

What is put in was parsed and checked (record_rows). What `take` returns can be handed to Arrow without a copy.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from kbroker._fast.base.cursor cimport Cursor, take_bytes, take_varint
from kbroker._fast.records.record cimport RecordView
from kbroker._fast.records.record_batch cimport LOG_APPEND_TIME, BatchInfo

COLUMNS = ("key", "value", "offset", "timestamp", "timestampType", "headers")
HEADER_KEYS = "headers.key"
HEADER_VALUES = "headers.value"

cdef enum:
    FIRST_CAPACITY = 4096
    MICROS_PER_MILLI = 1000
    RESERVED_BYTES_MAX = 2 << 20    # for the next values, which will be about as many as those just taken


# -- growing memory -------------------------------------------------------------------------------------------

cdef inline int reserve(Growable* g, Py_ssize_t more) noexcept nogil:
    """Room for `more` bytes after `size`. 0 or FAULT_NO_MEMORY; the content stays."""
    cdef Py_ssize_t capacity
    cdef uint8_t* base
    if g.capacity - g.size >= more:
        return 0
    capacity = max(<Py_ssize_t>FIRST_CAPACITY, 2 * g.capacity, g.size + more)
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
    cdef Py_ssize_t expected = min(column.data.size, <Py_ssize_t>RESERVED_BYTES_MAX)
    nulls = column.nulls
    buffers = (hand_over(&column.validity) if nulls else None, hand_over(&column.offsets), hand_over(&column.data))
    drop_column(column)
    if reserve(&column.data, expected) != 0:
        raise MemoryError
    return nulls, buffers


cdef class ColumnBuilder:
    def __cinit__(self):
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
        return self.size()

    cdef int64_t size(self) noexcept nogil:
        return (
            self.key.data.size + self.key.offsets.size + self.value.data.size + self.value.offsets.size
            + self.offset.size + self.timestamp.size + self.timestamp_type.size + self.list_offsets.size
            + self.header_key.data.size + self.header_key.offsets.size
            + self.header_value.data.size + self.header_value.offsets.size)

    cdef bint differs_by_record(self) noexcept nogil:
        return self.wanted & ~WANT_TIMESTAMP_TYPE != 0

    cdef int put_counted(self, const BatchInfo* info) noexcept nogil:
        cdef int32_t i
        if self.wanted & WANT_TIMESTAMP_TYPE:
            for i in range(info.record_count):
                if put_i32(&self.timestamp_type, 1 if info.attributes & LOG_APPEND_TIME else 0) != 0:
                    return FAULT_NO_MEMORY
        self.rows += info.record_count
        return 0

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
            drop(&self.list_validity)
        self.open_columns()
        return rows, taken
