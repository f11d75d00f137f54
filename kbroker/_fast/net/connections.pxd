from libc.stdint cimport int32_t, int64_t

from kbroker._fast.net.acceptor cimport Acceptor
from kbroker._fast.net.answer_memory cimport AnswerMemory
from kbroker._fast.net.channel cimport Channel, ChannelList
from kbroker._fast.net.close_cause cimport CLOSE_CAUSES, CloseCause
from kbroker._fast.net.connection cimport Connection


cdef class Connections(Acceptor):
    """The connections of a reactor, from the accepted socket to the freed memory."""
    cdef public int64_t idle_ms         # close a connection without requests for so long
    cdef public int64_t no_progress_ms  # close one that neither takes its answer nor ends its frame
    cdef readonly int64_t connections_opened
    cdef int64_t closed[CLOSE_CAUSES]
    cdef readonly AnswerMemory answers  # shared by all reactors
    cdef Channel* channels              # all of them, linked
    cdef ChannelList dropped            # to be freed after the turn
    cdef object drained                 # threading.Event: the last connection is closed while draining
    cdef bint stays_half_closed(self, Connection connection) noexcept
    cdef int fail(self, Connection connection, CloseCause cause, str reason) except -1
    cdef int drop(self, Channel* ch) except -1
    cdef int free_dropped(self) except -1
    cdef int close_all(self) except -1
    cdef int abandon_round(self) except -1
    cdef int sweep(self) except -1
    cdef int close_excess(self) except -1
    cdef int grant_starved(self) except -1
