from libc.stdint cimport int64_t

from kbroker._fast.net.channel cimport Channel
from kbroker._fast.net.request cimport Request, RequestSink


cdef class Connection:
    """One client. Owned by its reactor, whose thread alone changes it, in a turn; any thread with the GIL may read it."""
    cdef Channel* channel               # NULL once closed
    cdef RequestSink reactor
    cdef readonly object listener       # as given to Reactor.add_listener
    cdef readonly str peer              # ADDRESS:PORT
    cdef public object state            # of upper layers, for instance authentication
    cdef public object on_closed        # of upper layers: called once, in a turn of the reactor, after the end
    cdef Request head                   # requests in progress, oldest first
    cdef Request tail
    cdef bint touched
    cdef int append(self, Request request) except -1
    cdef bint has_produce_to_append(self) noexcept
