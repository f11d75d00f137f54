"""Rows of columns that an object's index is enough for. Batches are read only where the index leaves rows open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from kbroker._fast.records.record_batch import CorruptRecordsError
from kbroker._fast.records.record_rows import RowReader
from kbroker.errors import CorruptionError
from kbroker.pipeline.batch_choice import CountedRows
from kbroker.pipeline.columns import SOURCE_TYPES, BatchMaker
from kbroker.pipeline.object_batches import ObjectBatchReader
from kbroker.pipeline.options import SourceOptions
from kbroker.pipeline.plan.splits import Share, Split
from kbroker.pipeline.read_ahead import ReadAhead

ROWS_MAX = 64 * 1024  # of an Arrow batch


def counted_batches(options: SourceOptions, split: Split, share: Share, ahead: ReadAhead) -> Iterator[pa.RecordBatch]:
    """Arrow batches of a share in objects, in order. Raises StoreError, CorruptionError, DataLossError."""
    maker = BatchMaker(options.columns, share.topic, share.partition)
    aborted = share.aborted_by_producer() if options.read_committed else None
    rows = _Rows(options.columns, share)
    reader = RowReader(stop_offset=share.stop)
    for found in ObjectBatchReader(options, split, share, ahead).counted():
        if isinstance(found, CountedRows):
            yield from rows.add(found)
            continue
        data, where, first = found
        builder = maker.builder()
        reader.open(data, first_offset=max(first, share.first), aborted=aborted)
        try:
            reader.fill(builder)
        except CorruptRecordsError as error:
            raise CorruptionError(f"{where}, partition {share.name}: {error}") from None
        if (batch := maker.take(builder)) is not None:  # a window of transaction markers has none
            yield from rows.flush()
            yield batch
    yield from rows.flush()


class _Rows:
    """Gathers counted rows into Arrow batches of ROWS_MAX."""

    def __init__(self, columns: Sequence[str], share: Share) -> None:
        self._columns = columns
        self._schema = pa.schema([pa.field(name, SOURCE_TYPES[name]) for name in columns])
        self._constants = {"topic": share.topic, "partition": share.partition}
        self._waiting: list[CountedRows] = []
        self._rows = 0

    def add(self, rows: CountedRows) -> Iterator[pa.RecordBatch]:
        """Adds rows; yields batches once there are enough."""
        self._waiting.append(rows)
        self._rows += int(rows.counts.sum())
        if self._rows >= ROWS_MAX:
            yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yields all rows gathered so far."""
        if self._rows:
            firsts = np.concatenate([rows.firsts for rows in self._waiting])
            counts = np.concatenate([rows.counts for rows in self._waiting])
            ends = np.cumsum(counts)
            for begin in range(0, self._rows, ROWS_MAX):
                end = min(begin + ROWS_MAX, self._rows)
                yield self._batch(firsts, ends - counts, ends, begin, end)
        self._waiting, self._rows = [], 0

    def _batch(self, firsts: np.ndarray, begins: np.ndarray, ends: np.ndarray, begin: int, end: int) -> pa.RecordBatch:
        """Rows [begin, end) of those gathered."""
        arrays = []
        for name in self._columns:
            if name == "offset":
                low, high = np.searchsorted(ends, begin, "right"), np.searchsorted(ends, end) + 1
                counts = np.minimum(ends[low:high], end) - np.maximum(begins[low:high], begin)
                offsets = np.repeat(firsts[low:high] - begins[low:high], counts) + np.arange(begin, end)
                arrays.append(pa.array(offsets, SOURCE_TYPES[name]))
            else:
                arrays.append(pa.repeat(pa.scalar(self._constants[name], SOURCE_TYPES[name]), end - begin))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
