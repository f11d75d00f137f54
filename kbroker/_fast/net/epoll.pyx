"""epoll(7)."""

from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from posix.unistd cimport close

from kbroker._fast.net.channel cimport may_be_read

cdef extern from "sys/epoll.h" nogil:
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event* event)
    enum:
        EPOLL_CTL_ADD
        EPOLL_CTL_MOD
        EPOLL_CTL_DEL
        EPOLL_CLOEXEC


cdef class Epoll:
    def __cinit__(self):
        self.fd = -1

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)

    cdef int open(self) except -1:
        self.fd = epoll_create1(EPOLL_CLOEXEC)
        if self.fd < 0:
            raise MemoryError("no memory or no file descriptor for epoll")
        return 0

    cdef int add(self, int fd, uint64_t number) noexcept nogil:
        cdef epoll_event event
        event.events = EPOLLIN
        event.data.u64 = number
        return epoll_ctl(self.fd, EPOLL_CTL_ADD, fd, &event)

    cdef void remove(self, int fd) noexcept nogil:
        epoll_ctl(self.fd, EPOLL_CTL_DEL, fd, NULL)

    cdef int add_channel(self, Channel* ch) noexcept nogil:
        ch.events = EPOLLIN
        return self.add(ch.transport.fd, <uint64_t><uintptr_t>ch)

    cdef void watch(self, Channel* ch, bint writable) noexcept nogil:
        cdef uint32_t wanted = EPOLLOUT if writable else 0
        if may_be_read(ch):
            wanted |= EPOLLIN
        if wanted != ch.events and wanted | EPOLLIN != ch.events:
            _change(self.fd, ch, wanted)

    cdef void stop_reading(self, Channel* ch) noexcept nogil:
        _change(self.fd, ch, ch.events & ~<uint32_t>EPOLLIN)


cdef void _change(int fd, Channel* ch, uint32_t events) noexcept nogil:
    cdef epoll_event event
    ch.events = events
    event.events = events
    event.data.u64 = <uint64_t><uintptr_t>ch
    epoll_ctl(fd, EPOLL_CTL_MOD, ch.transport.fd, &event)
