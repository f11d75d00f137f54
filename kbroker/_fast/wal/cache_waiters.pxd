# The eventfds of what waits for blocks of the cache of WAL files; a set of waiters is a bit mask of their numbers.

from libc.stdint cimport uint64_t

from kbroker._fast.wal.wakeups cimport add_one

cdef enum:
    CACHE_WAITERS_MAX = 64

cdef struct CacheWaiters:
    int fds[CACHE_WAITERS_MAX]      # -1: the number is free
    uint64_t hungry                 # those that found no block free


cdef inline void waiters_init(CacheWaiters* waiters) noexcept nogil:
    cdef int i
    waiters.hungry = 0
    for i in range(CACHE_WAITERS_MAX):
        waiters.fds[i] = -1


cdef inline int waiters_add(CacheWaiters* waiters, int fd) noexcept nogil:
    """The number of the new one; -1: there are too many."""
    cdef int i
    for i in range(CACHE_WAITERS_MAX):
        if waiters.fds[i] < 0:
            waiters.fds[i] = fd
            return i
    return -1


cdef inline void waiters_remove(CacheWaiters* waiters, int number) noexcept nogil:
    waiters.fds[number] = -1
    waiters.hungry &= ~(<uint64_t>1 << number)


cdef inline void waiters_wake(const CacheWaiters* waiters, uint64_t numbers) noexcept nogil:
    cdef int i
    cdef uint64_t one = 1
    if numbers:
        for i in range(CACHE_WAITERS_MAX):
            if numbers & (one << i) and waiters.fds[i] >= 0:
                add_one(waiters.fds[i])


cdef inline void waiters_wake_hungry(CacheWaiters* waiters) noexcept nogil:
    """A block may be free."""
    cdef uint64_t numbers = waiters.hungry
    waiters.hungry = 0
    waiters_wake(waiters, numbers)
