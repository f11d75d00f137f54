from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._fast.wal.format cimport IndexRecord
from kbroker._fast.wal.segment_log cimport SegmentLog

cdef enum:
    NOT_HELD = -100000    # the batch is in no segment that the WAL still keeps
    WINDOW_BYTES = 262144 # of a file are read at once

cdef struct FileRange:
    int fd
    int direct_fd         # the same file with O_DIRECT, or -1
    int64_t first_lsn
    int64_t end_lsn


cdef class BatchReader:
    """Batches of the WAL, for one call that goes through them in order: where they lie in memory, else in a window over
    their segment files, which are not overwritten before `release`.

    Used by one thread. `entries` is borrowed and must not change meanwhile; the window is owned by this object.
    """
    cdef SegmentLog wal
    cdef const IndexRecord* records
    cdef int64_t count
    cdef object entries
    cdef list held
    cdef FileRange* ranges
    cdef int32_t range_count
    cdef uint8_t* memory                # of the window, page-aligned
    cdef const uint8_t* window
    cdef int64_t window_lsn
    cdef int64_t window_length
    # n bytes on from byte `skip` of batch i: into a batch that has bytes left, or past the last.
    cdef inline void advance(self, int64_t* i, int64_t* skip, int64_t n) noexcept nogil:
        skip[0] += n
        while i[0] < self.count and skip[0] >= self.records[i[0]].size:
            skip[0] -= self.records[i[0]].size
            i[0] += 1
    # The next bytes of batch i from byte `skip` on, which it must have, at most n[0], which becomes how many there are;
    # NULL: to be loaded. `pinned`: to be unpinned from the WAL. What is in the window stays there until the next load.
    cdef const uint8_t* find(self, int64_t i, int64_t skip, int64_t* n, bint* pinned) noexcept nogil
    # Reads at most `room` bytes of the file from there into the window, with later batches that lie near. 0, NOT_HELD or
    # -errno.
    cdef int load(self, int64_t i, int64_t skip, int64_t room) noexcept nogil
    cdef int read(self, const FileRange* file, int64_t n, bint direct) noexcept nogil
    cdef const FileRange* range_of(self, int64_t lsn) noexcept nogil
    cdef void release(self)


# For the entries, an array of INDEX_DTYPE in the log's order, which may be empty. Raises ValueError for another.
cdef BatchReader reader_of(SegmentLog wal, object entries)

# The place of the entry that holds byte `position` of their batches, one after another, or their number where none does;
# `cumulative` is what comes before each. Raises ValueError where it does not fit.
cdef int64_t entry_at(BatchReader batches, object cumulative, int64_t position, int64_t* skip) except -1

cdef int raise_failed(int code) except -1
