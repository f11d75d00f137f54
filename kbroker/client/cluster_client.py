"""Requests to a cluster: which broker to ask, versions, retries and time-outs. Blocking, one request at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

from kbroker.client.broker_connections import BrokerConnections, Unreachable
from kbroker.client.connection import UnsupportedRequest
from kbroker.errors import ErrorCode, ProtocolError, error_name
from kbroker.protocol.apis.cluster.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponseTopic
from kbroker.protocol.apis.groups.k10_find_coordinator import FindCoordinatorRequest
from kbroker.protocol.apis.records.k02_list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kbroker.protocol.fields import Message
from kbroker.retry_policy import RetryPolicy

TopicPartition = tuple[str, int]
Asked = TypeVar("Asked")  # what a request asks about: partitions, groups

NO_NODE = -1
CONSUMER, DEBUGGING = -1, -2  # replica ids of ListOffsets

# Another broker answers it, or the same one soon: ask the cluster again for the right one.
RETRIABLE = frozenset({
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.KAFKA_STORAGE_ERROR,
})  # fmt: skip


class ClientError(Exception):
    """The cluster did not answer, or not what it must: one line that says why."""


class CoordinatorKind(IntEnum):
    """Key types of FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


class Broker(NamedTuple):
    """A broker as the cluster lists it."""

    node_id: int
    host: str
    port: int
    rack: str | None


class Answer(NamedTuple):
    """What a leader or coordinator answered: an error code, and the part of the response for what was asked about."""

    error_code: int
    value: Any


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. `request_s` bounds each wait for a broker, `api_s` a call with its retries (as in Kafka's clients)."""

    request_s: float = 30.0
    api_s: float = 60.0
    connect_s: float = 10.0


@dataclass(slots=True)
class _Cluster:
    """What Metadata said last."""

    cluster_id: str | None = None
    controller_id: int = NO_NODE
    brokers: dict[int, Broker] = field(default_factory=dict)


class ClusterClient:
    """Connections to the brokers of one cluster, opened when needed. Not thread-safe. Calls raise ClientError.

    A request that is repeated after a connection broke may have been carried out before, as with Kafka's admin client.
    """

    def __init__(
        self,
        bootstrap: str,
        client_id: str = "kbroker",
        timeouts: Timeouts | None = None,
        retries: RetryPolicy | None = None,  # else for Timeouts.api_s
    ) -> None:
        """ValueError names an address of `bootstrap` (HOST:PORT, with commas between) that is none."""
        self._timeouts = timeouts or Timeouts()
        self._connections = BrokerConnections(bootstrap, client_id, self._timeouts.request_s, self._timeouts.connect_s)
        self._retries = retries or RetryPolicy(self._timeouts.api_s, wait_max_s=1.0)
        self._cluster: _Cluster | None = None
        self._coordinators: dict[tuple[CoordinatorKind, str], int] = {}

    def close(self) -> None:
        """Closes all connections."""
        self._connections.close()

    # --- which broker

    def any_broker(
        self, request: Message, newest: int | None = None, codes: Callable[[Any], Iterable[int]] = lambda response: ()
    ) -> Any:
        """Asks a bootstrap broker; for what every broker can answer. `newest` is the last version to use.

        `codes` has the error codes of a response: after a retriable one the broker is asked again.
        """
        return self._retried(lambda: self._connections.call_any(request, newest), codes)

    def broker(
        self,
        node_id: int,
        request: Message,
        newest: int | None = None,
        codes: Callable[[Any], Iterable[int]] = lambda response: (),
    ) -> Any:
        """Asks the broker with this id; `codes` as for `controller`."""
        return self._retried(lambda: self._call_node(node_id, request, newest), codes)

    def controller(self, request: Message, codes: Callable[[Any], Iterable[int]], newest: int | None = None) -> Any:
        """Asks the controller. `codes` has the error codes of a response: after a retriable one it is asked again."""
        return self._retried(lambda: self._call_node(self._known().controller_id, request, newest), codes)

    def coordinator(
        self,
        kind: CoordinatorKind,
        key: str,
        request: Message,
        codes: Callable[[Any], Iterable[int]],
        newest: int | None = None,
    ) -> Any:
        """Asks the coordinator of a group or a transactional id; `codes` as for `controller`."""

        def call() -> Any:
            (node_id,) = self._by_coordinator(kind, [key])
            return self._call_node(node_id, request, newest)

        return self._retried(call, codes)

    def by_coordinator(
        self,
        kind: CoordinatorKind,
        keys: Iterable[str],
        build: Callable[[Sequence[str]], Message],
        read: Callable[[Any], Iterable[tuple[str, int, Any]]],
        newest: int | None = None,
    ) -> dict[str, Answer]:
        """Asks each key's coordinator, one request a coordinator, and again for those that moved.

        `build` makes the request for keys, `read` takes a response apart into (key, error code, value). The result has
        every key; after the time-out some with a retriable error code.
        """

        def requests(pending: Sequence[str]) -> dict[int, Message]:
            return {node_id: build(asked) for node_id, asked in self._by_coordinator(kind, pending).items()}

        def answers(response: Any) -> Iterator[tuple[str, Answer]]:
            return ((key, Answer(code, value)) for key, code, value in read(response))

        return self._gathered(keys, ErrorCode.COORDINATOR_NOT_AVAILABLE, requests, answers, newest)

    def by_leader(
        self,
        partitions: Iterable[TopicPartition],
        build: Callable[[Mapping[str, Sequence[int]]], Message],
        read: Callable[[Any], Iterable[tuple[str, int, int, Any]]],
        newest: int | None = None,
        retriable: frozenset[ErrorCode] = RETRIABLE,
    ) -> dict[TopicPartition, Answer]:
        """Asks each partition's leader, one request a leader, and again those with a retriable error.

        `build` makes the request for partitions by topic, `read` takes a response apart into (topic, partition, error
        code, value). The result has every partition; after the time-out some with a retriable error code.
        """

        def requests(pending: Sequence[TopicPartition]) -> dict[int, Message]:
            return {node_id: build(asked) for node_id, asked in self._by_leader(pending).items()}

        def answers(response: Any) -> Iterator[tuple[TopicPartition, Answer]]:
            return (((topic, index), Answer(code, value)) for topic, index, code, value in read(response))

        return self._gathered(partitions, ErrorCode.LEADER_NOT_AVAILABLE, requests, answers, newest, retriable)

    def _gathered(
        self,
        asked: Iterable[Asked],
        unanswered: ErrorCode,
        requests: Callable[[Sequence[Asked]], Mapping[int, Message]],  # by node id
        read: Callable[[Any], Iterable[tuple[Asked, Answer]]],
        newest: int | None,
        retriable: frozenset[ErrorCode] = RETRIABLE,
    ) -> dict[Asked, Answer]:
        """An answer for all that is asked about, in which only what has no final answer is asked about again."""
        answers = {each: Answer(unanswered, None) for each in asked}

        def ask() -> list[int]:
            pending = [each for each, answer in answers.items() if answer.error_code in retriable]
            for node_id, request in requests(pending).items():
                answers.update(read(self._call_node(node_id, request, newest)))
            return [answer.error_code for answer in answers.values()]

        if answers:
            self._retried(ask, lambda codes: codes, retriable)
        return answers

    # --- questions that many commands have

    def cluster_id(self) -> str | None:
        """The id of the cluster."""
        return self._retried(self._known, lambda known: ()).cluster_id

    def controller_id(self) -> int:
        """The id of the broker that answers for the cluster's metadata."""
        return self._retried(self._known, lambda known: ()).controller_id

    def brokers(self) -> dict[int, Broker]:
        """The brokers by id."""
        return self._retried(self._known, lambda known: ()).brokers

    def topics(self, names: Iterable[str] | None = None) -> list[MetadataResponseTopic]:
        """All topics, or those with these names and an error code for each that does not exist; in order of name."""
        asked = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
        response = self._retried(
            lambda: self._connections.call_any(request, None),
            lambda response: [part.error_code for topic in response.topics for part in (topic, *topic.partitions)],
        )
        return sorted(response.topics, key=lambda topic: topic.name or "")

    def offsets(
        self, asked: Mapping[TopicPartition, int], read_committed: bool = False, replica_id: int = CONSUMER
    ) -> dict[TopicPartition, Answer]:
        """ListOffsets of partitions by timestamp in ms (or -1 end, -2 start, -3 newest timestamp).

        Each value is the partition's part of the response, with `offset` and `timestamp`. The end is the high
        watermark, with `read_committed` the last stable offset, for the `replica_id` DEBUGGING the log end offset.
        """

        def build(partitions: Mapping[str, Sequence[int]]) -> Message:
            topics = [
                ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsPartition(partition_index=index, timestamp=asked[topic, index]) for index in indexes
                    ],
                )
                for topic, indexes in partitions.items()
            ]
            timeout_ms = int(self._timeouts.request_s * 1000)
            return ListOffsetsRequest(
                replica_id=replica_id, isolation_level=int(read_committed), topics=topics, timeout_ms=timeout_ms
            )

        def read(response: Any) -> Iterator[tuple[str, int, int, Any]]:
            for topic in response.topics:
                for part in topic.partitions:
                    yield topic.name, part.partition_index, part.error_code, part

        return self.by_leader(asked, build, read)

    # --- calls

    def _retried(
        self,
        call: Callable[[], Any],
        codes: Callable[[Any], Iterable[int]],
        retriable: frozenset[ErrorCode] = RETRIABLE,
    ) -> Any:
        """Repeats a call whose connection broke or whose answer is retriable; the last answer stands at the end."""
        failure: Exception | None = None
        for _ in self._retries.attempts():
            try:
                response = call()
            except UnsupportedRequest as error:
                raise ClientError(f"{self._connections.where}: {error}") from None
            except ProtocolError as error:
                self.close()
                where = self._connections.where
                raise ClientError(f"{where} does not answer as a Kafka broker does: {error}") from None
            except ValueError as error:  # a value that the protocol cannot encode
                raise ClientError(str(error)) from None
            except Unreachable as error:
                failure = error
                self._forget()
                if not self._connections.reached:
                    break  # nothing has ever answered: the address is wrong, or nothing runs there
                continue
            if not retriable.intersection(codes(response)):
                return response
            self._forget()
            last, failure = response, None
        if failure is None:
            return last
        raise ClientError(str(failure)) from None

    def _forget(self) -> None:
        """What was known of the cluster may have changed."""
        self._cluster = None
        self._coordinators.clear()

    def _known(self) -> _Cluster:
        if self._cluster is None:
            response = self._connections.call_any(MetadataRequest(topics=[], allow_auto_topic_creation=False), None)
            brokers = {each.node_id: Broker(each.node_id, each.host, each.port, each.rack) for each in response.brokers}
            self._cluster = _Cluster(response.cluster_id, response.controller_id, brokers)
        return self._cluster

    def _by_coordinator(self, kind: CoordinatorKind, keys: Sequence[str]) -> dict[int, list[str]]:
        """The keys by their coordinators' ids; one request for those that are not known (KIP-699)."""
        unknown = [key for key in keys if (kind, key) not in self._coordinators]
        if unknown:
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=unknown)
            found = {each.key: each for each in self._connections.call_any(request, None).coordinators}
            for key in unknown:
                if key not in found or found[key].error_code in RETRIABLE:
                    raise Unreachable(f"{self._connections.where}: the coordinator of {key} is not available")
                if found[key].error_code:
                    reason = found[key].error_message or error_name(found[key].error_code)
                    raise ClientError(f"{key}: {reason}")
                self._coordinators[kind, key] = found[key].node_id
        nodes: dict[int, list[str]] = {}
        for key in keys:
            nodes.setdefault(self._coordinators[kind, key], []).append(key)
        return nodes

    def _by_leader(self, partitions: Sequence[TopicPartition]) -> dict[int, dict[str, list[int]]]:
        """The partitions by their leaders' ids, and by topic."""
        asked: dict[str, list[int]] = {}
        for topic, index in partitions:
            asked.setdefault(topic, []).append(index)
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic) for topic in asked], allow_auto_topic_creation=False
        )
        leaders = {
            (topic.name, part.partition_index): part.leader_id
            for topic in self._connections.call_any(request, None).topics
            for part in topic.partitions
        }
        controller = self._known().controller_id
        nodes: dict[int, dict[str, list[int]]] = {}
        for topic, indexes in asked.items():
            for index in indexes:
                node_id = leaders.get((topic, index), controller)  # an unknown partition: any broker says so
                if node_id != NO_NODE:
                    nodes.setdefault(node_id, {}).setdefault(topic, []).append(index)
        return nodes

    def _call_node(self, node_id: int, request: Message, newest: int | None) -> Any:
        broker = self._known().brokers.get(node_id)
        if broker is None:
            raise Unreachable(f"{self._connections.where}: the cluster names no broker {node_id}")
        return self._connections.call((broker.host, broker.port), request, newest)
