"""Copies bytes and batches out of the WAL, from memory where they are resident, else from the segment files."""

import numpy

from libc.errno cimport EIO
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from kbroker._fast.atomic cimport load64
from kbroker._fast.wal cimport Wal, WalSegment
from kbroker._fast.wal_format cimport IndexRecord

cdef enum:
    NOT_HELD = -100000    # the batch is in no segment that the WAL still keeps
    WINDOW_BYTES = 262144 # read at once from a file when small batches lie near each other

cdef struct FileRange:
    int fd
    int64_t first_lsn
    int64_t end_lsn


def read_bytes(Wal wal not None, int64_t lsn, int64_t n):
    """See Wal.read."""
    cdef WalSegment segment = wal.segment_at(lsn)
    cdef const uint8_t* p
    cdef bytearray out
    cdef uint8_t* target
    cdef Py_ssize_t got
    if segment is None or n < 0 or n > segment.end_lsn - lsn or lsn + n > load64(&wal.head):
        raise ValueError(f"the WAL does not hold {n} bytes at {lsn}")
    p = wal.pin(lsn, n)
    if p != NULL:
        try:
            return p[:n]
        finally:
            wal.unpin(lsn, n)
    out = bytearray(n)
    target = out
    segment.borrows += 1
    try:
        with nogil:
            got = wal.read_file(segment.fd, segment.first_lsn, lsn, target, n)
    finally:
        segment.borrows -= 1
    if got != n:
        raise OSError(-got if got < 0 else EIO, f"{segment.path}: reading {n} bytes at WAL position {lsn}")
    return bytes(out)


cdef int64_t entry_at(const uint8_t[::1] raw, object cumulative, int64_t count, int64_t position) except -1:
    cdef const int64_t[::1] starts = cumulative
    if raw.shape[0] != count * <int64_t>sizeof(IndexRecord) or starts.shape[0] < count or starts[0] != 0:
        raise ValueError("entries must have INDEX_DTYPE, cumulative one start per entry, the first of them 0")
    if position < 0:
        raise ValueError("position is negative")
    return <int64_t>numpy.searchsorted(cumulative[:count], position, side="right") - 1


def read_batches_into(Wal wal not None, entries not None, cumulative not None, int64_t position,
                      uint8_t[::1] out not None):
    """See Wal.read_batches_into."""
    cdef const IndexRecord* records
    cdef const uint8_t[::1] raw = entries.view(numpy.uint8).reshape(-1)
    cdef const int64_t[::1] starts = cumulative
    cdef int64_t count = len(entries), i, done
    cdef list held = []
    cdef FileRange* ranges
    cdef int32_t range_count
    if count == 0 or out.shape[0] == 0:
        return 0
    records = <const IndexRecord*>&raw[0]
    i = entry_at(raw, cumulative, count, position)
    for segment in wal.segments:
        (<WalSegment>segment).borrows += 1
        held.append(segment)
    range_count = len(held)
    ranges = <FileRange*>malloc((range_count + 1) * sizeof(FileRange))
    try:
        if ranges == NULL:
            raise MemoryError
        for n, segment in enumerate(held):
            ranges[n].fd = (<WalSegment>segment).fd
            ranges[n].first_lsn = (<WalSegment>segment).first_lsn
            ranges[n].end_lsn = (<WalSegment>segment).end_lsn
        with nogil:
            done = copy_batches(wal, records, count, i, position - starts[i], &out[0], out.shape[0], ranges,
                                range_count)
    finally:
        free(ranges)
        for segment in held:
            (<WalSegment>segment).borrows -= 1
    if done == NOT_HELD:
        raise ValueError("the WAL does not hold one of the batches any more")
    if done < 0:
        raise OSError(-done, "reading batches from the WAL")
    return done


cdef Py_ssize_t read_batch(Wal wal, const IndexRecord* record, int64_t skip, int64_t n, uint8_t* out,
                           const FileRange* ranges, int32_t range_count, uint8_t* window, int64_t* window_lsn,
                           int64_t* window_length) noexcept nogil:
    # n bytes of a batch from byte `skip` on: from memory, else through the window over its file. 0, -errno, NOT_HELD.
    cdef int64_t lsn = record.lsn + skip
    cdef const uint8_t* p = wal.pin(lsn, n)
    cdef int32_t low = 0, high = range_count, middle
    cdef int64_t length
    cdef Py_ssize_t got
    if p != NULL:
        memcpy(out, p, n)
        wal.unpin(lsn, n)
        return 0
    if window_lsn[0] <= lsn and lsn + n <= window_lsn[0] + window_length[0]:
        memcpy(out, window + (lsn - window_lsn[0]), n)
        return 0
    while low < high:
        middle = (low + high) >> 1
        if ranges[middle].first_lsn <= lsn:
            low = middle + 1
        else:
            high = middle
    if low == 0 or lsn + n > ranges[low - 1].end_lsn:
        return NOT_HELD
    if n >= WINDOW_BYTES // 8:
        got = wal.read_file(ranges[low - 1].fd, ranges[low - 1].first_lsn, lsn, out, n)
        return 0 if got == n else (got if got < 0 else -EIO)
    # Only what is durable may be kept in the window: the rest of the file may be from an earlier use.
    length = min(<int64_t>WINDOW_BYTES, min(ranges[low - 1].end_lsn, wal.durable()) - lsn)
    window_length[0] = 0
    got = wal.read_file(ranges[low - 1].fd, ranges[low - 1].first_lsn, lsn, window, max(length, n))
    if got < n:
        return got if got < 0 else -EIO
    window_lsn[0] = lsn
    window_length[0] = got
    memcpy(out, window, n)
    return 0


cdef int64_t copy_batches(Wal wal, const IndexRecord* records, int64_t count, int64_t i, int64_t skip, uint8_t* out,
                          int64_t room, const FileRange* ranges, int32_t range_count) noexcept nogil:
    cdef int64_t done = 0, n, window_lsn = -1, window_length = 0
    cdef Py_ssize_t code = 0
    cdef uint8_t* window = <uint8_t*>malloc(WINDOW_BYTES)
    if window == NULL:
        return -12  # ENOMEM
    while i < count and done < room:
        n = min(<int64_t>records[i].size - skip, room - done)
        if n > 0:
            code = read_batch(wal, &records[i], skip, n, out + done, ranges, range_count, window, &window_lsn,
                              &window_length)
            if code != 0:
                break
            done += n
        skip = 0
        i += 1
    free(window)
    return code if code != 0 else done
