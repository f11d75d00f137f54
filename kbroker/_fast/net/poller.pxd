from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from kbroker._fast.net.channel cimport Channel, FrameBudget, Scratch
from kbroker._fast.net.request cimport RequestSink

cdef enum:
    LISTENERS_MAX = 16
    ACCEPTS_PER_TURN = 256
    TAG_EVENT = 1               # epoll data below TAGS is not a Channel*
    TAG_WAL = 2
    TAG_CACHE = 3
    TAG_LISTENER = 16
    TAGS = 64


cdef class FrameMemory:
    """The budget of request frames in memory, shared by all reactors."""
    cdef FrameBudget budget


cdef class FrameCharge:
    """Bytes that count against the budget for as long as this lives."""
    cdef FrameMemory memory
    cdef int64_t size


cdef FrameCharge charge_frame(FrameMemory memory, int64_t size)
cdef int append_channel(Channel*** array, int32_t* count, int32_t* capacity, Channel* ch) noexcept nogil


cdef class Poller(RequestSink):
    """The reactor's sockets and lists as the loop uses them without the GIL. Only the reactor's thread touches them."""
    cdef FrameMemory memory
    cdef unsigned long thread_id        # of the reactor's thread; 0: it does not run
    cdef bint stopped
    cdef bint signalled                 # the thread will not wait for long
    cdef object logger
    cdef public int64_t clock_offset_ms # added to the monotonic clock; for tests
    cdef public int64_t wall_offset_ms
    cdef int epoll_fd
    cdef int event_fd
    cdef int wal_fd
    cdef int cache_fd                   # eventfd: a block of a WAL file has arrived for someone who waits
    cdef int listener_fds[LISTENERS_MAX]
    cdef int accepted_fds[ACCEPTS_PER_TURN]
    cdef int32_t accepted_listeners[ACCEPTS_PER_TURN]
    cdef int32_t accepted
    cdef int32_t accept_room            # so many may be accepted at most
    cdef int accept_errno               # why none can be accepted until the next sweep; 0: they can
    cdef Scratch scratch
    cdef Channel** ready                # with frames to start, or to be closed
    cdef int32_t ready_count
    cdef int32_t ready_capacity
    cdef Channel** dirty                # to send, or to watch otherwise
    cdef int32_t dirty_count
    cdef int32_t dirty_capacity
    cdef Channel** senders              # that have more to send than one turn takes, in turn
    cdef int32_t sender_count
    cdef int32_t sender_capacity
    cdef Channel** waiting              # for a block of a WAL file
    cdef int32_t waiting_count
    cdef int32_t waiting_capacity
    cdef readonly int64_t disk_waits    # sends that had to wait for the disk
    cdef bint any_starved
    cdef bint any_held_back             # requests wait until others' answers have been read
    cdef bint wal_moved
    cdef int64_t sweep_ms               # when the next sweep is due
    cdef int64_t release_ms             # when sent answers must be released
    cdef int64_t next_deadline_ms       # of the heap's first request, copied for use without the GIL
    cdef bint has_stalled
    cdef int open(self, bint with_wal) except -1
    cdef int release_sent(self) except -1       # with the GIL
    cdef int add_fd(self, int fd, uint64_t tag) noexcept nogil
    cdef int add_channel(self, Channel* ch) noexcept nogil
    cdef void remove_fd(self, int fd) noexcept nogil
    cdef bint poll(self) noexcept nogil
    cdef void serve(self, Channel* ch, uint32_t events) noexcept nogil
    cdef void send(self, Channel* ch, int64_t turn_bytes) noexcept nogil
    cdef void queue(self, Channel* ch) noexcept nogil
    cdef int64_t wakes_ms(self) noexcept nogil
    cdef int turn(self) except -1
    cdef int try_turn(self) except -1
    cdef int abandon_round(self) except -1
    cdef int signal(self) except -1             # with the GIL
    cdef void accept_all(self, int32_t listener) noexcept nogil
    cdef void rest_accepts(self, int32_t listeners) noexcept nogil
    cdef void accept_again(self, int32_t listeners) noexcept nogil
    cdef void watch_for(self, Channel* ch, uint32_t events) noexcept nogil
    cdef void watch(self, Channel* ch, bint writable) noexcept nogil
    cdef void send_new(self, int64_t turn_bytes=*) noexcept nogil
    cdef void send_dirty(self) noexcept nogil
    cdef void retry_waiting(self) noexcept nogil
    cdef void mark_ready(self, Channel* ch) noexcept nogil
    cdef void mark_dirty(self, Channel* ch) noexcept nogil
    cdef void read_clock(self) noexcept nogil
