# What the second pass of log compaction keeps of a batch, and the batches that it writes.
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from kbroker._fast.base.cursor cimport Cursor
from kbroker._fast.records.compact_scan cimport WINDOW_RECORDS, Waiting
from kbroker._fast.records.key_map cimport KeyMap
from kbroker._fast.records.record_batch cimport BatchInfo
from kbroker._fast.records.section_codec cimport SectionCodec

cdef struct Bytes:            # a growing buffer
    uint8_t* base
    Py_ssize_t size
    Py_ssize_t capacity

cdef struct Span:             # records side by side that stay
    const uint8_t* start
    const uint8_t* end

cdef struct OutEntry:         # a batch that was written; COMPACTED_DTYPE of background.compaction_writer, native byte order
    int64_t base_offset
    int64_t max_timestamp
    int64_t min_timestamp     # of its records, or a bound below them; INT64_MIN: not known
    uint32_t size
    int32_t last_offset_delta
    int32_t record_count
    int32_t leader_epoch


@cython.final
cdef class Selection:
    """The records of one batch that stay: the newest of each key, and tombstones until their delete horizon.

    Borrows the batch's records section until the next `clear`. `info` is the batch's header.
    """
    cdef KeyMap map
    cdef int64_t now_ms
    cdef Bytes spans                          # Span
    cdef int32_t kept
    cdef int32_t tombstones                   # among them
    cdef int64_t max_timestamp                # of them; -1 without any
    cdef int64_t min_timestamp
    cdef Waiting waiting[WINDOW_RECORDS]
    cdef void clear(self) noexcept nogil
    # Reads the section at c; 0, a REASON_ of record.pxd or OUT_OF_MEMORY.
    cdef int choose(self, const BatchInfo* info, Cursor c, bint keep_all) noexcept nogil
    cdef int choose_waiting(self, const BatchInfo* info, int32_t count, bint keep_all) noexcept nogil
    cdef bint stays(self, const BatchInfo* info, const Waiting* record) noexcept nogil


@cython.final
cdef class CompactedBatches:
    """The batches that are written, until `take`. A batch is given by its header `info` and its first byte `p`.

    Methods without a comment return 0 or OUT_OF_MEMORY.
    """
    cdef Selection selection                  # what `rewrite_...` writes
    cdef SectionCodec codec
    cdef int64_t now_ms
    cdef int64_t delete_retention_ms
    cdef int64_t records_kept
    cdef int64_t changed_end                  # end of the last batch that was rewritten or dropped; 0: none was
    cdef int64_t horizon_ms                   # latest delete horizon still ahead of what was written; -1: none
    cdef Bytes out
    cdef Bytes entries                        # OutEntry
    cdef Bytes scratch
    cdef int copy(self, const BatchInfo* info, const uint8_t* p) noexcept nogil          # its records were not read
    cdef int copy_selected(self, const BatchInfo* info, const uint8_t* p) noexcept nogil # all of them were selected
    # With the selected records; `set_horizon`: its tombstones, or its marker, may be removed after the retention.
    cdef int rewrite_plain(self, const BatchInfo* info, const uint8_t* p, bint set_horizon) noexcept nogil
    cdef int rewrite_compressed(self, const BatchInfo* info, const uint8_t* p, bint set_horizon) except -1
    # Its header alone: offsets, producer id, epoch and sequence outlive the records.
    cdef int write_empty(self, const BatchInfo* info, const uint8_t* p) noexcept nogil
    cdef int64_t min_selected(self, const BatchInfo* info) noexcept nogil
    cdef int copy_bytes(self, const BatchInfo* info, const uint8_t* p, int64_t min_timestamp) noexcept nogil
    cdef void note_change(self, const BatchInfo* info) noexcept nogil
    cdef int write_selected(self, Bytes* to, const BatchInfo* info, int64_t new_base) noexcept nogil
    cdef int write_dated(self, Bytes* to, const BatchInfo* info, Cursor c, int64_t new_base) noexcept nogil
    cdef int seal_header(self, const BatchInfo* info, const uint8_t* p, Py_ssize_t at, Py_ssize_t size,
                         bint set_horizon) noexcept nogil
    cdef int note(self, const BatchInfo* info, uint32_t size, int64_t min_timestamp, int64_t max_timestamp,
                  int32_t record_count) noexcept nogil
    cdef void note_horizon(self, int64_t horizon_ms) noexcept nogil
    cdef int64_t new_horizon_ms(self) noexcept nogil
    # (batches, OutEntry structs of them) that were written since the last take.
    cdef tuple take(self)
