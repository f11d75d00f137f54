"""Requests to a cluster: which broker to ask, versions, retries and time-outs. Blocking, one request at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from kbroker.client.connection import ClientConnection, UnsupportedRequest, parse_bootstrap
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.protocol.apis.k02_list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kbroker.protocol.apis.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponseTopic
from kbroker.protocol.apis.k10_find_coordinator import FindCoordinatorRequest
from kbroker.protocol.fields import Message
from kbroker.storage.stores.retry_policy import RetryPolicy
from kbroker.types import address_text

TopicPartition = tuple[str, int]

NO_NODE = -1
FIND_COORDINATOR_NEWEST = 3  # one key a request

# Another broker answers it, or the same one soon: ask the cluster again who does.
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
    """What a partition's leader answered: an error code, and the partition's part of the response."""

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
        self._bootstrap = parse_bootstrap(bootstrap)
        self._client_id = client_id
        self._timeouts = timeouts or Timeouts()
        self._retries = retries or RetryPolicy(self._timeouts.api_s, wait_max_s=1.0)
        self._connections: dict[tuple[str, int], ClientConnection] = {}
        self._reached = False  # whether any broker has ever answered
        self._cluster: _Cluster | None = None
        self._coordinators: dict[tuple[CoordinatorKind, str], int] = {}

    def close(self) -> None:
        """Closes all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    @property
    def where(self) -> str:
        """The bootstrap addresses, for messages."""
        return ",".join(address_text(*address) for address in self._bootstrap)

    # --- which broker

    def any_broker(
        self, request: Message, newest: int | None = None, codes: Callable[[Any], Iterable[int]] = lambda response: ()
    ) -> Any:
        """Asks a bootstrap broker; for what every broker can answer. `newest` is the last version to use.

        `codes` has the error codes of a response: after a retriable one the broker is asked again.
        """
        return self._retried(lambda: self._call_any(request, newest), codes)

    def broker(self, node_id: int, request: Message, newest: int | None = None) -> Any:
        """Asks the broker with this id."""
        return self._retried(lambda: self._call_node(node_id, request, newest), lambda response: ())

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
        return self._retried(lambda: self._call_node(self._coordinator(kind, key), request, newest), codes)

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
        answers = {each: Answer(ErrorCode.LEADER_NOT_AVAILABLE, None) for each in partitions}

        def ask() -> list[int]:
            left = [each for each, answer in answers.items() if answer.error_code in retriable]
            for node_id, asked in self._by_node(left).items():
                for topic, index, code, value in read(self._call_node(node_id, build(asked), newest)):
                    answers[topic, index] = Answer(code, value)
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
            lambda: self._call_any(request, None),
            lambda response: [part.error_code for topic in response.topics for part in (topic, *topic.partitions)],
        )
        return sorted(response.topics, key=lambda topic: topic.name or "")

    def offsets(
        self, asked: Mapping[TopicPartition, int], read_committed: bool = False
    ) -> dict[TopicPartition, Answer]:
        """ListOffsets of partitions by timestamp in ms (or -1 end, -2 start, -3 newest timestamp).

        Each value is the partition's part of the response, with `offset` and `timestamp`.
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
                replica_id=-1, isolation_level=int(read_committed), topics=topics, timeout_ms=timeout_ms
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
                raise ClientError(f"{self.where}: {error}") from None
            except ProtocolError as error:
                self.close()
                raise ClientError(f"{self.where} does not answer as a Kafka broker does: {error}") from None
            except ValueError as error:  # a value that the protocol cannot encode
                raise ClientError(str(error)) from None
            except _Unreachable as error:
                failure = error
                self._forget()
                if not self._reached:
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
            response = self._call_any(MetadataRequest(topics=[], allow_auto_topic_creation=False), None)
            brokers = {each.node_id: Broker(each.node_id, each.host, each.port, each.rack) for each in response.brokers}
            self._cluster = _Cluster(response.cluster_id, response.controller_id, brokers)
        return self._cluster

    def _coordinator(self, kind: CoordinatorKind, key: str) -> int:
        if (kind, key) not in self._coordinators:
            request = FindCoordinatorRequest(key=key, key_type=kind)
            response = self._call_any(request, FIND_COORDINATOR_NEWEST)
            if response.error_code in RETRIABLE:
                raise _Unreachable(f"{self.where}: the coordinator of {key} is not available")
            if response.error_code:
                raise ClientError(f"{key}: {response.error_message or error_name(response.error_code)}")
            self._coordinators[kind, key] = response.node_id
        return self._coordinators[kind, key]

    def _by_node(self, partitions: Iterable[TopicPartition]) -> dict[int, dict[str, list[int]]]:
        """The partitions by their leaders, and by topic."""
        asked: dict[str, list[int]] = {}
        for topic, index in partitions:
            asked.setdefault(topic, []).append(index)
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic) for topic in asked], allow_auto_topic_creation=False
        )
        leaders = {
            (topic.name, part.partition_index): part.leader_id
            for topic in self._call_any(request, None).topics
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

    def _call_any(self, request: Message, newest: int | None) -> Any:
        failure: _Unreachable | None = None
        for address in self._bootstrap:
            try:
                return self._call(address, request, newest)
            except _Unreachable as error:
                failure = error
        assert failure is not None
        raise failure

    def _call_node(self, node_id: int, request: Message, newest: int | None) -> Any:
        broker = self._known().brokers.get(node_id)
        if broker is None:
            raise _Unreachable(f"{self.where}: the cluster names no broker {node_id}")
        return self._call((broker.host, broker.port), request, newest)

    def _call(self, address: tuple[str, int], request: Message, newest: int | None) -> Any:
        try:
            return self._connected(address).call(request, newest)
        except (OSError, ProtocolError) as error:
            broken = self._connections.pop(address, None)
            if broken is not None:
                broken.close()
            if isinstance(error, ProtocolError):
                raise
            where = address_text(*address)
            advertised = "" if address in self._bootstrap else " (the address that the cluster advertises)"
            raise _Unreachable(f"no broker answers at {where}{advertised}: {_reason(error)}") from None

    def _connected(self, address: tuple[str, int]) -> ClientConnection:
        found = self._connections.get(address)
        if found is None:
            found = ClientConnection.to(address, self._timeouts.connect_s, self._client_id)
            try:
                found.negotiate()
                found.set_timeout(self._timeouts.request_s)
            except BaseException:
                found.close()
                raise
            self._connections[address] = found
            self._reached = True
        return found


class _Unreachable(Exception):
    """A broker did not answer; it may be asked again."""


def error_name(code: int) -> str:
    """Kafka's name of an error code."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return error.strerror or str(error)
