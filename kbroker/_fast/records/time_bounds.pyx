"""How early records can be: an object's smallest timestamp, and how late its batches come (docs/formats/manifest.md)."""

from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint64_t


def time_bounds(const int64_t[:] max_timestamps not None, const int64_t[:] min_timestamps not None,
                const int32_t[:] record_counts not None):
    """(smallest timestamp, lateness in ms) of batches in offset order, at least one; -2^63 and -1 where not known.

    Lateness: how far, at most, a record lies below the largest of all ``max_timestamps`` before its batch's. A batch
    without records has no timestamps, but its maximum is in the index as any other.
    """
    cdef Py_ssize_t i, n = max_timestamps.shape[0]
    cdef int64_t newest = INT64_MIN, smallest = INT64_MAX
    cdef uint64_t late = 0
    if n == 0 or not n == min_timestamps.shape[0] == record_counts.shape[0]:
        raise ValueError("no batches, or arrays of different length")
    for i in range(n):
        if record_counts[i] > 0:
            smallest = min(smallest, min_timestamps[i])
            if newest > min_timestamps[i]:
                late = max(late, <uint64_t>newest - <uint64_t>min_timestamps[i])
        newest = max(newest, max_timestamps[i])
    if smallest == INT64_MAX:
        return newest, 0    # no records
    return smallest, (-1 if late > <uint64_t>INT64_MAX else <int64_t>late)
