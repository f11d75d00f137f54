"""The part of a reactor that runs without the GIL: send, wait, accept, receive."""

from libc.errno cimport EMFILE, ENFILE, ENOBUFS, ENOMEM, errno
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec
from posix.unistd cimport close, read, write

from kbroker._fast.net.accept cimport accept_socket
from kbroker._fast.net.channel cimport begin_close, mark_ready, may_be_read
from kbroker._fast.net.close_cause cimport CLOSED_BY_CLIENT
from kbroker._fast.net.epoll cimport EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, epoll_event, epoll_wait
from kbroker._fast.net.receive cimport channel_receive
from kbroker._fast.net.request cimport RequestSink

cdef extern from "sys/eventfd.h" nogil:
    int eventfd(unsigned int value, int flags)
    enum:
        EFD_NONBLOCK
        EFD_CLOEXEC

cdef enum:
    EVENTS_PER_POLL = 256
    SCRATCH_BYTES = 1048576
    RETRY_DELAY_MS = 100        # stalled requests are retried at least so often


cdef inline int64_t _wall_clock_ms() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_REALTIME, &t)
    return <int64_t>t.tv_sec * 1000 + t.tv_nsec // 1000000


cdef class Poller(RequestSink):
    def __cinit__(self):
        self.epoll = Epoll()
        self.sender = Sender()
        self.counters = ApiCounters()
        self.event_fd = -1
        self.wal_fd = -1
        self.cache_fd = -1
        self.next_deadline_ms = INT64_MAX

    def __dealloc__(self):
        if self.event_fd >= 0:
            close(self.event_fd)
        if self.wal_fd >= 0:
            close(self.wal_fd)
        if self.cache_fd >= 0:
            close(self.cache_fd)
        free(self.round.data)
        free(self.round.released)
        free(self.round.ready.items)

    @property
    def socket_bytes(self) -> tuple:
        """(received, sent, sent from WAL files)."""
        return self.round.bytes_in, self.round.bytes_out, self.round.file_bytes

    @property
    def disk_waits(self) -> int:
        """Sends that had to wait for the disk."""
        return self.sender.disk_waits

    cdef int open(self, bint with_wal) except -1:
        """Takes file descriptors and buffers."""
        self.sender.wal = self.wal
        self.sender.epoll = self.epoll
        self.sender.round = &self.round
        self.round.size = SCRATCH_BYTES
        self.round.data = <uint8_t*>malloc(SCRATCH_BYTES)
        self.epoll.open()
        self.event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        self.cache_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        if self.round.data == NULL or self.event_fd < 0 or self.cache_fd < 0:
            raise MemoryError("no memory or no file descriptors for a reactor")
        self.epoll.add(self.event_fd, NUMBER_EVENT)
        self.epoll.add(self.cache_fd, NUMBER_CACHE)
        self.round.waiter = self.wal.cache.add_waiter(self.cache_fd)
        if with_wal:
            self.wal_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
            self.epoll.add(self.wal_fd, NUMBER_WAL)
        self.read_clock()
        return 0

    cdef int signal(self) except -1:
        """Wakes the reactor's thread."""
        cdef uint64_t one = 1
        if not self.signalled:
            self.signalled = True
            write(self.event_fd, &one, 8)
        return 0

    # -- without the GIL -------------------------------------------------------------------------------------------

    cdef void read_clock(self) noexcept nogil:
        self.round.now_us = self.clock_us()
        self.round.now_ms = self.round.now_us // 1000
        self.loop_ms = self.round.now_ms

    cdef void count_sent(self, int32_t first) noexcept nogil:
        """Counts the answers that are released from this one on as sent now."""
        cdef int32_t i
        for i in range(first, self.round.released_count):
            self.counters.sent(self.round.released[i], self.round.now_us)

    cdef int64_t wakes_ms(self) noexcept nogil:
        """Until when it may wait, at least `loop_ms`."""
        cdef int64_t until = self.sweep_ms
        if self.round.ready.count > 0 or self.sender.has_work():
            return self.loop_ms
        if self.next_deadline_ms < until:
            until = self.next_deadline_ms
        if self.sender.release_ms < until:
            until = self.sender.release_ms
        if (self.has_stalled or self.any_starved or self.any_held_back) and self.loop_ms + RETRY_DELAY_MS < until:
            until = self.loop_ms + RETRY_DELAY_MS
        return max(until, self.loop_ms)

    cdef bint poll(self) noexcept nogil:
        """One round of sending, waiting and receiving. True when there is work that needs the GIL."""
        cdef epoll_event events[EVENTS_PER_POLL]
        cdef int i, n
        cdef uint64_t number, count
        cdef bint called = False
        cdef int32_t released = self.round.released_count
        self.sender.send_dirty()
        self.read_clock()
        self.count_sent(released)
        n = epoll_wait(self.epoll.fd, events, EVENTS_PER_POLL, <int>(self.wakes_ms() - self.loop_ms))
        self.read_clock()
        self.wall_ms = self.round.wall_ms = _wall_clock_ms() + self.wall_offset_ms
        self.round.used = 0
        for i in range(n):
            number = events[i].data.u64
            if number == NUMBER_EVENT:
                read(self.event_fd, &count, 8)
                called = True
            elif number == NUMBER_WAL:
                read(self.wal_fd, &count, 8)
                self.wal_moved = True
            elif number == NUMBER_CACHE:
                read(self.cache_fd, &count, 8)
                self.sender.retry_waiting()
            elif number < NUMBERS:
                self.accept_all(<int32_t>(number - NUMBER_LISTENER))
            else:
                self.serve(<Channel*><uintptr_t>number, events[i].events)
        return (
            called
            or self.wal_moved
            or self.round.ready.count > 0
            or self.accepted > 0
            or self.loop_ms >= self.sweep_ms
            or self.loop_ms >= self.next_deadline_ms
            or self.loop_ms >= self.sender.release_ms
            or self.has_stalled
            or self.any_starved
            or self.any_held_back
        )

    cdef void accept_all(self, int32_t listener) noexcept nogil:
        cdef int fd
        while self.accepted < ACCEPTS_PER_TURN and self.accepted < self.accept_room:
            fd = accept_socket(self.listener_fds[listener])
            if fd < 0:
                if errno == EMFILE or errno == ENFILE or errno == ENOBUFS or errno == ENOMEM:
                    self.accept_errno = errno
                    self.accept_failures += 1
                    self.epoll.remove(self.listener_fds[listener])      # it would be ready again and again
                return
            self.accepted_fds[self.accepted] = fd
            self.accepted_listeners[self.accepted] = listener
            self.accepted += 1

    cdef void serve(self, Channel* ch, uint32_t events) noexcept nogil:
        """Does what a socket is ready for."""
        if events & EPOLLIN and not may_be_read(ch):
            self.epoll.stop_reading(ch)
            events &= ~<uint32_t>EPOLLIN
        if events & EPOLLOUT:
            self.sender.queue(ch)
        if events & EPOLLIN:
            channel_receive(ch, &self.round, &self.memory.budget)
            if ch.starved:
                self.any_starved = True
                self.sender.mark_dirty(ch)
        elif events & (EPOLLERR | EPOLLHUP):
            begin_close(ch, CLOSED_BY_CLIENT, NULL)
        if ch.closing or (ch.frame_count > 0 and events & EPOLLIN):
            mark_ready(&self.round, ch)
