"""Collects the newest record of each key from a partition's batches, block by block (KIP-98 for transactions).

A coordinator's state follows from the newest records alone: compaction could have removed the others at any time. A
record of a transaction counts at its own place in the log once the transaction's marker commits it, and never when
that aborts it; what is open at the end is returned with its producer. Tombstones are records like others, but one
outside of transactions also removes what open ones have written for its key.

Batches are parsed and CRC-checked without the GIL. Blocks come from disk and objects: whatever they hold, the result is
right or CorruptRecordsError is raised.
"""

import os

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

from kbroker._fast.records.compression import DecompressionError
from kbroker._fast.records.record_batch import REASONS, CorruptRecordsError

from kbroker._fast.records.compression cimport Plain, plain_of
from kbroker._fast.base.crc32c cimport crc32c_c
from kbroker._fast.base.cursor cimport Cursor, cursor_of, left
from kbroker._fast.base.invariant cimport invariant
from kbroker._fast.records.key_map cimport siphash
from kbroker._fast.records.marker cimport MARKER_COMMIT, MARKER_NONE, take_marker
from kbroker._fast.records.record cimport (
    REASON_CONTROL,
    REASON_CRC,
    REASON_NONE,
    REASON_OFFSET_DELTA,
    REASON_RECORD_COUNT_LESS,
    REASON_RECORD_COUNT_MORE,
    RECORD_INCOMPLETE,
    RecordView,
    take_record,
)
from kbroker._fast.records.record_batch cimport (
    AT_ATTRIBUTES,
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    CONTROL,
    TRANSACTIONAL,
    BatchInfo,
    parse_header,
)

cdef enum:
    RUN_NEEDS_PYTHON = -10       # the batch in `info` is compressed
    RUN_BAD_HEADER = -11
    OUT_OF_MEMORY = -12
    RUN_FAILED = -13
    FIRST_SLOTS = 16
    NO_OFFSET = -1               # of a forgotten entry
    DATA_ROUNDING = 16           # an offset's value grows by a few bytes now and then


# -- tables -------------------------------------------------------------------------------------------------------

cdef void _free_table(Table* table) noexcept nogil:
    cdef int32_t i
    for i in range(table.count):
        free(table.entries[i].data)
    free(table.entries)
    free(table.slots)
    memset(table, 0, sizeof(Table))


cdef int32_t* _slot_of(const Table* table, uint64_t hash, const uint8_t* key, int32_t key_length) noexcept nogil:
    """The key's slot, or the free one where it belongs."""
    cdef uint32_t i = <uint32_t>hash & table.slot_mask
    cdef const Entry* entry
    while table.slots[i] != 0:
        entry = table.entries + (table.slots[i] - 1)
        if entry.hash == hash and entry.key_length == key_length and memcmp(entry.data, key, key_length) == 0:
            break
        i = (i + 1) & table.slot_mask
    return table.slots + i


cdef int _make_room(Table* table) noexcept nogil:
    """Room for one more entry, at most half of the slots taken."""
    cdef uint32_t wanted = FIRST_SLOTS if table.slots == NULL else 2 * (table.slot_mask + 1)
    cdef int32_t* slots
    cdef Entry* entries
    cdef int32_t i
    cdef uint32_t at
    if table.count < table.capacity:
        return 0
    if wanted > <uint32_t>1 << 30:
        return OUT_OF_MEMORY
    entries = <Entry*>realloc(table.entries, <size_t>(wanted // 2) * sizeof(Entry))
    if entries == NULL:
        return OUT_OF_MEMORY
    table.entries = entries
    slots = <int32_t*>calloc(wanted, sizeof(int32_t))
    if slots == NULL:
        return OUT_OF_MEMORY
    free(table.slots)
    table.slots = slots
    table.slot_mask = wanted - 1
    table.capacity = <int32_t>(wanted // 2)
    for i in range(table.count):
        at = <uint32_t>entries[i].hash & table.slot_mask
        while slots[at] != 0:
            at = (at + 1) & table.slot_mask
        slots[at] = i + 1
    return 0


cdef int _put(Table* table, int64_t offset, uint64_t hash, const uint8_t* key, int32_t key_length,
              const uint8_t* value, int32_t value_length) noexcept nogil:
    """Keeps a copy of the record if it is the newest of its key. 0 or OUT_OF_MEMORY."""
    cdef int32_t* slot
    cdef Entry* entry
    cdef uint8_t* data
    cdef int64_t size = <int64_t>key_length + max(value_length, 0)
    if _make_room(table) != 0:
        return OUT_OF_MEMORY
    slot = _slot_of(table, hash, key, key_length)
    if slot[0] != 0:
        entry = table.entries + (slot[0] - 1)
        if entry.offset > offset:
            return 0
    else:
        entry = table.entries + table.count
        memset(entry, 0, sizeof(Entry))
    if size > entry.capacity or entry.data == NULL:
        size = (size + DATA_ROUNDING) // DATA_ROUNDING * DATA_ROUNDING
        data = <uint8_t*>realloc(entry.data, <size_t>size) if size < 0x7FFFFFFF else NULL
        if data == NULL:
            return OUT_OF_MEMORY
        entry.data = data
        entry.capacity = <int32_t>size
    if slot[0] == 0:
        memcpy(entry.data, key, key_length)
        entry.hash = hash
        entry.key_length = key_length
        table.count += 1
        slot[0] = table.count
    entry.offset = offset
    entry.value_length = value_length
    if value_length > 0:
        memcpy(entry.data + key_length, value, value_length)
    return 0


cdef void _forget(Table* table, uint64_t hash, const uint8_t* key, int32_t key_length) noexcept nogil:
    """As if the key had not been put; its entry stays, for the next time."""
    cdef int32_t* slot = _slot_of(table, hash, key, key_length) if table.slots != NULL else NULL
    if slot != NULL and slot[0] != 0:
        table.entries[slot[0] - 1].offset = NO_OFFSET


cdef object _append_all(list found, const Table* table, int64_t producer_id, int16_t producer_epoch):
    cdef int32_t i
    cdef const Entry* entry
    for i in range(table.count):
        entry = table.entries + i
        if entry.offset == NO_OFFSET:
            continue
        found.append((
            entry.offset,
            PyBytes_FromStringAndSize(<const char*>entry.data, entry.key_length),
            _field(entry.data + entry.key_length, entry.value_length),
            producer_id,
            producer_epoch,
        ))


cdef inline object _field(const uint8_t* p, int32_t length):
    return None if length < 0 else PyBytes_FromStringAndSize(<const char*>p, length)


# -- the collector ------------------------------------------------------------------------------------------------

cdef int _raise(int status, Py_ssize_t position) except -1:
    if status == OUT_OF_MEMORY:
        raise MemoryError
    if status == RUN_BAD_HEADER:
        raise CorruptRecordsError("no complete record batch of format v2", position)
    raise CorruptRecordsError(REASONS[status], position)


cdef int _open_batch(const uint8_t* p, Py_ssize_t n, BatchInfo* info) noexcept nogil:
    if parse_header(p, n, info) != 0 or info.last_offset_delta < 0 or info.record_count < 0:
        return RUN_BAD_HEADER
    return 0


cdef inline int64_t _next_offset(const BatchInfo* info) noexcept nogil:
    return <int64_t>(<uint64_t>info.base_offset + <uint64_t>info.last_offset_delta + 1)


cdef class NewestRecords:
    def __cinit__(self, int64_t start_offset=0, suspects=None, counts=None):
        """Takes records at offsets from ``start_offset`` on.

        ``counts(key, value)`` is called for each record of a key in ``suspects``; one for which it returns False is
        ignored.
        """
        cdef uint64_t halves[2]
        cdef bytes secret = os.urandom(sizeof(halves))
        memcpy(halves, <const char*>secret, sizeof(halves))
        self.secret_low = halves[0]
        self.secret_high = halves[1]
        self.start_offset = start_offset
        self.suspects = suspects
        self.counts = counts
        self.has_suspects = suspects is not None

    def __dealloc__(self):
        self.clear()
        free(self.open)

    def feed(self, const uint8_t[::1] block not None):
        """Takes whole batches that follow those before; one that was fed before is skipped. CorruptRecordsError,
        or what ``counts`` raises."""
        cdef Py_ssize_t position = 0
        cdef Py_ssize_t n = block.shape[0]
        cdef int status
        cdef Cursor c
        cdef Plain plain
        while position < n:
            invariant(not self.running)
            self.running = True
            with nogil:
                status = self.run(&block[0], n, &position)
            self.running = False
            if status == RUN_NEEDS_PYTHON:
                body = memoryview(block)[position + BATCH_HEADER_BYTES:position + self.info.size]
                try:
                    plain = plain_of(self.info.attributes & CODEC_MASK, body)
                except DecompressionError as error:
                    raise CorruptRecordsError(str(error), position) from None
                c = cursor_of(plain.data, plain.size)
                with nogil:
                    status = self.take_batch(&c)
                plain = None
                position += self.info.size
            if status == RUN_FAILED:
                raise self.failure
            if status != 0:
                _raise(status, position)

    cdef int run(self, const uint8_t* p, Py_ssize_t n, Py_ssize_t* position) noexcept nogil:
        cdef const uint8_t* batch
        cdef Cursor c
        cdef int status
        while position[0] < n:
            batch = p + position[0]
            if _open_batch(batch, n - position[0], &self.info) != 0:
                return RUN_BAD_HEADER
            if crc32c_c(0, batch + AT_ATTRIBUTES, <Py_ssize_t>self.info.size - AT_ATTRIBUTES) != self.info.crc:
                return REASON_CRC
            if _next_offset(&self.info) > self.next_offset:
                if self.info.attributes & CODEC_MASK and self.info.record_count > 0:
                    return RUN_NEEDS_PYTHON
                c = cursor_of(batch + BATCH_HEADER_BYTES, <Py_ssize_t>self.info.size - BATCH_HEADER_BYTES)
                status = self.take_batch(&c)
                if status != 0:
                    return status
            position[0] += self.info.size
        return 0

    cdef int take_batch(self, Cursor* c) noexcept nogil:
        cdef Table* into = &self.settled
        cdef OpenTransaction* transaction
        cdef int status
        if self.info.attributes & CONTROL:
            status = self.take_control(c)
        else:
            if self.info.attributes & TRANSACTIONAL and self.info.record_count > 0:
                transaction = self.transaction()
                if transaction == NULL:
                    return OUT_OF_MEMORY
                into = &transaction.records
            status = self.take_records(c, into)
            self.total_records += self.info.record_count
        self.total_bytes += self.info.size
        self.next_offset = _next_offset(&self.info)
        return status

    cdef int take_records(self, Cursor* c, Table* into) noexcept nogil:
        cdef RecordView record
        cdef int64_t offset
        cdef int32_t i
        cdef int reason, skips
        for i in range(self.info.record_count):
            reason = take_record(c, &record)
            if reason == RECORD_INCOMPLETE:
                return REASON_RECORD_COUNT_LESS
            if reason != REASON_NONE:
                return reason
            if record.offset_delta < 0 or record.offset_delta > self.info.last_offset_delta:
                return REASON_OFFSET_DELTA
            offset = <int64_t>(<uint64_t>self.info.base_offset + <uint64_t>record.offset_delta)
            if offset < self.start_offset or record.key_length < 0:
                continue
            if self.has_suspects:
                skips = self.skips(&record)
                if skips < 0:
                    return RUN_FAILED
                if skips:
                    continue
            if self.put(into, offset, record.key, record.key_length, record.value, record.value_length) != 0:
                return OUT_OF_MEMORY
        return REASON_RECORD_COUNT_MORE if left(c) != 0 else 0

    cdef int put(self, Table* table, int64_t offset, const uint8_t* key, int32_t key_length, const uint8_t* value,
                 int32_t value_length) noexcept nogil:
        cdef uint64_t low, high
        cdef Py_ssize_t i
        siphash(self.secret_low, self.secret_high, key, key_length, &low, &high)
        if value_length < 0 and table == &self.settled:
            for i in range(self.open_count):
                _forget(&self.open[i].records, low, key, key_length)
        return _put(table, offset, low, key, key_length, value, value_length)

    cdef int skips(self, const RecordView* record) noexcept with gil:
        cdef bytes key
        try:
            key = PyBytes_FromStringAndSize(<const char*>record.key, record.key_length)
            return key in self.suspects and not self.counts(key, _field(record.value, record.value_length))
        except BaseException as error:
            self.failure = error
            return -1

    # -- transactions -------------------------------------------------------------------------------------------

    cdef int take_control(self, Cursor* c) noexcept nogil:
        cdef int32_t kind, coordinator_epoch
        if self.info.record_count == 0:  # compaction keeps the header of a marker alone
            return 0
        if take_marker(c, &kind, &coordinator_epoch) != 0:
            return REASON_CONTROL
        if kind == MARKER_NONE:
            return 0
        return self.end_transaction(self.info.producer_id, kind == MARKER_COMMIT)

    cdef Py_ssize_t place_of(self, int64_t producer_id) noexcept nogil:
        cdef Py_ssize_t low = 0, high = self.open_count, middle
        while low < high:
            middle = (low + high) // 2
            if self.open[middle].producer_id < producer_id:
                low = middle + 1
            else:
                high = middle
        return low

    cdef OpenTransaction* transaction(self) noexcept nogil:
        """That of the batch in `info`, begun if there is none; NULL: out of memory."""
        cdef Py_ssize_t at = self.place_of(self.info.producer_id)
        cdef OpenTransaction** grown
        cdef OpenTransaction* begun
        if at < self.open_count and self.open[at].producer_id == self.info.producer_id:
            self.open[at].producer_epoch = self.info.producer_epoch
            return self.open[at]
        if self.open_count == self.open_capacity:
            grown = <OpenTransaction**>realloc(
                self.open, <size_t>(2 * self.open_capacity + 4) * sizeof(OpenTransaction*))
            if grown == NULL:
                return NULL
            self.open = grown
            self.open_capacity = 2 * self.open_capacity + 4
        begun = <OpenTransaction*>calloc(1, sizeof(OpenTransaction))
        if begun == NULL:
            return NULL
        begun.producer_id = self.info.producer_id
        begun.producer_epoch = self.info.producer_epoch
        memmove(self.open + at + 1, self.open + at, <size_t>(self.open_count - at) * sizeof(OpenTransaction*))
        self.open[at] = begun
        self.open_count += 1
        return begun

    cdef int end_transaction(self, int64_t producer_id, bint commit) noexcept nogil:
        """Its records become settled at their own places in the log, or are dropped."""
        cdef Py_ssize_t at = self.place_of(producer_id)
        cdef OpenTransaction* ended
        cdef const Entry* entry
        cdef int32_t i
        cdef int status = 0
        if at == self.open_count or self.open[at].producer_id != producer_id:
            return 0
        ended = self.open[at]
        self.open_count -= 1
        memmove(self.open + at, self.open + at + 1, <size_t>(self.open_count - at) * sizeof(OpenTransaction*))
        if commit:
            for i in range(ended.records.count):
                entry = ended.records.entries + i
                if entry.offset == NO_OFFSET:
                    continue
                status = _put(&self.settled, entry.offset, entry.hash, entry.data, entry.key_length,
                              entry.data + entry.key_length, entry.value_length)
                if status != 0:
                    break
        _free_table(&ended.records)
        free(ended)
        return status

    # -- the result ---------------------------------------------------------------------------------------------

    def take(self):
        """All that was collected, in the order of the log: (offset, key, value, producer id, producer epoch), with
        producer id -1 but for records of transactions that are still open. Then it is empty."""
        cdef list found = []
        cdef Py_ssize_t i
        _append_all(found, &self.settled, -1, -1)
        for i in range(self.open_count):
            _append_all(found, &self.open[i].records, self.open[i].producer_id, self.open[i].producer_epoch)
        self.clear()
        found.sort()
        return found

    cdef void clear(self) noexcept nogil:
        cdef Py_ssize_t i
        _free_table(&self.settled)
        for i in range(self.open_count):
            _free_table(&self.open[i].records)
            free(self.open[i])
        self.open_count = 0


def next_offset_of(const uint8_t[::1] block not None):
    """The offset after the last of the whole batches in ``block``; no CRC is checked. CorruptRecordsError."""
    cdef Py_ssize_t position = 0
    cdef Py_ssize_t n = block.shape[0]
    cdef BatchInfo info
    cdef int64_t next_offset = -1
    cdef int status = 0
    with nogil:
        while position < n:
            status = _open_batch(&block[position], n - position, &info)
            if status != 0:
                break
            next_offset = max(next_offset, _next_offset(&info))
            position += info.size
    if status != 0:
        _raise(status, position)
    return next_offset
