"""The write-ahead log."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker._fast.wal.wal import Wal
from kbroker.admin.metrics.declaration import Family, MetricTable, power_of_two_buckets

TABLE = MetricTable("Write-ahead log")
BUDGET = TABLE.gauge(
    "kbroker_wal_budget_bytes",
    "What the log may take: --wal-bytes, or what its volume allows of it now",
    "it is below --wal-bytes: the volume is small or full",
)
DISK = TABLE.gauge("kbroker_wal_disk_bytes", "Disk space of the log's files", "the volume fills up")
FREE = TABLE.gauge(
    "kbroker_wal_volume_free_bytes", "Free on the log's volume for this process; its reserve counts", "it nears 0"
)
ROOM = TABLE.gauge("kbroker_wal_room_bytes", "What can be appended before producers wait", "it nears 0")
UNFLUSHED = TABLE.gauge(
    "kbroker_wal_unflushed_bytes", "Bytes that are not in objects yet", "it keeps growing: flushes fail or are slow"
)
WRITTEN = TABLE.counter("kbroker_wal_written_bytes_total", "Bytes written to the log", "the disk is busy")
ENTRIES = TABLE.counter("kbroker_wal_entries_total", "Batches appended to the log", "you ask how large batches are")
SYNC_SECONDS = TABLE.histogram(
    "kbroker_wal_sync_seconds",
    "Time to write and sync a commit of the log, which is shared by all batches that wait",
    "producers with acks=all are slow",
)
COMMIT_BYTES = TABLE.histogram(
    "kbroker_wal_commit_bytes", "Bytes of a commit", "the disk does many small writes: producers could batch more"
)
COMMIT_BATCHES = TABLE.histogram(
    "kbroker_wal_commit_batches", "Batches of a commit: how many shared its sync", "syncs are many"
)
APPEND_WAITS = TABLE.counter(
    "kbroker_wal_append_waits_total",
    "Appends that found no room in the log or in its arena; each try counts",
    "producers see time-outs",
)
WAIT_SECONDS = TABLE.counter(
    "kbroker_wal_append_wait_seconds_total",
    "Time that Produce requests waited for room, or for memory for a new producer id; of all requests together",
    "producers are slow: flushes do not keep up, or the volume is full",
)


class LogMetrics:
    """Of the write-ahead log."""

    def __init__(self, wal: Wal) -> None:
        self._wal = wal

    def collect(self) -> Iterator[Family]:
        wal = self._wal
        limit = wal.keeper.limit
        yield BUDGET.value(limit.budget_bytes)
        yield DISK.value(wal.keeper.disk_bytes)
        try:
            yield FREE.value(limit.volume.free_bytes())
        except OSError:
            pass  # the log's own warnings say so
        yield ROOM.value(wal.keeper.room_bytes)
        yield UNFLUSHED.value(wal.unflushed_bytes)
        yield WRITTEN.value(wal.bytes_written)
        yield ENTRIES.value(wal.entries)
        sync_us, commit_bytes, commit_batches = wal.commit_histograms()
        yield SYNC_SECONDS.value(power_of_two_buckets(sync_us[0], sync_us[1] / 1e6))
        yield COMMIT_BYTES.value(power_of_two_buckets(*commit_bytes, unit=1))
        yield COMMIT_BATCHES.value(power_of_two_buckets(*commit_batches, unit=1))
        yield APPEND_WAITS.value(wal.append_waits)
        yield WAIT_SECONDS.value(wal.room_waited_ms / 1000)
