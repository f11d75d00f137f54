"""Idempotence and transaction state of a partition, per producer id (Kafka protocol guide; KIP-98, KIP-890)."""

from operator import itemgetter

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free
from libc.string cimport memmove

from kbroker._fast.base.kafka cimport (
    INVALID_PRODUCER_EPOCH,
    INVALID_RECORD,
    INVALID_TXN_STATE,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    TRANSACTION_COORDINATOR_FENCED,
)
from kbroker._fast.base.cursor cimport Cursor, cursor_of
from kbroker._fast.records.marker cimport MARKER_ABORT, MARKER_NONE, take_marker
from kbroker._fast.partition.producer_pool cimport (
    CACHED_BATCHES,
    OLDER_BATCHES,
    WRITTEN_UNKNOWN,
    CachedBatch,
    OlderBatches,
    ProducerPool,
    ProducerRow,
    batch_at,
    find_row,
    row_at,
)
from kbroker._fast.partition.aborted_transactions cimport AbortedTransactions
from kbroker._fast.partition.transactions cimport (
    Transaction,
    transactions_add,
    transactions_end,
    transactions_reserve,
)
from kbroker._fast.partition.verification_guards cimport Verification, VerificationGuards
from kbroker._fast.records.record_batch cimport BATCH_HEADER_BYTES, CODEC_MASK, CONTROL, TRANSACTIONAL, BatchInfo
from kbroker._fast.base.slab cimport slab_at, slab_take

cdef enum:
    SEQUENCE_MAX = 0x7FFFFFFF


cdef int32_t first_sequence(const CachedBatch* batch) noexcept nogil:
    cdef int64_t first = <int64_t>batch.last_sequence - batch.offset_delta
    return <int32_t>(first if first >= 0 else first + SEQUENCE_MAX + 1)


cdef int32_t last_sequence(int32_t base, int32_t delta) noexcept nogil:
    # Sequences wrap from 2147483647 to 0.
    cdef int64_t last = <int64_t>base + delta
    return <int32_t>(last if last <= SEQUENCE_MAX else last - SEQUENCE_MAX - 1)


cdef CachedBatch* find_batch(ProducerPool pool, ProducerRow* row, const BatchInfo* info) noexcept:
    """The cached batch with just these sequences, or NULL."""
    cdef int32_t i
    cdef int32_t last = last_sequence(info.base_sequence, info.last_offset_delta)
    cdef CachedBatch* batch
    for i in range(row.count):
        batch = batch_at(pool, row, i)
        if batch.last_sequence == last and first_sequence(batch) == info.base_sequence:
            return batch
    return NULL


cdef inline bint in_transaction(const ProducerRow* row, int16_t epoch) noexcept:
    return row != NULL and row.txn_first_offset >= 0 and row.epoch == epoch


_FIRST_OFFSET = itemgetter(2)     # of an open transaction


cdef class ProducerStates(ProducerTable):
    def __cinit__(self, *args, **kwargs):
        self.guards = VerificationGuards(self.pool)
        self.aborted = AbortedTransactions()

    def __dealloc__(self):
        free(self.transactions.items)

    cdef int judge(self, const uint8_t* batch, const BatchInfo* info, Verification guard, bint verify,
                   Verdict* verdict) except -3000:
        cdef ProducerRow* row = NULL
        cdef CachedBatch* known
        cdef int32_t expected
        cdef int code
        verdict.duplicate = False
        verdict.marker = MARKER_NONE
        verdict.coordinator_epoch = -1
        verdict.row = 0
        verdict.has_room = False
        if info.producer_id < 0:
            return 0
        verdict.row = find_row(self, info.producer_id)
        if verdict.row != 0:
            row = row_at(self.pool, verdict.row)
        if info.attributes & CONTROL:
            return self.judge_marker(batch, info, row, verdict)
        if row != NULL and info.producer_epoch == row.epoch and info.base_sequence >= 0:
            known = find_batch(self.pool, row, info)
            if known != NULL:
                verdict.duplicate = True
                verdict.base_offset = known.last_offset - known.offset_delta
                verdict.timestamp = known.timestamp
                return 0
        if row != NULL and info.producer_epoch < row.epoch:
            return INVALID_PRODUCER_EPOCH
        if verify and info.attributes & TRANSACTIONAL and not in_transaction(row, info.producer_epoch):
            code = self.guards.judge(info, row, guard)
            if code != 0:
                return code
        if row == NULL or row.epoch < 0:
            return 0
        if info.base_sequence >= 0:
            if info.producer_epoch > row.epoch or row.count == 0:
                expected = 0
            else:
                expected = last_sequence(row.newest.last_sequence, 1)
            if info.base_sequence != expected:
                return OUT_OF_ORDER_SEQUENCE_NUMBER
        if row.txn_first_offset >= 0 and not info.attributes & TRANSACTIONAL:
            return INVALID_TXN_STATE
        return 0

    cdef int judge_marker(self, const uint8_t* batch, const BatchInfo* info, const ProducerRow* row,
                          Verdict* verdict) except -3000:
        cdef Cursor record
        if info.attributes & CODEC_MASK:
            return INVALID_RECORD
        record = cursor_of(batch + BATCH_HEADER_BYTES, <Py_ssize_t>info.size - BATCH_HEADER_BYTES)
        if take_marker(&record, &verdict.marker, &verdict.coordinator_epoch) < 0:
            return INVALID_RECORD
        if verdict.marker == MARKER_NONE or row == NULL:
            return 0
        if info.producer_epoch < row.epoch:
            return INVALID_PRODUCER_EPOCH
        if verdict.coordinator_epoch < row.coordinator_epoch:
            return TRANSACTION_COORDINATOR_FENCED
        return 0

    cdef bint needs_verification(self, const BatchInfo* info) except -1:
        cdef uint32_t number = find_row(self, info.producer_id)
        cdef ProducerRow* row
        if number == 0:
            return True
        row = row_at(self.pool, number)
        if info.producer_epoch < row.epoch or in_transaction(row, info.producer_epoch):
            return False
        return info.producer_epoch != row.epoch or info.base_sequence < 0 or find_batch(self.pool, row, info) == NULL

    cdef int prepare(self, const BatchInfo* info, Verdict* verdict, int64_t now_ms, object connection) except -3000:
        cdef ProducerRow* row
        if info.attributes & CONTROL:
            if verdict.marker == MARKER_NONE or verdict.row != 0:
                return 0
            verdict.has_room = self.pool.reserve(self, now_ms, None, False)
            return 0
        if info.attributes & TRANSACTIONAL:
            transactions_reserve(&self.transactions)
        if verdict.row != 0:
            row = row_at(self.pool, verdict.row)
            return self.pool.reserve_older() if row.older == 0 and row.count > 0 else 0
        verdict.has_room = self.pool.reserve(self, now_ms, connection, False)
        if not verdict.has_room:
            return PRODUCER_WAIT
        return 0 if find_row(self, info.producer_id) == 0 else PRODUCER_WAIT    # another thread was faster

    cdef int update(self, const BatchInfo* info, const Verdict* verdict, int64_t base_offset, int64_t written_ms,
                    object connection) except -1:
        cdef uint32_t number = verdict.row
        cdef ProducerRow* row
        cdef bint control = info.attributes & CONTROL
        if info.producer_id < 0 or (control and verdict.marker == MARKER_NONE):
            return 0
        if self.guards.count and info.attributes & TRANSACTIONAL:
            self.guards.remove(info.producer_id)
        if number == 0:
            if not verdict.has_room:
                return 0    # a marker of a producer that is not known here
            number = self.insert(info.producer_id)
        row = row_at(self.pool, number)
        if info.producer_epoch != row.epoch:
            row.epoch = info.producer_epoch
            self.forget_batches(row)
        row.last_timestamp = info.max_timestamp
        self.pool.touch(number, written_ms)
        if control:
            row.coordinator_epoch = verdict.coordinator_epoch
            return self.end_transaction(number, verdict.marker, base_offset + info.last_offset_delta)
        if info.base_sequence >= 0:
            self.add_batch(row, info, base_offset)
        if info.attributes & TRANSACTIONAL and row.txn_first_offset < 0:
            row.txn_first_offset = base_offset
            self.pool.unlist(number)
            transactions_add(&self.transactions, row.producer_id, base_offset)
        if row.address == 0 and connection is not None:
            self.pool.attach(number, connection)
        return 0

    cdef int add_batch(self, ProducerRow* row, const BatchInfo* info, int64_t base_offset) noexcept:
        cdef OlderBatches* older
        if row.count > 0:
            if row.older == 0:
                row.older = slab_take(&self.pool.older_slab)
            older = <OlderBatches*>slab_at(&self.pool.older_slab, row.older)
            if row.count == CACHED_BATCHES:
                memmove(&older.items[0], &older.items[1], (OLDER_BATCHES - 1) * sizeof(CachedBatch))
                row.count -= 1
            older.items[row.count - 1] = row.newest
        row.count += 1
        row.newest.last_sequence = last_sequence(info.base_sequence, info.last_offset_delta)
        row.newest.offset_delta = info.last_offset_delta
        row.newest.last_offset = base_offset + info.last_offset_delta
        row.newest.timestamp = info.max_timestamp
        return 0

    cdef int replay(self, const uint8_t* batch, const BatchInfo* info, int64_t base_offset) except -1:
        cdef Verdict verdict
        self.judge(batch, info, None, False, &verdict)     # for the marker's fields
        if verdict.row == 0:
            verdict.has_room = self.pool.reserve(self, 0, None, True)
        self.pool.reserve_older()
        transactions_reserve(&self.transactions)
        return self.update(info, &verdict, base_offset, WRITTEN_UNKNOWN, None)

    cdef int end_transaction(self, uint32_t number, int32_t marker, int64_t marker_offset) except -1:
        cdef ProducerRow* row = row_at(self.pool, number)
        cdef int64_t stable
        if row.txn_first_offset < 0:
            return 0  # a marker without a transaction leaves no trace but its epochs
        stable = transactions_end(&self.transactions, row.producer_id, marker_offset)
        if marker == MARKER_ABORT:
            self.aborted.add(row.producer_id, row.txn_first_offset, marker_offset, stable)
        row.txn_first_offset = -1
        self.pool.list_row(number)
        return 0

    def expire(self, int64_t now_ms, int64_t expiration_ms):
        """Forgets producers without an open transaction that have been silent for ``expiration_ms``; returns how many.

        Silent: by the newest batch's timestamp, as in Kafka, and also by when it was appended: a producer that replays an
        old log is not forgotten at once. What was appended before a restart, at an unknown time, counts from the first
        call on. Guards of verifications that came to nothing go as well."""
        cdef bint noted = False
        self.guards.expire(now_ms, expiration_ms)
        return self.expire_rows(now_ms, expiration_ms, &noted)

    def clear(self):
        """Forgets all producers and their transactions: the partition is gone, or gets another state."""
        self.clear_rows()
        self.guards.clear()
        self.transactions.first = self.transactions.count = 0

    @property
    def transaction_count(self):
        """Transactions that are known, those that are over included."""
        return self.transactions.count

    def open_transactions(self):
        """[(producer id, epoch, first offset, coordinator epoch, last timestamp)] by first offset."""
        cdef const ProducerRow* row
        cdef const Transaction* t
        cdef uint32_t number
        cdef int32_t i
        cdef list found = []
        for i in range(self.transactions.first, self.transactions.first + self.transactions.count):
            t = &self.transactions.items[i]
            number = find_row(self, t.producer_id) if t.last_offset < 0 else 0
            if number != 0:
                row = row_at(self.pool, number)
                found.append((row.producer_id, row.epoch, row.txn_first_offset, row.coordinator_epoch,
                              row.last_timestamp))
        found.sort(key=_FIRST_OFFSET)
        return found

    def active_producers(self):
        """[(producer id, epoch, last sequence, last timestamp, coordinator epoch, open transaction's first offset)] by
        producer id; what does not exist is -1 (DescribeProducers, KIP-664)."""
        cdef const ProducerRow* row
        cdef uint32_t number
        cdef list found = []
        for number in self.numbers():
            row = row_at(self.pool, number)
            found.append((row.producer_id, row.epoch, row.newest.last_sequence if row.count else -1,
                          row.last_timestamp, row.coordinator_epoch, row.txn_first_offset))
        return found

    def snapshot(self):
        """List by producer id of (producer id, epoch, coordinator epoch, last timestamp, open transaction's first
        offset or -1, [(last sequence, last offset, offset delta, timestamp), ...] oldest first)."""
        cdef uint32_t number
        cdef list found = []
        for number in self.numbers():
            entry = self.entry_of(number)
            found.append((*entry[:5], list(entry[5])))
        return found

    def restore(self, states, written=None):
        """Replaces everything by a snapshot. ``written``: producer id -> when it last wrote, where that is known."""
        self.clear()
        opened = []
        for entry in states:
            self.put_entry(entry, WRITTEN_UNKNOWN if written is None else written.get(entry[0], WRITTEN_UNKNOWN))
            if entry[4] >= 0:
                opened.append((entry[4], entry[0]))
        for first_offset, producer_id in sorted(opened):
            transactions_reserve(&self.transactions)
            transactions_add(&self.transactions, producer_id, first_offset)
