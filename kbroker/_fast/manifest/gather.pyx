"""Gathers the deltas of a manifest record into tables of int64, for storage.manifest.record_encode; GIL held."""

from cpython cimport array
from cpython.long cimport PyLong_AsLongLong
from cpython.tuple cimport PyTuple_GET_ITEM
from libc.stdint cimport int64_t

cdef enum:                    # fields of storage.manifest.record.PartitionDelta
    GRACE_MS
    LOG_START_OFFSET
    END_OFFSET
    LAST_STABLE_OFFSET
    OPEN
    EPOCHS
    ABORTED
    PRODUCERS
    REMOVED
    ADDED
    CLEAN_OFFSET
    ABORTED_GONE
    HORIZON_MS
    NUMBER
    LEADER_EPOCH
    FIELDS

cdef enum:
    UNCHANGED = -1
    PART_COLUMNS = 17
    BATCHES_AT = 5            # in a producer's entry


cdef class _Table:
    """Rows of int64, one after another."""
    cdef array.array values
    cdef Py_ssize_t used

    def __cinit__(self):
        self.values = array.array("q")

    cdef int64_t* grow(self, Py_ssize_t count) except NULL:
        """Room for so many more values, to be filled."""
        cdef Py_ssize_t first = self.used
        self.used += count
        array.resize_smart(self.values, self.used)
        return <int64_t*>self.values.data.as_longlongs + first

    cdef int put(self, object row, Py_ssize_t width) except -1:
        """The first integers of a row."""
        cdef int64_t* at
        cdef Py_ssize_t i
        _check_tuple(row, width)
        at = self.grow(width)
        for i in range(width):
            at[i] = _integer(<object>PyTuple_GET_ITEM(row, i))
        return 0

    cdef Py_ssize_t put_rows(self, tuple rows, Py_ssize_t width) except -1:
        for row in rows:
            self.put(row, width)
        return len(rows)

    cdef Py_ssize_t put_integers(self, tuple values) except -1:
        cdef int64_t* at
        for value in values:
            at = self.grow(1)
            at[0] = _integer(value)
        return len(values)


cdef int _check_tuple(object row, Py_ssize_t width) except -1:
    """A tuple, named or not, of at least so many values."""
    if not isinstance(row, tuple) or len(row) < width:
        raise TypeError(f"not a tuple of {width} values: {row!r:.80}")
    return 0


cdef inline object _field(object delta, Py_ssize_t number):
    return <object>PyTuple_GET_ITEM(delta, number)


cdef inline int64_t _integer(object value) except? -1:
    return PyLong_AsLongLong(value)


cdef inline int64_t _optional(object value) except? -1:
    return UNCHANGED if value is None else PyLong_AsLongLong(value)


def gather(dict partitions):
    """(topic ids, tables) of the deltas by topic id and partition. The tables, arrays of int64 row by row, are those of
    record_columns from "parts" on, with references as RefRow has them."""
    cdef dict topics = {}
    cdef _Table parts = _Table(), added = _Table(), removed = _Table(), producers = _Table(), batches = _Table()
    cdef _Table opened = _Table(), aborted = _Table(), gone = _Table(), epochs = _Table()
    cdef tuple key
    cdef object delta
    cdef int64_t row[PART_COLUMNS]
    cdef int64_t* at
    cdef Py_ssize_t i
    for key, delta in partitions.items():
        _check_tuple(delta, FIELDS)
        row[0] = topics.setdefault(key[0], len(topics))
        row[1] = key[1]
        row[2] = _field(delta, NUMBER)
        row[3] = _field(delta, LEADER_EPOCH)
        row[4] = _field(delta, GRACE_MS)
        row[5] = _optional(_field(delta, LOG_START_OFFSET))
        row[6] = _optional(_field(delta, END_OFFSET))
        row[7] = _optional(_field(delta, LAST_STABLE_OFFSET))
        row[8] = _optional(_field(delta, CLEAN_OFFSET))
        row[9] = _optional(_field(delta, HORIZON_MS))
        row[10] = added.put_rows(_field(delta, ADDED), 10)
        row[11] = removed.put_integers(_field(delta, REMOVED))
        row[12] = len(_field(delta, PRODUCERS))
        for entry in _field(delta, PRODUCERS):
            producers.put(entry, BATCHES_AT)
            at = producers.grow(1)
            at[0] = batches.put_rows(entry[BATCHES_AT], 4)
        row[13] = UNCHANGED if _field(delta, OPEN) is None else opened.put_rows(_field(delta, OPEN), 2)
        row[14] = aborted.put_rows(_field(delta, ABORTED), 4)
        row[15] = gone.put_integers(_field(delta, ABORTED_GONE))
        row[16] = epochs.put_rows(_field(delta, EPOCHS), 2)
        at = parts.grow(PART_COLUMNS)
        for i in range(PART_COLUMNS):
            at[i] = row[i]
    return list(topics), {
        "parts": parts.values,
        "added": added.values,
        "removed": removed.values,
        "producers": producers.values,
        "batches": batches.values,
        "open": opened.values,
        "aborted": aborted.values,
        "aborted_gone": gone.values,
        "epochs": epochs.values,
    }
