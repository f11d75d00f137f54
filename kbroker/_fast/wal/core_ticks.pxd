from libc.stdint cimport int32_t, int64_t

from kbroker._fast.base.atomic cimport load32, store64
from kbroker._fast.base.pthread cimport pthread_cond_t, pthread_mutex_t

cdef enum:
    TICK_NS = 2000000           # between two ticks of a core
    TICK_FOR_NS = 20000000      # so long they go on behind the last commit
    COMMITS_WITHIN_NS = 5000000 # of each other are worth the ticks, ...
    COMMIT_BYTES_MAX = 65536    # ... those of so much at most


cdef class CoreTicks:
    """Threads, one a core, that wake every other millisecond while they are wanted (decision 006)."""
    cdef int64_t until_ns       # monotonic; atomic
    cdef int32_t asleep         # threads that are to be woken; changed under `lock`
    cdef int32_t stopping       # atomic
    cdef pthread_mutex_t lock
    cdef pthread_cond_t wanted
    cdef readonly list threads
    cdef void tick(self, int32_t core) noexcept nogil
    cdef void rest(self) noexcept nogil
    cdef void wake(self) noexcept nogil

    cdef inline void lone_commit(self, int64_t began_ns, int64_t last_ended_ns, int64_t bytes) noexcept nogil:
        """A commit has begun while the I/O thread and the log's have time: ticks where more such are likely to follow."""
        if began_ns - last_ended_ns < COMMITS_WITHIN_NS and bytes <= COMMIT_BYTES_MAX:
            store64(&self.until_ns, began_ns + TICK_FOR_NS)
            if load32(&self.asleep):
                self.wake()
