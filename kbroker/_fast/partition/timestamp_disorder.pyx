"""The disorder of timestamps in a partition's unflushed batches, from which a flush bounds their smallest timestamp."""

from libc.stdint cimport int64_t

from kbroker._fast.records.time_bounds cimport DISORDER_UNKNOWN


cdef class TimestampDisorder:
    cdef void note(self, int64_t end_offset, int64_t disorder_ms, int64_t flushed_offset) noexcept:
        if disorder_ms < 0:
            self.unknown_end = end_offset
            return
        if self.end_offset <= flushed_offset:
            self.max_ms = 0     # no flush will read the batches it came from
        self.max_ms = max(self.max_ms, disorder_ms)
        self.end_offset = end_offset

    def max_ms_from(self, int64_t offset):
        """The bound in ms for batches that begin at ``offset``, which is not flushed, or above it. -1: not known, the
        records of some were not examined when they were appended.
        """
        if offset < self.unknown_end:
            return DISORDER_UNKNOWN
        return self.max_ms if offset < self.end_offset else 0
