# The WAL files that the cache is reading, under descriptors of its own: the connection that asked may end before the
# load, and its segment with it.

from libc.stdint cimport int32_t, int64_t
from posix.unistd cimport close

from kbroker._fast.base.invariant cimport invariant

cdef extern from * nogil:
    """
    #include <fcntl.h>
    static int kb_dup(int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, 3); }
    """
    int dup_fd "kb_dup"(int fd)

cdef enum:
    CACHE_FILES_MAX = 64
    FILES_FULL = -3     # as CACHE_FULL and CACHE_FAILED
    FILES_FAILED = -2

cdef struct WalFile:    # where a range of the log lies on disk
    int fd
    int direct_fd       # the same file with O_DIRECT, or -1
    int64_t first_lsn   # of the file: its first byte after the header page
    int64_t end_lsn     # what the file is known to hold ends here
    int32_t* lent       # set once the kernel has been given its pages: it must never be overwritten again

cdef struct CacheFile:
    int32_t loads       # that are outstanding
    int fd
    int direct_fd
    int from_fd         # what they are copies of
    int64_t first_lsn

cdef struct CacheFiles:
    CacheFile items[CACHE_FILES_MAX]


cdef inline int32_t files_open(CacheFiles* files, const WalFile* file) noexcept nogil:
    """For one more load: the number of the file, or FILES_FULL, FILES_FAILED."""
    cdef int32_t i, found = -1
    cdef CacheFile* f
    for i in range(CACHE_FILES_MAX):
        f = &files.items[i]
        if f.loads == 0:
            found = i
        elif f.from_fd == file.fd and f.first_lsn == file.first_lsn:
            f.loads += 1
            return i
    if found < 0:
        return FILES_FULL
    f = &files.items[found]
    f.fd = dup_fd(file.fd)
    if f.fd < 0:
        return FILES_FAILED
    f.direct_fd = dup_fd(file.direct_fd) if file.direct_fd >= 0 else -1
    f.from_fd = file.fd
    f.first_lsn = file.first_lsn
    f.loads = 1
    return found


cdef inline void files_leave(CacheFiles* files, int32_t i) noexcept nogil:
    """The load has ended."""
    cdef CacheFile* f = &files.items[i]
    invariant(f.loads > 0)
    f.loads -= 1
    if f.loads == 0:
        close(f.fd)
        if f.direct_fd >= 0:
            close(f.direct_fd)
