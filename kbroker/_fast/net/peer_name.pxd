# The address at the other end of a socket, as text: HOST:PORT, [HOST]:PORT for IPv6, or "local". Its length, or -1.

cdef extern from * nogil:
    """
    #include <sys/socket.h>
    #include <netinet/in.h>
    #include <arpa/inet.h>
    #include <stdio.h>
    static int kb_peer(int fd, char *out, int size) {
        struct sockaddr_storage a;
        socklen_t n = sizeof a;
        char text[INET6_ADDRSTRLEN];
        if (getpeername(fd, (struct sockaddr *)&a, &n) < 0) return -1;
        if (a.ss_family == AF_INET) {
            struct sockaddr_in *v4 = (struct sockaddr_in *)&a;
            inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
            return snprintf(out, size, "%s:%d", text, ntohs(v4->sin_port));
        }
        if (a.ss_family == AF_INET6) {
            struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&a;
            if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
                inet_ntop(AF_INET, &v6->sin6_addr.s6_addr[12], text, sizeof text);
                return snprintf(out, size, "%s:%d", text, ntohs(v6->sin6_port));
            }
            inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
            return snprintf(out, size, "[%s]:%d", text, ntohs(v6->sin6_port));
        }
        return snprintf(out, size, "local");
    }
    """
    int peer_name "kb_peer"(int fd, char* out, int size)
