"""Builds what works on the objects of one broker: reader, flusher, and the background tasks.

Only kbroker.app.broker may import this module, after the listener has opened; kbroker.app.early_imports loads it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kbroker._fast.wal.wal import Wal
from kbroker.app.background_settings import cleaner_settings, converter_settings
from kbroker.app.config import BrokerConfig
from kbroker.app.log_sizes import LogSizes
from kbroker.app.open_cluster import Cluster, OpenedStore
from kbroker.background.compaction_cleaner import Cleaner
from kbroker.background.converter import Converter
from kbroker.background.deleted_topics import drop_deleted_topics
from kbroker.background.proposals import ProposalInbox
from kbroker.background.retention import Retention
from kbroker.clock import Clock
from kbroker.errors import StartError
from kbroker.log.log_starts import LogStarts
from kbroker.log.log_table import LogTable
from kbroker.log.segment_names import SegmentNames
from kbroker.storage.flush.flusher import Flusher
from kbroker.storage.flush.plan import PlanLimits
from kbroker.storage.flush.schedule import FlushSettings
from kbroker.storage.read.folder_cache import FolderCache
from kbroker.storage.read.object_reader import ObjectReader, cache_beside
from kbroker.storage.rewrite.object_swap import PartitionLocks


@dataclass(slots=True)
class BackgroundTasks:
    """The parts that work on objects."""

    object_reader: ObjectReader
    flusher: Flusher
    retention: Retention
    cleaner: Cleaner
    converter: Converter
    proposals: ProposalInbox
    log_starts: LogStarts

    def start(self) -> None:
        """Starts their threads."""
        self.flusher.start()
        self.retention.start()
        self.cleaner.start()
        self.converter.start()
        self.proposals.start()
        self.log_starts.start()


def build_background_tasks(
    config: BrokerConfig,
    clock: Clock,
    cluster: Cluster,
    store: OpenedStore,
    logs: LogTable,
    wal: Wal,
    sizes: LogSizes,
    data_dir_id: str,
    on_flusher_stopped: Callable[[Exception], None],
) -> BackgroundTasks:
    """Builds them and subscribes them to changes of topics. Raises StartError."""
    manifest, keys, claim = cluster.manifest, cluster.keys, cluster.claim
    manifest.checkpoint_in_background()
    cache_bytes = cache_beside(manifest.image, config.pools.object_ranges)
    reader = ObjectReader(store.retrying, manifest.image, cache_bytes, _open_object_cache(config, clock))
    flusher = _flusher(config, clock, cluster, store, logs, wal, sizes, data_dir_id, on_flusher_stopped)
    # The plain store: a retry would wait under the lock of all metadata changes. The client retries instead.
    segments = SegmentNames(logs, manifest, store.plain, keys, clock, claim, flusher.windows.writes_segments)
    cluster.topics.segment_obstacle = segments.obstacle
    retention = _retention(config, clock, cluster, store, logs, segments)
    grace_ms = config.kafka["log.segment.delete.delay.ms"]
    drop_deleted_topics(logs, retention.drop_topic, segments, cluster.topics.image.deleted, grace_ms)
    cluster.topics.add_listener(retention)
    locks = PartitionLocks()
    cleaner = Cleaner(
        logs,
        manifest,
        store.retrying,
        keys,
        clock,
        settings=cleaner_settings(config, cluster.topics.broker_configs),
        threads=config.kafka["log.cleaner.threads"],
        locks=locks,
        flusher=flusher,
    )
    converter = Converter(
        logs,
        manifest,
        store.retrying,
        keys,
        clock,
        claim,
        broker_epoch=claim.epoch,
        settings=converter_settings(config, cluster.topics.broker_configs),
        locks=locks,
        busy=lambda: flusher.pressure,
    )
    proposals = ProposalInbox(
        logs,
        manifest,
        store.retrying,
        store.plain,
        keys,
        clock,
        claim,
        broker_epoch=claim.epoch,
        locks=locks,
        rate=lambda: cleaner.settings.io_bytes_per_second,
    )
    return BackgroundTasks(reader, flusher, retention, cleaner, converter, proposals, LogStarts(logs, manifest, clock))


def _flusher(
    config: BrokerConfig,
    clock: Clock,
    cluster: Cluster,
    store: OpenedStore,
    logs: LogTable,
    wal: Wal,
    sizes: LogSizes,
    data_dir_id: str,
    on_stopped: Callable[[Exception], None],
) -> Flusher:
    return Flusher(
        wal,
        logs,
        cluster.manifest,
        store.plain,
        cluster.keys,
        cluster.claim,
        clock,
        broker_epoch=cluster.claim.epoch,
        data_dir_id=data_dir_id,
        settings=FlushSettings(
            flush_bytes=config.flush_bytes,
            flush_seconds=config.flush_seconds,
            wal_bytes=max(sizes.budget_bytes, 4 * sizes.segment_bytes),
            memory_bytes=sizes.arena_bytes,
            store_checks_crc=store.checks_crc,
            plan=PlanLimits(
                pack_below_bytes=config.pack_below_bytes,
                window_batches_max=config.flush_window_batches,
                window_bytes_max=sizes.window_bytes,
            ),
            commit_interval_ms=config.kafka["kbroker.object.commit.interval.ms"],
            commit_bytes=config.kafka["kbroker.object.commit.bytes"],
        ),
        on_stopped=on_stopped,
    )


def _retention(
    config: BrokerConfig, clock: Clock, cluster: Cluster, store: OpenedStore, logs: LogTable, segments: SegmentNames
) -> Retention:
    return Retention(
        logs,
        cluster.manifest,
        store.retrying,
        clock,
        claim=cluster.claim,
        segments=segments,
        check_interval_ms=config.kafka["log.retention.check.interval.ms"],
        producer_id_expiration_ms=config.kafka["producer.id.expiration.ms"],
    )


def _open_object_cache(config: BrokerConfig, clock: Clock) -> FolderCache | None:
    if config.object_cache is None:
        return None
    folder, capacity_bytes = config.object_cache
    try:
        return FolderCache(folder, capacity_bytes, clock)
    except BlockingIOError:
        raise StartError(f"the object cache {folder} is in use by another process") from None
    except OSError as error:
        raise StartError(f"the object cache {folder} cannot be used: {error}") from None
