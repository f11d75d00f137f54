from libc.stdint cimport int32_t, int64_t

from kbroker._fast.partition.index_lists cimport DenseRing, Slice, SliceList
from kbroker._fast.wal.format cimport IndexRecord
from kbroker._fast.wal.read_plan cimport ReadPlan
from kbroker._fast.wal.segment cimport WalSegment
from kbroker._fast.wal.wal cimport Wal

cdef enum:
    READ_OK = 0
    READ_COLD = 1             # the offset is below what reads get from the WAL: read it from objects
    BLOCK_ENTRIES = 128       # entries of an index file that are read at once

cdef struct ReadHint:         # where a read ended within a slice: reads go on there
    int64_t slice_lsn         # the slice's first; -1: no hint
    int64_t entry             # number within the slice
    int64_t offset            # of the batch there
    int64_t size              # of it, bytes


cdef class BatchIndex:
    """Where the WAL holds the batches of one partition: slices (sealed segments; their entries stay on disk), then the
    dense ring (32 bytes per batch of the segments that are not sealed). Offsets run on without a gap from the first
    slice to `next_offset`.

    All methods need the GIL, and keep it until they have seen the index: each sees that of one moment. Entries of sealed
    segments are read from their index files meanwhile, on an I/O thread too; the page cache usually has them.
    """
    cdef readonly Wal wal
    cdef readonly str topic
    cdef readonly int32_t index
    cdef public int64_t log_start_offset
    cdef readonly int64_t next_offset         # log end offset; pending data included
    cdef readonly int64_t cleaned_offset      # below it objects are read: compaction has changed what is there
    cpdef int64_t wal_start_offset(self)      # lowest offset that is read from the WAL; next_offset when it has none
    # Adds whole batches from the one holding `offset` up to (not including) `upper`, at most max_bytes; the first batch
    # is added whatever its size when at_least_one. READ_OK (perhaps nothing added) or READ_COLD.
    cdef int plan_read(self, int64_t offset, int64_t upper, int64_t max_bytes, bint at_least_one, ReadPlan plan) except -1
    # Bytes a fetch at `offset` could get below `upper`, at most `limit` (for min.bytes).
    cdef int64_t available(self, int64_t offset, int64_t upper, int64_t limit) except -1

    # -- own state
    cdef DenseRing dense
    cdef SliceList slices
    cdef int64_t last_end_lsn                 # end of the newest batch
    cdef ReadHint hint                        # of the last read

    cdef WalSegment segment_of(self, const Slice* s)
    cdef int64_t load_block(self, WalSegment segment, const Slice* s, int64_t entry, int64_t count,
                            IndexRecord* out) except -1
    cdef int64_t entry_find(self, WalSegment segment, const Slice* s, int64_t offset) except -1
    # Adds batches of one slice; 1 when the plan is full or the bound is reached, 0 to go on with what follows.
    cdef int plan_slice(self, const Slice* s, int64_t offset, int64_t upper, int64_t max_bytes, bint at_least_one,
                        ReadPlan plan) except -1
    # Copies the slice's entries whose batches start in [from_lsn, to_lsn) to `out`, which has room for all; how many.
    cdef int64_t copy_slice(self, const Slice* s, int64_t from_lsn, int64_t to_lsn, IndexRecord* out) except -1
    cdef int64_t bytes_from(self, int64_t lsn) except -1  # of the batches that start there or later
    cdef object find_timestamp(self, int64_t timestamp, int64_t upper, bint want_max)
