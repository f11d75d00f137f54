from libc.stdint cimport int64_t, uint8_t
from posix.types cimport off_t


cdef class Faults:
    """What a WAL does to its files, with failures to order for tests.

    Counters: `..._after` operations pass, then `..._count` fail (-1: all).
    """
    cdef public int64_t write_after
    cdef public int64_t write_count
    cdef public int write_errno
    cdef public int64_t torn_bytes       # bytes that a failing write still writes
    cdef public int64_t short_bytes      # a passing write takes at most this much; 0: no limit
    cdef public int64_t sync_after
    cdef public int64_t sync_count
    cdef public int sync_errno
    cdef public int64_t sync_ns          # a sync takes so much longer by the log's clock
    cdef public int began_fd             # eventfd: a sync adds 1 as it begins, where there is a gate
    cdef public int gate_fd              # eventfd: a sync takes 1 before it goes on; -1: there is no gate
    cdef public int64_t prepare_count    # creations of segment files that fail; -1: all
    cdef public int prepare_errno
    cdef Py_ssize_t write(self, int fd, const uint8_t* p, int64_t n, off_t position) noexcept nogil
    cdef int write_range(self, int fd, int direct_fd, int64_t position, const uint8_t* p, int64_t n) noexcept nogil
    cdef int sync(self, int fd) noexcept nogil
