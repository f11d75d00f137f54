from libc.stdint cimport int32_t, int64_t

from kbroker._fast.net.acceptor cimport Acceptor
from kbroker._fast.net.answer_memory cimport AnswerMemory
from kbroker._fast.net.api_counters cimport ApiCounters
from kbroker._fast.net.channel cimport Channel, Frame
from kbroker._fast.requests.fetch_codec cimport FetchFrame
from kbroker._fast.net.request cimport DeadlineHeap, Request


cdef class Connection:
    """One client. Owned by its reactor, and used only by the reactor's thread in a turn."""
    cdef Channel* channel               # NULL once closed
    cdef readonly Reactor reactor
    cdef readonly object listener       # as given to Reactor.add_listener
    cdef readonly str peer              # ADDRESS:PORT
    cdef public object state            # of upper layers, for instance authentication
    cdef public object on_closed        # of upper layers: called once, in a turn of the reactor, behind the end
    cdef Request head                   # requests in progress, oldest first
    cdef Request tail
    cdef bint touched


cdef class Reactor(Acceptor):
    """One thread that owns sockets: see kbroker._fast.net.reactor for its loop.

    Everything here belongs to the thread in run(), but for the inbox lists, which any thread appends to while it holds
    the GIL.
    """
    cdef object dispatch                # dispatch(request) for all but Produce and Fetch
    cdef readonly int32_t number        # the first one (0) drains the WAL's commits
    cdef public int64_t fetch_near_bytes    # of one answer to a client whose round trips are short
    cdef public int64_t idle_ms         # close a connection without requests for so long
    cdef public int64_t no_progress_ms  # close one that neither takes its answer nor ends its frame
    cdef public int32_t in_flight_max   # Produce requests of one connection
    cdef readonly int64_t connections_opened
    cdef readonly int64_t connections_closed

    cdef object drained                 # threading.Event
    cdef FetchFrame fetch_frame
    cdef Channel* channels              # all of them, linked
    cdef Channel** dead                 # to be freed behind the turn
    cdef int32_t dead_capacity
    cdef DeadlineHeap deadlines
    cdef readonly AnswerMemory answers  # shared by all reactors
    cdef Connection admitted            # its next request goes ahead of those that wait for that memory
    cdef readonly ApiCounters counters
    cdef list stalled
    cdef list touched
    cdef list woken
    cdef list inbox_done
    cdef list inbox_resume
    cdef list inbox_calls

    cdef int take_inbox(self) except -1
    cdef int take_wal(self) except -1
    cdef int expire_deadlines(self) except -1
    cdef int process(self, Channel* ch) except -1
    cdef bint lingers(self, Connection connection) except -1
    cdef int run_woken(self) except -1
    cdef int start_frames(self, Connection connection) except -1
    cdef bint may_start(self, Connection connection) except -1
    cdef bint may_answer(self, Connection connection) except -1
    cdef int start_held_back(self) except -1
    cdef int try_process(self, Channel* ch, bint answered) except -1
    cdef int start(self, Connection connection, Frame* frame) except -1
    cdef int start_produce(self, Connection connection, Frame* frame) except -1
    cdef int start_fetch(self, Connection connection, Frame* frame) except -1
    cdef int enqueue(self, Connection connection, Request request, const Frame* frame) except -1
    cdef int flush(self, Connection connection) except -1
    cdef int fail(self, Connection connection, str reason) except -1
    cdef int drop(self, Channel* ch) except -1
    cdef int sweep(self) except -1
    cdef int close_excess(self) except -1
    cdef int grant_starved(self) except -1
    cdef int bury(self) except -1
    cdef int close_all(self) except -1
    cdef int call_later(self, object function) except -1
