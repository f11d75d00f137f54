# sendmsg(2): the pieces of one system call, from where they lie.

cdef extern from "sys/socket.h" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len
    struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int fd, const msghdr* message, int flags)
    enum:
        MSG_DONTWAIT
        MSG_MORE
        MSG_NOSIGNAL
