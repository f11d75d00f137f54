"""Produce asks the transaction coordinator before a producer's first batch of a transaction in a partition (KIP-890).

Clients up to Produce version 11 have added the partition themselves, and it is only verified; from version 12 on the
request adds it. Errors that mean "not now" become NOT_ENOUGH_REPLICAS, which every client retries.
"""

from libc.stdint cimport int16_t, int32_t, int64_t

from kbroker._fast.base.kafka cimport (
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    NETWORK_EXCEPTION,
    NOT_COORDINATOR,
    NOT_ENOUGH_REPLICAS,
    PRODUCER_FENCED,
    TRANSACTION_ABORTABLE,
)
from kbroker._fast.partition.partition cimport Partition
from kbroker._fast.partition.verification_guards cimport Verification
from kbroker._fast.records.record_batch cimport BatchInfo
from kbroker._fast.net.request cimport Request
from kbroker._fast.requests.produce_codec cimport ProduceItem


cdef enum:
    ABORTABLE_VERSION = 11          # Produce versions that know TRANSACTION_ABORTABLE
    ADD_PARTITIONS_VERSION = 12


cdef bint _is_final(int32_t code) noexcept:
    """Whether no retry of the same batch can be verified."""
    return code in (
        INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, TRANSACTION_ABORTABLE)


cdef class Verifications:
    cdef int open(self, Request request, int16_t version, const BatchInfo* info) except -1:
        self.places = []
        self.partitions = []
        self.guards = []
        self.tickets = []
        self.settled_guards = {}
        self.messages = {}
        self.codes = {}
        self.request = request
        self.version = version
        self.producer_id = info.producer_id
        self.producer_epoch = info.producer_epoch
        self.retry_until_ms = -1
        return 0

    cdef bint is_open(self) noexcept:
        return self.request is not None

    cdef int32_t begin(self, int32_t item, Partition partition, const BatchInfo* info, int64_t now_ms) except -3000:
        cdef Verification guard = partition.producers.guards.begin(
            info.producer_id, info.producer_epoch, info.base_sequence, self.version >= ADD_PARTITIONS_VERSION, now_ms)
        if guard is not None and guard.epoch > info.producer_epoch:
            return INVALID_PRODUCER_EPOCH
        if guard is None:
            self.messages[item] = b"too many producers wait for their verification"
            return NOT_ENOUGH_REPLICAS
        self.places.append(item)
        self.partitions.append(partition)
        self.guards.append(guard)
        self.tickets.append(guard.last_ticket)
        return 0

    cdef bint ask(self, object coordinator, str transactional_id) except -1:
        self.transactional_id = transactional_id
        if not self.places:
            return False
        if self.version < ADD_PARTITIONS_VERSION and not getattr(coordinator, "verification_enabled", True):
            self.disabled = True
            return False
        if coordinator is None:
            return False
        try:
            self.send(coordinator, [((<Partition>p).topic, (<Partition>p).index) for p in self.partitions])
        except BaseException:
            self.close()
            raise
        return True

    cdef int send(self, object coordinator, list partitions) except -1:
        cdef Answer answer = Answer.__new__(Answer)
        answer.verifications = self
        self.answer = answer
        self.answered = False
        future = coordinator.verify_partitions(
            self.transactional_id, self.producer_id, self.producer_epoch, partitions,
            add=self.version >= ADD_PARTITIONS_VERSION)
        future.add_done_callback(answer)
        return 0

    cdef int ask_again(self, object coordinator) except -1:
        return self.send(coordinator, [key for key, code in self.codes.items() if code == CONCURRENT_TRANSACTIONS])

    cdef bint must_retry(self, int64_t loop_ms) except -1:
        if self.version < ADD_PARTITIONS_VERSION or CONCURRENT_TRANSACTIONS not in self.codes.values():
            return False
        if self.retry_until_ms < 0:
            self.retry_until_ms = loop_ms + VERIFY_RETRY_TOTAL_MS
        return loop_ms < self.retry_until_ms

    cdef int settle(self, ProduceItem* items) except -1:
        cdef Py_ssize_t n
        cdef int32_t item
        for n in range(len(self.places)):
            item = self.places[n]
            if items[item].code == 0:
                items[item].code = self.settle_one(n)
        return self.close()

    cdef int32_t settle_one(self, Py_ssize_t n) except -3000:
        """The error code of places[n]."""
        cdef Verification guard = <Verification>self.guards[n]
        cdef Partition partition = <Partition>self.partitions[n]
        cdef int32_t item = self.places[n]
        cdef int32_t code = 0
        if not self.disabled:
            code = self.codes.get((partition.topic, partition.index), COORDINATOR_NOT_AVAILABLE)
            if code == 0 and guard.last_ticket != <int64_t>self.tickets[n]:
                code = NETWORK_EXCEPTION    # the producer has since asked again, on another connection
        partition.producers.guards.end(guard, self.disabled or _is_final(code))
        self.guards[n] = None
        if code == 0:
            self.settled_guards[item] = guard
            return 0
        return self.translate(item, code)

    cdef int32_t translate(self, int32_t item, int32_t code) except -3000:
        """The coordinator's answer as a Produce response says it."""
        if code == PRODUCER_FENCED or code == INVALID_PRODUCER_EPOCH:
            return INVALID_PRODUCER_EPOCH
        if code == TRANSACTION_ABORTABLE or code == INVALID_TXN_STATE:
            self.messages[item] = b"Partition was not added to the transaction"
            if code == TRANSACTION_ABORTABLE and self.version < ABORTABLE_VERSION:
                return INVALID_TXN_STATE
            return code
        if code == CONCURRENT_TRANSACTIONS and self.version >= ADD_PARTITIONS_VERSION:
            return code
        if code in (CONCURRENT_TRANSACTIONS, NETWORK_EXCEPTION, COORDINATOR_LOAD_IN_PROGRESS,
                    COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR):
            self.messages[item] = (
                f"Unable to verify the partition has been added to the transaction. Underlying error: {code}".encode())
            return NOT_ENOUGH_REPLICAS
        return code

    cdef int close(self) except -1:
        cdef Py_ssize_t n
        cdef Verification guard
        if self.answer is not None:
            self.answer.verifications = None
            self.answer = None
        self.request = None
        for n in range(len(self.guards)):
            guard = <Verification>self.guards[n]
            if guard is not None:
                (<Partition>self.partitions[n]).producers.guards.end(guard, False)
                self.guards[n] = None
        return 0

    cdef Verification guard_of(self, int32_t item):
        return <Verification>self.settled_guards.get(item)

    cdef bytes message_of(self, int32_t item):
        return <bytes>self.messages.get(item)


cdef class Answer:
    def __call__(self, future) -> None:
        """The coordinator's Future is done."""
        cdef Verifications waiting = self.verifications
        cdef Request request
        if waiting is None:
            return
        self.verifications = None
        try:
            for key, code in future.result().items():
                waiting.codes[key] = int(code)
        except Exception as error:
            code = getattr(error, "code", COORDINATOR_NOT_AVAILABLE)
            for partition in waiting.partitions:
                waiting.codes[(<Partition>partition).topic, (<Partition>partition).index] = int(code)
        request = waiting.request
        waiting.answered = True
        if request is not None:
            request.sink.resume_later(request)
