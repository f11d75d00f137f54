from libc.stdint cimport int32_t, int64_t

from kbroker._fast.net.poller cimport Poller


cdef enum:
    REFUSED_ADDRESS_LIMIT = 0   # as many connections of its address are open as may be
    REFUSED_BROKER_STOP
    REFUSED_NO_MEMORY
    REFUSALS


cdef class Acceptor(Poller):
    """The reactor's listeners, and how many connections there may be. The first reactor accepts for all."""
    cdef readonly list reactors         # all of them, the accepting one first, this one included
    cdef list listeners
    cdef readonly object quotas         # kbroker.wire.connection_quotas, shared by all reactors
    cdef bint is_full                   # the listeners are not watched: as many connections are open as may be
    cdef int64_t full_count             # how often that has happened
    cdef int64_t refused[REFUSALS]      # accepted and closed at once
    cdef bint draining
    cdef readonly int32_t connection_count
    cdef int32_t dropped_count           # connections that are closed and still have their descriptors

    cdef int adopt_accepted(self) except -1
    cdef int place(self, int fd, int32_t listener) except -1
    cdef int adopt(self, int fd, int32_t listener, str peer) except -1
    cdef int call_later(self, object function) except -1
    cdef int watch_listeners(self) except -1
    cdef int rest_listeners(self) except -1
    cdef int64_t open_descriptors(self) except -1       # of all reactors' connections
    cdef int regulate_accepts(self) except -1
    cdef int tell_room(self) except -1
    cdef int retry_accepts(self) except -1
