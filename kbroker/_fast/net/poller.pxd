from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport int32_t, int64_t, uint32_t

from kbroker._fast.net.api_counters cimport ApiCounters
from kbroker._fast.net.channel cimport Channel, Round
from kbroker._fast.net.epoll cimport Epoll
from kbroker._fast.net.frame cimport FrameMemory
from kbroker._fast.net.request cimport RequestSink
from kbroker._fast.net.sender cimport Sender

cdef enum:
    LISTENERS_MAX = 16
    ACCEPTS_PER_TURN = 256
    NUMBER_EVENT = 1            # what epoll knows the reactor's own descriptors by; channels have their address
    NUMBER_WAL = 2
    NUMBER_CACHE = 3
    NUMBER_LISTENER = 16
    NUMBERS = 64


cdef class Poller(RequestSink):
    """Sockets and events: what a reactor does without the GIL. For the reactor's thread.

    Other threads, with the GIL, only call `signal`, set `wal_moved` and read counters.
    """
    cdef FrameMemory memory
    cdef Epoll epoll
    cdef Sender sender
    cdef Round round
    cdef unsigned long thread_id        # of the reactor's thread; 0: it does not run
    cdef bint signalled                 # the thread will not wait for long
    cdef object logger
    cdef readonly ApiCounters counters
    cdef public int64_t wall_offset_ms  # for tests
    cdef int event_fd
    cdef int wal_fd                     # eventfd: the log has moved; -1: another reactor watches it
    cdef int cache_fd                   # eventfd: a block of a WAL file has arrived that a channel waits for
    cdef int listener_fds[LISTENERS_MAX]
    cdef int accepted_fds[ACCEPTS_PER_TURN]
    cdef int32_t accepted_listeners[ACCEPTS_PER_TURN]
    cdef int32_t accepted
    cdef int32_t accept_room            # so many may be accepted at most
    cdef int accept_errno               # why none can be accepted until the next sweep; 0: they can
    cdef int64_t accept_failures        # how often none could be, for lack of descriptors or of the system's memory
    cdef bint any_starved
    cdef bint any_held_back             # requests wait until others' answers have been read
    cdef bint has_stalled               # requests wait for the log
    cdef bint wal_moved
    cdef int64_t sweep_ms               # when the next sweep is due
    cdef int64_t next_deadline_ms       # of the first request, copied for use without the GIL
    cdef inline bint is_ours(self) noexcept:    # whether this is the reactor's thread, while that runs
        return self.thread_id == 0 or self.thread_id == <unsigned long>PyThread_get_thread_ident()

    cdef int open(self, bint with_wal) except -1
    cdef int signal(self) except -1             # with the GIL
    cdef bint poll(self) noexcept nogil
    cdef void serve(self, Channel* ch, uint32_t events) noexcept nogil
    cdef int64_t wakes_ms(self) noexcept nogil
    cdef void read_clock(self) noexcept nogil       # the monotonic one
    cdef void count_sent(self, int32_t first) noexcept nogil
    cdef void accept_all(self, int32_t listener) noexcept nogil
