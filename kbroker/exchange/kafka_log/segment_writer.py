"""Writes one partition's segments as Apache Kafka does: `.log`, `.index`, `.timeindex`, `.txnindex`.

Rules: a new segment when the batch does not fit `segment.bytes`, an offset does not fit int32, or an index is full; an
index entry after more than `index.interval.bytes` since the last one; a last time index entry at the end
(Kafka's LogSegment). Files are written once, whole, and synced.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from kbroker.exchange.batch_block import Block
from kbroker.exchange.kafka_log import offset_index, time_index
from kbroker.exchange.kafka_log.log_segment import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    count_records,
    segment_name,
)
from kbroker.exchange.kafka_log.offset_index import OffsetEntry, encode_offset_index
from kbroker.exchange.kafka_log.time_index import TimeEntry, encode_time_index
from kbroker.exchange.kafka_log.txn_index import AbortedTransaction, encode_txn_index

SEGMENT_BYTES = 1 << 30
INDEX_INTERVAL_BYTES = 4096
INDEX_BYTES_MAX = 10 << 20
INT32_MAX = (1 << 31) - 1
NO_TIMESTAMP = -1


class SegmentWriter:
    """Used by one thread; `add` blocks in offset order, then `finish`. Raises OSError.

    `aborted`: the partition's aborted transactions by last offset; each is written to the segment with its marker. One
    whose marker and batches compaction has removed is dropped: for Kafka only the marker ends a transaction, and later
    commits of its producer would count as aborted.
    """

    def __init__(
        self,
        directory: Path,
        start_offset: int,
        aborted: Sequence[AbortedTransaction] = (),
        *,
        segment_bytes: int = SEGMENT_BYTES,
        index_interval_bytes: int = INDEX_INTERVAL_BYTES,
        index_bytes_max: int = INDEX_BYTES_MAX,
    ) -> None:
        self.end_offset = start_offset
        self.segments: list[int] = []  # base offsets
        self._directory = directory
        self._aborted = deque(aborted)  # their markers are still to come
        self._aborted_here: list[AbortedTransaction] = []
        self._segment_bytes = segment_bytes
        self._index_interval_bytes = index_interval_bytes
        self._index_entries_max = index_bytes_max // offset_index.ENTRY_BYTES
        self._time_entries_max = index_bytes_max // time_index.ENTRY_BYTES - 1  # the last is for the end
        self._file: BinaryIO | None = None
        self._base = start_offset

    def add(self, block: Block) -> None:
        """Appends whole batches."""
        position = 0
        view = memoryview(block.data)
        start = 0  # of the unwritten batches
        for row in block.entries:
            size = int(row["size"])
            if self._file is None or self._is_full(row, size):
                if self._file is not None:
                    self._file.write(view[start:position])
                    self._close()
                start = position
                # The first segment begins at the log start: compaction may have removed its first batches.
                self._open(int(row["base_offset"]) if self.segments else min(self._base, int(row["base_offset"])))
            self._note(row, size)
            self._note_marker(int(row["base_offset"]), view[position : position + size])
            position += size
        if self._file is not None:
            self._file.write(view[start:position])

    def finish(self, end_offset: int) -> None:
        """Closes the last segment; if the batches end below `end_offset`, an empty segment keeps that offset."""
        if self._file is None:
            self._open(end_offset if not self.segments else self.end_offset)
        elif self.end_offset < end_offset:
            self._close()
            self._open(end_offset)
        self.end_offset = end_offset
        self._close()

    def _is_full(self, row: np.void, size: int) -> bool:
        last_offset = int(row["base_offset"]) + int(row["last_offset_delta"])
        return (
            (self._position > 0 and self._position + size > self._segment_bytes)
            or last_offset - self._base > INT32_MAX
            or len(self._offsets) >= self._index_entries_max
            or len(self._times) >= self._time_entries_max
        )

    def _open(self, base: int) -> None:
        self._base = base
        self.segments.append(base)
        self._file = open(self._directory / segment_name(base), "xb")  # noqa: SIM115 - closed by _close
        self._position = self._since_entry = 0
        self._offsets: list[OffsetEntry] = []
        self._times: list[TimeEntry] = []
        self._newest = TimeEntry(NO_TIMESTAMP, base)

    def _note(self, row: np.void, size: int) -> None:
        last_offset = int(row["base_offset"]) + int(row["last_offset_delta"])
        if int(row["max_timestamp"]) > self._newest.timestamp:
            self._newest = TimeEntry(int(row["max_timestamp"]), last_offset)
        if self._since_entry > self._index_interval_bytes:
            self._offsets.append(OffsetEntry(last_offset, self._position))
            self._add_time()
            self._since_entry = 0
        self._position += size
        self._since_entry += size
        self.end_offset = last_offset + 1

    def _note_marker(self, base_offset: int, batch: memoryview) -> None:
        while self._aborted and self._aborted[0][2] < base_offset:
            self._aborted.popleft()
        # Compaction may keep only the header of a removed marker.
        if self._aborted and self._aborted[0][2] == base_offset and count_records(batch):
            self._aborted_here.append(self._aborted.popleft())

    def _add_time(self) -> None:
        before = self._times[-1].timestamp if self._times else NO_TIMESTAMP
        if self._newest.timestamp > before:
            self._times.append(self._newest)

    def _close(self) -> None:
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._file = None
        self._add_time()
        self._write(OFFSET_INDEX_SUFFIX, encode_offset_index(self._offsets, self._base))
        self._write(TIME_INDEX_SUFFIX, encode_time_index(self._times, self._base))
        if self._aborted_here:
            self._write(TXN_INDEX_SUFFIX, encode_txn_index(self._aborted_here))
            self._aborted_here = []

    def _write(self, suffix: str, data: bytes) -> None:
        write_synced(self._directory / segment_name(self._base, suffix), data)


def write_synced(path: Path, data: bytes) -> None:
    """Writes a new file durably."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
