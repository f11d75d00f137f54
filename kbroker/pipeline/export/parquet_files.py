"""Writes rows into Parquet files, by day or hour of their timestamp; chooses row groups and encodings.

Offsets and timestamps are delta-encoded, and columns that repeat have dictionaries. Raw values have no dictionary, and
raw keys and values no statistics: these would not pay. Readers prune by topic, partition, offset and timestamp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kbroker.limits import MIB

NO_PARTITIONS, DAY, HOUR = "none", "day", "hour"
ROW_GROUP_BYTES = 32 * MIB  # as Arrow; a row group goes to disk or bucket while the next is gathered
BUFFERED_BYTES_MAX = 128 * MIB  # of one task, in all its files
OPEN_FILES_MAX = 32
FILE_BYTES_MAX = 512 * MIB
_BUCKET_US = {DAY: 86_400_000_000, HOUR: 3_600_000_000}
_PACKED = ("offset", "timestamp")
_OPAQUE = ("key", "value", "headers", "bad_value")  # no statistics where these are raw bytes


class Sink(Protocol):
    """A file being written: whole once `close` returns, gone after `abort`."""

    def write(self, data: Any) -> int: ...

    def close(self) -> dict[str, Any]:
        """Returns what a target needs to publish it."""
        ...

    def abort(self) -> None: ...


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A whole file: its path below the export's folder, and what a target needs to publish it."""

    path: str
    rows: int
    bytes: int
    staged: dict[str, Any]


class _Counting:
    """The file object pyarrow writes to."""

    closed = False

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.position = 0

    def write(self, data: Any) -> int:
        self._sink.write(data)
        self.position += len(data)
        return len(data)

    def tell(self) -> int:
        return self.position

    def flush(self) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Open:
    sink: Sink
    output: _Counting
    writer: pq.ParquetWriter
    path: str
    rows: int = 0
    bytes: int = 0
    batches: list[pa.RecordBatch] = field(default_factory=list)
    buffered_bytes: int = 0


class ParquetFiles:
    """The files of one task. `open_sink(path)` starts a file. Not thread-safe."""

    def __init__(
        self,
        schema: pa.Schema,
        open_sink: Callable[[str], Sink],
        *,
        partition_by: str = NO_PARTITIONS,
        name: str = "part",
        compression: str = "zstd",
        file_bytes_max: int = FILE_BYTES_MAX,
    ) -> None:
        self._schema = schema
        self._open_sink = open_sink
        self._bucket_us = _BUCKET_US.get(partition_by)
        self._hours = partition_by == HOUR
        self._name = name
        self._options = _writer_options(schema, compression)
        self._file_bytes_max = file_bytes_max
        self._open: dict[int, _Open] = {}
        self._done: list[WrittenFile] = []
        self._opened = 0
        self._buffered_bytes = 0

    def add(self, rows: pa.RecordBatch, timestamps: pa.Array) -> None:
        """Rows of the schema; `timestamps` (microseconds) decide which files they go to."""
        if self._bucket_us is None:
            self._put(0, rows)
            return
        moments = np.asarray(timestamps.cast(pa.int64()))
        buckets = moments // self._bucket_us
        low, high = int(buckets.min()), int(buckets.max())
        if low == high:
            self._put(low, rows)
            return
        for bucket in np.unique(buckets).tolist():
            self._put(bucket, pc.filter(rows, pa.array(buckets == bucket)))

    def close(self) -> list[WrittenFile]:
        """Finishes all files."""
        for bucket in list(self._open):
            self._finish(bucket)
        return self._done

    def abort(self) -> None:
        """Drops the open files; finished ones stay staged."""
        for one in self._open.values():
            one.sink.abort()
        self._open.clear()

    def _put(self, bucket: int, rows: pa.RecordBatch) -> None:
        one = self._open.get(bucket)
        if one is None:
            if len(self._open) >= OPEN_FILES_MAX:
                self._finish(next(iter(self._open)))  # the one opened first
            one = self._open[bucket] = self._start(bucket)
        one.batches.append(rows)
        one.buffered_bytes += rows.nbytes
        self._buffered_bytes += rows.nbytes
        if one.buffered_bytes >= ROW_GROUP_BYTES:
            self._write(bucket, one)
        while self._buffered_bytes > BUFFERED_BYTES_MAX:
            largest = max(self._open, key=lambda key: self._open[key].buffered_bytes)
            self._write(largest, self._open[largest])

    def _start(self, bucket: int) -> _Open:
        path = f"{self._folder(bucket)}{self._name}-{self._opened:04d}.parquet"
        self._opened += 1
        sink = self._open_sink(path)
        target = _Counting(sink)
        writer = pq.ParquetWriter(pa.PythonFile(target, "w"), self._schema, **self._options)
        return _Open(sink, target, writer, path)

    def _folder(self, bucket: int) -> str:
        if self._bucket_us is None:
            return ""
        days, hour = divmod(bucket, 24) if self._hours else (bucket, 0)
        folder = f"day={np.datetime64(days, 'D')}/"
        return f"{folder}hour={hour:02d}/" if self._hours else folder

    def _write(self, bucket: int, one: _Open) -> None:
        table = pa.Table.from_batches(one.batches, self._schema)
        one.writer.write_table(table, row_group_size=max(1, table.num_rows))
        one.rows += table.num_rows
        one.bytes = one.output.position
        self._buffered_bytes -= one.buffered_bytes
        one.batches, one.buffered_bytes = [], 0
        if one.bytes >= self._file_bytes_max:
            self._finish(bucket)

    def _finish(self, bucket: int) -> None:
        one = self._open[bucket]
        if one.batches:
            self._write(bucket, one)
        if bucket not in self._open:  # the write made it full
            return
        del self._open[bucket]
        one.writer.close()
        self._done.append(WrittenFile(one.path, one.rows, one.output.position, one.sink.close()))


def _writer_options(schema: pa.Schema, compression: str) -> dict[str, Any]:
    leaves = [leaf for one in schema for leaf in _leaves(one.name, one.type)]
    raw = {one.name for one in schema if one.name in _OPAQUE and not pa.types.is_struct(one.type)}
    packed = [name for name in _PACKED if name in schema.names and not pa.types.is_struct(schema.field(name).type)]
    return {
        "compression": compression,
        "use_dictionary": [
            leaf for leaf in leaves if leaf not in packed and not (leaf in raw and leaf in ("value", "bad_value"))
        ],
        "column_encoding": dict.fromkeys(packed, "DELTA_BINARY_PACKED"),
        "write_statistics": [leaf for leaf in leaves if leaf.partition(".")[0] not in raw],
        "data_page_size": MIB,
    }


def _leaves(path: str, kind: pa.DataType) -> list[str]:
    """The paths of a column's leaves as Parquet names them."""
    if pa.types.is_struct(kind):
        return [leaf for one in kind for leaf in _leaves(f"{path}.{one.name}", one.type)]
    if pa.types.is_map(kind):
        entry = f"{path}.key_value"
        return [f"{entry}.key", *_leaves(f"{entry}.value", kind.item_type)]
    if pa.types.is_list(kind):
        return _leaves(f"{path}.list.element", kind.value_type)
    return [path]
