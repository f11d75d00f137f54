"""Keeps a shard's log short: when most of it is dead, the live state is written again behind it.

The snapshot is taken in slices between other operations. That is right because each slice says the state at the moment
of its append: a key that changed since the snapshot began has a newer record behind the snapshot's start anyway. Once
the last slice is durable the log start moves to the first one; until then the old records are simply read again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kbroker.coordinator.shard import Shard
from kbroker.coordinator.shard_config import ShardConfig
from kbroker.coordinator.shard_load import LogSize

GROWTH_FACTOR = 4
_SLICE_RECORDS = 1_000


def is_due(size: LogSize, config: ShardConfig) -> bool:
    """True when the log holds much more than what is live."""
    return size.total_bytes > max(GROWTH_FACTOR * size.live_bytes, config.snapshot_min_bytes) or (
        size.total_records > max(GROWTH_FACTOR * size.live_records, config.snapshot_min_records)
    )


class Snapshot:
    """One snapshot in progress. Loop thread only."""

    def __init__(self, shard: Shard, size: LogSize) -> None:
        self._shard = shard
        self._keys: Iterator[Any] = iter(list(shard.live_keys()))
        self.dead_bytes = size.total_bytes  # what lies before the snapshot
        self.dead_records = size.total_records
        self.start_offset: int | None = None  # of its first record
        self.live_bytes = 0
        self.live_records = 0

    def next_slice(self) -> list[Any]:
        """Live records to write next; empty at the end."""
        records: list[Any] = []
        for key in self._keys:
            record = self._shard.live_record(key)
            if record is not None:
                records.append(record)
            if len(records) == _SLICE_RECORDS:
                break
        return records

    def note_append(self, base_offset: int, batch_bytes: int, records: int) -> None:
        """A batch of it was appended."""
        if self.start_offset is None:
            self.start_offset = base_offset
        self.live_bytes += batch_bytes
        self.live_records += records

    def shorten(self, size: LogSize) -> None:
        """The log start has moved to this snapshot."""
        size.total_bytes -= self.dead_bytes
        size.total_records -= self.dead_records
        size.live_bytes = self.live_bytes
        size.live_records = self.live_records
