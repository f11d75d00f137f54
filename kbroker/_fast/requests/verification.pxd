from libc.stdint cimport int16_t, int32_t, int64_t

from kbroker._fast.partition.partition cimport Partition
from kbroker._fast.partition.verification_guards cimport Verification
from kbroker._fast.records.record_batch cimport BatchInfo
from kbroker._fast.net.request cimport Request
from kbroker._fast.requests.produce_codec cimport ProduceItem

cdef enum:
    VERIFY_RETRY_MS = 20            # add.partitions.to.txn.retry.backoff.ms
    VERIFY_RETRY_TOTAL_MS = 100     # add.partitions.to.txn.retry.backoff.max.ms


cdef class Verifications:
    """What one Produce request asks the transaction coordinator (KIP-890), and the answers.

    Places are the numbers of the request's items. Every question ends in its partition's producer state exactly once:
    by `settle`, or by `close` for those that have no answer yet.
    """
    cdef readonly bint disabled             # transaction.partition.verification.enable is off
    cdef readonly list places
    cdef list partitions                    # by place in `places`
    cdef list guards                        # Verification, None once ended
    cdef list tickets
    cdef dict settled_guards                # item -> Verification, of what was verified
    cdef dict messages                      # item -> bytes
    cdef dict codes                         # (topic, partition) -> error code, as answered so far
    cdef Request request
    cdef str transactional_id
    cdef int16_t version
    cdef int64_t producer_id
    cdef int16_t producer_epoch
    cdef int64_t retry_until_ms             # monotonic; -1: not begun
    cdef Answer answer                      # to come
    cdef bint answered
    cdef int open(self, Request request, int16_t version, const BatchInfo* info) except -1
    cdef bint is_open(self) noexcept
    # Notes one question: 0, or the error that the item gets instead.
    cdef int32_t begin(self, int32_t item, Partition partition, const BatchInfo* info, int64_t now_ms) except -3000
    # Asks about everything noted. 0: there is no coordinator, or nothing to ask; settle() knows what that means.
    cdef bint ask(self, object coordinator, str transactional_id) except -1
    cdef int ask_again(self, object coordinator) except -1
    cdef int send(self, object coordinator, list partitions) except -1
    # Whether the previous transaction is still ending, which is not reported to a version 2 client at once (KIP-890).
    cdef bint must_retry(self, int64_t loop_ms) except -1
    # Writes the answers into the codes of the request's items and closes: 0 may be appended under guard_of() the item.
    cdef int settle(self, ProduceItem* items) except -1
    cdef int32_t settle_one(self, Py_ssize_t n) except -3000
    cdef int32_t translate(self, int32_t item, int32_t code) except -3000
    cdef int close(self) except -1
    cdef Verification guard_of(self, int32_t item)
    cdef bytes message_of(self, int32_t item)


cdef class Answer:
    """Waits for one answer of the coordinator, which may come on any thread."""
    cdef Verifications verifications        # None: it waits no more
