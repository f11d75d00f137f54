"""What every handler gets, and how it is registered."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.handlers.topic_bytes import TopicBytes
from kbroker.protocol.fields import Message

if TYPE_CHECKING:  # the listener opens before the coordinators are loaded
    from kbroker._fast.net.connection import Connection
    from kbroker.cluster.producer_ids import ProducerIds
    from kbroker.cluster.topics import Topics
    from kbroker.coordinator.group.coordinator import GroupCoordinator
    from kbroker.coordinator.share_state.store import ShareStateStore
    from kbroker.coordinator.transaction.coordinator import TransactionCoordinator
    from kbroker.handlers.client_telemetry import ClientTelemetry
    from kbroker.log.cold_read import ColdReader
    from kbroker.log.leaders import Leaders
    from kbroker.log.log_starts import LogStarts
    from kbroker.log.log_table import LogTable
    from kbroker.share.share_partitions import SharePartitions


class RequestInfo(NamedTuple):
    """The envelope of one request."""

    api_key: int
    api_version: int
    client_id: str | None
    client_host: str
    advertised_host: str  # of the listener that the client came through
    advertised_port: int
    connection: Connection | None = None  # None where many requests share this envelope: heartbeats

    @property
    def listener(self) -> tuple[str, int]:
        """As Leaders.nodes takes it."""
        return self.advertised_host, self.advertised_port


class Waiting(NamedTuple):
    """An answer that waits for the object store: it holds neither request memory nor a worker meanwhile."""

    answer: Future[Any]


@dataclass(slots=True)
class Context:
    """The parts of the broker that handlers may use. Built once by kbroker.app.broker.

    Those that the constructor does not take are set before the handlers that use them are called; ApiVersions, which
    uses none of them, is served earlier.
    """

    logs: LogTable
    leaders: Leaders
    topics: Topics
    cold_reader: ColdReader
    cluster_id: str
    node_id: int
    telemetry: ClientTelemetry
    share_groups: bool = False  # --share-groups: the APIs and the feature of KIP-932 are served
    groups: GroupCoordinator = field(init=False)
    producer_ids: ProducerIds = field(init=False)
    transactions: TransactionCoordinator = field(init=False)
    log_starts: LogStarts = field(init=False)
    share_partitions: SharePartitions = field(init=False)  # with --share-groups
    share_states: ShareStateStore = field(init=False)  # with --share-groups
    topic_bytes: TopicBytes = field(default_factory=TopicBytes)


# A handler returns the response message, or a future of it when the answer comes later, or Waiting. Each is called
# with the message class of its own API.
Handle = Callable[[Context, RequestInfo, Any], Message | Future[Any] | Waiting]


class Handler(NamedTuple):
    """One API as served: its key, versions and function.

    `inline` handlers run on the I/O thread and must neither block nor take over a millisecond. The others run on a
    worker, and so do an inline handler's requests of more than a few KiB, those for which `is_long` is true, and all
    that arrive before the start is complete.
    """

    api_key: int
    min_version: int
    max_version: int
    handle: Handle
    inline: bool = False
    is_long: Callable[[Any], bool] | None = None  # of an inline handler: whether this message takes a worker
