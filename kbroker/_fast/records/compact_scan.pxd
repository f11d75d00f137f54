# The first pass of log compaction over blocks of whole record batches. Rules: docs/decisions/100-log-compaction.md.
from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._fast.base.cursor cimport Cursor
from kbroker._fast.records.key_map cimport KeyHash, KeyMap
from kbroker._fast.records.record cimport (
    REASON_NONE,
    REASON_OFFSET_DELTA,
    REASON_RECORD_COUNT_LESS,
    RECORD_INCOMPLETE,
    RecordView,
    take_record,
)
from kbroker._fast.records.record_batch cimport BatchInfo
from kbroker._fast.records.section_codec cimport PlainSections, SectionCodec

# What a run over plain batches ends with; positive values are a REASON_ of record.pxd.
cdef enum:
    RUN_DONE = 0
    RUN_NEEDS_PYTHON = -10    # the batch in `info` is compressed or of a transaction, or its producer decides
    RUN_BAD_HEADER = -11
    OUT_OF_MEMORY = -12

cdef enum:
    WINDOW_RECORDS = 32       # whose keys are prepared together

cdef struct Waiting:          # a record whose key is prepared
    KeyHash key
    const uint8_t* start
    const uint8_t* end
    int64_t timestamp_delta
    int32_t offset_delta
    int32_t key_length
    int32_t value_length


# The next record of a batch, whose offset deltas grow up to `delta_max`. 0 or a REASON_.
cdef inline int take_next_record(Cursor* c, RecordView* record, int32_t* previous_delta, int32_t delta_max) noexcept nogil:
    cdef int reason = take_record(c, record)
    if reason == RECORD_INCOMPLETE:
        return REASON_RECORD_COUNT_LESS
    if reason != REASON_NONE:
        return reason
    if record.offset_delta <= previous_delta[0] or record.offset_delta > delta_max:
        return REASON_OFFSET_DELTA
    previous_delta[0] = record.offset_delta
    return REASON_NONE


# Raises what `status`, which is not RUN_DONE, means.
cdef int raise_status(int status, Py_ssize_t position) except -1


cdef class AbortedRanges:
    """Aborted transactions, to look up by producer id and offset. Immutable but for `seen`."""
    cdef int64_t* rows                        # (producer id, first offset, last offset) each, sorted
    cdef uint8_t* seen                        # 1: a batch of it was met
    cdef Py_ssize_t count
    # The transaction that a transactional batch belongs to, as a place in the rows; -1: none that was aborted.
    cdef Py_ssize_t covering(self, int64_t producer_id, int64_t offset) noexcept nogil


cdef class KeyScan:
    """Puts keys and offsets of records that are not aborted into the map. Borrows each block for its call.

    One thread at a time.
    """
    cdef KeyMap map
    cdef AbortedRanges aborted
    cdef int64_t start_offset
    cdef int64_t end_offset
    cdef readonly int64_t next_offset         # after the last batch that is wholly in the map
    cdef readonly int64_t records             # looked at
    cdef readonly bint full
    cdef readonly bint done                   # full, or the end was reached
    cdef BatchInfo info
    cdef bint running                         # a thread is in it, perhaps without the GIL
    cdef Waiting waiting[WINDOW_RECORDS]
    cdef SectionCodec codec
    cdef PlainSections sections               # None: none are kept
    cdef int run(self, const uint8_t* p, Py_ssize_t n, Py_ssize_t* position) noexcept nogil
    cdef int take_keys(self, Cursor* c) noexcept nogil
    cdef int put_waiting(self, int32_t count) noexcept nogil
    cdef void batch_done(self) noexcept nogil
