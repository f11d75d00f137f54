from libc.stdint cimport int64_t


cdef class AbortedTransactions:
    """A partition's aborted transactions, for readers of committed data (KIP-98). Each change is one step with the GIL."""
    # (producer id, first offset, last offset, last stable offset), by last offset. New ones are appended; those that are
    # forgotten leave by a new list, so that a read that began with this one may finish with it.
    cdef readonly list entries
    cdef int add(self, int64_t producer_id, int64_t first_offset, int64_t last_offset, int64_t stable_offset) except -1


# (producer id, first offset) of the entries that a read of [fetch_offset, upper) must know.
cpdef list aborted_between(list entries, int64_t fetch_offset, int64_t upper)
