"""Keeps a shard's log short: when most of it is dead, the live state is written again at its end.

A snapshot is written in slices between other operations. That is correct because each slice has the state at the time
of its append, and a key that is new since the snapshot began has its record after the snapshot's start anyway. Once the
last slice is durable, the log start moves to where the log ended when the snapshot began. A load before that reads the
old records again.

A key that an open transaction has written waits for the end of that transaction, and the snapshot with it: a record
with the key's state between the transaction's record and its marker would change the order of the two. A transaction
ends by its time-out at the latest; Kafka's log cleaner waits in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kbroker.coordinator.runtime.config import ShardConfig
from kbroker.coordinator.runtime.load import LogSize
from kbroker.coordinator.runtime.shard import UNSETTLED, Shard
from kbroker.log.internal_log import InternalLog

GROWTH_FACTOR = 4
_SLICE_RECORDS = 1_000


def is_due(size: LogSize, config: ShardConfig) -> bool:
    """True if the log holds much more than its live records."""
    return size.total_bytes > max(GROWTH_FACTOR * size.live_bytes, config.snapshot_min_bytes) or (
        size.total_records > max(GROWTH_FACTOR * size.live_records, config.snapshot_min_records)
    )


class Snapshot:
    """One snapshot in progress. Loop thread only."""

    def __init__(self, shard: Shard, size: LogSize, log: InternalLog) -> None:
        self.log = log
        self._shard = shard
        self._keys: Iterator[Any] = iter(list(shard.live_keys()))
        self._unsettled: list[Any] = []
        self.waits = False  # for the next marker: only keys that an open transaction has written are left
        self.dead_bytes = size.total_bytes  # before the snapshot
        self.dead_records = size.total_records
        self.start_offset = log.next_offset  # the current end of the log: what is appended from now on stays
        self.live_bytes = 0
        self.live_records = 0

    def next_slice(self) -> list[Any]:
        """The live records to write next. Empty at the end, and while it `waits`."""
        records: list[Any] = []
        for key in self._keys:
            self._take(key, records)
            if len(records) == _SLICE_RECORDS:
                return records
        unsettled, self._unsettled = self._unsettled, []
        for key in unsettled:
            self._take(key, records)
        self.waits = bool(self._unsettled) and not records
        return records

    def _take(self, key: Any, records: list[Any]) -> None:
        record = self._shard.live_record(key)
        if record is UNSETTLED:
            self._unsettled.append(key)
        elif record is not None:
            records.append(record)

    def note_append(self, batch_bytes: int, records: int) -> None:
        """A batch of it was appended."""
        self.live_bytes += batch_bytes
        self.live_records += records

    def shorten(self, size: LogSize) -> None:
        """The log start has moved to this snapshot."""
        size.total_bytes -= self.dead_bytes
        size.total_records -= self.dead_records
        size.live_bytes = self.live_bytes
        size.live_records = self.live_records
