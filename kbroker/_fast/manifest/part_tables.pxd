"""What some partitions' deltas say, as tables; and a reader of such tables that another process has sent."""

from cpython cimport array
from libc.stdint cimport int64_t

from kbroker._fast.manifest.part_columns cimport TABLE_COUNT


cdef class Table:
    """Rows of int64, one after another."""
    cdef array.array values
    cdef Py_ssize_t used      # values

    cdef int64_t* grow(self, Py_ssize_t count) except NULL
    cdef int put(self, object row, Py_ssize_t width) except -1
    cdef Py_ssize_t put_rows(self, tuple rows, Py_ssize_t width) except -1
    cdef Py_ssize_t put_integers(self, tuple values) except -1
    cdef int copy(self, const int64_t* values, Py_ssize_t count) except -1


cdef class PartTables:
    """Deltas of partitions, gathered one after another."""
    cdef readonly list topics # ids; `parts` has places in it
    cdef dict _places         # topic id -> place
    cdef Table _parts, _added, _removed, _producers, _batches, _opened, _aborted, _gone, _epochs

    cdef int64_t _place(self, bytes topic_id) except -1
    cdef int _take_part(self, const int64_t* part, int64_t topic) except -1
    cdef int _take_references(
        self, const int64_t* rows, Py_ssize_t count, tuple files, array.array places, list named
    ) except -1


cdef struct Tables:           # borrowed: the bytes objects must live
    const int64_t* at[TABLE_COUNT]
    Py_ssize_t rows[TABLE_COUNT]


cdef int read_tables(tuple tables, Tables* found) except -1
cdef int count_rows(const Tables* of, const int64_t* part, Py_ssize_t* counts) noexcept
