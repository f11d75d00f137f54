"""Idempotence and transaction state of a partition, per producer id (Kafka protocol guide; KIP-98, KIP-890)."""

from kbroker import limits

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

from kbroker._fast.cursor cimport Cursor, cursor_of
from kbroker._fast.marker cimport MARKER_ABORT, MARKER_COMMIT, MARKER_NONE, take_marker
from kbroker._fast.record_batch cimport BATCH_HEADER_BYTES, CODEC_MASK, CONTROL, TRANSACTIONAL, BatchInfo

cdef enum:
    INVALID_PRODUCER_EPOCH = 47
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_TXN_STATE = 48
    TRANSACTION_COORDINATOR_FENCED = 52
    INVALID_RECORD = 87
    THROTTLING_QUOTA_EXCEEDED = 89
    SEQUENCE_MAX = 0x7FFFFFFF


cdef int32_t first_sequence(const CachedBatch* batch) noexcept nogil:
    cdef int64_t first = <int64_t>batch.last_sequence - batch.offset_delta
    return <int32_t>(first if first >= 0 else first + SEQUENCE_MAX + 1)


cdef int32_t last_sequence(int32_t base, int32_t delta) noexcept nogil:
    # Sequences wrap from 2147483647 to 0.
    cdef int64_t last = <int64_t>base + delta
    return <int32_t>(last if last <= SEQUENCE_MAX else last - SEQUENCE_MAX - 1)


cdef class ProducerEntry:
    def __cinit__(self):
        self.epoch = -1
        self.coordinator_epoch = -1
        self.last_timestamp = -1
        self.txn_first_offset = -1


cdef class ProducerStates:
    def __cinit__(self, limit=None):
        self.entries = {}
        self.aborted = []
        self.limit = limits.PRODUCER_IDS_PER_PARTITION_MAX if limit is None else limit

    def __dealloc__(self):
        free(self.transactions)

    def __len__(self):
        return len(self.entries)

    cdef int judge(self, const uint8_t* batch, const BatchInfo* info, Verdict* verdict) except -3000:
        cdef ProducerEntry entry
        cdef CachedBatch* known
        cdef int32_t i, last, expected
        cdef Cursor record
        verdict.duplicate = False
        verdict.marker = MARKER_NONE
        verdict.coordinator_epoch = -1
        if info.producer_id < 0:
            return 0
        entry = <ProducerEntry>self.entries.get(info.producer_id)
        if info.attributes & CONTROL:
            if info.attributes & CODEC_MASK:
                return INVALID_RECORD
            record = cursor_of(batch + BATCH_HEADER_BYTES, <Py_ssize_t>info.size - BATCH_HEADER_BYTES)
            if take_marker(&record, &verdict.marker, &verdict.coordinator_epoch) < 0:
                return INVALID_RECORD
            if verdict.marker == MARKER_NONE or entry is None:
                return 0
            if info.producer_epoch < entry.epoch:
                return INVALID_PRODUCER_EPOCH
            if verdict.coordinator_epoch < entry.coordinator_epoch:
                return TRANSACTION_COORDINATOR_FENCED
            return 0
        if info.base_sequence < 0:
            return INVALID_RECORD
        if entry is None:
            if <int64_t>len(self.entries) >= self.limit and self.count >= self.limit:
                return THROTTLING_QUOTA_EXCEEDED  # every known producer has an open transaction
            return 0
        if entry.epoch < 0:
            return 0
        last = last_sequence(info.base_sequence, info.last_offset_delta)
        if info.producer_epoch == entry.epoch:
            for i in range(entry.count):
                known = &entry.batches[i]
                if known.last_sequence == last and first_sequence(known) == info.base_sequence:
                    verdict.duplicate = True
                    verdict.base_offset = known.last_offset - known.offset_delta
                    verdict.end_lsn = known.end_lsn
                    return 0
        if info.producer_epoch < entry.epoch:
            return INVALID_PRODUCER_EPOCH
        if info.producer_epoch > entry.epoch or entry.count == 0:
            expected = 0
        else:
            expected = last_sequence(entry.batches[entry.count - 1].last_sequence, 1)
        if info.base_sequence != expected:
            return OUT_OF_ORDER_SEQUENCE_NUMBER
        if entry.txn_first_offset >= 0 and not info.attributes & TRANSACTIONAL:
            return INVALID_TXN_STATE
        return 0

    cdef int prepare(self) except -1:
        cdef int32_t capacity
        cdef void* grown
        if self.first + self.count < self.capacity:
            return 0
        if self.first > 0 and self.first >= self.capacity // 2:
            memmove(self.transactions, self.transactions + self.first, self.count * sizeof(Transaction))
            self.first = 0
            return 0
        capacity = 8 if self.capacity == 0 else 2 * self.capacity
        grown = realloc(self.transactions, capacity * sizeof(Transaction))
        if grown == NULL:
            raise MemoryError
        self.transactions = <Transaction*>grown
        self.capacity = capacity
        return 0

    cdef int update(self, const BatchInfo* info, const Verdict* verdict, int64_t base_offset, int64_t end_lsn) except -1:
        cdef ProducerEntry entry
        cdef CachedBatch* newest
        cdef bint control = info.attributes & CONTROL
        if info.producer_id < 0 or (control and verdict.marker == MARKER_NONE):
            return 0
        entry = <ProducerEntry>self.entries.get(info.producer_id)
        if entry is None:
            if <int64_t>len(self.entries) >= self.limit:
                self.evict()
            entry = ProducerEntry.__new__(ProducerEntry)
            entry.producer_id = info.producer_id
            self.entries[info.producer_id] = entry
        if info.producer_epoch != entry.epoch:
            entry.epoch = info.producer_epoch
            entry.count = 0
        entry.last_timestamp = info.max_timestamp
        if control:
            entry.coordinator_epoch = verdict.coordinator_epoch
            return self.end_transaction(entry, verdict.marker, base_offset + info.last_offset_delta)
        if entry.count == CACHED_BATCHES:
            memmove(&entry.batches[0], &entry.batches[1], (CACHED_BATCHES - 1) * sizeof(CachedBatch))
            entry.count -= 1
        newest = &entry.batches[entry.count]
        entry.count += 1
        newest.last_sequence = last_sequence(info.base_sequence, info.last_offset_delta)
        newest.offset_delta = info.last_offset_delta
        newest.last_offset = base_offset + info.last_offset_delta
        newest.timestamp = info.max_timestamp
        newest.end_lsn = end_lsn
        if info.attributes & TRANSACTIONAL and entry.txn_first_offset < 0:
            self.prepare()
            entry.txn_first_offset = base_offset
            self.transactions[self.first + self.count] = Transaction(entry.producer_id, base_offset, -1)
            self.count += 1
        return 0

    cdef int end_transaction(self, ProducerEntry entry, int32_t marker, int64_t marker_offset) except -1:
        cdef int32_t i
        cdef int64_t stable = marker_offset + 1
        cdef Transaction* t
        if entry.txn_first_offset < 0:
            return 0  # a marker without a transaction leaves no trace but its epochs
        for i in range(self.first, self.first + self.count):
            t = &self.transactions[i]
            if t.last_offset < 0 and t.producer_id == entry.producer_id:
                t.last_offset = marker_offset
            elif t.last_offset < 0 and t.first_offset < stable:
                stable = t.first_offset
        if marker == MARKER_ABORT:
            self.aborted.append((entry.producer_id, entry.txn_first_offset, marker_offset, stable))
        entry.txn_first_offset = -1
        return 0

    cdef int64_t first_unstable(self, int64_t high_watermark) noexcept:
        cdef Transaction* t
        while self.count:
            t = &self.transactions[self.first]
            if t.last_offset < 0 or t.last_offset >= high_watermark:
                return t.first_offset
            self.first += 1
            self.count -= 1
        self.first = 0
        return -1

    cdef int evict(self) except -1:
        # The oldest sixteenth at once, so that the sort is paid for by many new producers.
        cdef ProducerEntry entry
        cdef list idle = []
        for entry in self.entries.values():
            if entry.txn_first_offset < 0:
                idle.append((entry.last_timestamp, entry.producer_id))
        idle.sort()
        for _, producer_id in idle[: max(1, self.limit // 16)]:
            del self.entries[producer_id]
        return 0

    def expire(self, int64_t now_ms, int64_t expiration_ms):
        """Forgets producers without an open transaction that have been silent for ``expiration_ms``; returns how many."""
        cdef ProducerEntry entry
        cdef list gone = []
        for entry in self.entries.values():
            if entry.txn_first_offset < 0 and now_ms - entry.last_timestamp >= expiration_ms:
                gone.append(entry.producer_id)
        for producer_id in gone:
            del self.entries[producer_id]
        return len(gone)

    def snapshot(self):
        """List of (producer id, epoch, coordinator epoch, last timestamp, open transaction's first offset or -1,
        [(last sequence, last offset, offset delta, timestamp), ...] oldest first)."""
        cdef ProducerEntry entry
        cdef int32_t i
        result = []
        for entry in self.entries.values():
            batches = [
                (
                    entry.batches[i].last_sequence,
                    entry.batches[i].last_offset,
                    entry.batches[i].offset_delta,
                    entry.batches[i].timestamp,
                )
                for i in range(entry.count)
            ]
            result.append((entry.producer_id, entry.epoch, entry.coordinator_epoch, entry.last_timestamp,
                           entry.txn_first_offset, batches))
        return result

    def restore(self, states):
        """Replaces everything by a snapshot."""
        cdef ProducerEntry entry
        self.entries.clear()
        self.first = self.count = 0
        opened = []
        for producer_id, epoch, coordinator_epoch, last_timestamp, txn_first_offset, batches in states:
            entry = ProducerEntry.__new__(ProducerEntry)
            entry.producer_id = producer_id
            entry.epoch = epoch
            entry.coordinator_epoch = coordinator_epoch
            entry.last_timestamp = last_timestamp
            entry.txn_first_offset = txn_first_offset
            for sequence, last_offset, delta, timestamp in list(batches)[-CACHED_BATCHES:]:
                entry.batches[entry.count] = CachedBatch(sequence, delta, last_offset, timestamp, 0)
                entry.count += 1
            self.entries[producer_id] = entry
            if txn_first_offset >= 0:
                opened.append((txn_first_offset, producer_id))
        for first_offset, producer_id in sorted(opened):
            self.prepare()
            self.transactions[self.first + self.count] = Transaction(producer_id, first_offset, -1)
            self.count += 1

    def restore_aborted(self, aborted):
        """Replaces the list of aborted transactions: (producer id, first offset, last offset, last stable offset)."""
        self.aborted = sorted((tuple(item) for item in aborted), key=lambda item: item[2])

    def aborted_between(self, int64_t fetch_offset, int64_t upper):
        """(producer id, first offset) of the aborted transactions that a read of [fetch_offset, upper) must know."""
        return [(item[0], item[1]) for item in self.aborted if item[2] >= fetch_offset and item[1] < upper]

    def trim_aborted(self, int64_t log_start_offset):
        """Forgets aborted transactions that end below the log start offset."""
        self.aborted = [item for item in self.aborted if item[2] >= log_start_offset]
