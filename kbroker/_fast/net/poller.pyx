"""The part of a reactor that runs without the GIL: wait, accept, receive, cut frames, send."""

cimport cython
from cpython.ref cimport Py_DECREF
from libc.errno cimport EMFILE, ENFILE, ENOBUFS, ENOMEM, errno
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memmove
from posix.unistd cimport close, read, write

from kbroker._fast.net.channel cimport (
    SEND_AGAIN,
    SEND_DONE,
    SEND_FAILED,
    SEND_TURN,
    SEND_WAIT,
    Channel,
    budget_charge,
    channel_receive,
    channel_send,
    monotonic_us,
    wall_clock_ms,
)
from kbroker._fast.net.request cimport RequestSink, Response
from kbroker._fast.net.stale cimport OUTPUT_PAUSE_BYTES

cdef extern from "sys/epoll.h" nogil:
    ctypedef union epoll_data_t:
        uint64_t u64
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event* event)
    int epoll_wait(int epfd, epoll_event* events, int maxevents, int timeout)
    enum:
        EPOLL_CTL_ADD
        EPOLL_CTL_MOD
        EPOLL_CTL_DEL
        EPOLLIN
        EPOLLOUT
        EPOLLERR
        EPOLLHUP
        EPOLL_CLOEXEC

cdef extern from "sys/eventfd.h" nogil:
    int eventfd(unsigned int value, int flags)
    enum:
        EFD_NONBLOCK
        EFD_CLOEXEC

cdef extern from * nogil:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <sys/socket.h>
    #include <netinet/in.h>
    #include <netinet/tcp.h>
    #include <arpa/inet.h>
    #include <unistd.h>
    #include <fcntl.h>
    static int kb_is_loopback(const struct sockaddr_storage *peer) {
        const struct in6_addr *a = &((const struct sockaddr_in6 *)peer)->sin6_addr;
        if (peer->ss_family == AF_INET)
            return ntohl(((const struct sockaddr_in *)peer)->sin_addr.s_addr) >> 24 == 127;
        return peer->ss_family == AF_INET6 &&
               (IN6_IS_ADDR_LOOPBACK(a) || (IN6_IS_ADDR_V4MAPPED(a) && a->s6_addr[12] == 127));
    }
    static int kb_accept(int fd) {
        struct sockaddr_storage peer = {0};
        socklen_t size = sizeof peer;
        int one = 1, s = accept(fd, (struct sockaddr *)&peer, &size);
        if (s < 0) return -1;
        /* Nothing is congested there, and what is not paced needs no timers. */
        if (kb_is_loopback(&peer)) setsockopt(s, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
        fcntl(s, F_SETFL, fcntl(s, F_GETFL) | O_NONBLOCK);
        fcntl(s, F_SETFD, FD_CLOEXEC);
        setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(s, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
        return s;
    }
    """
    int accept_socket "kb_accept"(int fd)

cdef enum:
    EVENTS_PER_POLL = 256
    SCRATCH_BYTES = 1048576
    FIRST_SEND_BYTES = 131072   # of a new answer, before others get their turn
    SEND_TURN_BYTES = 524288    # of one that goes on
    ROUND_SEND_BYTES = 1048576  # of all those; then what has arrived is looked at
    ALONE_NS = 10000000         # without a commit: nobody produces beside who is alone
    RELEASE_DELAY_MS = 50       # sent answers keep WAL files for no longer than this
    RETRY_DELAY_MS = 100        # stalled requests are retried at least so often


cdef class FrameMemory:
    def __init__(self, limit: int, frame_bytes_max: int) -> None:
        self.budget.limit = limit
        self.budget.frame_bytes_max = frame_bytes_max

    @property
    def used(self) -> int:
        """Bytes of request frames in memory."""
        return self.budget.used


@cython.no_gc   # it refers to nothing that could refer to it
cdef class FrameCharge:
    def __dealloc__(self):
        budget_charge(&self.memory.budget, -self.size)


cdef FrameCharge charge_frame(FrameMemory memory, int64_t size):
    cdef FrameCharge charge = FrameCharge.__new__(FrameCharge)
    charge.memory = memory
    charge.size = size
    budget_charge(&memory.budget, size)
    return charge


cdef int append_channel(Channel*** array, int32_t* count, int32_t* capacity, Channel* ch) noexcept nogil:
    cdef int32_t more
    cdef void* grown
    if count[0] == capacity[0]:
        more = capacity[0] * 2 if capacity[0] else 64
        grown = realloc(array[0], more * sizeof(Channel*))
        if grown == NULL:
            return -1
        array[0] = <Channel**>grown
        capacity[0] = more
    array[0][count[0]] = ch
    count[0] += 1
    return 0


cdef inline bint may_be_read(const Channel* ch) noexcept nogil:
    return (
        ch.frame_count == 0
        and not ch.starved
        and not ch.closing
        and not ch.close_when_sent
        and ch.output_bytes < OUTPUT_PAUSE_BYTES
    )


cdef class Poller(RequestSink):
    def __cinit__(self):
        self.epoll_fd = -1
        self.event_fd = -1
        self.wal_fd = -1
        self.cache_fd = -1
        self.next_deadline_ms = INT64_MAX
        self.release_ms = INT64_MAX

    def __dealloc__(self):
        if self.epoll_fd >= 0:
            close(self.epoll_fd)
        if self.event_fd >= 0:
            close(self.event_fd)
        if self.wal_fd >= 0:
            close(self.wal_fd)
        if self.cache_fd >= 0:
            close(self.cache_fd)
        free(self.scratch.data)
        free(self.scratch.released)
        free(self.ready)
        free(self.dirty)
        free(self.waiting)
        free(self.senders)

    @property
    def socket_bytes(self) -> tuple:
        """(received, sent, sent from WAL files)."""
        return self.scratch.bytes_in, self.scratch.bytes_out, self.scratch.file_bytes

    cdef int open(self, bint with_wal) except -1:
        """Takes file descriptors and buffers."""
        self.scratch.size = SCRATCH_BYTES
        self.scratch.data = <uint8_t*>malloc(SCRATCH_BYTES)
        self.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        self.event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        self.cache_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        if self.scratch.data == NULL or self.epoll_fd < 0 or self.event_fd < 0 or self.cache_fd < 0:
            raise MemoryError("no memory or no file descriptors for a reactor")
        self.add_fd(self.event_fd, TAG_EVENT)
        self.add_fd(self.cache_fd, TAG_CACHE)
        self.scratch.waiter = self.wal.cache.add_waiter(self.cache_fd)
        if with_wal:
            self.wal_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
            self.add_fd(self.wal_fd, TAG_WAL)
        self.read_clock()
        return 0

    cdef int release_sent(self) except -1:
        cdef int32_t i
        for i in range(self.scratch.released_count):
            Py_DECREF(<Response>self.scratch.released[i].owner)
        self.scratch.released_count = 0
        self.release_ms = INT64_MAX
        return 0

    cdef int add_fd(self, int fd, uint64_t tag) noexcept nogil:
        cdef epoll_event event
        event.events = EPOLLIN
        event.data.u64 = tag
        return epoll_ctl(self.epoll_fd, EPOLL_CTL_ADD, fd, &event)

    cdef int add_channel(self, Channel* ch) noexcept nogil:
        ch.events = EPOLLIN
        return self.add_fd(ch.fd, <uint64_t><uintptr_t>ch)

    cdef void remove_fd(self, int fd) noexcept nogil:
        epoll_ctl(self.epoll_fd, EPOLL_CTL_DEL, fd, NULL)

    cdef void read_clock(self) noexcept nogil:
        self.scratch.now_us = monotonic_us() + self.clock_offset_ms * 1000
        self.scratch.now_ms = self.scratch.now_us // 1000
        self.scratch.wall_ms = wall_clock_ms() + self.wall_offset_ms
        self.loop_ms = self.scratch.now_ms
        self.wall_ms = self.scratch.wall_ms

    cdef void mark_ready(self, Channel* ch) noexcept nogil:
        if not ch.ready and append_channel(&self.ready, &self.ready_count, &self.ready_capacity, ch) == 0:
            ch.ready = True

    cdef void mark_dirty(self, Channel* ch) noexcept nogil:
        if not ch.dirty and append_channel(&self.dirty, &self.dirty_count, &self.dirty_capacity, ch) == 0:
            ch.dirty = True

    cdef void watch(self, Channel* ch, bint writable) noexcept nogil:
        """Tells epoll what the channel can go on with. That it must not be read is told when something has come: few
        clients send while an answer is on its way to them."""
        cdef uint32_t wanted = EPOLLOUT if writable else 0
        if may_be_read(ch):
            wanted |= EPOLLIN
        if wanted != ch.events and wanted | EPOLLIN != ch.events:
            self.watch_for(ch, wanted)

    cdef void watch_for(self, Channel* ch, uint32_t events) noexcept nogil:
        cdef epoll_event event
        ch.events = events
        event.events = events
        event.data.u64 = <uint64_t><uintptr_t>ch
        epoll_ctl(self.epoll_fd, EPOLL_CTL_MOD, ch.fd, &event)

    cdef void queue(self, Channel* ch) noexcept nogil:
        if not ch.queued and append_channel(&self.senders, &self.sender_count, &self.sender_capacity, ch) == 0:
            ch.queued = True

    cdef void send_new(self, int64_t turn_bytes=FIRST_SEND_BYTES) noexcept nogil:
        cdef int32_t i
        for i in range(self.dirty_count):
            self.dirty[i].dirty = False
            self.send(self.dirty[i], turn_bytes)
        self.dirty_count = 0

    cdef void send_dirty(self) noexcept nogil:
        """What is new goes out at once, a little of each: small answers never wait for large ones. Then those go on
        that have more, in turn, for as long as a round may take. Who is alone has the whole round."""
        cdef int32_t i = 0, count
        cdef int64_t end
        cdef bint alone = self.dirty_count == 1 and self.sender_count == 0 and self.wal.has_rested(ALONE_NS)
        self.send_new(ROUND_SEND_BYTES if alone else FIRST_SEND_BYTES)
        if alone:
            return
        count = self.sender_count
        end = self.scratch.bytes_out + ROUND_SEND_BYTES
        while i < count and self.scratch.bytes_out < end:
            self.senders[i].queued = False
            self.send(self.senders[i], SEND_TURN_BYTES)
            i += 1
        self.sender_count -= i
        if i > 0 and self.sender_count > 0:
            memmove(self.senders, self.senders + i, self.sender_count * sizeof(Channel*))

    cdef void retry_waiting(self) noexcept nogil:
        """Something has arrived: tries those again whose block it is, and those that found no room."""
        cdef int32_t i, kept = 0
        cdef Channel* ch
        for i in range(self.waiting_count):
            ch = self.waiting[i]
            if ch.held >= 0 and not self.wal.cache.settled(ch.held):
                self.waiting[kept] = ch
                kept += 1
            else:
                ch.waiting = False
                self.queue(ch)
        self.waiting_count = kept

    cdef void send(self, Channel* ch, int64_t turn_bytes) noexcept nogil:
        """Sends what the socket takes, then watches for what comes next."""
        cdef int state = SEND_DONE
        if ch.closing:
            return
        if ch.output_count > 0 and not ch.waiting:
            state = channel_send(ch, self.wal, &self.scratch, turn_bytes)
        if state == SEND_WAIT:
            self.disk_waits += 1
            ch.waiting = append_channel(&self.waiting, &self.waiting_count, &self.waiting_capacity, ch) == 0
            if not ch.waiting:
                state = SEND_FAILED
        elif state == SEND_TURN:
            self.queue(ch)
        if self.scratch.released_count > 0 and self.release_ms == INT64_MAX:
            self.release_ms = self.scratch.now_ms + (0 if self.any_held_back else RELEASE_DELAY_MS)
        if state == SEND_FAILED or (ch.close_when_sent and ch.output_count == 0):
            ch.closing = True
            self.mark_ready(ch)
        elif (
            ch.frame_count > 0
            and ch.output_bytes < OUTPUT_PAUSE_BYTES
            and ch.in_flight == 0
            and not ch.held_back
            and not ch.close_when_sent
        ):
            self.mark_ready(ch)
        self.watch(ch, state == SEND_AGAIN)

    cdef int64_t wakes_ms(self) noexcept nogil:
        """Until when it may wait, at least `loop_ms`."""
        cdef int64_t until = self.sweep_ms
        if self.ready_count > 0 or self.dirty_count > 0 or self.sender_count > 0:
            return self.loop_ms
        if self.next_deadline_ms < until:
            until = self.next_deadline_ms
        if self.release_ms < until:
            until = self.release_ms
        if (self.has_stalled or self.any_starved or self.any_held_back) and self.loop_ms + RETRY_DELAY_MS < until:
            until = self.loop_ms + RETRY_DELAY_MS
        return max(until, self.loop_ms)

    # -- with the GIL ----------------------------------------------------------------------------------------------

    cdef int turn(self) except -1:
        """What is to be done between two rounds of waiting."""
        raise NotImplementedError

    cdef int abandon_round(self) except -1:
        raise NotImplementedError

    cdef int try_turn(self) except -1:
        try:
            return self.turn()
        except Exception:
            self.logger.exception("a round of the I/O thread failed")
            return self.abandon_round()

    cdef int signal(self) except -1:
        """Wakes the reactor's thread."""
        cdef uint64_t one = 1
        if not self.signalled:
            self.signalled = True
            write(self.event_fd, &one, 8)
        return 0

    # -- without ---------------------------------------------------------------------------------------------------

    cdef void accept_all(self, int32_t listener) noexcept nogil:
        cdef int fd
        while self.accepted < ACCEPTS_PER_TURN and self.accepted < self.accept_room:
            fd = accept_socket(self.listener_fds[listener])
            if fd < 0:
                if errno == EMFILE or errno == ENFILE or errno == ENOBUFS or errno == ENOMEM:
                    self.accept_errno = errno
                    self.remove_fd(self.listener_fds[listener])     # it would be ready again and again
                return
            self.accepted_fds[self.accepted] = fd
            self.accepted_listeners[self.accepted] = listener
            self.accepted += 1

    cdef void rest_accepts(self, int32_t listeners) noexcept nogil:
        cdef int32_t i
        for i in range(listeners):
            if self.listener_fds[i] >= 0:
                self.remove_fd(self.listener_fds[i])

    cdef void accept_again(self, int32_t listeners) noexcept nogil:
        cdef int32_t i
        for i in range(listeners):
            if self.listener_fds[i] >= 0:
                self.add_fd(self.listener_fds[i], TAG_LISTENER + i)     # no change where it is watched

    cdef bint poll(self) noexcept nogil:
        """One round of sending, waiting and receiving. True when there is work that needs the GIL."""
        cdef epoll_event events[EVENTS_PER_POLL]
        cdef int i, n
        cdef uint64_t tag, count
        cdef bint called = False
        self.send_dirty()
        self.read_clock()
        n = epoll_wait(self.epoll_fd, events, EVENTS_PER_POLL, <int>(self.wakes_ms() - self.loop_ms))
        self.read_clock()
        self.scratch.used = 0
        for i in range(n):
            tag = events[i].data.u64
            if tag == TAG_EVENT:
                read(self.event_fd, &count, 8)
                called = True
            elif tag == TAG_WAL:
                read(self.wal_fd, &count, 8)
                self.wal_moved = True
            elif tag == TAG_CACHE:
                read(self.cache_fd, &count, 8)
                self.retry_waiting()
            elif tag < TAGS:
                self.accept_all(<int32_t>(tag - TAG_LISTENER))
            else:
                self.serve(<Channel*><uintptr_t>tag, events[i].events)
        return (
            called
            or self.wal_moved
            or self.ready_count > 0
            or self.accepted > 0
            or self.loop_ms >= self.sweep_ms
            or self.loop_ms >= self.next_deadline_ms
            or self.loop_ms >= self.release_ms
            or self.has_stalled
            or self.any_starved
            or self.any_held_back
        )

    cdef void serve(self, Channel* ch, uint32_t events) noexcept nogil:
        """Does what a socket is ready for."""
        if events & EPOLLIN and not may_be_read(ch):
            self.watch_for(ch, ch.events & ~<uint32_t>EPOLLIN)
            events &= ~<uint32_t>EPOLLIN
        if events & EPOLLOUT:
            self.queue(ch)
        if events & EPOLLIN:
            channel_receive(ch, &self.scratch, &self.memory.budget)
            if ch.starved:
                self.any_starved = True
                self.mark_dirty(ch)
        elif events & (EPOLLERR | EPOLLHUP):
            ch.closing = True
        if ch.closing or (ch.frame_count > 0 and events & EPOLLIN):
            self.mark_ready(ch)
