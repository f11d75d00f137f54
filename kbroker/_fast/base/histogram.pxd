"""Counts of values by power of two. Each has one writer at a time; any thread may read, and sees each count whole."""

from libc.stdint cimport int32_t, int64_t

cdef enum:
    HISTOGRAM_BUCKETS = 26


cdef struct Histogram:      # counts[i] is of values below 2^i and not below 2^(i - 1), the last of all larger ones
    int64_t counts[HISTOGRAM_BUCKETS]
    int64_t total           # sum of the values


cdef inline void histogram_add(Histogram* histogram, int64_t value) noexcept nogil:
    cdef int32_t bucket = 0
    while bucket < HISTOGRAM_BUCKETS - 1 and value >= (<int64_t>1 << bucket):
        bucket += 1
    histogram.counts[bucket] += 1
    histogram.total += value


cdef inline tuple histogram_values(const Histogram* histogram):
    """([counts], total)."""
    cdef int32_t i
    return [histogram.counts[i] for i in range(HISTOGRAM_BUCKETS)], histogram.total
