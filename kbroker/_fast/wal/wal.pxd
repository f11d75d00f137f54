from libc.stdint cimport int16_t, int32_t, int64_t

from kbroker._fast.base.atomic cimport load64
from kbroker._fast.base.histogram cimport Histogram
from kbroker._fast.base.kafka cimport KAFKA_STORAGE_ERROR
from kbroker._fast.base.pthread cimport monotonic_ns, pthread_cond_t
from kbroker._fast.wal.cache cimport WalCache
from kbroker._fast.wal.commit cimport CommitQueue, ObjectCommits
from kbroker._fast.wal.faults cimport Faults
from kbroker._fast.wal.group_commit cimport GroupCommit
from kbroker._fast.wal.reads cimport ReadableLog


cdef class Wal(ReadableLog):
    """The write-ahead log: its positions and memory, its segments, and the thread that commits. See docs/formats/wal.md.
    """
    cdef readonly CommitQueue commits            # what waits for the durable position
    cdef readonly ObjectCommits object_commits   # what waits for the flushed position
    cdef int16_t objects_failed          # Kafka error for all that waits for the flushed position; 0: none
    cdef int16_t refusal                 # Kafka error for every append and all that waits; 0: none
    cdef readonly str directory
    cdef readonly bytes cluster_id
    cdef readonly int64_t wal_bytes
    cdef readonly Faults faults
    cdef readonly WalCache cache         # blocks read back from the segment files
    cdef public object keeper            # owns the segment files (kbroker.storage.wal.keeper); set before the start
    cdef object thread
    # -- C state under `lock`
    cdef pthread_cond_t moved            # durable moved, or failed
    cdef bint stopping
    cdef int64_t wake_preparer_lsn       # a commit that finds the head there or beyond wakes the preparer, once
    cdef readonly bint failed            # for good: appends are refused, the broker must end
    cdef readonly int last_errno
    cdef readonly int64_t syncs
    cdef readonly int64_t bytes_written
    cdef int64_t commit_ended_ns         # when the last commit ended, monotonic; atomic
    cdef readonly GroupCommit group
    cdef readonly int64_t failed_files
    cdef readonly int64_t group_waits    # commits that waited for company (decision 004)
    cdef readonly int64_t commit_ns      # time in write and sync, in total
    cdef Histogram sync_us               # of each commit: microseconds in write and sync, ...
    cdef Histogram commit_bytes          # ... bytes, and ...
    cdef Histogram commit_batches        # ... batches
    # -- written by the I/O threads, with the GIL
    cdef public int64_t room_waited_ms   # by Produce requests that found no room, in total
    cdef inline int32_t failure(self) noexcept nogil:    # the Kafka error behind APPEND_FAILED
        return self.refusal if self.refusal else KAFKA_STORAGE_ERROR

    cdef inline bint has_rested(self, int64_t ns) noexcept nogil: # without a commit, and none is under way
        return (
            load64(&self.head) == load64(&self.durable_end)
            and monotonic_ns() - load64(&self.commit_ended_ns) >= ns
        )

    # Completes what is durable on `commits` and what is flushed on `object_commits`, or fails everything once the WAL
    # has failed. The draining thread only.
    cpdef int drain_commits(self) except -1

    cdef bint commit_loop(self) noexcept nogil
    cdef bint commit(self) noexcept nogil
    cdef void gather(self) noexcept nogil
