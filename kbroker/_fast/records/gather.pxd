from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

cdef enum:
    SCAN_CAPTURE_BYTES = 128    # of each batch: the header, and all of a transaction marker

cdef enum:
    PROBLEM_NONE
    PROBLEM_ENTRY_SIZE
    PROBLEM_BASE_OFFSET
    PROBLEM_SIZE
    PROBLEM_MAGIC
    PROBLEM_CRC
    PROBLEM_LAST_OFFSET
    PROBLEM_RECORD_COUNT
    PROBLEM_MARKER
    PROBLEM_SURPLUS

cdef struct ScanEntry:          # one index entry, 32 bytes, as numpy's INDEX_DTYPE has it (native order)
    int64_t base_offset
    int64_t lsn
    int64_t max_timestamp
    uint32_t size
    int32_t last_offset_delta


cdef class BatchScan:
    """Checks batches as their bytes stream by, and collects the header fields that a flush needs.

    The bytes fed must be the batches of `entries` one after another, cut anywhere. Each batch must be what its entry
    says (base offset, size, last offset delta) and carry a right CRC; of bytes that are trusted only the header is read,
    and `crc` is what follows from the CRC that it carries. The fields of the batches that ended in the last
    feed are in the column arrays until the next feed; `record_counts` and `min_timestamps` are for the whole scan.
    Owner of all arrays: this object. `entries` is borrowed and must not change during the scan.
    """
    cdef readonly object entries
    cdef readonly Py_ssize_t done               # batches that have ended
    cdef readonly int64_t position              # bytes fed
    cdef readonly uint32_t crc                  # CRC-32C of all bytes fed, once a batch has ended
    cdef readonly object record_counts          # int32[len(entries)]
    cdef readonly object min_timestamps         # int64[len(entries)]: a record's smallest, or a bound; -2^63: not known
    cdef readonly object leader_epochs          # columns of the last feed, one element per batch that ended in it
    cdef readonly object attributes
    cdef readonly object producer_ids
    cdef readonly object producer_epochs
    cdef readonly object base_sequences
    cdef readonly object marker_types           # -1: no transaction marker; else 0 abort, 1 commit
    cdef readonly object coordinator_epochs
    cdef const ScanEntry* entry
    cdef Py_ssize_t count
    cdef Py_ssize_t feed_bytes_max
    cdef int64_t disorder_ms
    cdef int32_t* record_count
    cdef int64_t* min_timestamp
    cdef int32_t* leader_epoch
    cdef int16_t* attribute
    cdef int64_t* producer_id
    cdef int16_t* producer_epoch
    cdef int32_t* base_sequence
    cdef int16_t* marker_type
    cdef int32_t* coordinator_epoch
    cdef int64_t into_batch                     # bytes of the current batch seen so far
    cdef uint32_t batch_crc
    cdef bint carried                           # some of the current batch is trusted: its CRC is the one it carries
    cdef uint8_t capture[SCAN_CAPTURE_BYTES]
    # Takes bytes; the first batch that ends in them gets the columns at `ended`. Returns the next free place. Of
    # `trusted` bytes only small batches are read, for which combining CRCs costs more; so `p` may be NULL for those of
    # a large one after its first SCAN_CAPTURE_BYTES.
    cdef Py_ssize_t walk(self, const uint8_t* p, Py_ssize_t n, bint trusted, Py_ssize_t ended,
                         int* problem) noexcept nogil
    cdef int raise_problem(self, int problem) except -1
    cdef int _end_batch(self, Py_ssize_t column) noexcept nogil
