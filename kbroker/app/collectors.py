"""The collectors of a broker's metrics."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kbroker.admin.metrics.background import BackgroundMetrics
from kbroker.admin.metrics.cache import CacheMetrics
from kbroker.admin.metrics.client_metrics import ClientMetrics
from kbroker.admin.metrics.connections import ConnectionMetrics
from kbroker.admin.metrics.declaration import Collector
from kbroker.admin.metrics.flush import FlushMetrics
from kbroker.admin.metrics.groups import GroupMetrics
from kbroker.admin.metrics.log import LogMetrics
from kbroker.admin.metrics.manifest import ManifestMetrics
from kbroker.admin.metrics.memory import MemoryMetrics
from kbroker.admin.metrics.process import ProcessMetrics
from kbroker.admin.metrics.requests import RequestMetrics
from kbroker.admin.metrics.shards import ShardMetrics
from kbroker.admin.metrics.slices import Pause
from kbroker.admin.metrics.store import StoreMetrics
from kbroker.admin.metrics.topic_logs import TopicLogMetrics
from kbroker.admin.metrics.topics import TopicTraffic
from kbroker.admin.metrics.transactions import TransactionMetrics
from kbroker.app.broker import Broker
from kbroker.coordinator.runtime.shard_set import ShardSet


def collectors(broker: Broker, pause: Pause) -> list[Collector]:
    """Of a broker that has started. Those whose series grow with topics and groups come last."""
    image = broker.cluster.manifest.image
    return [
        ProcessMetrics(),
        RequestMetrics(broker.wire),
        ConnectionMetrics(broker.wire),
        LogMetrics(broker.wal),
        FlushMetrics(broker.wal, broker.flusher, broker.unflushed_age),
        StoreMetrics(
            broker.store.counters, broker.store.probe_counters, broker.store.health, broker.flusher.steps.hedged
        ),
        CacheMetrics(broker.cold_reader, broker.object_reader, broker.wal.cache),
        BackgroundMetrics(broker.cleaner, broker.converter, broker.retention, broker.proposals, image),
        ManifestMetrics(broker.cluster.manifest),
        _memory(broker),
        ShardMetrics(_coordinators(broker)),
        ClientMetrics(broker.telemetry),
        TransactionMetrics(broker.transactions, broker.logs, broker.clock, pause),
        TopicLogMetrics(broker.logs, broker.config.metrics_partitions, pause),
        GroupMetrics(broker.groups, broker.logs, broker.clock, pause),
        TopicTraffic(broker.logs, broker.config.metrics_partitions, pause),
    ]


def _memory(broker: Broker) -> MemoryMetrics:
    return MemoryMetrics(
        broker.wal,
        broker.wire,
        broker.object_reader,
        broker.cluster.manifest.image,
        broker.cleaner,
        broker.converter,
        broker.groups,
        broker.transactions,
        broker.logs.producer_pool,
        broker.share_partitions,
        broker.heap,
        asdict(broker.config.pools),
    )


def _coordinators(broker: Broker) -> list[ShardSet[Any]]:
    own: list[ShardSet[Any]] = [broker.groups.shards, broker.transactions.shards]
    return [*own, broker.share_states.shards] if broker.share_states is not None else own
