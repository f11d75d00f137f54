"""What flushes do with batches of the WAL, at a rate: check them, and send them to a socket.

What is in memory is worked on where it lies, pinned for one piece that is checked or for one system call, never while
anything is waited for. The rest goes through a window over the segment files.
"""

import os

from libc.errno cimport EAGAIN, EINTR, ETIMEDOUT, errno
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memset

from kbroker._fast.records.gather cimport PROBLEM_ENTRY_SIZE, SCAN_CAPTURE_BYTES, BatchScan
from kbroker._fast.base.pthread cimport monotonic_ns, sleep_until
from kbroker._fast.records.record_batch cimport BATCH_HEADER_BYTES
from kbroker._fast.base.sendmsg cimport MSG_DONTWAIT, MSG_NOSIGNAL, iovec, msghdr, sendmsg
from kbroker._fast.wal.segment_log cimport SegmentLog
from kbroker._fast.wal.batches cimport BatchReader, entry_at, raise_failed, reader_of

cdef extern from "<poll.h>" nogil:
    cdef struct pollfd:
        int fd
        short events
    int poll(pollfd* fds, unsigned long count, int timeout_ms)
    short POLLOUT

cdef enum:
    PIECES_MAX = 64      # of one system call, ...
    PIECE_BYTES = 262144 # at a time: appends do not get the chunks that it lies in
    PACED_BYTES = 131072 # the same where there is a rate
    HEADER_ALONE_BYTES = 65536  # of so large a batch that is trusted the header is read from its file, not the rest


cdef struct Pace:
    int64_t rate     # bytes per second; 0: no limit
    int64_t began_ns
    int64_t rested   # bytes before which it has rested
    int64_t piece    # bytes at a time


cdef Pace pace_of(int64_t rate) noexcept nogil:
    return Pace(rate, monotonic_ns(), 0, PACED_BYTES if rate > 0 else PIECE_BYTES)


cdef void keep_pace(Pace* pace, int64_t done) noexcept nogil:
    # After each piece: sleeps until `done` bytes may have gone.
    if pace.rate > 0 and done - pace.rested >= pace.piece:
        pace.rested = done
        sleep_until(pace.began_ns + done * 1000000000 // pace.rate)


def feed_batches(SegmentLog wal not None, BatchScan scan not None, int64_t limit, int64_t rate, bint trusted):
    """See ReadableLog.feed_batches."""
    cdef BatchReader batches = reader_of(wal, scan.entries)
    cdef int64_t fed = 0
    cdef int problem = 0, failed
    cdef Pace pace
    limit = min(limit, <int64_t>scan.feed_bytes_max)
    try:
        with nogil:
            pace = pace_of(rate)
            failed = feed(batches, scan, limit, trusted, &pace, &fed, &problem)
    finally:
        batches.release()
    scan.raise_problem(problem)
    if fed == 0:
        raise_failed(failed)
    return fed


cdef int feed(BatchReader batches, BatchScan scan, int64_t limit, bint trusted, Pace* pace, int64_t* fed,
              int* problem) noexcept nogil:
    # 0, or as BatchReader.load.
    cdef int64_t size, skip, n
    cdef Py_ssize_t ended = 0, i
    cdef const uint8_t* p
    cdef bint pinned = False, header_alone
    cdef int code
    while scan.done < scan.count and fed[0] < limit and problem[0] == 0:
        keep_pace(pace, fed[0])
        i, skip, size = scan.done, scan.into_batch, scan.entry[scan.done].size
        if size < BATCH_HEADER_BYTES:
            problem[0] = PROBLEM_ENTRY_SIZE
            break
        n = min(size - skip, min(limit - fed[0], pace.piece))
        header_alone = trusted and size >= HEADER_ALONE_BYTES
        if header_alone and skip >= SCAN_CAPTURE_BYTES:
            ended = scan.walk(NULL, n, True, ended, problem)
            fed[0] += n
            continue
        p = batches.find(i, skip, &n, &pinned)
        if p == NULL:
            code = batches.load(i, skip, SCAN_CAPTURE_BYTES - skip if header_alone else pace.piece)
            if code != 0:
                return code
            continue
        ended = scan.walk(p, n, trusted, ended, problem)
        if pinned:
            batches.wal.unpin(batches.records[i].lsn + skip, n)
        fed[0] += n
    return 0


def send_batches(SegmentLog wal not None, entries not None, cumulative not None, int64_t position, int64_t limit,
                 int fd, int timeout_ms, int64_t rate):
    """See ReadableLog.send_batches."""
    cdef BatchReader batches
    cdef int64_t i, skip = 0, sent
    cdef Pace pace
    if len(entries) == 0:
        return 0
    batches = reader_of(wal, entries)
    try:
        i = entry_at(batches, cumulative, position, &skip)
        with nogil:
            pace = pace_of(rate)
            sent = send(batches, i, skip, limit, fd, timeout_ms, &pace)
    finally:
        batches.release()
    if sent < 0:
        raise OSError(-sent, os.strerror(-sent))
    return sent


cdef int64_t send(BatchReader batches, int64_t i, int64_t skip, int64_t limit, int fd, int timeout_ms,
                  Pace* pace) noexcept nogil:
    # From byte `skip` of batch i on, up to what cannot be read. Bytes sent, or -errno of the socket.
    cdef int64_t done = 0, room
    cdef Py_ssize_t sent
    while done < limit and i < batches.count:
        keep_pace(pace, done)
        room = min(limit - done, pace.piece)
        sent = send_some(batches, i, skip, room, fd)
        if sent == 0:
            if batches.load(i, skip, pace.piece) != 0:
                break
            continue
        if sent == -EAGAIN:
            sent = wait_writable(fd, timeout_ms)
            if sent < 0:
                return sent
            continue
        if sent < 0:
            return sent
        done += sent
        batches.advance(&i, &skip, sent)
    return done


cdef Py_ssize_t send_some(BatchReader batches, int64_t i, int64_t skip, int64_t room, int fd) noexcept nogil:
    # One system call: bytes sent, 0 where the first of them are to be loaded, or -errno.
    cdef iovec pieces[PIECES_MAX]
    cdef int64_t pins[PIECES_MAX]
    cdef msghdr message
    cdef const uint8_t* p
    cdef int64_t n
    cdef bint pinned = False
    cdef int count = 0, k
    cdef Py_ssize_t sent = 0
    while count < PIECES_MAX and i < batches.count and room > 0:
        n = min(<int64_t>batches.records[i].size - skip, room)
        p = batches.find(i, skip, &n, &pinned)
        if p == NULL:
            break
        pieces[count].iov_base = <void*>p
        pieces[count].iov_len = n
        pins[count] = batches.records[i].lsn + skip if pinned else -1
        count += 1
        room -= n
        batches.advance(&i, &skip, n)
    if count:
        memset(&message, 0, sizeof(message))
        message.msg_iov = pieces
        message.msg_iovlen = count
        sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
        if sent < 0:
            sent = -EAGAIN if errno == EINTR else -errno    # what interrupts does not matter: waits, and tries again
    for k in range(count):
        if pins[k] >= 0:
            batches.wal.unpin(pins[k], pieces[k].iov_len)
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
