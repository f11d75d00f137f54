from libc.stdint cimport int16_t, int64_t

from kbroker._fast.wal.wakeups cimport WakeupFds


cdef class Completion:
    """Something that waits for appended data to become durable: a produce request, a coordinator write.

    `complete` is called with the GIL, once for each push, on the thread that drains the queue. `error` is a Kafka code.
    """
    cdef int complete(self, int16_t error) except -1
    # Some wait lists have been closed, on any thread. `error`: that of the list which it was pushed with, 0: that one is
    # open. What cannot come any more is answered now, and the later call of `complete` does nothing for it.
    cdef int closed(self, int16_t error) except -1


cdef class CallbackCompletion(Completion):
    """Calls a Python function with the error code."""
    cdef object function


cdef class Waiter:
    """A parked fetch. Called with the GIL, on the draining thread, when its partition's high watermark moved."""
    cdef int data_available(self) except -1


cdef class WaitList:
    """The parked fetches of one partition. Touched only with the GIL held.

    A waiter stays until it is discarded; adding it twice is the same as once.
    """
    cdef list waiters
    cdef readonly int16_t error     # what its partition's requests get: it is not led here any more; 0: it is
    cdef int add(self, Waiter waiter) except -1
    cdef int discard(self, Waiter waiter) except -1
    cpdef int wake(self) except -1


cdef struct CommitItem:
    int64_t end_lsn
    void* waiters         # WaitList or None, a counted reference
    void* completion      # Completion or None, a counted reference
    int64_t pushed_ns     # when, monotonic; kept by ObjectCommits only


cdef class CommitQueue:
    """Appends that are not durable yet, in WAL order. Pushed and drained only with the GIL held.

    The first I/O thread drains it (in tests, the test): it pops every item whose end position is durable, wakes the
    partition's waiters, then completes the completion. A push for a position that an earlier drain has already passed
    (the duplicate of a durable batch) writes to the wake-up descriptors, so that the next drain takes it.
    """
    cdef CommitItem* items        # ring; capacity is a power of two
    cdef int64_t first
    cdef int64_t count
    cdef int64_t capacity
    cdef readonly int64_t drained_lsn
    cdef readonly int16_t failed_with      # set by fail_all: every later push is failed too, at the next drain
    cdef readonly int64_t appended_bytes   # of the batches whose partitions push here, since the start
    cdef readonly int64_t closings         # calls of fail_closed
    cdef bint draining
    cdef object failure           # the first one of a callback in this drain
    cdef WakeupFds wakeups
    cdef int push(self, int64_t end_lsn, WaitList waiters, Completion completion) except -1
    cpdef int drain(self, int64_t durable_lsn) except -1
    cpdef int fail_all(self, int16_t error) except -1
    cpdef int refuse_all(self, int16_t error) except -1
    cdef int finish_first(self, int16_t error) except -1
    cdef int note(self, object failure) except -1
    cdef int grow(self) except -1
    cdef void notify(self) noexcept nogil


cdef enum:
    LATENCY_BUCKETS = 32  # powers of two of a microsecond


cdef class ObjectCommits(CommitQueue):
    """What waits for its data to be in objects that the manifest names (`kbroker.durability=object`).

    As CommitQueue with the WAL's flushed position in place of the durable one. The flusher learns from `newest_lsn` how
    far it is waited for; before it sleeps it arms the queue, and the next push beyond that wakes it.
    """
    cdef readonly int64_t newest_lsn       # the highest position that was pushed
    cdef bint armed
    cdef int flusher_fd                    # eventfd, -1: none
    cdef int64_t latencies[LATENCY_BUCKETS]
    cdef int64_t latency_us                # in total


# What the log makes of its queues in one drain. `refusal`: nothing durable is acknowledged any more; `objects_failed`:
# nothing more will be flushed; `failure`: the log has failed. Kafka errors, 0: none.
cdef int settle_commits(CommitQueue commits, int64_t durable_lsn, int16_t refusal, int16_t failure) except -1
cdef int settle_objects(ObjectCommits commits, int64_t flushed_lsn, int16_t objects_failed, int16_t failure) except -1
