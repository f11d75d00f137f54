"""Log compaction in slices that different workers read (kbroker.pipeline.jobs.compact).

The two passes (compact_scan, compact_filter) read a log in one piece: the first leaves a map of its keys, the second
knows which transactions are open. Here both are exported and imported, so that each slice of the log may be read by
another worker: keys as the 128 bits of their hash, under one secret for all slices.
"""

import numpy as np

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from kbroker._fast.records.compression import DecompressionError
from kbroker._fast.records.record_batch import CorruptRecordsError

from kbroker._fast.records.compression cimport Plain, plain_of
from kbroker._fast.records.compact_filter cimport BatchFilter
from kbroker._fast.base.cursor cimport Cursor, cursor_of
from kbroker._fast.records.key_map cimport KeyMap, Slot
from kbroker._fast.records.marker cimport MARKER_NONE, take_marker
from kbroker._fast.records.record_batch cimport BATCH_HEADER_BYTES, CODEC_MASK, CONTROL, TRANSACTIONAL, BatchInfo, parse_header


def key_entries(KeyMap key_map not None):
    """(low, high, offset): the keys' hashes in two halves and their offsets, as three arrays of int64."""
    low = np.empty(key_map.size, np.int64)
    high = np.empty(key_map.size, np.int64)
    offset = np.empty(key_map.size, np.int64)
    cdef int64_t[::1] lows = low, highs = high, offsets = offset
    cdef Py_ssize_t count = 0
    cdef uint64_t place
    cdef Slot* slot
    with nogil:
        for place in range(key_map.slot_count):
            slot = key_map.slots + place
            if slot.offset_plus_one != 0:
                lows[count] = <int64_t>slot.low
                highs[count] = <int64_t>slot.high
                offsets[count] = slot.offset_plus_one - 1
                count += 1
    return low, high, offset


def put_entries(KeyMap key_map not None, const int64_t[::1] low not None, const int64_t[::1] high not None,
                const int64_t[::1] offset not None):
    """Raises keys to offsets (0 or more), given as `key_entries` gives them. ValueError when they do not fit."""
    cdef Py_ssize_t i, n = low.shape[0]
    cdef Slot* slot
    cdef bint fits = high.shape[0] == n and offset.shape[0] == n
    if not fits:
        raise ValueError("arrays of unequal length")
    with nogil:
        for i in range(n):
            slot = key_map.find(<uint64_t>low[i], <uint64_t>high[i])
            if slot.offset_plus_one == 0:
                if key_map.size >= key_map.limit or offset[i] < 0:
                    fits = False
                    break
                slot.low = <uint64_t>low[i]
                slot.high = <uint64_t>high[i]
                key_map.size += 1
            if offset[i] + 1 > slot.offset_plus_one:
                slot.offset_plus_one = offset[i] + 1
    if not fits:
        raise ValueError(f"a negative offset, or more keys than the {key_map.limit} that the map takes")


def set_open_producers(BatchFilter batches not None, producers):
    """Producers with data of a transaction whose marker had not been met before this slice."""
    batches.open_producers = set(producers)


def aborted_with_batches(BatchFilter batches not None):
    """Last offsets of the aborted transactions of which this slice had a batch."""
    cdef Py_ssize_t i
    return [batches.aborted.rows[3 * i + 2] for i in range(batches.aborted.count) if batches.aborted.seen[i]]


cdef class TransactionScan:
    """Which producers a slice leaves with an open transaction. Borrows each block for its call."""
    cdef int64_t end_offset
    cdef dict state
    cdef BatchInfo info

    def __cinit__(self, int64_t end_offset):
        """Looks at batches that begin below ``end_offset``."""
        self.end_offset = end_offset
        self.state = {}

    def feed(self, const uint8_t[::1] block not None):
        """Takes whole batches that follow those before. CorruptRecordsError."""
        cdef Py_ssize_t position = 0, n = block.shape[0]
        cdef int status = 0
        while position < n:
            with nogil:
                while position < n:
                    status = parse_header(&block[position], n - position, &self.info)
                    if status != 0 or self.info.attributes & (TRANSACTIONAL | CONTROL):
                        break
                    position += self.info.size
            if position >= n:
                return
            if status != 0:
                raise CorruptRecordsError("no complete record batch of format v2", position)
            if self.info.base_offset >= self.end_offset:
                return
            if not self.info.attributes & CONTROL:
                self.state[self.info.producer_id] = True
            elif self.info.record_count > 0 and self.is_marker(block[position:position + self.info.size]):
                self.state[self.info.producer_id] = False
            position += self.info.size

    cdef bint is_marker(self, const uint8_t[::1] batch) except -1:
        cdef Cursor c
        cdef int32_t kind, coordinator_epoch
        cdef Plain plain
        if self.info.attributes & CODEC_MASK:
            try:
                plain = plain_of(self.info.attributes & CODEC_MASK, memoryview(batch)[BATCH_HEADER_BYTES:])
            except DecompressionError as error:
                raise CorruptRecordsError(str(error), BATCH_HEADER_BYTES) from None
            c = cursor_of(plain.data, plain.size)
        else:
            c = cursor_of(&batch[0] + BATCH_HEADER_BYTES, batch.shape[0] - BATCH_HEADER_BYTES)
        if take_marker(&c, &kind, &coordinator_epoch) < 0:
            raise CorruptRecordsError("a control record that does not parse", BATCH_HEADER_BYTES)
        return kind != MARKER_NONE

    @property
    def producers(self):
        """Producer id -> whether its transaction is open after the slice, of those with batches in it."""
        return dict(self.state)
