from libc.stdint cimport int32_t

from kbroker._fast.net.channel cimport Channel
from kbroker._fast.net.connection cimport Connection
from kbroker._fast.net.connections cimport Connections
from kbroker._fast.net.frame cimport Frame
from kbroker._fast.net.request cimport Request
from kbroker._fast.net.request_path cimport RequestPath


cdef class RequestOrder(Connections):
    """Which request of a connection starts when, and the order of the answers.

    Connections answer in request order. Produce may follow Produce before its answer; any other request starts when all
    before it are answered. A request that arrives while a Fetch is parked ends the wait of that Fetch.
    """
    cdef object dispatch                # dispatch(request) for all but Produce and Fetch
    cdef RequestPath produce
    cdef RequestPath fetch
    cdef public int32_t in_flight_max   # Produce requests of one connection
    cdef Connection admitted            # its next request may start before those that wait for the memory of answers
    cdef list touched                   # connections with complete answers
    cdef list woken                     # requests to be resumed
    cdef int try_process(self, Channel* ch, bint answered) except -1
    cdef int process(self, Channel* ch) except -1
    cdef int run_woken(self) except -1
    cdef int start_frames(self, Connection connection) except -1
    cdef bint may_start(self, Connection connection) except -1
    cdef bint may_answer(self, Connection connection) except -1
    cdef int start_held_back(self) except -1
    cdef int start(self, Connection connection, Frame* frame) except -1
    cdef int start_compiled(self, RequestPath path, Connection connection, Frame* frame) except -1
    cdef int start_dispatched(self, Connection connection, Frame* frame) except -1
    cdef int enqueue(self, Connection connection, Request request, const Frame* frame) except -1
    cdef int queue_answers(self, Connection connection) except -1
