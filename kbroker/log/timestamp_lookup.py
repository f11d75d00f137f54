"""Offsets by timestamp over both homes of a partition's data: the WAL (read here) and objects (read on the cold pool).

Both may hold the same batches for a while, so the better of the two answers wins: the lowest offset for "first at or
after", the highest timestamp, then the lowest offset, for "max timestamp".
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from kbroker._fast.partition.partition import Partition
from kbroker._fast.records.record_batch import CorruptRecordsError
from kbroker._fast.records.records import first_record_at_or_after, iter_records, max_timestamp_record
from kbroker.errors import CorruptionError
from kbroker.futures import map_future
from kbroker.log.cold_read import ColdReader, OffsetAndTimestamp

if TYPE_CHECKING:
    import numpy

Found = OffsetAndTimestamp | None
T = TypeVar("T")

TRIM_RACES_MAX = 8  # a batch that the index names may leave the WAL before it is read: then look again


def offset_for_timestamp(cold_reader: ColdReader, partition: Partition, timestamp: int) -> Found | Future[Found]:
    """The first record at or above the log start offset with this timestamp or a later one.

    Raises CorruptionError, OSError; the future also StoreError.
    """
    in_wal = _untrimmed(lambda: _first_in_wal(partition, timestamp))
    if not _has_cold_data(partition):
        return in_wal
    cold = cold_reader.offset_for_timestamp(partition.log, timestamp)
    return map_future(cold, _better(in_wal, lambda found: (-found[0],)))


def max_timestamp(cold_reader: ColdReader, partition: Partition) -> Found | Future[Found]:
    """The first record that holds the highest timestamp. Raises as `offset_for_timestamp` does."""
    in_wal = _untrimmed(lambda: _max_in_wal(partition))
    if not _has_cold_data(partition):
        return in_wal
    cold = cold_reader.max_timestamp(partition.log)
    return map_future(cold, _better(in_wal, lambda found: (found[1], -found[0])))


def _better(one: Found, rank: Callable[[OffsetAndTimestamp], tuple[int, ...]]) -> Callable[[Found], Found]:
    return lambda other: max((found for found in (one, other) if found is not None), key=rank, default=None)


def _has_cold_data(partition: Partition) -> bool:
    """Whether there are offsets that only objects hold."""
    return partition.log_start_offset < partition.wal_start_offset()


def _first_in_wal(partition: Partition, timestamp: int) -> Found:
    upper, log_start = partition.high_watermark(), partition.log_start_offset
    batch = partition.offset_for_timestamp(timestamp, upper)
    if batch is None:
        return None
    _, position, _, size, _ = batch
    found = _records(first_record_at_or_after, partition.wal.read(position, size), timestamp, log_start)
    if found is not None:
        return found
    # The log start lies in this batch, and the record that made it match lies below: the next candidates.
    for entry in _entries_after(partition, position + size, upper):
        if entry["max_timestamp"] >= timestamp:
            data = partition.wal.read(int(entry["lsn"]), int(entry["size"]))
            found = _records(first_record_at_or_after, data, timestamp, log_start)
            if found is not None:
                return found
    return None


def _max_in_wal(partition: Partition) -> Found:
    upper, log_start = partition.high_watermark(), partition.log_start_offset
    batch = partition.max_timestamp_batch(upper)
    if batch is None:
        return None
    _, position, _, size, _ = batch
    data = partition.wal.read(position, size)
    found = _records(max_timestamp_record, data)
    if found is None or found[0] >= log_start:
        return found
    # The log start lies in this batch, above its highest record: the best of the rest of it and of what follows.
    rest = [(record.offset, record.timestamp) for record in _records(iter_records, data) if record.offset >= log_start]
    entries = _entries_after(partition, position + size, upper)
    if len(entries):
        best = entries[int(entries["max_timestamp"].argmax())]
        found = _records(max_timestamp_record, partition.wal.read(int(best["lsn"]), int(best["size"])))
        rest += [found] if found is not None else []
    return max(rest, key=lambda found: (found[1], -found[0]), default=None)


def _entries_after(partition: Partition, position: int, upper: int) -> numpy.ndarray:
    """Index entries (INDEX_DTYPE) of the durable batches at or above a WAL position."""
    entries = partition.entries(position, partition.wal.head_lsn)
    return entries[entries["base_offset"] < upper]


def _records(function: Callable[..., T], data: bytes, *arguments: int) -> T:
    try:
        return function(data, *arguments)
    except CorruptRecordsError as error:
        raise CorruptionError(f"a batch in the WAL does not parse: {error}") from error


def _untrimmed(look: Callable[[], Found]) -> Found:
    for _ in range(TRIM_RACES_MAX):
        try:
            return look()
        except ValueError:  # Wal.read: the WAL does not hold these bytes any more; objects do
            continue
    raise CorruptionError("the WAL lost batches that its index names")
