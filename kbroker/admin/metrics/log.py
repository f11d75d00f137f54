"""The write-ahead log."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker._fast.wal.wal import Wal
from kbroker.admin.metrics.declaration import Family, MetricTable

TABLE = MetricTable("Write-ahead log")
BUDGET = TABLE.gauge("kbroker_wal_budget_bytes", "--wal-bytes, or less on a small volume", "producers wait for room")
DISK = TABLE.gauge("kbroker_wal_disk_bytes", "Disk space of the log's files", "the volume fills up")
ROOM = TABLE.gauge("kbroker_wal_room_bytes", "What can be appended before producers wait", "it nears 0")
UNFLUSHED = TABLE.gauge("kbroker_wal_unflushed_bytes", "Bytes that are not in objects yet", "it keeps growing")
WRITTEN = TABLE.counter("kbroker_wal_written_bytes_total", "Bytes written to the log", "the disk is busy")
ENTRIES = TABLE.counter("kbroker_wal_entries_total", "Batches appended to the log", "you size the disk")
SYNCS = TABLE.counter("kbroker_wal_syncs_total", "Syncs; one covers all batches that wait", "the disk is busy")
APPEND_WAITS = TABLE.counter(
    "kbroker_wal_append_waits_total", "Appends that had to wait for room", "producers see time-outs"
)


class LogMetrics:
    """Of the write-ahead log."""

    def __init__(self, wal: Wal) -> None:
        self._wal = wal

    def collect(self) -> Iterator[Family]:
        wal = self._wal
        yield BUDGET.value(wal.wal_bytes)
        yield DISK.value(wal.keeper.disk_bytes)
        yield ROOM.value(wal.keeper.room_bytes)
        yield UNFLUSHED.value(wal.unflushed_bytes)
        yield WRITTEN.value(wal.bytes_written)
        yield ENTRIES.value(wal.entries)
        yield SYNCS.value(wal.syncs)
        yield APPEND_WAITS.value(wal.append_waits)
