"""Log compaction of record batches (Kafka's LogCleaner semantics, KIP-98, KIP-534), block by block.

Blocks hold whole batches whose CRC was checked. A batch that loses nothing is copied byte for byte. One that loses
records keeps its header but for length, CRC, record count, highest timestamp and, where a delete horizon is set,
attributes and base timestamp; its records keep their offset deltas, so no offset changes. Batches without codec and
transaction are handled without the GIL; for the others Python's codecs and sets are used.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from kbroker._fast.records.record_batch import REASONS, CorruptRecordsError

from kbroker._fast.records.compression cimport Plain
from kbroker._fast.base.crc32c cimport crc32c_c
from kbroker._fast.base.cursor cimport Cursor, cursor_of, left, take_bytes, take_varint, take_varlong
from kbroker._fast.base.endian cimport store_i16, store_i32, store_i64, store_u32
from kbroker._fast.records.key_map cimport KeyMap
from kbroker._fast.records.marker cimport MARKER_NONE, take_marker
from kbroker._fast.records.record cimport (
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
    parse_header,
)
from kbroker._fast.records.section_codec cimport PlainSections, SectionCodec
from kbroker._fast.base.varint cimport VARLONG_BYTES_MAX, put_varlong, size_of_varlong

# What a run over plain batches ends with; positive values are a REASON_ of record.pxd.
cdef enum:
    RUN_DONE = 0
    RUN_NEEDS_PYTHON = -10       # the batch in `info` is compressed or of a transaction, or its producer decides
    RUN_BAD_HEADER = -11
    OUT_OF_MEMORY = -12

cdef enum:
    KEPT_CAPACITY = 1 << 24      # a larger output buffer is given back
    NOGIL_BYTES = 16 * 1024      # of records; handing the GIL over costs more than scanning fewer


cdef int _raise(int status, Py_ssize_t position) except -1:
    if status == OUT_OF_MEMORY:
        raise MemoryError
    if status == RUN_BAD_HEADER:
        raise CorruptRecordsError("no complete record batch of format v2", position)
    raise CorruptRecordsError(REASONS[status], position)


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


cdef int _take_record(Cursor* c, RecordView* record, int32_t* previous_delta, int32_t delta_max) noexcept nogil:
    """The next record: offset deltas grow and stay within the batch. 0 or a REASON_."""
    cdef int reason = take_record(c, record)
    if reason == RECORD_INCOMPLETE:
        return REASON_RECORD_COUNT_LESS
    if reason != REASON_NONE:
        return reason
    if record.offset_delta <= previous_delta[0] or record.offset_delta > delta_max:
        return REASON_OFFSET_DELTA
    previous_delta[0] = record.offset_delta
    return REASON_NONE


cdef inline int64_t _add(int64_t a, int64_t b) noexcept nogil:
    """a + b as the stored deltas mean it: modulo 2^64."""
    return <int64_t>(<uint64_t>a + <uint64_t>b)


cdef class AbortedRanges:
    def __cinit__(self, transactions=()):
        """``transactions``: tuples that begin with producer id, first offset, last offset."""
        cdef Py_ssize_t i
        ordered = sorted(tuple(item[:3]) for item in transactions)
        self.rows = <int64_t*>malloc(max(1, len(ordered)) * 3 * sizeof(int64_t))
        self.seen = <uint8_t*>malloc(max(1, len(ordered)))
        if self.rows == NULL or self.seen == NULL:
            raise MemoryError
        self.count = len(ordered)
        for i in range(self.count):
            self.rows[3 * i], self.rows[3 * i + 1], self.rows[3 * i + 2] = ordered[i]
            self.seen[i] = 0

    def __dealloc__(self):
        free(self.rows)
        free(self.seen)

    cdef Py_ssize_t covering(self, int64_t producer_id, int64_t offset) noexcept nogil:
        cdef Py_ssize_t low = 0, high = self.count, middle
        cdef const int64_t* row
        while low < high:
            middle = (low + high) // 2
            row = self.rows + 3 * middle
            if row[0] < producer_id or (row[0] == producer_id and row[1] <= offset):
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return -1
        row = self.rows + 3 * (low - 1)
        return low - 1 if row[0] == producer_id and offset <= row[2] else -1


cdef class KeyScan:
    def __cinit__(self, KeyMap key_map not None, int64_t start_offset, int64_t end_offset, aborted=(),
                  PlainSections sections=None):
        """Takes records at offsets [start_offset, end_offset) into ``key_map``.

        What it decompresses stays in ``sections`` while that has room.
        """
        self.map = key_map
        self.aborted = AbortedRanges(aborted)
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.next_offset = start_offset
        self.done = start_offset >= end_offset
        self.codec = SectionCodec()
        self.sections = sections

    def feed(self, const uint8_t[::1] block not None):
        """Takes whole batches that follow those before; False when no more are wanted. CorruptRecordsError."""
        cdef Py_ssize_t position = 0
        cdef Py_ssize_t n = block.shape[0]
        cdef int status
        cdef Cursor c
        cdef Plain plain
        while position < n and not self.done:
            with nogil:
                status = self.run(&block[0], n, &position)
            if status == RUN_NEEDS_PYTHON:
                plain = self.codec.plain(
                    self.info.attributes & CODEC_MASK,
                    memoryview(block)[position + BATCH_HEADER_BYTES:position + self.info.size])
                c = cursor_of(plain.data, plain.size)
                with nogil:
                    status = self.take_keys(&c)
                if status == 0 and not self.full:
                    if self.sections is not None:
                        self.sections.keep(self.info.base_offset, plain)
                    self.batch_done()
                    position += self.info.size
                plain = None
            if status != 0:
                _raise(status, position)
        return not self.done

    cdef int run(self, const uint8_t* p, Py_ssize_t n, Py_ssize_t* position) noexcept nogil:
        cdef Cursor c
        cdef int status
        cdef const uint8_t* batch
        while position[0] < n and not self.done:
            batch = p + position[0]
            if parse_header(batch, n - position[0], &self.info) != 0:
                return RUN_BAD_HEADER
            if self.info.base_offset >= self.end_offset:
                self.done = True
                return RUN_DONE
            if (
                self.info.record_count > 0
                and not self.info.attributes & CONTROL
                and self.info.base_offset + self.info.last_offset_delta >= self.start_offset
                and (
                    not self.info.attributes & TRANSACTIONAL
                    or self.aborted.covering(self.info.producer_id, self.info.base_offset) < 0
                )
            ):
                if self.info.attributes & CODEC_MASK:
                    return RUN_NEEDS_PYTHON
                c = cursor_of(batch + BATCH_HEADER_BYTES, <Py_ssize_t>self.info.size - BATCH_HEADER_BYTES)
                status = self.take_keys(&c)
                if status != 0 or self.full:
                    return status
            self.batch_done()
            position[0] += self.info.size
        return RUN_DONE

    cdef void batch_done(self) noexcept nogil:
        self.next_offset = max(self.next_offset, self.info.base_offset + self.info.last_offset_delta + 1)
        if self.next_offset >= self.end_offset:
            self.done = True

    cdef int take_keys(self, Cursor* c) noexcept nogil:
        """Puts the keys of one batch; 0 (look at `full`) or a REASON_."""
        cdef RecordView record
        cdef Waiting* waiting
        cdef int32_t i, count = 0, delta = -1
        cdef int reason
        for i in range(self.info.record_count):
            reason = _take_record(c, &record, &delta, self.info.last_offset_delta)
            if reason != REASON_NONE:
                return reason
            if record.key_length >= 0 and self.info.base_offset + delta >= self.start_offset:
                waiting = &self.waiting[count]
                waiting.offset_delta = delta
                self.map.prepare(record.key, record.key_length, &waiting.key)
                count += 1
                if count == WINDOW_RECORDS:
                    if self.put_waiting(count) < 0:
                        return REASON_NONE
                    count = 0
        if self.put_waiting(count) < 0:
            return REASON_NONE
        self.records += self.info.record_count
        return REASON_NONE if left(c) == 0 else REASON_RECORD_COUNT_MORE

    cdef int put_waiting(self, int32_t count) noexcept nogil:
        """0; -1: the map is full."""
        cdef int32_t i
        for i in range(count):
            if self.map.put_hash(&self.waiting[i].key, self.info.base_offset + self.waiting[i].offset_delta) < 0:
                self.full = True
                self.done = True
                return -1
        return 0


cdef class BatchFilter:
    def __cinit__(self, KeyMap key_map not None, int64_t map_end, int64_t now_ms, int64_t delete_retention_ms,
                  aborted=(), last_batches=None, PlainSections sections=None):
        """Filters by ``key_map``, which holds all up to ``map_end``: what lies above stays as it is.

        ``aborted`` as for KeyScan. ``last_batches``: (last data offset or -1, epoch) of each live producer id; what
        proves these stays, without its records if need be, and so does the batch that ends at ``map_end``.
        ``sections``: what the scan of the same batches has left; it is taken out.
        """
        self.map = key_map
        self.map_end = map_end
        self.now_ms = now_ms
        self.delete_retention_ms = delete_retention_ms
        self.aborted = AbortedRanges(aborted)
        self.last_batches = {} if last_batches is None else dict(last_batches)
        self.open_producers = set()
        self.codec = SectionCodec()
        self.sections = sections
        self.horizon_ms = -1

    def __dealloc__(self):
        free(self.out.base)
        free(self.entries.base)
        free(self.spans.base)
        free(self.scratch.base)

    def feed(self, const uint8_t[::1] block not None):
        """Takes whole batches that follow those before, from the log start on. CorruptRecordsError."""
        cdef Py_ssize_t position = 0
        cdef Py_ssize_t n = block.shape[0]
        cdef int status
        while position < n:
            with nogil:
                status = self.run(&block[0], n, &position)
            if status == RUN_NEEDS_PYTHON:
                try:
                    self.step(&block[position],
                              memoryview(block)[position + BATCH_HEADER_BYTES:position + self.info.size])
                except CorruptRecordsError as error:
                    raise CorruptRecordsError(f"batch at offset {self.info.base_offset}: {error}", position) from None
                position += self.info.size
            elif status != RUN_DONE:
                _raise(status, position)

    def take(self):
        """(batches, OutEntry structs of them) that were written since the last take."""
        return _take(&self.out), _take(&self.entries)

    @property
    def pending_bytes(self):
        """Bytes that wait to be taken."""
        return self.out.size

    def aborted_without_batches(self):
        """Last offsets of the aborted transactions that end below ``map_end`` and of which no batch was met."""
        cdef Py_ssize_t i
        return [
            self.aborted.rows[3 * i + 2] for i in range(self.aborted.count)
            if not self.aborted.seen[i] and self.aborted.rows[3 * i + 2] < self.map_end
        ]

    cdef int run(self, const uint8_t* p, Py_ssize_t n, Py_ssize_t* position) noexcept nogil:
        cdef const uint8_t* batch
        cdef Selection selection
        cdef int status
        cdef bint set_horizon
        while position[0] < n:
            batch = p + position[0]
            if parse_header(batch, n - position[0], &self.info) != 0:
                return RUN_BAD_HEADER
            if self.info.base_offset >= self.map_end:
                status = self.copy(batch)
            elif self.info.attributes & (CONTROL | TRANSACTIONAL | CODEC_MASK) or self.info.record_count == 0:
                return RUN_NEEDS_PYTHON
            else:
                status = self.select(
                    cursor_of(batch + BATCH_HEADER_BYTES, <Py_ssize_t>self.info.size - BATCH_HEADER_BYTES), False,
                    &selection)
                if status == 0 and selection.kept == 0:
                    if self.info.producer_id >= 0 or self.ends_the_round():
                        return RUN_NEEDS_PYTHON
                    self.records_read += self.info.record_count
                    self.note_change()
                elif status == 0:
                    self.records_read += self.info.record_count
                    set_horizon = selection.tombstones > 0 and not self.info.attributes & DELETE_HORIZON
                    if selection.kept == self.info.record_count and not set_horizon:
                        status = self.copy(batch)
                    else:
                        status = self.rewrite_plain(batch, &selection, set_horizon)
            if status != 0:
                return status
            position[0] += self.info.size
        return RUN_DONE

    cdef int step(self, const uint8_t* p, object body) except -1:
        """One batch with the GIL; `body` is its records section."""
        cdef Selection selection
        cdef const uint8_t* section = p + BATCH_HEADER_BYTES
        cdef Py_ssize_t n = <Py_ssize_t>self.info.size - BATCH_HEADER_BYTES
        cdef int codec = self.info.attributes & CODEC_MASK
        cdef bint control = self.info.attributes & CONTROL != 0
        cdef bint dated = self.info.attributes & DELETE_HORIZON != 0
        cdef bint discard = False, set_horizon = False
        cdef Py_ssize_t row
        cdef Plain plain = None
        cdef int status = 0
        selection.kept = selection.tombstones = 0
        selection.max_timestamp = -1
        if not control and self.info.attributes & TRANSACTIONAL:
            row = self.aborted.covering(self.info.producer_id, self.info.base_offset)
            if row >= 0:
                self.aborted.seen[row] = 1
                discard = True
            self.open_producers.add(self.info.producer_id)
        if self.info.record_count > 0 and not discard:
            if codec != 0:
                if self.sections is not None:
                    plain = self.sections.take(self.info.base_offset)
                if plain is None:
                    plain = self.codec.plain(codec, body)
                section = plain.data
                n = plain.size
            if control and self.end_transaction(section, n):
                # Of this transaction nothing is left: the marker goes as tombstones do, in two rounds.
                set_horizon = not dated
                discard = dated and self.info.base_timestamp <= self.now_ms
        if self.info.record_count > 0 and not discard:
            if n >= NOGIL_BYTES:
                with nogil:
                    status = self.select(cursor_of(section, n), control, &selection)
            else:
                status = self.select(cursor_of(section, n), control, &selection)
            if status != 0:
                _raise(status, BATCH_HEADER_BYTES)
        self.records_read += self.info.record_count
        if selection.kept == 0:
            if self.ends_the_round() or self.is_last_of_producer():
                if self.info.record_count > 0:
                    self.note_change()
                status = self.write_empty(p)
            else:
                self.note_change()
        else:
            set_horizon = set_horizon or (selection.tombstones > 0 and not dated)
            if selection.kept == self.info.record_count and not set_horizon:
                status = self.copy(p)
            elif codec == 0:
                status = self.rewrite_plain(p, &selection, set_horizon)
            else:
                status = self.rewrite_compressed(p, &selection, set_horizon)
        if status != 0:
            _raise(status, 0)
        return 0

    cdef bint ends_the_round(self) noexcept nogil:
        return self.info.base_offset + self.info.last_offset_delta + 1 == self.map_end

    cdef bint is_last_of_producer(self) except -1:
        """Does this batch hold the last sequence of a live producer, or the epoch of one that has no data?"""
        cdef int64_t last_data_offset, epoch
        if self.info.producer_id < 0:
            return False
        last = self.last_batches.get(self.info.producer_id)
        if last is None:
            return False
        last_data_offset, epoch = last
        if last_data_offset >= 0:
            return self.info.base_offset + self.info.last_offset_delta == last_data_offset
        return self.info.attributes & CONTROL != 0 and self.info.producer_epoch == epoch

    cdef int end_transaction(self, const uint8_t* section, Py_ssize_t n) except -1:
        """A control batch: 1 when it is a marker and no batch of its transaction was met."""
        cdef Cursor c = cursor_of(section, n)
        cdef int32_t kind, coordinator_epoch
        if take_marker(&c, &kind, &coordinator_epoch) < 0:
            raise CorruptRecordsError("a control record that does not parse", BATCH_HEADER_BYTES)
        if kind == MARKER_NONE:
            return 0
        if self.info.producer_id in self.open_producers:
            self.open_producers.discard(self.info.producer_id)
            return 0
        return 1

    cdef bint stays(self, const Waiting* record) noexcept nogil:
        if record.key_length < 0 or self.info.base_offset + record.offset_delta < self.map.get_hash(&record.key):
            return False
        if record.value_length >= 0:
            return True
        return not self.info.attributes & DELETE_HORIZON or self.now_ms < self.info.base_timestamp

    cdef int select(self, Cursor c, bint keep_all, Selection* selection) noexcept nogil:
        cdef RecordView record
        cdef Waiting* waiting
        cdef int32_t i, count = 0, delta = -1
        cdef int reason
        cdef const uint8_t* start
        selection.kept = selection.tombstones = 0
        selection.max_timestamp = -1
        self.spans.size = 0
        for i in range(self.info.record_count):
            start = c.p
            reason = _take_record(&c, &record, &delta, self.info.last_offset_delta)
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
                if self.select_waiting(count, keep_all, selection) < 0:
                    return OUT_OF_MEMORY
                count = 0
        if self.select_waiting(count, keep_all, selection) < 0:
            return OUT_OF_MEMORY
        return REASON_NONE if left(&c) == 0 else REASON_RECORD_COUNT_MORE

    cdef int select_waiting(self, int32_t count, bint keep_all, Selection* selection) noexcept nogil:
        """0; -1: no memory."""
        cdef int32_t i
        cdef int64_t timestamp
        cdef Waiting* record
        cdef Span* last = <Span*>(self.spans.base + self.spans.size) - 1 if self.spans.size else NULL
        for i in range(count):
            record = &self.waiting[i]
            if not keep_all and not self.stays(record):
                continue
            if last != NULL and last.end == record.start:
                last.end = record.end
            else:
                last = <Span*>_grow(&self.spans, sizeof(Span))
                if last == NULL:
                    return -1
                last.start = record.start
                last.end = record.end
                self.spans.size += sizeof(Span)
            selection.kept += 1
            if record.value_length < 0:
                selection.tombstones += 1
            timestamp = _add(self.info.base_timestamp, record.timestamp_delta)
            if timestamp > selection.max_timestamp:
                selection.max_timestamp = timestamp
        return 0

    # -- writing -----------------------------------------------------------------------------------------------

    cdef int64_t horizon(self) noexcept nogil:
        """When a tombstone or marker that is kept now for the first time may go."""
        if self.delete_retention_ms > INT64_MAX - max(self.now_ms, 0):
            return INT64_MAX
        return self.now_ms + self.delete_retention_ms

    cdef int note(self, uint32_t size, int64_t max_timestamp, int32_t record_count) noexcept nogil:
        cdef OutEntry* entry = <OutEntry*>_grow(&self.entries, sizeof(OutEntry))
        if entry == NULL:
            return OUT_OF_MEMORY
        entry.base_offset = self.info.base_offset
        entry.max_timestamp = max_timestamp
        entry.size = size
        entry.last_offset_delta = self.info.last_offset_delta
        entry.record_count = record_count
        entry.leader_epoch = self.info.leader_epoch
        self.entries.size += sizeof(OutEntry)
        self.out.size += size
        self.records_kept += record_count
        return 0

    cdef void note_change(self) noexcept nogil:
        self.changed_end = self.info.base_offset + self.info.last_offset_delta + 1

    cdef void note_horizon(self, int64_t horizon_ms) noexcept nogil:
        if horizon_ms > self.now_ms:
            self.horizon_ms = max(self.horizon_ms, horizon_ms)

    cdef int copy(self, const uint8_t* p) noexcept nogil:
        cdef uint8_t* to = _grow(&self.out, self.info.size)
        if to == NULL:
            return OUT_OF_MEMORY
        memcpy(to, p, self.info.size)
        if self.info.attributes & DELETE_HORIZON:
            self.note_horizon(self.info.base_timestamp)
        return self.note(self.info.size, self.info.max_timestamp, self.info.record_count)

    cdef int write_kept(self, Bytes* to, int64_t new_base) noexcept nogil:
        """Appends the selected records, their timestamps counted from `new_base`."""
        cdef Span* span = <Span*>self.spans.base
        cdef Span* end = <Span*>(self.spans.base + self.spans.size)
        cdef Py_ssize_t n
        cdef uint8_t* p
        while span < end:
            if new_base != self.info.base_timestamp:
                if self.write_dated(to, cursor_of(span.start, span.end - span.start), new_base) != 0:
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

    cdef int write_dated(self, Bytes* to, Cursor c, int64_t new_base) noexcept nogil:
        """Appends the records at c, which were read before: nothing of them can be missing. 0; -1: no memory."""
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
            timestamp = _add(self.info.base_timestamp, delta)
            if self.info.attributes & LOG_APPEND_TIME:
                timestamp = self.info.max_timestamp
            delta = <int64_t>(<uint64_t>timestamp - <uint64_t>new_base)
            p = _grow(to, length + 2 * VARLONG_BYTES_MAX)
            if p == NULL:
                return -1
            p = put_varlong(p, 1 + size_of_varlong(delta) + left(&body))
            p[0] = attributes[0]
            p = put_varlong(p + 1, delta)
            memcpy(p, body.p, left(&body))
            to.size = p + left(&body) - to.base
        return 0

    cdef int rewrite_plain(self, const uint8_t* p, const Selection* selection, bint set_horizon) noexcept nogil:
        cdef Py_ssize_t at = self.out.size
        cdef Py_ssize_t size
        cdef int status
        if _grow(&self.out, self.info.size) == NULL:
            return OUT_OF_MEMORY
        self.out.size += BATCH_HEADER_BYTES
        status = self.write_kept(&self.out, self.horizon() if set_horizon else self.info.base_timestamp)
        size = self.out.size - at
        self.out.size = at
        return status if status != 0 else self.seal_header(p, at, size, selection, set_horizon)

    cdef int rewrite_compressed(self, const uint8_t* p, const Selection* selection, bint set_horizon) except -1:
        cdef bytes packed
        cdef uint8_t* to
        cdef int status
        self.scratch.size = 0
        status = self.write_kept(&self.scratch, self.horizon() if set_horizon else self.info.base_timestamp)
        if status != 0:
            _raise(status, 0)
        packed = self.codec.packed(self.info.attributes & CODEC_MASK, _take(&self.scratch))
        to = _grow(&self.out, BATCH_HEADER_BYTES + len(packed))
        if to == NULL:
            raise MemoryError
        memcpy(to + BATCH_HEADER_BYTES, <const char*>packed, len(packed))
        status = self.seal_header(p, self.out.size, BATCH_HEADER_BYTES + len(packed), selection, set_horizon)
        if status != 0:
            _raise(status, 0)
        return 0

    cdef int seal_header(self, const uint8_t* p, Py_ssize_t at, Py_ssize_t size, const Selection* selection,
                         bint set_horizon) noexcept nogil:
        """Puts the header in front of the records that were written behind byte `at` of the output."""
        cdef uint8_t* to = self.out.base + at
        cdef int64_t max_timestamp = selection.max_timestamp
        if self.info.attributes & LOG_APPEND_TIME:
            max_timestamp = self.info.max_timestamp
        memcpy(to, p, BATCH_HEADER_BYTES)
        store_i32(to + AT_BATCH_LENGTH, <int32_t>(size - LOG_OVERHEAD))
        if set_horizon:
            store_i16(to + AT_ATTRIBUTES, self.info.attributes | DELETE_HORIZON)
            store_i64(to + AT_BASE_TIMESTAMP, self.horizon())
            self.note_horizon(self.horizon())
        elif self.info.attributes & DELETE_HORIZON:
            self.note_horizon(self.info.base_timestamp)
        store_i64(to + AT_MAX_TIMESTAMP, max_timestamp)
        store_i32(to + AT_RECORD_COUNT, selection.kept)
        store_u32(to + AT_CRC, crc32c_c(0, to + AT_ATTRIBUTES, size - AT_ATTRIBUTES))
        self.note_change()
        return self.note(<uint32_t>size, max_timestamp, selection.kept)

    cdef int write_empty(self, const uint8_t* p) noexcept nogil:
        """The header alone: offsets, producer id, epoch and sequence outlive the records."""
        cdef uint8_t* to = _grow(&self.out, BATCH_HEADER_BYTES)
        if to == NULL:
            return OUT_OF_MEMORY
        memcpy(to, p, BATCH_HEADER_BYTES)
        store_i32(to + AT_BATCH_LENGTH, BATCH_HEADER_BYTES - LOG_OVERHEAD)
        store_i16(to + AT_ATTRIBUTES, self.info.attributes & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL))
        store_i64(to + AT_BASE_TIMESTAMP, -1)
        store_i32(to + AT_RECORD_COUNT, 0)
        store_u32(to + AT_CRC, crc32c_c(0, to + AT_ATTRIBUTES, BATCH_HEADER_BYTES - AT_ATTRIBUTES))
        return self.note(BATCH_HEADER_BYTES, self.info.max_timestamp, 0)
