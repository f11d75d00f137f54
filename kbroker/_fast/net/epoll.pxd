cimport cython
from libc.stdint cimport int32_t, uint32_t, uint64_t

from kbroker._fast.net.channel cimport Channel

cdef extern from "sys/epoll.h" nogil:
    ctypedef union epoll_data_t:
        uint64_t u64
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_wait(int epfd, epoll_event* events, int maxevents, int timeout)
    enum:
        EPOLLIN
        EPOLLOUT
        EPOLLERR
        EPOLLHUP


@cython.final
cdef class Epoll:
    """The descriptors that one thread waits for: others under a number, channels under their address."""
    cdef int fd
    cdef int open(self) except -1
    cdef int add(self, int fd, uint64_t number) noexcept nogil      # -1 where the system refuses, as for one added already
    cdef void remove(self, int fd) noexcept nogil
    cdef int add_channel(self, Channel* ch) noexcept nogil
    # Waits for what the channel can go on with. That it must not be read is told once something has come: few clients
    # send while an answer is on its way to them.
    cdef void watch(self, Channel* ch, bint writable) noexcept nogil
    cdef void stop_reading(self, Channel* ch) noexcept nogil
