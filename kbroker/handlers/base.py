"""What every handler gets, and how it is registered."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kbroker.handlers.topic_bytes import TopicBytes


class RequestInfo(NamedTuple):
    """The envelope of one request."""

    api_key: int
    api_version: int
    client_id: str | None
    client_host: str
    advertised_host: str  # of the listener that the client came through
    advertised_port: int
    connection: Any = None  # of _fast.net.connection; None where many requests have this envelope: heartbeats


class Waiting(NamedTuple):
    """An answer that waits for the object store, not for memory or a worker: nobody else waits for it."""

    answer: Future[Any]


@dataclass(slots=True)
class Context:
    """The parts of the broker that handlers may use. Built once by kbroker.app.broker.

    Those that default to None are set before the handlers that use them are asked; ApiVersions is asked earlier.
    """

    config: Any  # kbroker.app.config.BrokerConfig
    clock: Any  # kbroker.clock.Clock
    logs: Any  # kbroker.log.log_table.LogTable
    topics: Any  # kbroker.cluster.topics.Topics
    cold_reader: Any  # kbroker.log.cold_read.ColdReader
    cluster_id: str
    node_id: int
    groups: Any = None  # kbroker.coordinator.group.coordinator.GroupCoordinator
    producer_ids: Any = None  # kbroker.cluster.producer_ids.ProducerIds
    transactions: Any = None  # kbroker.coordinator.transaction.coordinator.TransactionCoordinator
    log_starts: Any = None  # kbroker.log.log_starts.LogStarts
    telemetry: Any = None  # kbroker.handlers.client_telemetry.ClientTelemetry
    share_partitions: Any = None  # kbroker.share.share_partitions.SharePartitions, with --share-groups
    share_groups: bool = False  # --share-groups: the APIs and the feature of KIP-932 are served
    share_states: Any = None  # kbroker.coordinator.share_state.store.ShareStateStore, with --share-groups
    topic_bytes: TopicBytes = field(default_factory=TopicBytes)


# A handler decides and returns the response message, or a future of it when the answer comes later, or Waiting.
Handle = Callable[[Context, RequestInfo, Any], Any | Future]


class Handler(NamedTuple):
    """One API as served: its key, versions and function.

    `inline` handlers run on the I/O thread and must neither block nor take over a millisecond; the others run on a
    worker, and so do requests for which `is_long` is true, and those of more than a few KiB.
    """

    api_key: int
    min_version: int
    max_version: int
    handle: Handle
    inline: bool = False
    is_long: Callable[[Any], bool] | None = None  # of an inline handler: whether this message takes a worker
