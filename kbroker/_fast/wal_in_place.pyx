"""Works on batches of the WAL where they lie in memory, without a copy: checks them, and sends them to a socket.

Their chunks are pinned for one batch that is checked and for one system call, never while anything is waited for.
"""

import os

import numpy

from libc.errno cimport EAGAIN, EINTR, ETIMEDOUT, errno
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memset

from kbroker._fast.gather cimport BatchScan
from kbroker._fast.pthread cimport monotonic_ns, sleep_until
from kbroker._fast.wal cimport Wal
from kbroker._fast.wal_copy cimport entry_at
from kbroker._fast.wal_format cimport IndexRecord

cdef extern from "<sys/socket.h>" nogil:
    cdef struct iovec:
        void* iov_base
        size_t iov_len
    cdef struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int fd, const msghdr* message, int flags)
    int MSG_DONTWAIT
    int MSG_NOSIGNAL

cdef extern from "<poll.h>" nogil:
    cdef struct pollfd:
        int fd
        short events
    int poll(pollfd* fds, unsigned long count, int timeout_ms)
    short POLLOUT

cdef enum:
    PIECES_MAX = 64      # of one system call, ...
    SEND_BYTES = 262144  # ... during which appends do not get the chunks that it sends from
    PACED_BYTES = 131072 # at a time where there is a rate


cdef struct Pace:
    int64_t rate     # bytes per second; 0: no limit
    int64_t began_ns
    int64_t rested   # bytes before which it has rested


cdef void keep_pace(Pace* pace, int64_t done) noexcept nogil:
    # Every PACED_BYTES: sleeps until `done` bytes may have gone.
    if pace.rate > 0 and done - pace.rested >= PACED_BYTES:
        pace.rested = done
        sleep_until(pace.began_ns + done * 1000000000 // pace.rate)


def feed_resident(Wal wal not None, BatchScan scan not None, int64_t limit, int64_t rate):
    """See Wal.feed_resident."""
    cdef int64_t fed
    cdef int problem = 0
    cdef Pace pace
    limit = min(limit, <int64_t>scan.feed_bytes_max)
    with nogil:
        pace = Pace(rate, monotonic_ns(), 0)
        fed = feed_batches(wal, scan, limit, &pace, &problem)
    scan.raise_problem(problem)
    return fed


cdef int64_t feed_batches(Wal wal, BatchScan scan, int64_t limit, Pace* pace, int* problem) noexcept nogil:
    cdef int64_t fed = 0, lsn, n
    cdef Py_ssize_t ended = 0
    cdef const uint8_t* p
    while scan.done < scan.count and problem[0] == 0:
        keep_pace(pace, fed)
        lsn = scan.entry[scan.done].lsn + scan.into_batch
        n = scan.entry[scan.done].size - scan.into_batch
        if fed + n > (limit if fed > 0 else scan.feed_bytes_max):
            break
        p = wal.pin(lsn, n)
        if p == NULL:
            break
        ended = scan.walk(p, n, ended, problem)
        wal.unpin(lsn, n)
        fed += n
    return fed


def send_batches(Wal wal not None, entries not None, cumulative not None, int64_t position, int64_t limit, int fd,
                 int timeout_ms, int64_t rate):
    """See Wal.send_batches."""
    cdef const uint8_t[::1] raw = entries.view(numpy.uint8).reshape(-1)
    cdef const int64_t[::1] starts = cumulative
    cdef int64_t count = len(entries), i, sent
    cdef Pace pace
    if count == 0:
        return 0
    i = entry_at(raw, cumulative, count, position)
    with nogil:
        pace = Pace(rate, monotonic_ns(), 0)
        sent = send_resident(wal, <const IndexRecord*>&raw[0], count, i, position - starts[i], limit, fd, timeout_ms,
                             &pace)
    if sent < 0:
        raise OSError(-sent, os.strerror(-sent))
    return sent


cdef int64_t send_resident(Wal wal, const IndexRecord* records, int64_t count, int64_t i, int64_t skip, int64_t limit,
                           int fd, int timeout_ms, Pace* pace) noexcept nogil:
    # From byte `skip` of batch i on, up to the first that is not in memory. Bytes sent, or -errno.
    cdef int64_t done = 0, taken, piece = SEND_BYTES if pace.rate == 0 else PACED_BYTES
    cdef Py_ssize_t sent
    while done < limit:
        keep_pace(pace, done)
        sent = send_some(wal, records, count, i, skip, min(limit - done, piece), fd)
        if sent == 0:
            break
        if sent == -EAGAIN:
            sent = wait_writable(fd, timeout_ms)
            if sent < 0:
                return sent
            continue
        if sent < 0:
            return sent
        done += sent
        while sent > 0:
            taken = min(<int64_t>records[i].size - skip, sent)
            sent -= taken
            skip += taken
            if skip == records[i].size:
                skip = 0
                i += 1
    return done


cdef Py_ssize_t send_some(Wal wal, const IndexRecord* records, int64_t count, int64_t i, int64_t skip, int64_t room,
                          int fd) noexcept nogil:
    # One system call: bytes sent, 0 where the first of them are not in memory, or -errno.
    cdef iovec pieces[PIECES_MAX]
    cdef int64_t lsns[PIECES_MAX]
    cdef msghdr message
    cdef const uint8_t* p
    cdef int64_t n
    cdef int pinned = 0, k
    cdef Py_ssize_t sent = 0
    while pinned < PIECES_MAX and i < count and room > 0:
        n = min(<int64_t>records[i].size - skip, room)
        lsns[pinned] = records[i].lsn + skip
        p = wal.pin(lsns[pinned], n)
        if p == NULL:
            break
        pieces[pinned].iov_base = <void*>p
        pieces[pinned].iov_len = n
        pinned += 1
        room -= n
        skip = 0
        i += 1
    if pinned:
        memset(&message, 0, sizeof(message))
        message.msg_iov = pieces
        message.msg_iovlen = pinned
        sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
        if sent < 0:
            sent = -EAGAIN if errno == EINTR else -errno    # what interrupts does not matter: waits, and tries again
    for k in range(pinned):
        wal.unpin(lsns[k], pieces[k].iov_len)
    return sent


cdef int wait_writable(int fd, int timeout_ms) noexcept nogil:
    # 0 when the socket takes something, or fails; -errno.
    cdef pollfd waiting
    cdef int ready
    waiting.fd = fd
    waiting.events = POLLOUT
    ready = poll(&waiting, 1, timeout_ms)
    if ready == 0:
        return -ETIMEDOUT
    return 0 if ready > 0 or errno == EINTR else -errno
