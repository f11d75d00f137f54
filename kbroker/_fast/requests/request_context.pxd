from libc.stdint cimport int32_t, int64_t


cdef class RequestContext:
    """What Produce and Fetch requests need of the broker; one for all reactors, read with the GIL held."""
    cdef readonly dict topics_by_name
    cdef readonly dict topics_by_id
    cdef readonly object leaders        # kbroker.log.leaders.Leaders
    cdef readonly object cold_reader    # request(partition_log, offset, upper, max_bytes, callback), or None
    cdef readonly object executor       # for work that takes over a millisecond
    cdef public object transactions     # kbroker.coordinator.transaction.coordinator.TransactionCoordinator, or None
    cdef public object sessions         # FetchSessions
    cdef readonly int64_t fetch_bytes_max
    cdef readonly int64_t fetch_near_bytes  # of one answer to a client whose round trips are short
