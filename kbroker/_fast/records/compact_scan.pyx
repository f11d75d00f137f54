"""The first pass of log compaction: the newest offset of each key (Kafka's LogCleaner, KIP-98), block by block.

Blocks hold whole batches whose CRC was checked. Batches without codec are read without the GIL; for the others Python's
codecs are used.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc

from kbroker._fast.records.record_batch import REASONS, CorruptRecordsError

from kbroker._fast.base.cursor cimport Cursor, cursor_of, left
from kbroker._fast.base.invariant cimport invariant
from kbroker._fast.records.compression cimport Plain
from kbroker._fast.records.key_map cimport KeyMap
from kbroker._fast.records.record cimport REASON_NONE, REASON_RECORD_COUNT_MORE, RecordView
from kbroker._fast.records.record_batch cimport (
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    CONTROL,
    TRANSACTIONAL,
    parse_header,
)
from kbroker._fast.records.section_codec cimport PlainSections, SectionCodec


cdef int raise_status(int status, Py_ssize_t position) except -1:
    if status == OUT_OF_MEMORY:
        raise MemoryError
    if status == RUN_BAD_HEADER:
        raise CorruptRecordsError("no complete record batch of format v2", position)
    raise CorruptRecordsError(REASONS[status], position)


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
            invariant(not self.running)
            self.running = True
            with nogil:
                status = self.run(&block[0], n, &position)
            self.running = False
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
                raise_status(status, position)
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
            reason = take_next_record(c, &record, &delta, self.info.last_offset_delta)
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
