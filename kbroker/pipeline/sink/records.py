"""Rows of Arrow batches as calls of confluent-kafka's produce()."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any

from kbroker.limits import MIB
from kbroker.pipeline.sink.columns import RecordColumns
from kbroker.pipeline.sink.errors import SinkError

if TYPE_CHECKING:
    import pyarrow as pa

SLICE_BYTES = 4 * MIB  # of Arrow data converted to Python objects at a time
BY_KEY = -1  # a partition that the client chooses


def row_arguments(
    batch: pa.RecordBatch, columns: RecordColumns, topic: str | None
) -> Iterator[Iterator[tuple[Any, ...]]]:
    """The arguments of produce() for each row, in groups of about SLICE_BYTES. Raises SinkError."""
    for part in _slices(batch):
        topics = repeat(topic) if topic is not None else _topics(part, columns.topic)
        arguments: list[Iterable[Any]] = [
            topics,
            _contents(part, columns.value),
            repeat(None) if columns.key is None else _contents(part, columns.key),
            repeat(BY_KEY) if columns.partition is None else _partitions(part, columns.partition),
        ]
        if columns.headers is not None:
            headers = map(_headers, part.column(columns.headers).to_pylist())
            arguments += [repeat(None), repeat(None), repeat(0), headers]  # no callbacks, the time is now
        yield zip(*arguments, strict=False)  # repeat() has no end


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    row_bytes = max(1, batch.nbytes // batch.num_rows)
    rows = max(1, SLICE_BYTES // row_bytes)
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _contents(batch: pa.RecordBatch, index: int) -> list[bytes | None]:
    """Bytes of a string or binary column; the cast of strings only changes the type's name."""
    import pyarrow as pa

    column = batch.column(index)
    if not pa.types.is_binary(column.type) and not pa.types.is_large_binary(column.type):
        column = column.cast(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary())
    found: list[bytes | None] = column.to_pylist()
    return found


def _topics(batch: pa.RecordBatch, index: int | None) -> list[str]:
    assert index is not None
    column = batch.column(index)
    if column.null_count:
        raise SinkError("null topic present in the data. Use the topic option for setting a topic.")
    found: list[str] = column.dictionary_encode().to_pylist()  # one object for each topic, not for each row
    return found


def _partitions(batch: pa.RecordBatch, index: int) -> list[int]:
    given = batch.column(index).to_pylist()
    wrong = next((number for number in given if number is not None and number < 0), None)
    if wrong is not None:
        raise SinkError(f"Invalid partition: {wrong}. Partition number should always be non-negative or null.")
    return [BY_KEY if number is None else number for number in given]


def _headers(found: Any) -> list[tuple[str, bytes | None]]:
    headers = [(header["key"], header["value"]) for header in found or ()]
    if any(key is None for key, _ in headers):
        raise SinkError("Null header keys are not permitted")
    return headers
