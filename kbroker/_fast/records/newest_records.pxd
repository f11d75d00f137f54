# The newest record of each key in a partition's log, with the outcome of its transactions: what a coordinator replays.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kbroker._fast.base.cursor cimport Cursor
from kbroker._fast.records.record cimport RecordView
from kbroker._fast.records.record_batch cimport BatchInfo

cdef struct Entry:            # the newest record of one key so far
    int64_t offset            # -1: forgotten
    uint64_t hash
    uint8_t* data             # key, then value; owned by the table
    int32_t key_length
    int32_t value_length      # -1: null, a tombstone
    int32_t capacity          # of data

cdef struct Table:            # open addressing; keys are kept and compared, so hashes may collide
    Entry* entries
    int32_t count
    int32_t capacity          # of entries
    int32_t* slots            # place in entries + 1; 0: free
    uint32_t slot_mask

cdef struct OpenTransaction:
    int64_t producer_id
    int16_t producer_epoch
    Table records


cdef class NewestRecords:
    """Owns copies of the records it keeps; borrows each block for its call. One thread at a time; `feed`
    releases the GIL."""
    cdef Table settled                        # outside of transactions, or of committed ones
    cdef OpenTransaction** open               # by producer id
    cdef Py_ssize_t open_count
    cdef Py_ssize_t open_capacity
    cdef uint64_t secret_low
    cdef uint64_t secret_high
    cdef int64_t start_offset
    cdef readonly int64_t next_offset         # after the last batch that was fed
    cdef readonly int64_t total_bytes         # of all batches, control batches among them
    cdef readonly int64_t total_records       # in them, without control records
    cdef object suspects                      # keys of which not every record counts; None: there are none
    cdef object counts                        # (key, value) -> whether that record does
    cdef bint has_suspects
    cdef object failure                       # what `counts` raised
    cdef BatchInfo info
    cdef bint running                         # a thread is in it, perhaps without the GIL
    # Walks batches until one needs the GIL. 0, a REASON_ of record.pxd, or a RUN_.
    cdef int run(self, const uint8_t* p, Py_ssize_t n, Py_ssize_t* position) noexcept nogil
    cdef int take_batch(self, Cursor* c) noexcept nogil
    cdef int take_records(self, Cursor* c, Table* into) noexcept nogil
    cdef int take_control(self, Cursor* c) noexcept nogil
    cdef int put(self, Table* table, int64_t offset, const uint8_t* key, int32_t key_length, const uint8_t* value,
                 int32_t value_length) noexcept nogil
    # 1: the record does not count; -1: unknown, `failure` says why.
    cdef int skips(self, const RecordView* record) noexcept with gil
    # Where the producer's transaction is in `open`, or would be.
    cdef Py_ssize_t place_of(self, int64_t producer_id) noexcept nogil
    cdef OpenTransaction* transaction(self) noexcept nogil
    cdef int end_transaction(self, int64_t producer_id, bint commit) noexcept nogil
    cdef void clear(self) noexcept nogil
