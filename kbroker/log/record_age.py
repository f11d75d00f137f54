"""How old records are and how far readers are behind them, from indexes in memory: nothing is read for it."""

from __future__ import annotations

from typing import NamedTuple

from kbroker._fast.partition.partition import Partition


class Lag(NamedTuple):
    """Of a reader. `seconds`: age of the first record that it has not read; None if its timestamp is not known."""

    records: int
    seconds: float | None


def lag(partition: Partition, offset: int, now_ms: int) -> Lag:
    """The lag of a reader that reads on at `offset`."""
    records = partition.high_watermark() - offset
    if records <= 0:
        return Lag(0, 0.0)
    timestamp_ms = timestamp_near(partition, max(offset, partition.log_start_offset))
    return Lag(records, None if timestamp_ms < 0 else max(0, now_ms - timestamp_ms) / 1000)


def timestamp_near(partition: Partition, offset: int) -> int:
    """About the timestamp of the record at `offset`, ms since the epoch; -1 if it is not known.

    That of its batch if the batch is in a segment of the write-ahead log that is not sealed. Otherwise interpolated by
    offset within its sealed segment or its object, between the largest timestamps of the one before and of its own.
    """
    found = partition.timestamp_near(offset)
    return partition.log.timestamp_near(offset) if found is None else found
