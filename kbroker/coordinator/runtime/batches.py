"""Cutting a decision's records into record batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kbroker._fast.records.records import build_batch
from kbroker.coordinator.runtime.result import Marker, ProducerStamp


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch to append: encoded records, or a marker."""

    data: bytes = b""
    records: Sequence[Any] = ()
    stamp: ProducerStamp | None = None
    marker: Marker | None = None


def to_batches(
    records: Sequence[Any],
    stamp: ProducerStamp | None,
    encode: Callable[[Any], tuple[bytes, bytes | None]],
    now_ms: int,
    max_bytes: int,
) -> Iterator[Batch]:
    """The records as one batch, or several if they are large. Raises ValueError for what the layouts cannot hold."""
    encoded: list[tuple[bytes, bytes | None, int, None]] = []
    size = first = 0
    for position, record in enumerate(records):
        key, value = encode(record)
        length = len(key) + len(value or b"")
        if encoded and size + length > max_bytes:
            yield Batch(_build(encoded, stamp), records[first:position], stamp)
            encoded, size, first = [], 0, position
        encoded.append((key, value, now_ms, None))
        size += length
    yield Batch(_build(encoded, stamp), records[first:], stamp)


def _build(records: list[tuple[bytes, bytes | None, int, None]], stamp: ProducerStamp | None) -> bytes:
    if stamp is None:
        return build_batch(records)
    # Like Kafka's coordinator: a transactional batch without a sequence.
    return build_batch(records, producer_id=stamp.producer_id, producer_epoch=stamp.producer_epoch, transactional=True)
