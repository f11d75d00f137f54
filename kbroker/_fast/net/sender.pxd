cimport cython
from libc.stdint cimport int64_t

from kbroker._fast.net.channel cimport Channel, ChannelList, Round
from kbroker._fast.net.epoll cimport Epoll
from kbroker._fast.wal.wal cimport Wal


@cython.final
cdef class Sender:
    """Which channel of a reactor sends when: new answers first, a little of each, then large ones in turn.

    For the reactor's thread only, which owns `round`.
    """
    cdef Wal wal
    cdef Epoll epoll
    cdef Round* round
    cdef ChannelList dirty              # to send, or to watch otherwise
    cdef ChannelList senders            # that have more to send than one turn takes, in turn
    cdef ChannelList waiting            # for a block of a WAL file
    cdef int64_t disk_waits             # sends that had to wait for the disk
    cdef int64_t release_ms             # when sent answers must be released
    cdef bint releases_at_once          # others wait for their memory
    cdef void mark_dirty(self, Channel* ch) noexcept nogil
    cdef void queue(self, Channel* ch) noexcept nogil
    cdef void send_dirty(self) noexcept nogil
    cdef void retry_waiting(self) noexcept nogil
    cdef void send(self, Channel* ch, int64_t turn_bytes) noexcept nogil
    cdef void send_new(self, int64_t turn_bytes) noexcept nogil
    cdef int release_sent(self) except -1       # with the GIL

    cdef inline bint has_work(self) noexcept nogil:
        return self.dirty.count > 0 or self.senders.count > 0
