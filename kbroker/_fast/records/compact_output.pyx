"""The records that log compaction keeps of a batch, and the batches that it writes (KIP-534).

A batch that loses nothing is copied byte for byte. One that loses records keeps its header but for length, CRC, record
count, highest timestamp and, where a delete horizon is set, attributes and base timestamp; its records keep their
offset deltas, so no offset changes.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from kbroker._fast.base.crc32c cimport crc32c_c
from kbroker._fast.base.cursor cimport Cursor, cursor_of, left, take_bytes, take_varint, take_varlong
from kbroker._fast.base.endian cimport store_i16, store_i32, store_i64, store_u32
from kbroker._fast.base.varint cimport VARLONG_BYTES_MAX, put_varlong, size_of_varlong
from kbroker._fast.records.compact_scan cimport (
    OUT_OF_MEMORY,
    WINDOW_RECORDS,
    Waiting,
    raise_status,
    take_next_record,
)
from kbroker._fast.records.key_map cimport KeyMap
from kbroker._fast.records.record cimport REASON_NONE, REASON_RECORD_COUNT_MORE, RecordView
from kbroker._fast.records.record_batch cimport (
    AT_ATTRIBUTES,
    AT_BASE_TIMESTAMP,
    AT_BATCH_LENGTH,
    AT_CRC,
    AT_MAX_TIMESTAMP,
    AT_RECORD_COUNT,
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    TRANSACTIONAL,
    BatchInfo,
)
from kbroker._fast.records.section_codec cimport SectionCodec
from kbroker._fast.records.time_bounds cimport HEADER_UNCHECKED, min_timestamp_of

cdef enum:
    KEPT_CAPACITY = 1 << 24      # a larger output buffer is given back


cdef uint8_t* _grow(Bytes* buffer, Py_ssize_t n) noexcept nogil:
    """Room for n more bytes at the end, or NULL; `size` is the caller's to move."""
    cdef Py_ssize_t wanted
    cdef uint8_t* grown
    if n > buffer.capacity - buffer.size:
        wanted = max(2 * buffer.capacity, buffer.size + n)
        grown = <uint8_t*>realloc(buffer.base, <size_t>max(wanted, 4096))
        if grown == NULL:
            return NULL
        buffer.base = grown
        buffer.capacity = max(wanted, 4096)
    return buffer.base + buffer.size


cdef bytes _take(Bytes* buffer):
    cdef bytes taken = PyBytes_FromStringAndSize(<const char*>buffer.base, buffer.size)
    buffer.size = 0
    if buffer.capacity > KEPT_CAPACITY:
        free(buffer.base)
        buffer.base = NULL
        buffer.capacity = 0
    return taken


cdef inline int64_t _add(int64_t a, int64_t b) noexcept nogil:
    """a + b as the stored deltas mean it: modulo 2^64."""
    return <int64_t>(<uint64_t>a + <uint64_t>b)


cdef class Selection:
    def __cinit__(self, KeyMap key_map not None, int64_t now_ms):
        self.map = key_map
        self.now_ms = now_ms

    def __dealloc__(self):
        free(self.spans.base)

    cdef void clear(self) noexcept nogil:
        self.kept = self.tombstones = 0
        self.max_timestamp = -1
        self.min_timestamp = INT64_MAX
        self.spans.size = 0

    cdef int choose(self, const BatchInfo* info, Cursor c, bint keep_all) noexcept nogil:
        cdef RecordView record
        cdef Waiting* waiting
        cdef int32_t i, count = 0, delta = -1
        cdef int reason
        cdef const uint8_t* start
        self.clear()
        for i in range(info.record_count):
            start = c.p
            reason = take_next_record(&c, &record, &delta, info.last_offset_delta)
            if reason != REASON_NONE:
                return reason
            waiting = &self.waiting[count]
            waiting.start = start
            waiting.end = c.p
            waiting.timestamp_delta = record.timestamp_delta
            waiting.offset_delta = delta
            waiting.key_length = record.key_length
            waiting.value_length = record.value_length
            if record.key_length >= 0 and not keep_all:
                self.map.prepare(record.key, record.key_length, &waiting.key)
            count += 1
            if count == WINDOW_RECORDS:
                if self.choose_waiting(info, count, keep_all) != 0:
                    return OUT_OF_MEMORY
                count = 0
        if self.choose_waiting(info, count, keep_all) != 0:
            return OUT_OF_MEMORY
        return REASON_NONE if left(&c) == 0 else REASON_RECORD_COUNT_MORE

    cdef int choose_waiting(self, const BatchInfo* info, int32_t count, bint keep_all) noexcept nogil:
        """0 or OUT_OF_MEMORY."""
        cdef int32_t i
        cdef int64_t timestamp
        cdef Waiting* record
        cdef Span* last = <Span*>(self.spans.base + self.spans.size) - 1 if self.spans.size else NULL
        for i in range(count):
            record = &self.waiting[i]
            if not keep_all and not self.stays(info, record):
                continue
            if last != NULL and last.end == record.start:
                last.end = record.end
            else:
                last = <Span*>_grow(&self.spans, sizeof(Span))
                if last == NULL:
                    return OUT_OF_MEMORY
                last.start = record.start
                last.end = record.end
                self.spans.size += sizeof(Span)
            self.kept += 1
            if record.value_length < 0:
                self.tombstones += 1
            timestamp = _add(info.base_timestamp, record.timestamp_delta)
            if timestamp > self.max_timestamp:
                self.max_timestamp = timestamp
            if timestamp < self.min_timestamp:
                self.min_timestamp = timestamp
        return 0

    cdef bint stays(self, const BatchInfo* info, const Waiting* record) noexcept nogil:
        if record.key_length < 0 or info.base_offset + record.offset_delta < self.map.get_hash(&record.key):
            return False
        if record.value_length >= 0:
            return True
        return not info.attributes & DELETE_HORIZON or self.now_ms < info.base_timestamp


cdef class CompactedBatches:
    def __cinit__(self, Selection selection not None, SectionCodec codec not None, int64_t now_ms,
                  int64_t delete_retention_ms):
        self.selection = selection
        self.codec = codec
        self.now_ms = now_ms
        self.delete_retention_ms = delete_retention_ms
        self.horizon_ms = -1

    def __dealloc__(self):
        free(self.out.base)
        free(self.entries.base)
        free(self.scratch.base)

    cdef tuple take(self):
        return _take(&self.out), _take(&self.entries)

    cdef int copy(self, const BatchInfo* info, const uint8_t* p) noexcept nogil:
        return self.copy_bytes(info, p, min_timestamp_of(
            info.attributes, info.record_count, info.base_timestamp, info.max_timestamp, HEADER_UNCHECKED))

    cdef int copy_selected(self, const BatchInfo* info, const uint8_t* p) noexcept nogil:
        return self.copy_bytes(info, p, self.min_selected(info))

    cdef int64_t min_selected(self, const BatchInfo* info) noexcept nogil:
        return info.max_timestamp if info.attributes & LOG_APPEND_TIME else self.selection.min_timestamp

    cdef int copy_bytes(self, const BatchInfo* info, const uint8_t* p, int64_t min_timestamp) noexcept nogil:
        cdef uint8_t* to = _grow(&self.out, info.size)
        if to == NULL:
            return OUT_OF_MEMORY
        memcpy(to, p, info.size)
        if info.attributes & DELETE_HORIZON:
            self.note_horizon(info.base_timestamp)
        return self.note(info, info.size, min_timestamp, info.max_timestamp, info.record_count)

    cdef int rewrite_plain(self, const BatchInfo* info, const uint8_t* p, bint set_horizon) noexcept nogil:
        cdef Py_ssize_t at = self.out.size
        cdef Py_ssize_t size
        cdef int status
        if _grow(&self.out, info.size) == NULL:
            return OUT_OF_MEMORY
        self.out.size += BATCH_HEADER_BYTES
        status = self.write_selected(&self.out, info, self.new_horizon_ms() if set_horizon else info.base_timestamp)
        size = self.out.size - at
        self.out.size = at
        return status if status != 0 else self.seal_header(info, p, at, size, set_horizon)

    cdef int rewrite_compressed(self, const BatchInfo* info, const uint8_t* p, bint set_horizon) except -1:
        cdef bytes packed
        cdef uint8_t* to
        cdef int status
        self.scratch.size = 0
        status = self.write_selected(
            &self.scratch, info, self.new_horizon_ms() if set_horizon else info.base_timestamp)
        if status != 0:
            raise_status(status, 0)
        packed = self.codec.packed(info.attributes & CODEC_MASK, _take(&self.scratch))
        to = _grow(&self.out, BATCH_HEADER_BYTES + len(packed))
        if to == NULL:
            raise MemoryError
        memcpy(to + BATCH_HEADER_BYTES, <const char*>packed, len(packed))
        status = self.seal_header(info, p, self.out.size, BATCH_HEADER_BYTES + len(packed), set_horizon)
        if status != 0:
            raise_status(status, 0)
        return 0

    cdef int write_empty(self, const BatchInfo* info, const uint8_t* p) noexcept nogil:
        cdef uint8_t* to = _grow(&self.out, BATCH_HEADER_BYTES)
        if to == NULL:
            return OUT_OF_MEMORY
        memcpy(to, p, BATCH_HEADER_BYTES)
        store_i32(to + AT_BATCH_LENGTH, BATCH_HEADER_BYTES - LOG_OVERHEAD)
        store_i16(to + AT_ATTRIBUTES, info.attributes & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL))
        store_i64(to + AT_BASE_TIMESTAMP, -1)
        store_i32(to + AT_RECORD_COUNT, 0)
        store_u32(to + AT_CRC, crc32c_c(0, to + AT_ATTRIBUTES, BATCH_HEADER_BYTES - AT_ATTRIBUTES))
        return self.note(info, BATCH_HEADER_BYTES, info.max_timestamp, info.max_timestamp, 0)

    cdef void note_change(self, const BatchInfo* info) noexcept nogil:
        self.changed_end = info.base_offset + info.last_offset_delta + 1

    cdef int write_selected(self, Bytes* to, const BatchInfo* info, int64_t new_base) noexcept nogil:
        """Appends the selected records, their timestamps relative to `new_base`."""
        cdef Span* span = <Span*>self.selection.spans.base
        cdef Span* end = <Span*>(self.selection.spans.base + self.selection.spans.size)
        cdef Py_ssize_t n
        cdef uint8_t* p
        while span < end:
            if new_base != info.base_timestamp:
                if self.write_dated(to, info, cursor_of(span.start, span.end - span.start), new_base) != 0:
                    return OUT_OF_MEMORY
            else:
                n = span.end - span.start
                p = _grow(to, n)
                if p == NULL:
                    return OUT_OF_MEMORY
                memcpy(p, span.start, n)
                to.size += n
            span += 1
        return 0

    cdef int write_dated(self, Bytes* to, const BatchInfo* info, Cursor c, int64_t new_base) noexcept nogil:
        """Appends the records at c, which `choose` has read: none is incomplete."""
        cdef Cursor body
        cdef int32_t length = 0
        cdef int64_t delta = 0, timestamp
        cdef const uint8_t* attributes
        cdef uint8_t* p
        while left(&c) > 0:
            take_varint(&c, &length)
            body = cursor_of(take_bytes(&c, length), length)
            attributes = take_bytes(&body, 1)
            take_varlong(&body, &delta)
            timestamp = _add(info.base_timestamp, delta)
            if info.attributes & LOG_APPEND_TIME:
                timestamp = info.max_timestamp
            delta = <int64_t>(<uint64_t>timestamp - <uint64_t>new_base)
            p = _grow(to, length + 2 * VARLONG_BYTES_MAX)
            if p == NULL:
                return OUT_OF_MEMORY
            p = put_varlong(p, 1 + size_of_varlong(delta) + left(&body))
            p[0] = attributes[0]
            p = put_varlong(p + 1, delta)
            memcpy(p, body.p, left(&body))
            to.size = p + left(&body) - to.base
        return 0

    cdef int seal_header(self, const BatchInfo* info, const uint8_t* p, Py_ssize_t at, Py_ssize_t size,
                         bint set_horizon) noexcept nogil:
        """Writes the header, at byte `at` of the output, of the records that follow it there."""
        cdef uint8_t* to = self.out.base + at
        cdef int64_t max_timestamp = self.selection.max_timestamp
        if info.attributes & LOG_APPEND_TIME:
            max_timestamp = info.max_timestamp
        memcpy(to, p, BATCH_HEADER_BYTES)
        store_i32(to + AT_BATCH_LENGTH, <int32_t>(size - LOG_OVERHEAD))
        if set_horizon:
            store_i16(to + AT_ATTRIBUTES, info.attributes | DELETE_HORIZON)
            store_i64(to + AT_BASE_TIMESTAMP, self.new_horizon_ms())
            self.note_horizon(self.new_horizon_ms())
        elif info.attributes & DELETE_HORIZON:
            self.note_horizon(info.base_timestamp)
        store_i64(to + AT_MAX_TIMESTAMP, max_timestamp)
        store_i32(to + AT_RECORD_COUNT, self.selection.kept)
        store_u32(to + AT_CRC, crc32c_c(0, to + AT_ATTRIBUTES, size - AT_ATTRIBUTES))
        self.note_change(info)
        return self.note(info, <uint32_t>size, self.min_selected(info), max_timestamp, self.selection.kept)

    cdef int note(self, const BatchInfo* info, uint32_t size, int64_t min_timestamp, int64_t max_timestamp,
                  int32_t record_count) noexcept nogil:
        """The batch, of `size` bytes, is at the end of the output."""
        cdef OutEntry* entry = <OutEntry*>_grow(&self.entries, sizeof(OutEntry))
        if entry == NULL:
            return OUT_OF_MEMORY
        entry.base_offset = info.base_offset
        entry.max_timestamp = max_timestamp
        entry.min_timestamp = min_timestamp
        entry.size = size
        entry.last_offset_delta = info.last_offset_delta
        entry.record_count = record_count
        entry.leader_epoch = info.leader_epoch
        self.entries.size += sizeof(OutEntry)
        self.out.size += size
        self.records_kept += record_count
        return 0

    cdef void note_horizon(self, int64_t horizon_ms) noexcept nogil:
        if horizon_ms > self.now_ms:
            self.horizon_ms = max(self.horizon_ms, horizon_ms)

    cdef int64_t new_horizon_ms(self) noexcept nogil:
        """When a tombstone or marker that is kept for the first time may be removed."""
        if self.delete_retention_ms > INT64_MAX - max(self.now_ms, 0):
            return INT64_MAX
        return self.now_ms + self.delete_retention_ms
