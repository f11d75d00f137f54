from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from kbroker._fast.partition.producer_pool cimport ProducerRow, ProducerTable
from kbroker._fast.records.record_batch cimport BatchInfo

cdef enum:
    PRODUCER_WAIT = -4        # a new producer id has no room now: retry later (beside the APPEND_ codes of wal.pxd)

cdef struct Transaction:      # open, or decided with a marker that may not be durable yet
    int64_t producer_id
    int64_t first_offset
    int64_t last_offset       # of the marker; -1 while open

cdef struct Verdict:
    bint duplicate
    uint32_t row              # of the producer; 0: not known
    bint has_room             # for a new one: `prepare` has made sure of its row
    int64_t base_offset       # of the first append, for a duplicate
    int64_t timestamp         # of the first append, for a duplicate
    int32_t marker            # MARKER_ of marker.pxd
    int32_t coordinator_epoch


cdef class Verification:
    """The guard of a producer's first batch of a transaction (KIP-890), from the question to the coordinator on.

    One per producer id. It goes with the first append of the transaction and with any marker; a batch that was verified
    under a guard that is gone is refused, so nothing lands behind the marker that ended its transaction.
    """
    cdef readonly int64_t producer_id
    cdef readonly int16_t epoch
    cdef readonly int32_t lowest_sequence # of the batches that asked; a higher one may not be the first. -1: no sequences
    cdef readonly bint supports_epoch_bump     # a transaction of version 2: each starts with sequence 0
    cdef readonly int64_t last_ticket     # number of the newest question; it supersedes the older ones
    cdef readonly int32_t pending         # questions without answer
    cdef int64_t started_ms


cdef class ProducerStates(ProducerTable):
    """Producer state of one partition: pending state, in log order, which is what validation reads. GIL held."""
    cdef dict verifications               # producer id -> Verification
    cdef int64_t guard_count              # of them
    cdef Transaction* transactions        # by first offset; from `first` on
    cdef int32_t first
    cdef readonly int32_t count           # transactions that are known, those that are over included
    cdef int32_t capacity
    # (producer id, first offset, last offset, last stable offset), by last offset. What ends goes behind the others;
    # what is forgotten leaves by a new list, so that who has begun to read with this one may finish with it.
    cdef readonly list aborted
    # Judges a batch without changing anything: 0 or a Kafka error code. With `verify` a transactional batch needs its
    # producer's open transaction, or `guard` as the guard in force. A batch without sequence is the coordinator's own.
    cdef int judge(self, const uint8_t* batch, const BatchInfo* info, Verification guard, bint verify,
                   Verdict* verdict) except -3000
    # Whether the coordinator must be asked before this transactional client batch is appended.
    cdef bint needs_verification(self, const BatchInfo* info) except -1
    # Notes the question and returns the guard; None when there are too many.
    cdef Verification begin_verification(self, int64_t producer_id, int16_t epoch, int32_t sequence,
                                         bint supports_epoch_bump, int64_t now_ms)
    # The question is answered. A final refusal drops the guard: nothing verified waits for it.
    cdef int end_verification(self, Verification guard, bint refused) except -1
    cdef bint drop_guard(self, int64_t now_ms) except -1
    cdef int remove_guard(self, int64_t producer_id) except -1
    cdef int judge_marker(self, const uint8_t* batch, const BatchInfo* info, const ProducerRow* row,
                          Verdict* verdict) except -3000
    cdef int judge_first(self, const BatchInfo* info, const ProducerRow* row, Verification guard) except -3000
    # Makes sure that `update` finds what it needs, evicting other producers for a new one: 0 or PRODUCER_WAIT. A marker
    # never waits: where a new producer finds no room, it leaves no trace. `connection`: the client's, or None.
    cdef int prepare(self, const BatchInfo* info, Verdict* verdict, int64_t now_ms, object connection) except -3000
    cdef int prepare_transaction(self) except -1
    # The batch has been appended at base_offset.
    cdef int update(self, const BatchInfo* info, const Verdict* verdict, int64_t base_offset, int64_t written_ms,
                    object connection) except -1
    # Recovery: takes over a batch of the log, whatever there is room for.
    cdef int replay(self, const uint8_t* batch, const BatchInfo* info, int64_t base_offset) except -1
    # First offset of the oldest transaction that is open or whose marker is at or above the high watermark; -1: none.
    cdef int64_t first_unstable(self, int64_t high_watermark) noexcept
    cdef int add_batch(self, ProducerRow* row, const BatchInfo* info, int64_t base_offset) noexcept
    cdef int end_transaction(self, uint32_t number, int32_t marker, int64_t marker_offset) except -1


# (producer id, first offset) of those in `aborted` that a read of [fetch_offset, upper) must know.
cdef list aborted_between(list aborted, int64_t fetch_offset, int64_t upper)
