from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kbroker._fast.wal.format cimport GroupRecord, IndexRecord

cdef enum:
    SCAN_END = 0          # reached the limit
    SCAN_BAD_HEADER = 1   # no valid entry header of this incarnation at this position
    SCAN_BAD_BATCH = 2    # a valid header, but a body that contradicts it


cdef class SegmentScan:
    """The batches of one segment image, sorted by partition, then in their order: what an index file holds.

    A group has what one leader epoch of a partition appended: generations of a partition may lie in one segment, and
    offsets rise only within each.

    `data` is borrowed from the caller while scanning and replaying; the sorted arrays are owned.
    """
    cdef const uint8_t* data           # image; data[0] is the byte at first_lsn
    cdef readonly int64_t first_lsn
    cdef readonly uint64_t incarnation
    cdef readonly int64_t stop_lsn     # where the scan stopped
    cdef readonly int stop_reason
    cdef readonly int64_t durable_lsn  # the log was on disk up to here: what its entries know
    cdef readonly int64_t entry_count
    cdef readonly int32_t group_count
    cdef IndexRecord* entries          # sorted
    cdef GroupRecord* groups           # sorted by topic id, partition, first appearance
    cdef int32_t* epochs               # of the groups: their leader epochs
    # work arrays of the scan, in WAL order
    cdef IndexRecord* raw
    cdef uint32_t* raw_group
    cdef int64_t raw_capacity
    cdef int32_t group_capacity
    cdef int32_t* table                # hash table of group numbers, -1 free
    cdef int32_t table_size
    cdef object keep                   # whatever owns `data`

    # 0, or -1 when out of memory.
    cdef int scan(self, const uint8_t* data, int64_t start_lsn, int64_t limit_lsn, int64_t segment_end,
                  bint verify) noexcept nogil
    cdef int32_t group_of(self, const uint8_t* topic_id, int32_t partition, int32_t leader_epoch) noexcept nogil
    cdef int rehash(self) noexcept nogil
    cdef int add(self, int32_t group, const IndexRecord* record) noexcept nogil
    cdef int sort(self) noexcept nogil
    # Writes the index file's bytes. 0 or an errno.
    cdef int write_index(self, int fd) noexcept nogil
    cdef void fill_header(self, void* header) noexcept nogil


# The index of a full segment from its memory image; bodies are not validated again. Releases the GIL.
cdef SegmentScan scan_memory(const uint8_t* data, int64_t first_lsn, int64_t end_lsn, uint64_t incarnation)
