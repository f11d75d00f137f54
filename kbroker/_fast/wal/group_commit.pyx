"""Group commit: whether a commit waits for company; the rule is in group_commit.pxd."""

from libc.stdint cimport int32_t, int64_t


cdef class GroupCommit:
    def __cinit__(self):
        self.wait_ns_max = GATHER_NS_MAX

    cpdef bint should_gather(self, int64_t entries, int64_t pending_bytes) noexcept nogil:
        return self.skip == 0 and entries < self.awaited and pending_bytes < GATHER_BYTES_MAX

    cpdef void gathered(self, bint all_came) noexcept nogil:
        self.failures = 0 if all_came else min(self.failures + 1, <int32_t>FAILURES_MAX)
        self.skip = (1 << self.failures) - 1

    cpdef void committed(self, int64_t cut, int64_t entries, int64_t size, int64_t sync_ns) noexcept nogil:
        cdef int64_t on_the_way = entries - self.cut
        if self.skip > 0:
            self.skip -= 1
        self.awaited = cut + on_the_way if size < GATHER_BYTES_MAX and on_the_way * ENTRY_NS <= sync_ns else 0
        self.cut = cut
        self.wait_ns = min(sync_ns - sync_ns // 4, self.wait_ns_max)
