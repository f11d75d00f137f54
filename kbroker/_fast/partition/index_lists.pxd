"""The two lists of a partition's index: batches of the newest segments one by one, sealed segments as a whole."""

from libc.stdint cimport int32_t, int64_t

from kbroker._fast.wal.format cimport IndexRecord

cdef struct DenseRing:        # batches in segments that are not sealed; numbers count from the start of the process
    IndexRecord* records
    int64_t first             # number of the oldest
    int64_t count
    int64_t capacity          # a power of two, or 0

cdef struct Slice:            # what one sealed segment holds of the partition
    int64_t first_lsn         # of the segment, as its name in Wal.segments
    int64_t end_lsn
    int64_t first_entry       # number of the first entry in the index file
    int64_t entries_start     # position of the entries in the index file
    int64_t first_offset
    int64_t last_offset       # inclusive
    int64_t max_timestamp
    int64_t size_bytes
    int64_t count

cdef struct SliceList:        # oldest first
    Slice* items              # in use from `first` on
    int32_t first
    int32_t count
    int32_t capacity


cdef inline IndexRecord* dense_at(const DenseRing* ring, int64_t number) noexcept nogil:
    return &ring.records[number & (ring.capacity - 1)]

# Doubles the room. Raises MemoryError.
cdef int dense_grow(DenseRing* ring) except -1
# Number of the first batch that does not end below `offset`; first + count when none.
cdef int64_t dense_find(const DenseRing* ring, int64_t offset) noexcept
# Forgets the batches that begin below `lsn`, and frees the memory of a large ring that is empty then.
cdef void dense_drop_below(DenseRing* ring, int64_t lsn) noexcept
# Forgets all and frees the memory.
cdef void dense_free(DenseRing* ring) noexcept
cdef void slices_free(SliceList* slices) noexcept

# Of a segment that has the last slice, too: the entries follow on that slice, which gets them. Raises MemoryError.
cdef int slices_add(SliceList* slices, const Slice* s) except -1
# Forgets the slices of segments that begin below `lsn`.
cdef inline void slices_drop_below(SliceList* slices, int64_t lsn) noexcept:
    while slices.count and slices.items[slices.first].first_lsn < lsn:
        slices.first += 1
        slices.count -= 1

# Index of the first slice whose last offset is not below `offset`; first + count when none.
cdef int32_t slices_find(const SliceList* slices, int64_t offset) noexcept
# Keeps what follows on without a gap up to the offset `end`.
cdef void slices_keep_contiguous(SliceList* slices, int64_t end) noexcept
