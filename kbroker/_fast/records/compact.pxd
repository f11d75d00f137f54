# The two passes of log compaction over blocks of whole record batches. Rules: docs/decisions/100-log-compaction.md.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from kbroker._fast.base.cursor cimport Cursor
from kbroker._fast.records.key_map cimport KeyHash, KeyMap
from kbroker._fast.records.record_batch cimport BatchInfo
from kbroker._fast.records.section_codec cimport PlainSections, SectionCodec

cdef struct Bytes:            # a growing buffer
    uint8_t* base
    Py_ssize_t size
    Py_ssize_t capacity

cdef struct Span:             # records side by side that stay
    const uint8_t* start
    const uint8_t* end

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

cdef struct OutEntry:         # a batch that was written; COMPACTED_DTYPE of background.compaction_writer, native byte order
    int64_t base_offset
    int64_t max_timestamp
    uint32_t size
    int32_t last_offset_delta
    int32_t record_count
    int32_t leader_epoch

cdef struct Selection:        # what stays of one batch; the records themselves are in BatchFilter.spans
    int32_t kept
    int32_t tombstones        # among them
    int64_t max_timestamp     # of them; -1 without any


cdef class AbortedRanges:
    """Aborted transactions, to look up by producer id and offset. Immutable but for `seen`."""
    cdef int64_t* rows                        # (producer id, first offset, last offset) each, sorted
    cdef uint8_t* seen                        # 1: a batch of it was met
    cdef Py_ssize_t count
    # The transaction that a transactional batch belongs to, as a place in the rows; -1: none that was aborted.
    cdef Py_ssize_t covering(self, int64_t producer_id, int64_t offset) noexcept nogil


cdef class KeyScan:
    """First pass: puts keys and offsets of records that are not aborted into the map. Borrows each block for its call."""
    cdef KeyMap map
    cdef AbortedRanges aborted
    cdef int64_t start_offset
    cdef int64_t end_offset
    cdef readonly int64_t next_offset         # after the last batch that is wholly in the map
    cdef readonly int64_t records             # looked at
    cdef readonly bint full
    cdef readonly bint done                   # full, or the end was reached
    cdef BatchInfo info
    cdef Waiting waiting[WINDOW_RECORDS]
    cdef SectionCodec codec
    cdef PlainSections sections               # None: none are kept, or none were
    cdef int run(self, const uint8_t* p, Py_ssize_t n, Py_ssize_t* position) noexcept nogil
    cdef int take_keys(self, Cursor* c) noexcept nogil
    cdef int put_waiting(self, int32_t count) noexcept nogil
    cdef void batch_done(self) noexcept nogil


cdef class BatchFilter:
    """Second pass: copies, rewrites or drops batches. Owns its output until `take`; borrows each block for its call."""
    cdef KeyMap map
    cdef AbortedRanges aborted
    cdef dict last_batches                    # producer id -> (last data offset or -1, epoch), of live producers
    cdef set open_producers                   # with data of a transaction whose marker has not been met yet
    cdef int64_t map_end
    cdef int64_t now_ms
    cdef int64_t delete_retention_ms
    cdef readonly int64_t records_read
    cdef readonly int64_t records_kept
    cdef readonly int64_t changed_end         # end of the last batch that was rewritten or dropped; 0: none was
    cdef readonly int64_t horizon_ms          # latest delete horizon still ahead of what was written; -1: none
    cdef BatchInfo info
    cdef Bytes out
    cdef Bytes entries
    cdef Bytes spans
    cdef Bytes scratch
    cdef Waiting waiting[WINDOW_RECORDS]
    cdef SectionCodec codec
    cdef PlainSections sections               # None: none are kept, or none were
    cdef int run(self, const uint8_t* p, Py_ssize_t n, Py_ssize_t* position) noexcept nogil
    cdef int step(self, const uint8_t* p, object body) except -1
    # Fills spans; 0, a REASON_ of record.pxd or OUT_OF_MEMORY.
    cdef int select(self, Cursor c, bint keep_all, Selection* selection) noexcept nogil
    cdef int select_waiting(self, int32_t count, bint keep_all, Selection* selection) noexcept nogil
    cdef bint stays(self, const Waiting* record) noexcept nogil
    cdef int write_kept(self, Bytes* to, int64_t new_base) noexcept nogil
    cdef int write_dated(self, Bytes* to, Cursor c, int64_t new_base) noexcept nogil
    cdef int copy(self, const uint8_t* p) noexcept nogil
    cdef void note_change(self) noexcept nogil
    cdef void note_horizon(self, int64_t horizon_ms) noexcept nogil
    cdef int note(self, uint32_t size, int64_t max_timestamp, int32_t record_count) noexcept nogil
    cdef int64_t horizon(self) noexcept nogil
    cdef int rewrite_plain(self, const uint8_t* p, const Selection* selection, bint set_horizon) noexcept nogil
    cdef int rewrite_compressed(self, const uint8_t* p, const Selection* selection, bint set_horizon) except -1
    cdef int seal_header(self, const uint8_t* p, Py_ssize_t at, Py_ssize_t size, const Selection* selection,
                         bint set_horizon) noexcept nogil
    cdef int write_empty(self, const uint8_t* p) noexcept nogil
    cdef bint ends_the_round(self) noexcept nogil
    cdef bint is_last_of_producer(self) except -1
    cdef int end_transaction(self, const uint8_t* section, Py_ssize_t n) except -1
