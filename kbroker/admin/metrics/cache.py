"""Reads that the newest part of the log in memory does not serve, and the caches in front of them."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker._fast.wal.cache import WalCache
from kbroker.admin.metrics.declaration import Family, MetricTable
from kbroker.log.cold_read import ColdReader
from kbroker.storage.read.folder_cache import FolderCache
from kbroker.storage.read.object_reader import ObjectReader

TABLE = MetricTable("Reads and caches")
COLD_READS = TABLE.counter(
    "kbroker_cold_reads_total",
    "Fetches served from objects: below the write-ahead log, or compacted since. memory: from the range cache; store: "
    "read by a thread; deferred: put off, the client asks again; failed",
    "consumers that lag are slow",
    "result",
)
COLD_WAITING = TABLE.gauge(
    "kbroker_cold_reads_waiting", "Fetches whose read of objects is queued or runs", "consumers that lag are slow"
)
RANGES = TABLE.counter(
    "kbroker_range_cache_lookups_total",
    "Look-ups of ranges of objects in memory. hit, miss, or joined: another reader's GET was waited for",
    "the store is read a lot",
    "result",
)
AHEAD = TABLE.counter(
    "kbroker_read_ahead_bytes_total", "Bytes of objects read ahead of consumers", "the store is read a lot"
)
AHEAD_USED = TABLE.counter(
    "kbroker_read_ahead_used_bytes_total",
    "Those that a consumer came to",
    "it is far below kbroker_read_ahead_bytes_total",
)
WASTED = TABLE.counter(
    "kbroker_range_cache_wasted_bytes_total",
    "Bytes evicted from the range cache before they were read",
    "it grows: the cache (--memory-bytes) is too small for so many consumers that lag",
)
LENT = TABLE.gauge(
    "kbroker_range_cache_lent_bytes",
    "Bytes evicted from the range cache that unsent answers hold; over half of its bound fetches are deferred",
    "kbroker_cold_reads_total has many deferred",
)
COALESCED = TABLE.counter(
    "kbroker_coalesced_reads_total",
    "Reads of small parts of packs that another read's GET served",
    "many partitions are read from the start",
)
FOLDER_BYTES = TABLE.gauge("kbroker_folder_cache_bytes", "Disk space of --object-cache", "its volume is full")
FOLDER = TABLE.counter(
    "kbroker_folder_cache_lookups_total", "Look-ups in --object-cache: hit or miss", "the store is read a lot", "result"
)
FOLDER_FAULTS = TABLE.counter(
    "kbroker_folder_cache_faults_total",
    "Ranges of --object-cache that were rejected (wrong bytes), skipped (the queue was full), or failed to be written",
    "the folder does not fill, or its disk is bad",
    "fault",
)
WAL_BLOCKS = TABLE.counter(
    "kbroker_wal_cache_lookups_total",
    "Look-ups of log blocks that have left the arena, to send them. hit; miss: a load was waited for; full: room was",
    "consumers that lag a little are slow",
    "result",
)
WAL_READ = TABLE.counter("kbroker_wal_read_bytes_total", "Bytes read back from the log's files", "the disk is busy")


class CacheMetrics:
    """Of the cold side of fetches."""

    def __init__(self, cold_reader: ColdReader, object_reader: ObjectReader, wal_cache: WalCache) -> None:
        self._cold_reader = cold_reader
        self._reader = object_reader
        self._wal_cache = wal_cache

    def collect(self) -> Iterator[Family]:
        cold, ranges, blocks = self._cold_reader, self._reader.ranges, self._wal_cache
        reads = {
            "memory": cold.from_memory,
            "store": cold.from_store,
            "deferred": cold.deferred,
            "failed": cold.failures,
        }
        yield COLD_READS.by(((result,), count) for result, count in reads.items())
        yield COLD_WAITING.value(cold.waiting)
        found = {"hit": ranges.hits, "miss": ranges.misses, "joined": ranges.joined}
        yield RANGES.by(((result,), count) for result, count in found.items())
        yield AHEAD.value(ranges.pieces.ahead_bytes)
        yield AHEAD_USED.value(ranges.pieces.ahead_used_bytes)
        yield WASTED.value(ranges.wasted_bytes)
        yield LENT.value(ranges.lent_bytes)
        yield COALESCED.value(self._reader.coalesced.merged)
        if self._reader.folder is not None:
            yield from self._folder(self._reader.folder)
        looked = {"hit": blocks.hits, "miss": blocks.misses, "full": blocks.full}
        yield WAL_BLOCKS.by(((result,), count) for result, count in looked.items())
        yield WAL_READ.value(blocks.loaded_bytes)

    def _folder(self, folder: FolderCache) -> Iterator[Family]:
        yield FOLDER_BYTES.value(folder.used_bytes)
        yield FOLDER.by([(("hit",), folder.hits), (("miss",), folder.misses)])
        faults = {"rejected": folder.rejected, "skipped": folder.skipped, "failed": folder.write_failures}
        yield FOLDER_FAULTS.by(((fault,), count) for fault, count in faults.items())
