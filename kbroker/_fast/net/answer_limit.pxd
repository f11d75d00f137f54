# How many bytes one Fetch answer carries: no more than keeps its connection busy.
#
# A client that copies 12 MiB answers faults in new memory for each and works outside its caches; with answers of 1 MiB
# librdkafka takes a third less CPU time per byte. Where the way to the client is long the answer grows, so that waiting
# for the next request stays a small part of the time that the answer takes.

from libc.stdint cimport int64_t

from kbroker._fast.net.channel cimport Channel

cdef enum:
    ROUND_TRIP_KEPT_MS = 1000           # asking for it is a system call
    ANSWER_BYTES_PER_RTT_US = 10240     # ten round trips' worth at 1 GB/s

cdef extern from * nogil:
    """
    #include <stdint.h>
    #include <linux/tcp.h>
    #include <netinet/in.h>
    #include <sys/socket.h>
    static int64_t round_trip_us(int fd) {
        struct tcp_info info = {0};
        socklen_t size = sizeof(info);
        if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) < 0 || info.tcpi_min_rtt == UINT32_MAX) return 0;
        return info.tcpi_min_rtt;
    }
    """
    int64_t round_trip_us(int fd)


cdef inline int64_t answer_limit(Channel* ch, int64_t now_ms, int64_t near_bytes, int64_t min_bytes,
                                 int64_t max_bytes) noexcept nogil:
    """Bytes for the answer to a Fetch that asks for min_bytes to max_bytes; near_bytes where the client is near."""
    cdef int64_t limit
    if max_bytes <= near_bytes:
        return max_bytes
    if now_ms >= ch.round_trip_ms:
        ch.round_trip_us = round_trip_us(ch.transport.fd)
        ch.round_trip_ms = now_ms + ROUND_TRIP_KEPT_MS
    limit = max(near_bytes, ch.round_trip_us * ANSWER_BYTES_PER_RTT_US)
    return min(max_bytes, max(limit, min_bytes))
