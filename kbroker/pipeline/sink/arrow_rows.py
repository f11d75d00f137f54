"""Rows of Arrow batches as the builder of record batches takes them: buffers, without a copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kbroker._fast.records.arrow_batches import ArrowRows
from kbroker.pipeline.sink.columns import RecordColumns
from kbroker.pipeline.sink.errors import SinkError

if TYPE_CHECKING:
    import pyarrow as pa

    from kbroker._fast.records.arrow_batches import BytesColumn, PlainColumn


def by_topic(batch: pa.RecordBatch, index: int | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic, in their order. `index` is the column of topics. Raises SinkError."""
    import pyarrow.compute as pc

    assert index is not None
    column = batch.column(index)
    if column.null_count:
        raise SinkError("null topic present in the data. Use the topic option for setting a topic.")
    found = column.dictionary_encode()
    topics = found.dictionary.to_pylist()
    if len(topics) == 1:
        yield topics[0], batch
        return
    ordered = batch.take(pc.array_sort_indices(found.indices))  # which keeps the order of equal ones
    counts = {each["values"]: each["counts"] for each in found.indices.value_counts().to_pylist()}
    start = 0
    for number, topic in enumerate(topics):
        yield topic, ordered.slice(start, counts[number])
        start += counts[number]


def arrow_rows(batch: pa.RecordBatch, columns: RecordColumns) -> ArrowRows:
    """The columns that make a record."""
    return ArrowRows(
        batch.num_rows,
        _bytes(batch.column(columns.value)),
        None if columns.key is None else _bytes(batch.column(columns.key)),
        None if columns.partition is None else _plain(batch.column(columns.partition)),
        None if columns.headers is None else _headers(batch.column(columns.headers)),
    )


def _bytes(array: pa.Array) -> BytesColumn:
    """A column of binary or string, whose bytes are the same."""
    import pyarrow as pa

    is_large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    if not is_large and not pa.types.is_binary(array.type) and not pa.types.is_string(array.type):
        array = array.cast(pa.binary())
    validity, offsets, data = array.buffers()
    return array.offset, is_large, validity if array.null_count else None, offsets or bytes(8), data or b""


def _plain(array: pa.Array) -> PlainColumn:
    validity, values = array.buffers()[:2]
    return array.offset, validity if array.null_count else None, values or bytes(8)


def _headers(array: pa.ListArray) -> tuple[PlainColumn, BytesColumn, BytesColumn]:
    keys, values = array.values.flatten()  # with the nulls of the structs
    return _plain(array), _bytes(keys), _bytes(values)
