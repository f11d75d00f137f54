# The memory that decompression may take in the whole process.

from libc.stdint cimport int64_t


cdef class Share:
    """Memory that one decompression has taken; released by `close`, at the latest when it is dropped."""
    cdef DecompressionMemory memory
    cdef readonly int64_t bytes
    cdef unsigned long holder          # the thread that took it

    cdef int shrink(self, int64_t n) except -1        # keeps no more than n bytes


cdef class DecompressionMemory:
    """The GIL protects the counters: it is not released between two that change together."""
    cdef public int64_t limit
    cdef readonly int64_t used
    cdef readonly int64_t waits        # takes that had to wait
    cdef readonly int64_t refusals     # batches that would need more than the limit
    cdef object waiting                # deque of (bytes, lock), oldest first
    cdef dict held                     # thread -> how many shares it has

    # n bytes, or the whole budget if n is more. While they are in use: waits its turn, or returns None.
    cdef Share take(self, int64_t n, bint wait)
    cdef Share _charged(self, int64_t n)
    cdef int _give(self, int64_t n) except -1


cdef DecompressionMemory memory
