# Columns in Arrow's layout, filled from record batches. Validity bitmaps are least significant bit first; offsets are
# int32 with one more element than there are entries; all numbers are in host order.
from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._fast.base.cursor cimport Cursor
from kbroker._fast.records.record cimport RecordView
from kbroker._fast.records.record_batch cimport BatchInfo

cdef enum:
    WANT_KEY = 1
    WANT_VALUE = 2
    WANT_OFFSET = 4
    WANT_TIMESTAMP = 8
    WANT_TIMESTAMP_TYPE = 16
    WANT_HEADERS = 32

# Beside the reasons of record.pxd: what only an Arrow column cannot hold.
cdef enum:
    FAULT_NO_MEMORY = -2
    FAULT_TIMESTAMP = -3      # milliseconds that are no 64-bit number of microseconds
    FAULT_COLUMN_FULL = -4    # more than 2 GiB in one column

cdef struct Growable:
    # malloc'ed bytes; owned by the ColumnBuilder until `take` hands them to a ColumnBuffer.
    uint8_t* base
    Py_ssize_t size
    Py_ssize_t capacity

cdef struct BytesColumn:
    Growable validity
    Growable offsets
    Growable data
    int64_t nulls


cdef class ColumnBuffer:
    """Bytes taken from a builder; a read-only buffer that frees them with itself."""
    cdef Growable bytes


cdef class ColumnBuilder:
    """Rows of the columns asked for. One thread at a time, without the GIL where it is declared so."""
    cdef readonly int64_t rows
    cdef int wanted
    cdef BytesColumn key, value, header_key, header_value
    cdef Growable offset, timestamp, timestamp_type
    cdef Growable list_validity, list_offsets
    cdef int64_t header_rows, header_nulls

    cdef int open_columns(self) except -1
    cdef void free_columns(self) noexcept
    cdef int64_t size(self) noexcept nogil                  # bytes in all columns
    # Whether a column is wanted that only the records tell, not the header of their batch.
    cdef bint differs_by_record(self) noexcept nogil
    # As many rows as the header says. 0 or FAULT_NO_MEMORY.
    cdef int put_counted(self, const BatchInfo* info) noexcept nogil
    # A row. 0 or a FAULT_; after FAULT_TIMESTAMP the columns are as before.
    cdef int put_row(self, const BatchInfo* info, const RecordView* record, int64_t offset,
                     int64_t timestamp) noexcept nogil
    cdef int put_headers(self, const RecordView* record) noexcept nogil
