from libc.stdint cimport int16_t, int32_t, int64_t

from kbroker._fast.partition.producer_pool cimport ProducerPool, ProducerRow
from kbroker._fast.records.record_batch cimport BatchInfo


cdef class Verification:
    """The guard of a producer's first batch of a transaction (KIP-890), from the question to the coordinator on.

    One per producer id. It goes with the first append of the transaction and with any marker; a batch that was verified
    under a guard that is gone is refused, so nothing lands after the marker that ended its transaction.
    """
    cdef readonly int64_t producer_id
    cdef readonly int16_t epoch
    cdef readonly int32_t lowest_sequence # of the batches that asked; a higher one may not be the first. -1: no sequences
    cdef readonly bint supports_epoch_bump     # a transaction of version 2: each starts with sequence 0
    cdef readonly int64_t last_ticket     # number of the newest question; it supersedes the older ones
    cdef readonly int32_t pending         # questions without answer
    cdef int64_t started_ms


cdef class VerificationGuards:
    """A partition's verifications under way. GIL held."""
    cdef ProducerPool pool                # bounds those of all partitions together
    cdef dict by_producer                 # producer id -> Verification
    cdef readonly int64_t count
    # Notes the question and returns the guard; one of a newer epoch means that the producer is fenced and was not noted.
    # None when there are too many.
    cdef Verification begin(self, int64_t producer_id, int16_t epoch, int32_t sequence, bint supports_epoch_bump,
                            int64_t now_ms)
    # The question is answered. A final refusal drops the guard: nothing verified waits for it.
    cdef int end(self, Verification guard, bint refused) except -1
    cdef int remove(self, int64_t producer_id) except -1
    # Judges a batch that opens its producer's transaction here: it must have been verified, and be the first of those
    # that asked. 0 or a Kafka error code. `row`: the producer's, or NULL.
    cdef int judge(self, const BatchInfo* info, const ProducerRow* row, Verification guard) except -3000
    # Drops those that came to nothing. Kept: while an answer is missing, and for `keep_ms`, or a minute.
    cdef int expire(self, int64_t now_ms, int64_t keep_ms) except -1
    cdef int clear(self) except -1
    cdef bint drop_oldest(self, int64_t now_ms) except -1
