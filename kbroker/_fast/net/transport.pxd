# How bytes come from a client and go to it. Only a transport touches a client's descriptor to receive, send or close.

from libc.stdint cimport int64_t

from kbroker._fast.base.sendmsg cimport iovec

cdef struct Transport

ctypedef ssize_t (*ReceiveCall)(Transport* transport, void* buffer, size_t length) noexcept nogil
ctypedef ssize_t (*SendCall)(Transport* transport, iovec* pieces, int count, bint more) noexcept nogil
ctypedef ssize_t (*SendFileCall)(Transport* transport, int fd, int64_t position, size_t length) noexcept nogil
ctypedef bint (*PeerHasClosedCall)(Transport* transport) noexcept nogil
ctypedef void (*CloseCall)(Transport* transport) noexcept nogil

cdef struct TransportCalls:
    # None of them waits. Receiving and sending give a count of bytes, or -1 and errno as the system calls do.
    ReceiveCall receive                 # 0: the peer has closed
    SendCall send                       # `more`: what send_file sends follows at once
    SendFileCall send_file              # NULL: bytes of a file must go through memory
    PeerHasClosedCall peer_has_closed   # and all that it sent before has been received
    CloseCall close

cdef struct Transport:
    int fd                              # for epoll and for what the system says of the connection
    const TransportCalls* calls

# Plain bytes on a connected, non-blocking socket, which the transport owns from now on.
cdef void open_plain(Transport* transport, int fd) noexcept nogil
