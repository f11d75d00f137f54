from libc.stdint cimport int64_t


cdef class TimestampDisorder:
    """How far record timestamps lie below their batch's base timestamp, at most, in a partition's unflushed batches.

    One bound for all of them, in ms. Ends of batches are exclusive offsets. Each method is one step under the GIL.
    """
    cdef int64_t max_ms           # largest of the unflushed batches that have any ...
    cdef int64_t end_offset       # ... and the end of the last of them
    cdef int64_t unknown_end      # end of the last batch whose records were not examined
    # Notes the disorder of an appended batch, or of all replayed ones, that end at `end_offset`. DISORDER_UNKNOWN:
    # their records were not examined.
    cdef void note(self, int64_t end_offset, int64_t disorder_ms, int64_t flushed_offset) noexcept
