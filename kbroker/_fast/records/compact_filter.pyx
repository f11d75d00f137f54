"""The second pass of log compaction (Kafka's LogCleaner, KIP-98, KIP-534): what is superseded goes, block by block.

Blocks hold whole batches whose CRC was checked. Batches without codec and transaction are filtered without the GIL; for
the others Python's codecs and sets are used.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._fast.records.record_batch import CorruptRecordsError

from kbroker._fast.base.cursor cimport Cursor, cursor_of
from kbroker._fast.base.invariant cimport invariant
from kbroker._fast.records.compact_output cimport CompactedBatches, Selection
from kbroker._fast.records.compact_scan cimport (
    RUN_BAD_HEADER,
    RUN_DONE,
    RUN_NEEDS_PYTHON,
    AbortedRanges,
    raise_status,
)
from kbroker._fast.records.compression cimport Plain
from kbroker._fast.records.key_map cimport KeyMap
from kbroker._fast.records.marker cimport MARKER_NONE, take_marker
from kbroker._fast.records.record_batch cimport (
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    TRANSACTIONAL,
    parse_header,
)
from kbroker._fast.records.section_codec cimport PlainSections, SectionCodec

cdef enum:
    NOGIL_BYTES = 16 * 1024      # of records; handing the GIL over costs more than scanning fewer


cdef class BatchFilter:
    def __cinit__(self, KeyMap key_map not None, int64_t map_end, int64_t now_ms, int64_t delete_retention_ms,
                  aborted=(), last_batches=None, PlainSections sections=None):
        """Filters by ``key_map``, which holds all up to ``map_end``: what lies above stays as it is.

        ``aborted`` as for KeyScan. ``last_batches``: (last data offset or -1, epoch) of each live producer id; what
        proves these stays, without its records if need be, and so does the batch that ends at ``map_end``.
        ``sections``: what the scan of the same batches has left; it is taken out.
        """
        self.map_end = map_end
        self.now_ms = now_ms
        self.aborted = AbortedRanges(aborted)
        self.last_batches = {} if last_batches is None else dict(last_batches)
        self.open_producers = set()
        self.codec = SectionCodec()
        self.sections = sections
        self.selection = Selection(key_map, now_ms)
        self.output = CompactedBatches(self.selection, self.codec, now_ms, delete_retention_ms)

    def feed(self, const uint8_t[::1] block not None):
        """Takes whole batches that follow those before, from the log start on. CorruptRecordsError."""
        cdef Py_ssize_t position = 0
        cdef Py_ssize_t n = block.shape[0]
        cdef int status
        while position < n:
            invariant(not self.running)
            self.running = True
            with nogil:
                status = self.run(&block[0], n, &position)
            self.running = False
            if status == RUN_NEEDS_PYTHON:
                try:
                    self.filter_batch(&block[position],
                                      memoryview(block)[position + BATCH_HEADER_BYTES:position + self.info.size])
                except CorruptRecordsError as error:
                    raise CorruptRecordsError(f"batch at offset {self.info.base_offset}: {error}", position) from None
                position += self.info.size
            elif status != RUN_DONE:
                raise_status(status, position)

    def take(self):
        """(batches, OutEntry structs of them) that were written since the last take."""
        return self.output.take()

    @property
    def pending_bytes(self):
        """Bytes that wait to be taken."""
        return self.output.out.size

    @property
    def records_kept(self):
        """In the batches that were written."""
        return self.output.records_kept

    @property
    def changed_end(self):
        """End of the last batch that was rewritten or dropped; 0: none was."""
        return self.output.changed_end

    @property
    def horizon_ms(self):
        """Latest delete horizon still ahead of what was written; -1: none."""
        return self.output.horizon_ms

    def aborted_without_batches(self):
        """Last offsets of the aborted transactions that end below ``map_end`` and of which no batch was met."""
        cdef Py_ssize_t i
        return [
            self.aborted.rows[3 * i + 2] for i in range(self.aborted.count)
            if not self.aborted.seen[i] and self.aborted.rows[3 * i + 2] < self.map_end
        ]

    cdef int run(self, const uint8_t* p, Py_ssize_t n, Py_ssize_t* position) noexcept nogil:
        cdef const uint8_t* batch
        cdef int status
        cdef bint set_horizon
        while position[0] < n:
            batch = p + position[0]
            if parse_header(batch, n - position[0], &self.info) != 0:
                return RUN_BAD_HEADER
            if self.info.base_offset >= self.map_end:
                status = self.output.copy(&self.info, batch)
            elif self.info.attributes & (CONTROL | TRANSACTIONAL | CODEC_MASK) or self.info.record_count == 0:
                return RUN_NEEDS_PYTHON
            else:
                status = self.selection.choose(
                    &self.info,
                    cursor_of(batch + BATCH_HEADER_BYTES, <Py_ssize_t>self.info.size - BATCH_HEADER_BYTES), False)
                if status == 0 and self.selection.kept == 0:
                    if self.info.producer_id >= 0 or self.ends_the_round():
                        return RUN_NEEDS_PYTHON
                    self.records_read += self.info.record_count
                    self.output.note_change(&self.info)
                elif status == 0:
                    self.records_read += self.info.record_count
                    set_horizon = self.selection.tombstones > 0 and not self.info.attributes & DELETE_HORIZON
                    if self.selection.kept == self.info.record_count and not set_horizon:
                        status = self.output.copy_selected(&self.info, batch)
                    else:
                        status = self.output.rewrite_plain(&self.info, batch, set_horizon)
            if status != 0:
                return status
            position[0] += self.info.size
        return RUN_DONE

    cdef int filter_batch(self, const uint8_t* p, object body) except -1:
        """One batch with the GIL; `body` is its records section."""
        cdef const uint8_t* section = p + BATCH_HEADER_BYTES
        cdef Py_ssize_t n = <Py_ssize_t>self.info.size - BATCH_HEADER_BYTES
        cdef int codec = self.info.attributes & CODEC_MASK
        cdef bint control = self.info.attributes & CONTROL != 0
        cdef bint dated = self.info.attributes & DELETE_HORIZON != 0
        cdef bint discard = self.info.record_count == 0, set_horizon = False
        cdef Plain plain = None
        cdef int status = 0
        self.selection.clear()
        if not control and self.info.attributes & TRANSACTIONAL:
            if self.is_aborted():
                discard = True
            self.open_producers.add(self.info.producer_id)
        if not discard:
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
        if not discard:
            if n >= NOGIL_BYTES:
                with nogil:
                    status = self.selection.choose(&self.info, cursor_of(section, n), control)
            else:
                status = self.selection.choose(&self.info, cursor_of(section, n), control)
            if status != 0:
                raise_status(status, BATCH_HEADER_BYTES)
        self.records_read += self.info.record_count
        if self.selection.kept == 0:
            if self.ends_the_round() or self.is_last_of_producer():
                if self.info.record_count > 0:
                    self.output.note_change(&self.info)
                status = self.output.write_empty(&self.info, p)
            else:
                self.output.note_change(&self.info)
        else:
            set_horizon = set_horizon or (self.selection.tombstones > 0 and not dated)
            if self.selection.kept == self.info.record_count and not set_horizon:
                status = self.output.copy_selected(&self.info, p)
            elif codec == 0:
                status = self.output.rewrite_plain(&self.info, p, set_horizon)
            else:
                status = self.output.rewrite_compressed(&self.info, p, set_horizon)
        if status != 0:
            raise_status(status, 0)
        return 0

    cdef bint is_aborted(self) except -1:
        """Whether the batch is of an aborted transaction, which has been seen then."""
        cdef Py_ssize_t row = self.aborted.covering(self.info.producer_id, self.info.base_offset)
        if row < 0:
            return False
        self.aborted.seen[row] = 1
        return True

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
