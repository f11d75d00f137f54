from libc.stdint cimport int16_t, int32_t, int64_t

from kbroker._fast.partition.partition cimport Partition


cdef class FetchSlot:
    """One partition of a fetch: what the client asked, and what this attempt found. Lives as long as its session."""
    cdef bytes topic                # name, or topic id
    cdef int32_t index
    cdef int32_t current_leader_epoch
    cdef int32_t last_fetched_epoch
    cdef int32_t max_bytes
    cdef int64_t fetch_offset
    cdef object topic_log
    cdef Partition partition        # None: unknown
    # What the last answer of the session said.
    cdef int64_t told_high_watermark
    cdef int64_t told_log_start
    # This attempt.
    cdef int16_t error
    cdef int32_t leader_id          # sent with an error, ...
    cdef int32_t leader_epoch       # ... -1: not
    cdef int64_t high_watermark
    cdef int64_t last_stable_offset
    cdef int64_t log_start
    cdef int64_t upper              # the fetch reads below it
    cdef int32_t diverging_epoch
    cdef int64_t diverging_end      # -1: none
    cdef int64_t next_offset        # where its next read continues, if the plan ended before the arena; else undefined
    cdef int64_t end_offset         # after the batches of the plan, if there are any
    cdef int32_t first_ref          # batches [first_ref, end_ref) of the plan
    cdef int32_t end_ref
    cdef int64_t bytes
    cdef list cold                  # buffers read from objects, or None
    cdef list aborted               # the partition's aborted transactions as they were before anything was read
    cdef int16_t cold_error
    cdef bint cold_asked
    cdef bint included
    cdef int clear(self) except -1
    cdef int forget_offsets(self) except -1
    cdef int forget_cold(self) except -1


cdef class FetchSession:
    """What a consumer's incremental fetches build on (KIP-227)."""
    cdef readonly int32_t session_id
    cdef readonly int32_t epoch             # of the next request
    cdef readonly bint uses_topic_ids
    cdef readonly dict slots                # (topic, index) -> FetchSlot, in the order they are served
    cdef int64_t used_ms
    cdef bint busy                          # a request is at work on its slots
    cdef int rotate(self, list slots) except -1


cdef class FetchSessions:
    """All sessions of the broker, least recently used first; shared by the reactors, touched with the GIL held."""
    cdef dict sessions
    cdef readonly int32_t slots_max
    cdef object random
    cdef FetchSession find(self, int32_t session_id, int64_t now_ms)
    cdef FetchSession open(self, bint uses_topic_ids, dict slots, int64_t now_ms)
    cdef int close(self, int32_t session_id) except -1
    cdef bint make_room(self, Py_ssize_t size, int64_t now_ms) except -1
