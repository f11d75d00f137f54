# The eventfds of threads that drain or retry: written to when there is something for them.
from libc.stdint cimport uint64_t
from posix.unistd cimport write

cdef enum:
    WAKEUP_FDS_MAX = 64

cdef struct WakeupFds:
    int fds[WAKEUP_FDS_MAX]
    int count


cdef inline bint wakeups_add(WakeupFds* wakeups, int fd) noexcept nogil:
    """False when there are too many."""
    if wakeups.count == WAKEUP_FDS_MAX:
        return False
    wakeups.fds[wakeups.count] = fd
    wakeups.count += 1
    return True


cdef inline void wakeups_remove(WakeupFds* wakeups, int fd) noexcept nogil:
    cdef int i
    for i in range(wakeups.count):
        if wakeups.fds[i] == fd:
            wakeups.count -= 1
            wakeups.fds[i] = wakeups.fds[wakeups.count]
            return


cdef inline void add_one(int event_fd) noexcept nogil:
    cdef uint64_t one = 1
    write(event_fd, &one, 8)


cdef inline void wakeups_write(const WakeupFds* wakeups) noexcept nogil:
    cdef int i
    for i in range(wakeups.count):
        add_one(wakeups.fds[i])
