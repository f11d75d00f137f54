# What the kernel's page cache holds of a file.

from libc.stdint cimport int64_t

cdef extern from * nogil:
    """
    #include <stdint.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    /* cachestat(2), Linux 6.5; elsewhere nothing counts as cached. A read with RWF_NOWAIT would tell as well, but it
       starts reading into the page cache what it does not find there. */
    static inline int kb_all_cached(int fd, int64_t position, int64_t length) {
        uint64_t range[2] = {(uint64_t)position, (uint64_t)length}, stat[5] = {0};
        int64_t pages = (position + length + 4095) / 4096 - position / 4096;
        return syscall(451, fd, range, stat, 0) == 0 && (int64_t)stat[0] >= pages;
    }
    """
    bint all_cached "kb_all_cached"(int fd, int64_t position, int64_t length)
