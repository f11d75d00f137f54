# From whole record batches to rows of a ColumnBuilder, as far as it has room: a batch may give several Arrow batches.
from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._fast.base.cursor cimport Cursor
from kbroker._fast.records.arrow_columns cimport ColumnBuilder, Growable
from kbroker._fast.records.compression cimport PlainStream
from kbroker._fast.records.record_batch cimport BatchInfo

# Beside the reasons of record.pxd and the faults of arrow_columns.pxd.
cdef enum:
    FAULT_RECORD_SIZE = -5    # the record does not fit into the memory that the reader may use


cdef class RowReader:
    """The wanted rows of some batches after the other. One thread at a time; decoding releases the GIL.

    A compressed batch is never in memory as a whole: `plain` has a piece of it, at least one record. Memory beside the
    columns is bounded by the room given to `open`.
    """
    cdef int64_t stop_offset, lowest_timestamp, highest_timestamp
    # As `open` gave them; the batches are borrowed until the next `open`.
    cdef const uint8_t[::1] batches
    cdef int64_t first_offset
    cdef object aborted
    cdef int64_t room_bytes
    # The batch under way.
    cdef Py_ssize_t position      # of it in `batches`; where none is open, of the next one
    cdef BatchInfo info
    cdef bint is_open
    cdef int32_t records_left
    cdef int64_t record_bytes_max
    cdef int64_t needed_bytes     # with FAULT_RECORD_SIZE: of the record
    cdef Cursor c                 # its bytes, or those that are decompressed and not read
    cdef PlainStream stream       # None where it is not compressed
    cdef Growable plain
    cdef bint running             # a thread is in it, perhaps without the GIL

    cdef int next_batch(self, ColumnBuilder columns) except -1
    cdef bint is_wanted(self) except -1
    cdef bint is_counted(self, ColumnBuilder columns) noexcept
    cdef int open_batch(self) except -1
    cdef int read_batch(self, ColumnBuilder columns, int64_t rows_max, int64_t bytes_max) except -1
    cdef int end_batch(self) except -1
    cdef Py_ssize_t refill(self) except -1
    cdef int decode(self, ColumnBuilder columns, int64_t rows_max, int64_t bytes_max) noexcept nogil
    cdef int fail(self, int fault) except -1
