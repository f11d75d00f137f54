"""The columns of ``format("kbroker")`` as Arrow arrays, built from the decoder's buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from kbroker._fast.records.arrow_columns import HEADER_KEYS, HEADER_VALUES, ColumnBuffer, ColumnBuilder

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
SOURCE_TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", _HEADER)),
}
CONSTANT = ("topic", "partition")  # the same in all rows of a batch: not filled by the decoder

Taken = dict[str, tuple[int, tuple[ColumnBuffer | None, ...]]]


class BatchMaker:
    """Turns the rows of a ColumnBuilder into record batches of one topic partition. Not thread-safe."""

    def __init__(self, columns: Sequence[str], topic: str, partition: int) -> None:
        self._columns = tuple(columns)
        self._schema = pa.schema([pa.field(name, SOURCE_TYPES[name]) for name in columns])
        self._constants: dict[str, Any] = {"topic": topic, "partition": partition}
        self._repeated: dict[str, pa.Array] = {}

    def builder(self) -> ColumnBuilder:
        """An empty builder for the columns that differ from row to row."""
        return ColumnBuilder(name for name in self._columns if name not in CONSTANT)

    def take(self, builder: ColumnBuilder) -> pa.RecordBatch | None:
        """The builder's rows, without a copy; None when there are none."""
        rows, taken = builder.take()
        if rows == 0:
            return None
        arrays = [self._repeat(name, rows) if name in CONSTANT else _array(name, rows, taken) for name in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _repeat(self, name: str, rows: int) -> pa.Array:
        known = self._repeated.get(name)
        if known is None or len(known) < rows:
            known = pa.repeat(pa.scalar(self._constants[name], type=SOURCE_TYPES[name]), rows)
            self._repeated[name] = known
        return known[:rows]


def _array(name: str, rows: int, taken: Taken) -> pa.Array:
    nulls, buffers = taken[name]
    if name != "headers":
        return pa.Array.from_buffers(SOURCE_TYPES[name], rows, _arrow(buffers), nulls)
    count = len(memoryview(taken[HEADER_KEYS][1][1])) // 4 - 1  # type: ignore[arg-type]
    keys = _header_keys(pa.Array.from_buffers(pa.string(), count, _arrow(taken[HEADER_KEYS][1]), 0))
    value_nulls, value_buffers = taken[HEADER_VALUES]
    values = pa.Array.from_buffers(pa.binary(), count, _arrow(value_buffers), value_nulls)
    entries = pa.StructArray.from_arrays([keys, values], fields=list(_HEADER))
    return pa.Array.from_buffers(SOURCE_TYPES[name], rows, _arrow(buffers), nulls, children=[entries])


def _header_keys(keys: pa.Array) -> pa.Array:
    """The keys, with invalid UTF-8 replaced as Kafka's clients do."""
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in keys.cast(pa.binary()).to_pylist()], pa.string())
    return keys


def _arrow(buffers: Sequence[ColumnBuffer | None]) -> list[pa.Buffer | None]:
    return [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
