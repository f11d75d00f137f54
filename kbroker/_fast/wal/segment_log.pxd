from libc.stdint cimport int64_t, uint8_t

from kbroker._fast.wal.ring cimport LogRing
from kbroker._fast.wal.segment cimport WalSegment


cdef class SegmentLog(LogRing):
    """The log's segment files, oldest first, as far as the log knows them; the keeper makes, seals and removes them.

    The list changes with the GIL, which is all that its readers need, and once the log runs also under the keeper's
    `list_lock`. What the nogil side knows of a segment changes under `lock`.
    """
    cdef readonly int64_t start_lsn      # where appends of this start began
    cdef readonly list segments          # WalSegment by first_lsn
    cdef readonly dict partitions        # (topic id, partition) -> Partition, for sealing and recovery
    cdef int64_t retained                # lowest position of the segments kept; partitions drop slices below it
    cdef int64_t flushed                 # everything below is in objects
    cdef tuple recovered                 # (first position, end) of each segment that recovery has found
    cdef bint replacing                  # a replacement file has not committed anything yet
    # Reads from the file (page cache). Returns bytes read or -errno.
    cdef Py_ssize_t read_file(self, int fd, int64_t first_lsn, int64_t lsn, uint8_t* out, Py_ssize_t length) noexcept nogil
    cpdef int64_t bytes_between(self, int64_t from_lsn, int64_t to_lsn) except? -1
    cdef int64_t bytes_from_start(self, int64_t lsn) except? -1
    # The kept segment that holds `lsn`, or None. The caller borrows it before it releases the GIL.
    cdef WalSegment segment_at(self, int64_t lsn)
