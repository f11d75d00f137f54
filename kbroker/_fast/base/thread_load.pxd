# Whether a thread has time (decision 005).

from libc.stdint cimport int64_t

cdef extern from * nogil:
    """
    #include <pthread.h>
    static int64_t kb_this_thread(void) { return (int64_t)pthread_self(); }
    """
    int64_t this_thread "kb_this_thread"()          # what threading.get_ident() gives

cdef enum:
    LOAD_NS = 20000000          # looked back on

cdef struct ThreadLoad:         # how much of its time a thread has worked lately
    int64_t busy_ns
    int64_t total_ns
    int64_t ended_ns            # when it had last done its work


cdef inline void worked(ThreadLoad* load, int64_t began_ns, int64_t ended_ns) noexcept nogil:
    """The thread has worked from then to then, after it had rested."""
    cdef int64_t busy_ns = max(ended_ns - began_ns, <int64_t>0)
    load.busy_ns += busy_ns
    load.total_ns += busy_ns + min(max(began_ns - load.ended_ns, <int64_t>0), <int64_t>LOAD_NS)
    load.ended_ns = ended_ns
    while load.total_ns > LOAD_NS:
        load.busy_ns //= 2
        load.total_ns //= 2


cdef inline bint has_time(const ThreadLoad* load) noexcept nogil:
    """Whether it rests for half of its time and more."""
    return load.busy_ns * 2 < load.total_ns
