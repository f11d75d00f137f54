# Group commit: whether a commit waits for company, to share its sync (decision 004).
#
# Producers with a few requests in flight send the next one when one is acknowledged. It comes just after the next commit
# has begun, so the requests fall into two halves, each of which waits for the other's sync as well as its own. Waiting
# until all are back costs less than a sync when they come back within a part of one.

cimport cython
from libc.stdint cimport int32_t, int64_t

cdef enum:
    GATHER_BYTES_MAX = 65536    # more needs no company: writing it takes longer than the sync
    GATHER_NS_MAX = 500000
    ENTRY_NS = 10000            # what an entry costs on its way: while many come, the log should be writing
    FAILURES_MAX = 6            # after so many waits that failed in a row, one commit in 63 waits


@cython.final
cdef class GroupCommit:
    """Protected by the log's lock. Time comes from the caller."""
    cdef int64_t cut            # entries that commits have covered so far
    cdef readonly int64_t awaited   # a commit waits until there are so many entries: one more for each that the last
                                    # commit covered or that was appended meanwhile. 0: it does not wait
    cdef readonly int64_t wait_ns   # how long a commit may wait for them
    cdef public int64_t wait_ns_max
    cdef int32_t failures       # waits in a row that did not see them all, at most FAILURES_MAX
    cdef int32_t skip           # commits, the one that waited included, before the next wait
    # Whether to wait with `entries` in the log, of which so many bytes are not durable.
    cpdef bint should_gather(self, int64_t entries, int64_t pending_bytes) noexcept nogil
    cpdef void gathered(self, bint all_came) noexcept nogil
    # A commit of so many bytes has covered the entries up to `cut`; there are `entries` by now.
    cpdef void committed(self, int64_t cut, int64_t entries, int64_t size, int64_t sync_ns) noexcept nogil
