from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from kbroker._fast.partition.aborted_transactions cimport AbortedTransactions
from kbroker._fast.partition.producer_pool cimport ProducerRow, ProducerTable
from kbroker._fast.partition.transactions cimport TransactionList
from kbroker._fast.partition.verification_guards cimport Verification, VerificationGuards
from kbroker._fast.records.record_batch cimport BatchInfo

cdef enum:
    PRODUCER_WAIT = -4        # a new producer id has no room now: retry later (beside the APPEND_ codes of wal.pxd)

cdef struct Verdict:
    bint duplicate
    uint32_t row              # of the producer; 0: not known
    bint has_room             # for a new one: `prepare` has made sure of its row
    int64_t base_offset       # of the first append, for a duplicate
    int64_t timestamp         # of the first append, for a duplicate
    int32_t marker            # MARKER_ of marker.pxd
    int32_t coordinator_epoch


cdef class ProducerStates(ProducerTable):
    """Producer state of one partition: pending state, in log order, which is what validation reads. GIL held."""
    cdef readonly VerificationGuards guards
    cdef TransactionList transactions
    cdef readonly AbortedTransactions aborted
    # Judges a batch without changing anything: 0 or a Kafka error code. With `verify` a transactional batch needs its
    # producer's open transaction, or `guard` as the guard in force. A batch without sequence is the coordinator's own.
    cdef int judge(self, const uint8_t* batch, const BatchInfo* info, Verification guard, bint verify,
                   Verdict* verdict) except -3000
    # Whether the coordinator must be asked before this transactional client batch is appended.
    cdef bint needs_verification(self, const BatchInfo* info) except -1
    cdef int judge_marker(self, const uint8_t* batch, const BatchInfo* info, const ProducerRow* row,
                          Verdict* verdict) except -3000
    # Makes sure that `update` finds what it needs, evicting other producers for a new one: 0 or PRODUCER_WAIT. A marker
    # never waits: where a new producer finds no room, it leaves no trace. `connection`: the client's, or None.
    cdef int prepare(self, const BatchInfo* info, Verdict* verdict, int64_t now_ms, object connection) except -3000
    # The batch has been appended at base_offset.
    cdef int update(self, const BatchInfo* info, const Verdict* verdict, int64_t base_offset, int64_t written_ms,
                    object connection) except -1
    # Recovery: takes over a batch of the log, whatever there is room for.
    cdef int replay(self, const uint8_t* batch, const BatchInfo* info, int64_t base_offset) except -1
    cdef int add_batch(self, ProducerRow* row, const BatchInfo* info, int64_t base_offset) noexcept
    cdef int end_transaction(self, uint32_t number, int32_t marker, int64_t marker_offset) except -1
