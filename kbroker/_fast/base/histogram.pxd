"""Counts of values by power of two. Each has one writer at a time; any thread may read, and sees each count whole."""

from libc.stdint cimport int32_t, int64_t

cdef enum:
    HISTOGRAM_BUCKETS = 30


cdef extern from * nogil:
    """
    /* How many bits it takes to write `n`; 0 for 0 and below. */
    static inline int kb_bits(long long n) { return n > 0 ? 64 - __builtin_clzll((unsigned long long)n) : 0; }
    """
    int bits "kb_bits"(long long n)


cdef struct Histogram:      # counts[i] is of values below 2^i and not below 2^(i - 1), the last of all larger ones
    int64_t counts[HISTOGRAM_BUCKETS]
    int64_t total           # sum of the values


cdef inline void histogram_add(Histogram* histogram, int64_t value) noexcept nogil:
    histogram.counts[min(bits(value), HISTOGRAM_BUCKETS - 1)] += 1
    histogram.total += value


cdef inline tuple histogram_values(const Histogram* histogram):
    """([counts], total)."""
    cdef int32_t i
    return [histogram.counts[i] for i in range(HISTOGRAM_BUCKETS)], histogram.total
