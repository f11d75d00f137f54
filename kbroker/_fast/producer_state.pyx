"""Idempotence and transaction state of a partition, per producer id (Kafka protocol guide; KIP-98, KIP-890)."""

from bisect import bisect_left
from operator import itemgetter

from kbroker import limits

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
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


cdef CachedBatch* find_batch(ProducerEntry entry, const BatchInfo* info) noexcept:
    """The cached batch with just these sequences, or NULL."""
    cdef int32_t i
    cdef int32_t last = last_sequence(info.base_sequence, info.last_offset_delta)
    for i in range(entry.count):
        if entry.batches[i].last_sequence == last and first_sequence(&entry.batches[i]) == info.base_sequence:
            return &entry.batches[i]
    return NULL


cdef inline bint in_transaction(ProducerEntry entry, int16_t epoch) noexcept:
    return entry is not None and entry.txn_first_offset >= 0 and entry.epoch == epoch


_THIRD = itemgetter(2)     # an open transaction's first offset, an aborted one's last


cdef class ProducerEntry:
    def __cinit__(self):
        self.epoch = -1
        self.coordinator_epoch = -1
        self.last_timestamp = -1
        self.written_ms = WRITTEN_UNKNOWN
        self.txn_first_offset = -1


cdef class Verification:
    def __repr__(self):
        return f"Verification(producer_id={self.producer_id}, epoch={self.epoch}, pending={self.pending})"


cdef class ProducerStates:
    def __cinit__(self, limit=None):
        self.entries = {}
        self.verifications = {}
        self.aborted = []
        self.limit = limits.PRODUCER_IDS_PER_PARTITION_MAX if limit is None else limit

    def __dealloc__(self):
        free(self.transactions)

    def __len__(self):
        return len(self.entries)

    cdef int judge(self, const uint8_t* batch, const BatchInfo* info, Verification guard, bint verify,
                   Verdict* verdict) except -3000:
        cdef ProducerEntry entry
        cdef CachedBatch* known
        cdef int32_t expected
        cdef int code
        verdict.duplicate = False
        verdict.marker = MARKER_NONE
        verdict.coordinator_epoch = -1
        if info.producer_id < 0:
            return 0
        entry = <ProducerEntry>self.entries.get(info.producer_id)
        if info.attributes & CONTROL:
            return self.judge_marker(batch, info, entry, verdict)
        if entry is None and <int64_t>len(self.entries) >= self.limit and self.count >= self.limit:
            return THROTTLING_QUOTA_EXCEEDED  # every known producer has an open transaction
        if entry is not None and info.producer_epoch == entry.epoch and info.base_sequence >= 0:
            known = find_batch(entry, info)
            if known != NULL:
                verdict.duplicate = True
                verdict.base_offset = known.last_offset - known.offset_delta
                verdict.end_lsn = known.end_lsn
                verdict.timestamp = known.timestamp
                return 0
        if entry is not None and info.producer_epoch < entry.epoch:
            return INVALID_PRODUCER_EPOCH
        if verify and info.attributes & TRANSACTIONAL and not in_transaction(entry, info.producer_epoch):
            code = self.judge_first(info, entry, guard)
            if code != 0:
                return code
        if entry is None or entry.epoch < 0:
            return 0
        if info.base_sequence >= 0:
            if info.producer_epoch > entry.epoch or entry.count == 0:
                expected = 0
            else:
                expected = last_sequence(entry.batches[entry.count - 1].last_sequence, 1)
            if info.base_sequence != expected:
                return OUT_OF_ORDER_SEQUENCE_NUMBER
        if entry.txn_first_offset >= 0 and not info.attributes & TRANSACTIONAL:
            return INVALID_TXN_STATE
        return 0

    cdef int judge_marker(self, const uint8_t* batch, const BatchInfo* info, ProducerEntry entry,
                          Verdict* verdict) except -3000:
        cdef Cursor record
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

    cdef int judge_first(self, const BatchInfo* info, ProducerEntry entry, Verification guard) except -3000:
        """A batch that opens its producer's transaction here: it must have been verified, and be the first of those
        that asked."""
        cdef Verification current = <Verification>self.verifications.get(info.producer_id)
        if current is not None and info.producer_epoch < current.epoch:
            return INVALID_PRODUCER_EPOCH
        if current is None or current is not guard:
            return INVALID_TXN_STATE
        if info.base_sequence < 0:
            return 0
        if info.base_sequence > current.lowest_sequence:
            return OUT_OF_ORDER_SEQUENCE_NUMBER
        if current.supports_epoch_bump and info.base_sequence != 0 and (entry is None or entry.count == 0):
            return OUT_OF_ORDER_SEQUENCE_NUMBER
        return 0

    cdef bint needs_verification(self, const BatchInfo* info) except -1:
        cdef ProducerEntry entry = <ProducerEntry>self.entries.get(info.producer_id)
        if entry is None:
            return True
        if info.producer_epoch < entry.epoch or in_transaction(entry, info.producer_epoch):
            return False
        return info.producer_epoch != entry.epoch or info.base_sequence < 0 or find_batch(entry, info) == NULL

    cdef Verification begin_verification(self, int64_t producer_id, int16_t epoch, int32_t sequence,
                                         bint supports_epoch_bump, int64_t now_ms):
        cdef Verification guard = <Verification>self.verifications.get(producer_id)
        if guard is not None and guard.epoch > epoch:
            return guard    # not joined: the caller is fenced
        if guard is None or guard.epoch < epoch:
            if guard is None and <int64_t>len(self.verifications) >= self.limit:
                return None
            guard = Verification.__new__(Verification)
            guard.producer_id = producer_id
            guard.epoch = epoch
            guard.lowest_sequence = sequence
            guard.supports_epoch_bump = supports_epoch_bump
            guard.started_ms = now_ms
            self.verifications[producer_id] = guard
        elif guard.epoch == epoch and sequence < guard.lowest_sequence:
            guard.lowest_sequence = sequence
        guard.last_ticket += 1
        guard.pending += 1
        return guard

    cdef int end_verification(self, Verification guard, bint refused) except -1:
        guard.pending -= 1
        if refused and guard.pending == 0 and self.verifications.get(guard.producer_id) is guard:
            del self.verifications[guard.producer_id]
        return 0

    @property
    def verification_count(self):
        """Producers with a guard."""
        return len(self.verifications)

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

    cdef int update(self, const BatchInfo* info, const Verdict* verdict, int64_t base_offset, int64_t end_lsn,
                    int64_t written_ms) except -1:
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
        entry.written_ms = written_ms
        if self.verifications and info.attributes & TRANSACTIONAL:
            self.verifications.pop(info.producer_id, None)
        if control:
            entry.coordinator_epoch = verdict.coordinator_epoch
            return self.end_transaction(entry, verdict.marker, base_offset + info.last_offset_delta)
        if info.base_sequence >= 0:
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
                written_ms = INT64_MAX if entry.written_ms == WRITTEN_UNKNOWN else entry.written_ms
                idle.append((written_ms, entry.last_timestamp, entry.producer_id))
        idle.sort()
        for _, _, producer_id in idle[: max(1, self.limit // 16)]:
            del self.entries[producer_id]
        return 0

    def expire(self, int64_t now_ms, int64_t expiration_ms):
        """Forgets producers without an open transaction that have been silent for ``expiration_ms``; returns how many.

        Silent: by the newest batch's timestamp, as in Kafka, and also by when it was appended: who replays an old log
        is not forgotten at once. What was appended before a restart, at a time that nobody knows, counts from the first
        call on. Guards of verifications that came to nothing go after the same time."""
        cdef ProducerEntry entry
        cdef Verification guard
        cdef list gone = []
        for guard in list(self.verifications.values()):
            if guard.pending == 0 and now_ms - guard.started_ms >= expiration_ms:
                del self.verifications[guard.producer_id]
        for entry in self.entries.values():
            if entry.written_ms == WRITTEN_UNKNOWN:
                entry.written_ms = now_ms
            if entry.txn_first_offset < 0 and now_ms - max(entry.last_timestamp, entry.written_ms) >= expiration_ms:
                gone.append(entry.producer_id)
        for producer_id in gone:
            del self.entries[producer_id]
        return len(gone)

    def open_transactions(self):
        """[(producer id, epoch, first offset, coordinator epoch, last timestamp)] by first offset."""
        cdef ProducerEntry entry
        cdef list found = []
        for entry in self.entries.values():
            if entry.txn_first_offset >= 0:
                found.append((entry.producer_id, entry.epoch, entry.txn_first_offset, entry.coordinator_epoch,
                              entry.last_timestamp))
        found.sort(key=_THIRD)
        return found

    def active_producers(self):
        """[(producer id, epoch, last sequence, last timestamp, coordinator epoch, open transaction's first offset)] by
        producer id; what does not exist is -1 (DescribeProducers, KIP-664)."""
        cdef ProducerEntry entry
        cdef list found = []
        for entry in self.entries.values():
            found.append((entry.producer_id, entry.epoch,
                          entry.batches[entry.count - 1].last_sequence if entry.count else -1,
                          entry.last_timestamp, entry.coordinator_epoch, entry.txn_first_offset))
        found.sort()
        return found

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

    def restore(self, states, written=None):
        """Replaces everything by a snapshot. ``written``: producer id -> when it last wrote, where that is known."""
        cdef ProducerEntry entry
        self.entries.clear()
        self.verifications.clear()
        self.first = self.count = 0
        opened = []
        for producer_id, epoch, coordinator_epoch, last_timestamp, txn_first_offset, batches in states:
            entry = ProducerEntry.__new__(ProducerEntry)
            entry.producer_id = producer_id
            entry.epoch = epoch
            entry.coordinator_epoch = coordinator_epoch
            entry.last_timestamp = last_timestamp
            if written is not None:
                entry.written_ms = written.get(producer_id, WRITTEN_UNKNOWN)
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
        return aborted_between(self.aborted, fetch_offset, upper)

    def trim_aborted(self, int64_t log_start_offset):
        """Forgets aborted transactions that end below the log start offset."""
        self.aborted = [item for item in self.aborted if item[2] >= log_start_offset]

    def forget_aborted(self, last_offsets):
        """Forgets the aborted transactions that end at these offsets: compaction has left nothing of them."""
        gone = set(last_offsets)
        self.aborted = [item for item in self.aborted if item[2] not in gone]


cdef list aborted_between(list aborted, int64_t fetch_offset, int64_t upper):
    cdef list found = []
    for item in aborted[bisect_left(aborted, fetch_offset, key=_THIRD):]:
        if item[1] < upper:
            found.append((item[0], item[1]))
        if item[3] >= upper:
            break       # what was still open then begins at or above its last stable offset
    return found
