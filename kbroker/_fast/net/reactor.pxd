from libc.stdint cimport int32_t, int64_t

from kbroker._fast.net.request_order cimport RequestOrder


cdef class Reactor(RequestOrder):
    """One thread that owns sockets: see kbroker._fast.net.reactor for its loop.

    It belongs to the thread in run(). Other threads hold the GIL and append to the inbox lists; the first reactor's also
    looks at `stalled_requests`.
    """
    cdef readonly int32_t number        # the first one (0) drains the WAL's commits
    cdef bint stopped
    cdef list inbox_done
    cdef list inbox_resume
    cdef list inbox_calls
    cdef int try_turn(self) except -1
    cdef int turn(self) except -1
    cdef int take_inbox(self) except -1
    cdef int take_wal(self) except -1
    cdef int expire_deadlines(self) except -1
