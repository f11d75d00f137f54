"""Memory by pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kbroker._fast.base.heap import Heap
from kbroker._fast.partition.producer_pool import ProducerPool
from kbroker._fast.records.decompression_memory import decompression
from kbroker._fast.wal.wal import Wal
from kbroker.admin.metrics.declaration import Family, MetricTable
from kbroker.background.compaction_cleaner import Cleaner
from kbroker.background.converter import Converter
from kbroker.coordinator.group.coordinator import GroupCoordinator
from kbroker.coordinator.transaction.coordinator import TransactionCoordinator
from kbroker.share.share_partitions import SharePartitions
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.read.object_reader import ObjectReader
from kbroker.wire.server import WireServer

TABLE = MetricTable("Memory")
USED = TABLE.gauge(
    "kbroker_memory_bytes",
    "Memory in use by pool; compaction and merging: of the jobs that run",
    "a pool is near its bound",
    "pool",
)
BOUND = TABLE.gauge(
    "kbroker_memory_bound_bytes", "Bound of a pool; see docs/memory.md for what has none", "you size memory", "pool"
)
HEAP = TABLE.gauge("kbroker_heap_bytes", "Memory of malloc, which holds most pools", "the process grows", "state")
DECOMPRESSION = TABLE.counter(
    "kbroker_decompressions_delayed_total",
    "Batches for which the pool had no room: waited, or refused as larger than the pool",
    "clients get errors for compressed batches",
    "result",
)
PRODUCER_IDS = TABLE.gauge("kbroker_producer_ids", "Producer ids of partitions in memory", "they are evicted", "where")
EVICTIONS = TABLE.counter(
    "kbroker_producer_id_evictions_total", "Producer ids evicted for lack of memory", "producers lose their sequence"
)
REFUSALS = TABLE.counter(
    "kbroker_producer_id_refusals_total", "Batches refused for lack of memory for a new producer id", "it grows"
)


class MemoryMetrics:
    """Of the pools that app.memory divides, and of malloc."""

    def __init__(
        self,
        wal: Wal,
        wire: WireServer,
        object_reader: ObjectReader,
        image: ManifestImage,
        cleaner: Cleaner,
        converter: Converter,
        groups: GroupCoordinator,
        transactions: TransactionCoordinator,
        producers: ProducerPool,
        share_partitions: SharePartitions | None,
        heap: Heap,
        bounds: Mapping[str, int],
    ) -> None:
        self._wal = wal
        self._wire = wire
        self._reader = object_reader
        self._image = image
        self._cleaner = cleaner
        self._converter = converter
        self._groups = groups
        self._transactions = transactions
        self._producers = producers
        self._share_partitions = share_partitions
        self._heap = heap
        self._bounds = bounds

    def collect(self) -> Iterator[Family]:
        yield USED.by(((pool,), used) for pool, used in self._used().items())
        yield BOUND.by(((pool,), bound) for pool, bound in self._bounds.items())
        yield HEAP.by(((state,), size) for state, size in zip(("used", "free"), self._heap.sizes(), strict=True))
        delayed = {"waited": decompression.waits, "refused": decompression.refusals}
        yield DECOMPRESSION.by(((result,), count) for result, count in delayed.items())
        rows = {"log": self._producers.rows, "manifest": self._image.producer_pool.rows}
        yield PRODUCER_IDS.by(((where,), count) for where, count in rows.items())
        yield EVICTIONS.value(self._producers.evictions)
        yield REFUSALS.value(self._producers.refusals)

    def _used(self) -> dict[str, int]:
        reader = self._reader
        used = {
            "arena": self._wal.arena.arena_bytes,
            "wal_files": self._wal.cache.used_bytes,
            "object_ranges": reader.ranges.used_bytes + reader.ranges.lent_bytes + reader.footers.used_bytes,
            "compaction": self._cleaner.metrics.running * self._cleaner.settings.dedupe_buffer_bytes,
            "merging": self._converter.metrics.buffered_bytes,
            "manifest": self._image.memory_bytes,
            "request_frames": self._wire.frame_memory_used,
            "answers": self._wire.answer_memory_used,
            "groups": self._groups.counts.bytes,
            "decompression": decompression.used,
            "transactions": self._transactions.memory_bytes,
            "producer_ids": self._producers.used_bytes,
            "producer_ids_manifest": self._image.producer_pool.used_bytes,
        }
        if self._share_partitions is not None:
            used["share_answers"] = self._share_partitions.answers.used
        return used
