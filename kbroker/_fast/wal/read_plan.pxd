from libc.stdint cimport int32_t, int64_t, uint32_t

from kbroker._fast.wal.segment cimport WalSegment

cdef struct BatchRef:
    int64_t lsn               # WAL position of the batch's first byte
    uint32_t length
    uint32_t segment          # index into ReadPlan.segments


cdef class ReadPlan:
    """Whole batches to send, as references into the WAL; holds their segments open until it is dropped."""
    cdef BatchRef* refs
    cdef int32_t count
    cdef int32_t capacity
    cdef int64_t total_bytes
    cdef int64_t end_offset   # after the last batch that a partition has added
    cdef list segments        # borrowed; None: none
    cdef int give_back(self) except -1
    cdef int add(self, int64_t lsn, uint32_t length, WalSegment segment) except -1
