from libc.stdint cimport INT64_MAX, INT64_MIN, int16_t, int32_t, int64_t

from kbroker._fast.records.record_batch cimport LOG_APPEND_TIME

cdef enum:
    DISORDER_UNKNOWN = -1     # the header was checked when the batch was produced; its maximum is right unless negative
    HEADER_UNCHECKED = -2     # of a batch that may come from elsewhere

# The smallest timestamp of a batch, from its header, or a bound below it; INT64_MIN: not known. `disorder_ms`: how far,
# at most, a record lies below the base timestamp, or one of these.
cdef inline int64_t min_timestamp_of(int16_t attributes, int32_t record_count, int64_t base_timestamp,
                                     int64_t max_timestamp, int64_t disorder_ms) noexcept nogil:
    if record_count == 0 or attributes & LOG_APPEND_TIME:
        return max_timestamp
    if record_count == 1 and max_timestamp >= 0 and disorder_ms != HEADER_UNCHECKED:
        return max_timestamp
    if disorder_ms < 0 or disorder_ms == INT64_MAX or base_timestamp < INT64_MIN + disorder_ms:
        return INT64_MIN        # INT64_MAX: it saturates
    return base_timestamp - disorder_ms
