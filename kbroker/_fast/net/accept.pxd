# accept(2), with the options that every client's socket gets.

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
