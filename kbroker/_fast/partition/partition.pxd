from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from kbroker._fast.wal.commit cimport CommitQueue, Completion, WaitList
from kbroker._fast.partition.producer_state cimport ProducerStates, Verification
from kbroker._fast.wal.read_plan cimport ReadPlan
from kbroker._fast.records.record_batch cimport BatchInfo
from kbroker._fast.wal.wal cimport EntryKey, Wal
from kbroker._fast.wal.segment cimport WalSegment

cdef enum:
    READ_OK = 0
    READ_COLD = 1             # the offset is below what reads get from the WAL: read it from objects
    BLOCK_ENTRIES = 128       # entries of an index file that are read at once

cdef struct IndexEntry:       # 32 bytes, little-endian, also the record of a sealed segment's index file
    int64_t base_offset
    int64_t lsn               # WAL position of the batch's first byte (not of the entry header)
    int64_t max_timestamp
    uint32_t size             # bytes of the batch
    int32_t last_offset_delta

cdef struct AppendResult:
    int64_t base_offset
    int64_t end_lsn           # durable when the WAL's durable (or flushed) position reaches it
    bint duplicate            # base_offset and end_lsn are those of the first append (its completion is joined)
    int64_t max_timestamp     # of the batch as it was first appended

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


cdef class TopicRules:
    """The topic configs that the hot path reads; shared by the topic's partitions, replaced as a whole on change."""
    cdef public int64_t max_message_bytes
    cdef public int64_t max_decompressed_message_bytes
    cdef public int64_t timestamp_before_max_ms
    cdef public int64_t timestamp_after_max_ms
    cdef public bint compacted
    cdef public bint log_append_time
    cdef public bint internal
    cdef public bint delete_enabled
    cdef public int32_t codec                 # compression.type: 0-4, -1: as the producer wrote it
    cdef public object codec_level            # for `codec`; None: Kafka's default
    cdef public int64_t segment_bytes         # largest append

cdef struct ReadHint:       # where a read ended within a slice: reads go on there
    int64_t slice_lsn       # the slice's first; -1: no hint
    int64_t entry           # number within the slice
    int64_t offset          # of the batch there
    int64_t size            # of it, bytes


cdef class Partition:
    """The hot state of one partition: offsets, index of what the WAL holds, producer state, waiters.

    All methods need the GIL unless marked nogil; appends and reads take the WAL lock inside, for microseconds.
    """
    cdef readonly Wal wal
    cdef readonly str topic
    cdef readonly bytes topic_id              # 16 bytes
    cdef readonly int32_t index
    cdef readonly uint32_t ordinal
    cdef public TopicRules rules              # never None
    cdef public int32_t leader_epoch          # -1: offline
    cdef public bint deleted
    cdef public int64_t log_start_offset
    cdef readonly int64_t next_offset         # log end offset; pending data included
    cdef readonly WaitList waiters
    cdef readonly bint object_durable         # visible and acknowledged once in objects; else once in the WAL
    cdef readonly CommitQueue commits         # of the WAL: what waits for that
    cdef readonly int64_t flushed_offset      # end of what is in objects
    cdef readonly int64_t cleaned_offset      # below it objects are read: compaction has changed what is there
    cdef public object log                    # the Python side's PartitionLog; opaque here

    # Judges producer state, reserves, copies, publishes. `batch` has been validated and time-stamped and is not changed.
    # With `verify` a batch that opens a transaction needs `guard` (ProducerStates.judge).
    # `connection`: the client's, or None. 0, a Kafka error code, APPEND_WAIT, or PRODUCER_WAIT: a new producer id has no
    # room now. The caller pushes a completion on `commits` for result.end_lsn.
    cdef int append(self, const uint8_t* batch, const BatchInfo* info, int64_t now_ms, Verification guard, bint verify,
                    object connection, AppendResult* result) except -3000
    cdef int64_t end_lsn_of(self, int64_t offset) except -1
    cpdef int64_t high_watermark(self)        # end of what is durable: in the WAL, or in objects
    cpdef int64_t last_stable_offset(self)
    cpdef int64_t wal_start_offset(self)      # lowest offset that is read from the WAL; next_offset when it has none
    # Adds whole batches from the one holding `offset` up to (not including) `upper`, at most max_bytes; the first batch
    # is added whatever its size when at_least_one. READ_OK (perhaps nothing added) or READ_COLD.
    cdef int plan_read(self, int64_t offset, int64_t upper, int64_t max_bytes, bint at_least_one, ReadPlan plan) except -1
    # Bytes a fetch at `offset` could get below `upper`, at most `limit` (for min.bytes).
    cdef int64_t available(self, int64_t offset, int64_t upper, int64_t limit) except -1

    # -- own state
    cdef EntryKey key
    cdef readonly ProducerStates producers
    cdef readonly list replayed_epochs        # (leader epoch, first offset) as recovery met them
    cdef IndexEntry* dense                    # ring of the batches in segments that are not sealed
    cdef int64_t dense_first                  # number of the oldest dense batch, counted since the start
    cdef int64_t dense_count
    cdef int64_t dense_capacity               # a power of two
    cdef Slice* slices                        # sealed segments, oldest first, from slice_first on
    cdef int32_t slice_first
    cdef int32_t slice_count
    cdef int32_t slice_capacity
    cdef int64_t durable_offset               # high watermark when last looked
    cdef int64_t durable_dense                # number of the first dense batch above it
    cdef int64_t last_end_lsn                 # end of the newest batch
    cdef int64_t appended_bytes               # of batches, since the start
    cdef int64_t counted_flushed              # flushed position for which counted_unflushed holds
    cdef int64_t counted_unflushed
    cdef int64_t counted_appended
    cdef ReadHint hint                        # of the last read

    cdef IndexEntry* dense_at(self, int64_t number) noexcept
    cdef int64_t dense_find(self, int64_t offset) noexcept
    cdef int grow_dense(self) except -1
    cdef int add_slice(self, const Slice* s) except -1
    cdef int drop_stale_slices(self) noexcept
    cdef int32_t slice_find(self, int64_t offset) noexcept
    cdef WalSegment segment_of(self, const Slice* s)
    cdef bint is_hinted(self, const Slice* s, int64_t offset) noexcept
    cdef int64_t load_block(self, WalSegment segment, const Slice* s, int64_t entry, int64_t count,
                            IndexEntry* out) except -1
    cdef int64_t entry_find(self, WalSegment segment, const Slice* s, int64_t offset) except -1
    # Adds batches of one slice; 1 when the plan is full or the bound is reached, 0 to go on with what follows.
    cdef int plan_slice(self, const Slice* s, int64_t offset, int64_t upper, int64_t max_bytes, bint at_least_one,
                        ReadPlan plan) except -1
    cdef object find_timestamp(self, int64_t timestamp, int64_t upper, bint want_max)
    cdef object entries_of(self, const Slice* s)
