"""Batches of one partition out of the WAL, in order, from memory or from the segment files."""

import os

from libc.errno cimport EIO, ENOMEM
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from posix.fcntl cimport POSIX_FADV_WILLNEED, posix_fadvise
from posix.stdlib cimport posix_memalign
from posix.unistd cimport pread

from kbroker._fast.base.invariant cimport invariant
from kbroker._fast.base.page_cache cimport all_cached
from kbroker._fast.wal.format cimport PAGE_BYTES, SEGMENT_HEADER_BYTES, IndexRecord, page_up
from kbroker._fast.wal.segment cimport WalSegment
from kbroker._fast.wal.segment_log cimport SegmentLog

cdef enum:
    GAP_BYTES = 8192      # between two batches are read as well rather than by a call of their own
    DIRECT_BYTES = 16384  # a batch of so much, or some that lie near, do not fill the page cache, which costs more; ...
    AHEAD_BYTES = 524288  # ... for less, so much of the log is brought there: other partitions' batches lie between


cdef class BatchReader:
    def __dealloc__(self):
        free(self.ranges)
        free(self.memory)

    cdef const uint8_t* find(self, int64_t i, int64_t skip, int64_t* n, bint* pinned) noexcept nogil:
        cdef int64_t lsn = self.records[i].lsn + skip, window_end = self.window_lsn + self.window_length
        cdef const uint8_t* p
        invariant(n[0] > 0)
        p = self.wal.pin(lsn, n[0])
        pinned[0] = p != NULL
        if p == NULL and self.window_lsn <= lsn < window_end:
            n[0] = min(n[0], window_end - lsn)
            p = self.window + (lsn - self.window_lsn)
        return p

    cdef int load(self, int64_t i, int64_t skip, int64_t room) noexcept nogil:
        cdef int64_t lsn = self.records[i].lsn + skip, end, next_end
        cdef const FileRange* file = self.range_of(lsn)
        cdef bint large = self.records[i].size >= DIRECT_BYTES
        if file == NULL:
            return NOT_HELD
        room = min(room, <int64_t>WINDOW_BYTES)
        end = min(self.records[i].lsn + self.records[i].size, lsn + room)
        for i in range(i + 1, self.count):
            next_end = self.records[i].lsn + self.records[i].size
            if not end <= self.records[i].lsn <= end + GAP_BYTES or next_end > min(lsn + room, file.end_lsn):
                break
            end = next_end
        if end > file.end_lsn:
            return NOT_HELD
        if self.memory == NULL and posix_memalign(<void**>&self.memory, PAGE_BYTES, WINDOW_BYTES + 2 * PAGE_BYTES):
            return -ENOMEM
        self.window_length = 0
        self.window_lsn = lsn
        return self.read(file, end - lsn, large or end - lsn >= DIRECT_BYTES)

    cdef int read(self, const FileRange* file, int64_t n, bint direct) noexcept nogil:
        # n bytes into the window; `direct`: from the disk, unless the page cache has them.
        cdef int64_t position = SEGMENT_HEADER_BYTES + self.window_lsn - file.first_lsn
        cdef int64_t before = position % PAGE_BYTES
        cdef bint cached = all_cached(file.fd, position, n)
        cdef Py_ssize_t got
        if direct and not cached and file.direct_fd >= 0:
            got = pread(file.direct_fd, self.memory, page_up(before + n), position - before)
            if got >= before + n:
                self.window, self.window_length = self.memory + before, n
                return 0
        if not cached:
            posix_fadvise(file.fd, position, min(<int64_t>AHEAD_BYTES, file.end_lsn - self.window_lsn),
                          POSIX_FADV_WILLNEED)
        got = self.wal.read_file(file.fd, file.first_lsn, self.window_lsn, self.memory, n)
        if got != n:
            return <int>got if got < 0 else -EIO
        self.window, self.window_length = self.memory, n
        return 0

    cdef const FileRange* range_of(self, int64_t lsn) noexcept nogil:
        cdef int32_t low = 0, high = self.range_count, middle
        while low < high:
            middle = (low + high) >> 1
            if self.ranges[middle].first_lsn <= lsn:
                low = middle + 1
            else:
                high = middle
        return &self.ranges[low - 1] if low > 0 and lsn < self.ranges[low - 1].end_lsn else NULL

    cdef void release(self):
        for segment in self.held:
            (<WalSegment>segment).borrows -= 1
        self.held = []
        self.range_count = 0


cdef BatchReader reader_of(SegmentLog wal, object entries):
    cdef const uint8_t[::1] raw = entries.view("u1").reshape(-1)
    cdef BatchReader batches = BatchReader.__new__(BatchReader)
    cdef WalSegment segment
    cdef int64_t first_lsn, last_lsn
    if raw.shape[0] != len(entries) * <int64_t>sizeof(IndexRecord):
        raise ValueError("entries must have INDEX_DTYPE")
    batches.wal = wal
    batches.entries = entries
    batches.count = len(entries)
    batches.records = <const IndexRecord*>&raw[0] if batches.count else NULL
    batches.ranges = <FileRange*>malloc((len(wal.segments) + 1) * sizeof(FileRange))
    if batches.ranges == NULL:
        raise MemoryError
    batches.held = []
    if batches.count == 0:
        return batches
    first_lsn = batches.records[0].lsn
    last_lsn = batches.records[batches.count - 1].lsn
    for segment in wal.segments:
        # Only these: one that is trimmed while it is held is not used again, and a new file costs more.
        if segment.end_lsn > first_lsn and segment.first_lsn <= last_lsn:
            segment.borrows += 1
            batches.held.append(segment)
            batches.ranges[batches.range_count] = FileRange(segment.fd, segment.direct_fd, segment.first_lsn,
                                                            segment.end_lsn)
            batches.range_count += 1
    return batches


cdef int64_t entry_at(BatchReader batches, object cumulative, int64_t position, int64_t* skip) except -1:
    cdef const int64_t[::1] starts = cumulative
    cdef int64_t low = 0, high = batches.count, middle
    if starts.shape[0] < batches.count or starts[0] != 0:
        raise ValueError("cumulative must have one start per entry, the first of them 0")
    if position < 0:
        raise ValueError("position is negative")
    while low < high:
        middle = (low + high) >> 1
        if starts[middle] <= position:
            low = middle + 1
        else:
            high = middle
    low -= 1
    skip[0] = 0
    batches.advance(&low, skip, position - starts[low])
    return low


cdef int raise_failed(int code) except -1:
    if code == NOT_HELD:
        raise ValueError("the WAL does not hold one of the batches any more")
    if code < 0:
        raise OSError(-code, f"reading batches from the WAL: {os.strerror(-code)}")
    return 0
