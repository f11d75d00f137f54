"""What a read sends: references into the WAL, and the segments that they lie in."""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.stdlib cimport free, realloc

from kbroker._fast.base.invariant cimport invariant
from kbroker._fast.wal.segment cimport WalSegment


@cython.no_gc   # it refers to nothing that could refer to it
cdef class ReadPlan:
    def __dealloc__(self):
        self.give_back()
        free(self.refs)

    def release(self):
        """Gives the borrowed segments back; the references must not be used any more."""
        self.give_back()

    cdef int give_back(self) except -1:
        cdef WalSegment segment
        if self.segments is not None:
            for segment in self.segments:
                segment.borrows -= 1
                invariant(segment.borrows >= 0)
            self.segments = None
        self.count = 0
        self.total_bytes = 0
        return 0

    cdef int add(self, int64_t lsn, uint32_t length, WalSegment segment) except -1:
        cdef BatchRef* ref
        cdef int32_t capacity
        cdef void* grown
        cdef Py_ssize_t n
        invariant(length > 0 and lsn >= segment.first_lsn and lsn + length <= segment.end_lsn)
        if self.count == self.capacity:
            capacity = 64 if self.capacity == 0 else 2 * self.capacity
            grown = realloc(self.refs, capacity * sizeof(BatchRef))
            if grown == NULL:
                raise MemoryError
            self.refs = <BatchRef*>grown
            self.capacity = capacity
        if self.segments is None:
            self.segments = []
        n = len(self.segments)
        if n == 0 or self.segments[n - 1] is not segment:
            self.segments.append(segment)
            segment.borrows += 1
            n += 1
        ref = &self.refs[self.count]
        ref.lsn = lsn
        ref.length = length
        ref.segment = <uint32_t>(n - 1)
        self.count += 1
        self.total_bytes += length
        return 0

    def references(self):
        """[(WAL position, length, segment), ...]; for tests and slow paths."""
        cdef int32_t i
        return [(self.refs[i].lsn, self.refs[i].length, self.segments[self.refs[i].segment])
                for i in range(self.count)]
