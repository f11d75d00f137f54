# Which core a thread with little to do runs on (decision 005).

from libc.stdint cimport int32_t, int64_t

cdef extern from * nogil:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <sched.h>
    #include <string.h>
    #include <unistd.h>
    static int32_t kb_current_core(void) {
        int core = sched_getcpu();
        return core < CPU_SETSIZE ? core : -1;
    }
    static void kb_run_on_core(int32_t core) {
        cpu_set_t cores;
        CPU_ZERO(&cores);
        if (core >= 0)
            CPU_SET(core, &cores);
        else if (sched_getaffinity(getpid(), sizeof cores, &cores))
            memset(&cores, 0xff, sizeof cores);
        sched_setaffinity(0, sizeof cores, &cores);
    }
    """
    int32_t current_core "kb_current_core"()            # or ANY_CORE
    void run_on_core "kb_run_on_core"(int32_t core)     # this thread; ANY_CORE: those that the main thread may run on

cdef enum:
    ANY_CORE = -1
    UNKNOWN_CORE = -2
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
    """Whether it rests for three quarters of its time and more."""
    return load.busy_ns * 4 < load.total_ns
