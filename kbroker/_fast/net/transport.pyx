"""Transports: plain sockets so far."""

from libc.stdint cimport int64_t
from libc.string cimport memset
from posix.types cimport off_t
from posix.unistd cimport close

from kbroker._fast.base.sendmsg cimport MSG_DONTWAIT, MSG_MORE, MSG_NOSIGNAL, iovec, msghdr, sendmsg

cdef extern from "sys/socket.h" nogil:
    ssize_t recv(int fd, void* buffer, size_t length, int flags)
    enum:
        MSG_PEEK

cdef extern from "sys/sendfile.h" nogil:
    ssize_t sendfile(int out_fd, int in_fd, off_t* position, size_t count)

cdef TransportCalls plain_calls


cdef ssize_t _receive(Transport* transport, void* buffer, size_t length) noexcept nogil:
    return recv(transport.fd, buffer, length, 0)


cdef ssize_t _send(Transport* transport, iovec* pieces, int count, bint more) noexcept nogil:
    cdef msghdr message
    memset(&message, 0, sizeof(message))
    message.msg_iov = pieces
    message.msg_iovlen = count
    return sendmsg(transport.fd, &message, MSG_NOSIGNAL | MSG_MORE if more else MSG_NOSIGNAL)


cdef ssize_t _send_file(Transport* transport, int fd, int64_t position, size_t length) noexcept nogil:
    cdef off_t start = position
    return sendfile(transport.fd, fd, &start, length)


cdef bint _peer_has_closed(Transport* transport) noexcept nogil:
    cdef char following
    return recv(transport.fd, &following, 1, MSG_PEEK | MSG_DONTWAIT) == 0


cdef void _close(Transport* transport) noexcept nogil:
    if transport.fd >= 0:
        close(transport.fd)
        transport.fd = -1


plain_calls.receive = _receive
plain_calls.send = _send
plain_calls.send_file = _send_file
plain_calls.peer_has_closed = _peer_has_closed
plain_calls.close = _close


cdef void open_plain(Transport* transport, int fd) noexcept nogil:
    transport.fd = fd
    transport.calls = &plain_calls
