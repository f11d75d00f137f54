"""The broker's part of ``tail=broker``: offsets, and batches that are not in the bucket yet. One connection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kbroker._fast.records.batch_check import check_batches
from kbroker._fast.records.records import CONTROL_ABORT, iter_batches, parse_marker
from kbroker.client.connection import ClientConnection
from kbroker.errors import CorruptionError, ErrorCode, ProtocolError
from kbroker.limits import MIB
from kbroker.pipeline.options import OptionError, TopicPartition
from kbroker.protocol.apis.cluster.k03_metadata import MetadataRequest
from kbroker.protocol.apis.records.k01_fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.apis.records.k02_list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kbroker.protocol.fields import Message
from kbroker.retry_policy import RetryPolicy

VERSIONS = {1: 12, 2: 7, 3: 10}
CONTACT_SECONDS = 2.5  # to connect to a broker, and again for its first answer
TIMEOUT_SECONDS = 60.0
RETRY_SECONDS = 30.0  # for a broker that restarts
FETCH_BYTES = 8 * MIB
FETCH_WAIT_MS = 500
EMPTY_FETCHES_MAX = 60
READ_COMMITTED = 1
NEVER_ENDED = (1 << 63) - 1

_WHICH_CLUSTER = MetadataRequest(topics=[], allow_auto_topic_creation=False)

Aborted = dict[int, list[tuple[int, int]]]


class BrokerError(Exception):
    """The broker cannot be reached or refused a request; the message names it."""


class OffsetGone(BrokerError):
    """The offset asked for is below the log start or beyond the end."""


class BrokerTail:
    """A connection to one broker, which leads all partitions. Not thread-safe. Raises BrokerError.

    Reconnects if the broker closes the connection (idle, or stopping): all requests are read-only. With
    `retries_connect` the first connect, too, is retried for RETRY_SECONDS; otherwise its failure is raised at once.
    """

    def __init__(self, bootstrap: str, *, retries_connect: bool = False) -> None:
        self._where = bootstrap
        self._connection: ClientConnection | None = None
        self._served: str | None = None  # the broker's cluster
        self._cluster_id: str | None = None  # the cluster that it must serve
        self._retries = RetryPolicy(RETRY_SECONDS)
        failure: OSError | None = None
        for _ in (self._retries if retries_connect else RetryPolicy(0)).attempts():
            try:
                self._connection = self._connect()
                return
            except OSError as error:
                failure = error
        raise BrokerError(f"tail=broker: no broker answers at {bootstrap}: {failure}")

    def _connect(self) -> ClientConnection:
        try:
            found = ClientConnection.to_any(self._where, CONTACT_SECONDS, "kbroker-spark", VERSIONS)
        except ValueError as error:
            raise OptionError(f"kafka.bootstrap.servers: {error}") from None
        try:
            self._served = found.call(_WHICH_CLUSTER).cluster_id
        except ProtocolError as error:
            found.close()
            raise BrokerError(f"tail=broker: {self._where} does not answer as a Kafka broker: {error}") from None
        except OSError:
            found.close()
            raise
        found.set_timeout(TIMEOUT_SECONDS)
        return found

    def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def call(self, request: Message) -> Any:
        """Sends a request and returns its response."""
        failure: OSError | None = None
        for _ in self._retries.attempts():
            try:
                if self._connection is None:
                    self._connection = self._connect()
                    self._check_served()
                return self._connection.call(request)
            except OSError as error:
                failure = error
                self.close()
            except ProtocolError as error:
                self.close()
                raise BrokerError(f"tail=broker: the broker at {self._where}: {error}") from None
        raise BrokerError(f"tail=broker: the broker at {self._where}: {failure}")

    def check_cluster(self, cluster_id: str) -> None:
        """Raises OptionError if the broker serves another cluster than the bucket holds, now or after a reconnect."""
        self._cluster_id = cluster_id
        self._check_served()

    def _check_served(self) -> None:
        if self._cluster_id is not None and self._served != self._cluster_id:
            self.close()
            raise OptionError(
                f"tail=broker: the broker at {self._where} serves cluster {self._served}, the bucket holds "
                f"{self._cluster_id}"
            )

    def offsets(self, asked: Mapping[TopicPartition, int], *, read_committed: bool) -> dict[TopicPartition, int]:
        """Offsets by timestamp (or EARLIEST, LATEST); -1 if no record has that timestamp or a later one."""
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for (topic, partition), timestamp in asked.items():
            wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
            topics.setdefault(topic, []).append(wanted)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=READ_COMMITTED if read_committed else 0,
            topics=[ListOffsetsTopic(name=name, partitions=wanted) for name, wanted in topics.items()],
        )
        found: dict[TopicPartition, int] = {}
        for topic in self.call(request).topics if topics else ():
            for partition in topic.partitions:
                self._check(partition.error_code, f"{topic.name}-{partition.partition_index}")
                found[topic.name, partition.partition_index] = partition.offset
        return found

    def batches(
        self, topic: str, partition: int, first: int, stop: int, *, read_committed: bool
    ) -> Iterator[tuple[bytes, Aborted]]:
        """Checked whole batches of the offsets [first, stop), and the aborted ranges in them (read_committed)."""
        offset, empty = first, 0
        what = f"{topic}-{partition}"
        while offset < stop:
            wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
            response = self.call(
                FetchRequest(
                    max_wait_ms=FETCH_WAIT_MS,
                    min_bytes=1,
                    max_bytes=FETCH_BYTES,
                    isolation_level=READ_COMMITTED if read_committed else 0,
                    topics=[FetchTopic(topic=topic, partitions=[wanted])],
                )
            )
            self._check(response.error_code, what)
            answer = response.responses[0].partitions[0]
            self._check(answer.error_code, f"{what} at offset {offset}")
            data = bytes(answer.records or b"")
            if not data:
                # The rest may be a gap left by compaction: the log then ends at or beyond `stop`.
                empty += 1
                end = answer.last_stable_offset if read_committed else answer.high_watermark
                if empty >= EMPTY_FETCHES_MAX or (empty > 1 and end <= offset):
                    raise BrokerError(f"tail=broker: {what} ends at {end}, offsets up to {stop} were planned")
                continue
            empty = 0
            offset = self._next_offset(data, what)
            yield data, aborted_ranges(data, answer.aborted_transactions or ())

    def _next_offset(self, data: bytes, what: str) -> int:
        try:
            check_batches(data, 0)
        except ValueError as error:
            raise CorruptionError(f"{what}, as the broker at {self._where} sent it: {error}") from None
        offset = 0
        for header, _ in iter_batches(data):
            offset = header.next_offset
        return offset

    def _check(self, code: int, what: str) -> None:
        if code == ErrorCode.NONE:
            return
        kind = OffsetGone if code == ErrorCode.OFFSET_OUT_OF_RANGE else BrokerError
        name = ErrorCode(code).name if code in ErrorCode._value2member_map_ else f"error {code}"
        raise kind(f"tail=broker: {what}: the broker at {self._where} answers {name}")


def aborted_ranges(data: bytes, aborted: Iterable[Any]) -> Aborted:
    """Offset ranges by producer id of the aborted transactions of one fetch: each ends at its abort marker."""
    ranges: Aborted = {}
    pending: dict[int, list[int]] = {}
    for entry in aborted:
        pending.setdefault(entry.producer_id, []).append(entry.first_offset)
    if not pending:
        return {}
    for header, batch in iter_batches(data):
        firsts = pending.get(header.producer_id)
        if not header.is_control or not firsts:
            continue
        marker = parse_marker(batch)
        if marker is not None and marker.control_type == CONTROL_ABORT and min(firsts) <= header.base_offset:
            first = min(firsts)
            firsts.remove(first)
            ranges.setdefault(header.producer_id, []).append((first, header.base_offset))
    for producer_id, firsts in pending.items():
        ranges.setdefault(producer_id, []).extend((first, NEVER_ENDED) for first in firsts)
    return ranges
