from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from kbroker._fast.partition.batch_index cimport BatchIndex
from kbroker._fast.partition.producer_state cimport ProducerStates
from kbroker._fast.partition.timestamp_disorder cimport TimestampDisorder
from kbroker._fast.partition.topic_rules cimport TopicRules
from kbroker._fast.partition.verification_guards cimport Verification
from kbroker._fast.records.record_batch cimport BatchInfo
from kbroker._fast.wal.commit cimport CommitQueue, WaitList
from kbroker._fast.wal.ring cimport EntryKey
from kbroker._fast.wal.scan cimport SegmentScan
from kbroker._fast.wal.segment cimport WalSegment

cdef struct AppendResult:
    int64_t base_offset
    int64_t end_lsn           # durable when the WAL's durable (or flushed) position reaches it
    bint duplicate            # base_offset and end_lsn are those of the first append (its completion is joined)
    int64_t max_timestamp     # of the batch as it was first appended


cdef class Partition(BatchIndex):
    """The hot state of one partition: offsets, index of what the WAL holds, producer state, waiters.

    All methods need the GIL unless marked nogil; appends and reads take the WAL lock inside, for microseconds.
    """
    cdef readonly bytes topic_id              # 16 bytes
    cdef readonly uint32_t ordinal
    cdef public TopicRules rules              # never None
    cdef public int32_t leader_epoch          # -1: not led here; a later leadership has a Partition of its own
    cdef public int32_t tail_epoch            # the WAL's entries under earlier leader epochs do not count; -1: all do
    cdef readonly bint ended                  # it has been led here; flushes still take its batches
    cdef readonly bint deleted                # with its topic; it is not led here either
    cdef readonly WaitList waiters
    cdef readonly bint object_durable         # visible and acknowledged once in objects; else once in the WAL
    cdef readonly CommitQueue commits         # of the WAL: what waits for that
    cdef readonly int64_t flushed_offset      # end of what is in objects
    cdef public object log                    # the Python side's PartitionLog; opaque here

    # Judges producer state, reserves, copies, publishes. `batch` has been validated and time-stamped and is not changed.
    # `disorder_ms`: see ValidationResult; -1: not known. With `verify` a batch that opens a transaction needs `guard`
    # (ProducerStates.judge).
    # `connection`: the client's, or None. 0, a Kafka error code, APPEND_WAIT, or PRODUCER_WAIT: a new producer id has no
    # room now. The caller pushes a completion on `commits` for result.end_lsn.
    cdef int append(self, const uint8_t* batch, const BatchInfo* info, int64_t disorder_ms, int64_t now_ms,
                    Verification guard, bint verify, object connection, AppendResult* result) except -3000
    cdef int64_t end_lsn_of(self, int64_t offset) except -1
    cpdef int64_t high_watermark(self)        # end of what is durable: in the WAL, or in objects
    cpdef int64_t last_stable_offset(self)
    cpdef int count_fetched(self, int64_t size, int64_t records) except -1

    # -- own state
    cdef EntryKey key
    cdef readonly ProducerStates producers
    cdef readonly TimestampDisorder disorder  # of what is not flushed
    cdef readonly list replayed_epochs        # (leader epoch, first offset) as recovery met them
    cdef readonly Partition successor         # of the next leadership of this broker; None: there is none
    cdef Partition before                     # of the last leadership, until `succeed`: what is sealed is still its
    cdef list deferred                        # what is sealed until `end_tail`; None: no tail is being replayed
    cdef int attach(self, WalSegment segment, SegmentScan scan, int32_t i) except -1
    cdef int add_dense(self, SegmentScan scan, int32_t i) except -1
    cdef int64_t durable_offset               # high watermark when last looked
    cdef int64_t durable_dense                # number of the first dense batch above it
    cdef readonly int64_t appended_bytes      # of batches, since the start; those that were recovered are not counted
    cdef readonly int64_t appended_records
    cdef readonly int64_t fetched_bytes       # of batches that were sent to consumers
    cdef readonly int64_t fetched_records
    cdef int64_t counted_flushed              # flushed position for which counted_unflushed holds
    cdef int64_t counted_unflushed
    cdef int64_t counted_appended
