"""Reads that the newest part of the log in memory does not serve, and the caches in front of them."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker._fast.wal.cache import WalCache
from kbroker.admin.metrics.declaration import Family, MetricTable
from kbroker.log.cold_read import ColdReader
from kbroker.storage.read.folder_cache import FolderCache
from kbroker.storage.read.object_reader import ObjectReader

TABLE = MetricTable("Reads and caches")
COLD_READS = TABLE.counter("kbroker_cold_reads_total", "Reads of objects", "consumers that lag are slow", "result")
RANGES = TABLE.counter(
    "kbroker_range_cache_lookups_total", "Look-ups of ranges of objects in memory", "the store is read a lot", "result"
)
AHEAD_WASTED = TABLE.counter(
    "kbroker_read_ahead_wasted_bytes_total", "Read ahead and evicted unread", "the range cache is too small"
)
COALESCED = TABLE.counter(
    "kbroker_coalesced_reads_total", "Reads of small images that another read's GET served", "the store is read a lot"
)
FOLDER_BYTES = TABLE.gauge("kbroker_folder_cache_bytes", "Disk space of --object-cache", "its volume is full")
FOLDER = TABLE.counter(
    "kbroker_folder_cache_lookups_total", "Look-ups in --object-cache", "the store is read a lot", "result"
)
WAL_BLOCKS = TABLE.counter(
    "kbroker_wal_cache_lookups_total",
    "Look-ups of log blocks that have left the arena, to send them",
    "the log's disk is read a lot",
    "result",
)
WAL_READ = TABLE.counter("kbroker_wal_read_bytes_total", "Read back from the log's files", "the disk is busy")


class CacheMetrics:
    """Of the cold side of fetches."""

    def __init__(self, cold_reader: ColdReader, object_reader: ObjectReader, wal_cache: WalCache) -> None:
        self._cold_reader = cold_reader
        self._reader = object_reader
        self._wal_cache = wal_cache

    def collect(self) -> Iterator[Family]:
        cold, ranges, blocks = self._cold_reader, self._reader.ranges, self._wal_cache
        reads = {"requests": cold.requests, "deferred": cold.deferred, "failures": cold.failures}
        yield COLD_READS.by(((result,), count) for result, count in reads.items())
        found = {"hits": ranges.hits, "misses": ranges.misses, "joined": ranges.joined, "ahead": ranges.ahead}
        yield RANGES.by(((result,), count) for result, count in found.items())
        yield AHEAD_WASTED.value(ranges.wasted_bytes)
        yield COALESCED.value(self._reader.coalesced.merged)
        if self._reader.folder is not None:
            yield from self._folder(self._reader.folder)
        yield WAL_BLOCKS.by([(("hits",), blocks.hits), (("misses",), blocks.misses)])
        yield WAL_READ.value(blocks.loaded_bytes)

    def _folder(self, folder: FolderCache) -> Iterator[Family]:
        yield FOLDER_BYTES.value(folder.used_bytes)
        found = {
            "hits": folder.hits,
            "misses": folder.misses,
            "rejected": folder.rejected,
            "skipped": folder.skipped,
            "write_failures": folder.write_failures,
        }
        yield FOLDER.by(((result,), count) for result, count in found.items())
