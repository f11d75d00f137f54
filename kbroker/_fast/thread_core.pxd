# Which core a thread with little to do runs on (decision 005).

from libc.stdint cimport int32_t, int64_t

cdef extern from * nogil:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <pthread.h>
    #include <sched.h>
    #include <string.h>
    #include <unistd.h>
    static int32_t kb_current_core(void) {
        int core = sched_getcpu();
        return core < CPU_SETSIZE ? core : -1;
    }
    static int64_t kb_this_thread(void) {
        return (int64_t)pthread_self();
    }
    static void kb_put_on_core(int64_t thread, int32_t core) {
        cpu_set_t cores;
        CPU_ZERO(&cores);
        if (core >= 0)
            CPU_SET(core, &cores);
        else if (sched_getaffinity(getpid(), sizeof cores, &cores))
            memset(&cores, 0xff, sizeof cores);
        pthread_setaffinity_np((pthread_t)thread, sizeof cores, &cores);
    }
    """
    int32_t current_core "kb_current_core"()        # or ANY_CORE
    int64_t this_thread "kb_this_thread"()          # what threading.get_ident() gives
    # A this_thread() that lives; ANY_CORE: those that the main thread may run on
    void put_on_core "kb_put_on_core"(int64_t thread, int32_t core)

cdef enum:
    ANY_CORE = -1
    LOAD_NS = 20000000          # looked back on

cdef struct ThreadLoad:         # how much of its time a thread has worked lately
    int64_t busy_ns
    int64_t total_ns
    int64_t ended_ns            # when it had last done its work

cdef struct PlacedThread:       # one that whoever wakes it puts on a core
    ThreadLoad load
    int64_t thread              # its this_thread(); 0: not begun
    int32_t core                # or ANY_CORE, once it has begun


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


cdef inline void begin_placed(PlacedThread* placed) noexcept nogil:
    """This thread is the one; it may run on any core."""
    placed.core = ANY_CORE
    placed.thread = this_thread()


cdef inline void run_anywhere(PlacedThread* placed) noexcept nogil:
    """This thread is the one; it stays where it runs, but threads that it starts are as free as others."""
    placed.core = ANY_CORE
    put_on_core(placed.thread, ANY_CORE)


cdef inline void place_beside(PlacedThread* placed, int64_t resting) noexcept nogil:
    """Before this thread wakes it: onto this core if this is the thread that goes to sleep next, `resting`, and both
    have time; onto any core if not both have.

    Cheap, as it sleeps: one that runs elsewhere is stopped and moved.
    """
    cdef int32_t core = ANY_CORE
    if resting != 0 and has_time(&placed.load):
        core = current_core() if resting == this_thread() else placed.core
    if placed.thread != 0 and core != placed.core:
        placed.core = core
        put_on_core(placed.thread, core)
