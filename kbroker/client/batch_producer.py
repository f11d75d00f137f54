"""An idempotent producer of record batches: pipelined, in order in each partition, exactly once (KIP-98)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kbroker.client.batch_size import halves, message_bytes_max
from kbroker.client.broker_connections import Address, BrokerConnections, Unreachable
from kbroker.client.cluster_client import RETRIABLE, ClientError, ClusterClient, TopicPartition
from kbroker.client.connection import ClientConnection, UnsupportedRequest
from kbroker.client.producer_session import ProducerSession, ProducerSettings, Refused
from kbroker.errors import ErrorCode, ProtocolError, error_name
from kbroker.protocol.apis.cluster.k03_metadata import MetadataRequest, MetadataRequestTopic
from kbroker.protocol.apis.records.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.retry_policy import RetryPolicy

logger = logging.getLogger(__name__)

REQUESTS_MAX = 5  # unanswered, of a broker: it knows a producer's last five batches of a partition
PRODUCE_NEWEST = 11  # 12 would add partitions to transactions by itself, and needs epochs that change (KIP-890)
NEW_TOPIC_SECONDS = 60.0  # until a topic that is not there is given up: max.block.ms of Java's producer
ACKS_ALL = -1
NO_LEADER = "no leader"

_RESENT = RETRIABLE | {
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
}
_STORED = (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
_NO_TOPIC_YET = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE)


class Batch(NamedTuple):
    """A record batch, which carries the producer's id and its sequence numbers."""

    topic: str
    partition: int
    records: bytes


class _Sent(NamedTuple):
    """A request that is unanswered."""

    connection: ClientConnection
    batches: list[Batch]


_Left = dict[TopicPartition, list[Batch]]  # what a request's batches leave to be sent: themselves, or their halves


class BatchProducer:
    """Batches of a partition are sent in the order of their sequence numbers. Not thread-safe.

    Calls raise Refused, and ClientError if the cluster does not answer. After either, only `session.abort` and `close`
    are of use: what was sent may have been stored.
    """

    def __init__(self, client: ClusterClient, settings: ProducerSettings) -> None:
        """Owns `client`. ValueError names an address that is none."""
        self._client = client
        self._settings = settings
        self._produce_connections = BrokerConnections(
            settings.bootstrap, settings.client_id, settings.request_s, settings.connect_s
        )
        self._leaders: dict[str, list[Address | None]] = {}
        self._sent: dict[Address, deque[_Sent]] = {}
        self.session = ProducerSession(client, settings)
        self._begun: set[TopicPartition] = set()  # they have a batch: brokers take any sequence number as the first
        self.batch_bytes_max: dict[str, int] = {}  # without compression, of topics that refused larger batches

    def close(self) -> None:
        """Closes the connections. An open transaction stays open."""
        self._client.close()
        self._produce_connections.close()

    # -- where to send

    def partition_count(self, topic: str) -> int:
        """Of a topic, which may be created (`creates_topics`)."""
        if topic not in self._leaders:
            seconds = min(NEW_TOPIC_SECONDS, self._settings.delivery_s)
            for _ in RetryPolicy(seconds, first_wait_s=0.05, wait_max_s=1.0).attempts():
                missing = self._find_leaders([topic])
                if not missing:
                    break
            else:
                raise Refused(topic, None, missing[topic])
        return len(self._leaders[topic])

    def forget_topics(self) -> None:
        """The next batch asks for its topic again, which may have more partitions."""
        self._leaders.clear()
        self._begun.clear()  # of a topic that was made anew

    def _find_leaders(self, topics: Sequence[str]) -> dict[str, int]:
        """Asks for them once; partitions may have none. Returns the error codes of topics that are not there yet."""
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic) for topic in topics],
            allow_auto_topic_creation=self._settings.creates_topics,
        )
        response = self._client.any_broker(request)
        brokers = {each.node_id: (each.host, each.port) for each in response.brokers}
        missing: dict[str, int] = {}
        for topic in response.topics:
            if topic.error_code in _NO_TOPIC_YET:
                missing[topic.name] = topic.error_code
                if topic.name in self._leaders:
                    self._leaders[topic.name] = [None] * len(self._leaders[topic.name])
                continue
            if topic.error_code:
                raise Refused(topic.name, None, topic.error_code)
            leaders: list[Address | None] = [None] * len(topic.partitions)
            for part in topic.partitions:
                leaders[part.partition_index] = brokers.get(part.leader_id)
            self._leaders[topic.name] = leaders
        return missing

    def _by_leader(self, batches: Iterable[Batch]) -> dict[Address | None, list[Batch]]:
        found: dict[Address | None, list[Batch]] = {}
        for batch in batches:
            leaders = self._leaders[batch.topic]
            if batch.partition >= len(leaders):  # the topic has been made anew
                raise Refused(batch.topic, batch.partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            found.setdefault(leaders[batch.partition], []).append(batch)
        return found

    # -- records

    def send(self, batches: Sequence[Batch]) -> None:
        """Sends at most one batch for each partition. Waits while a leader has REQUESTS_MAX that are unanswered."""
        self.session.add_partitions((batch.topic, batch.partition) for batch in batches)
        self._await_first_batches(batches)
        groups = self._by_leader(batches)
        while full := next((each for each in groups if each and len(self._sent.get(each, ())) >= REQUESTS_MAX), None):
            self._take_answer(full)
            groups = self._by_leader(batches)  # what was sent again may have found other leaders
        unsent: list[Batch] = []
        reason = NO_LEADER
        for address, group in groups.items():
            try:
                if address is None:
                    raise Unreachable(NO_LEADER)
                connection = self._produce_connections.connected(address)
                connection.send(self._request(group), PRODUCE_NEWEST)
                self._sent.setdefault(address, deque()).append(_Sent(connection, group))
            except (OSError, ProtocolError, Unreachable) as error:
                unsent += group
                reason = str(error)
            except UnsupportedRequest as error:
                raise ClientError(str(error)) from None
        if unsent:
            self._resend([*self._unanswered(), *unsent], reason)

    def _await_first_batches(self, batches: Iterable[Batch]) -> None:
        """Nothing of a partition is sent while its first batch is unanswered: if that were refused, a broker would take
        the next one as the first, and the refused one never again."""
        first = {_where(batch) for batch in batches} - self._begun
        for address in list(self._sent):
            while any(_where(batch) in first for sent in self._sent.get(address, ()) for batch in sent.batches):
                self._take_answer(address)

    def flush(self) -> None:
        """Waits until every batch is stored."""
        for address in list(self._sent):
            while self._sent.get(address):
                self._take_answer(address)

    def _request(self, batches: Iterable[Batch]) -> ProduceRequest:
        topics: dict[str, list[PartitionProduceData]] = {}
        for batch in batches:
            data = PartitionProduceData(index=batch.partition, records=batch.records)
            topics.setdefault(batch.topic, []).append(data)
        return ProduceRequest(
            transactional_id=self._settings.transactional_id,
            acks=ACKS_ALL,
            timeout_ms=int(self._settings.request_s * 1000),
            topic_data=[TopicProduceData(name=topic, partition_data=parts) for topic, parts in topics.items()],
        )

    def _take_answer(self, address: Address) -> None:
        """Of a broker's oldest request. If it is not that all is stored, sends again everything that is unanswered."""
        connection, group = self._sent[address].popleft()
        try:
            left, reason = self._left(group, connection.receive())
        except (OSError, ProtocolError) as error:
            left, reason = {_where(batch): [batch] for batch in group}, str(error)
        failed = [batch for batches in left.values() for batch in batches]
        if failed:
            self._resend([*failed, *self._unanswered()], reason)

    def _left(self, group: list[Batch], response: Any) -> tuple[_Left, str]:
        """What is to be sent again of each partition, and why. Raises Refused."""
        codes = {
            (topic.name, part.index): part.error_code
            for topic in response.responses
            for part in topic.partition_responses
        }
        left: _Left = {}
        reason = ""
        for batch in group:
            code = codes.get(_where(batch), ErrorCode.NETWORK_EXCEPTION)
            if code in _STORED:
                self._begun.add(_where(batch))
                left[_where(batch)] = []
                continue
            reason = error_name(code)
            if code in _TOO_LARGE:
                left[_where(batch)] = self._halves(batch, code)
            elif code in _RESENT:
                left[_where(batch)] = [batch]
            else:
                raise Refused(batch.topic, batch.partition, code)
        return left, reason

    def _halves(self, batch: Batch, code: int) -> list[Batch]:
        """As Java's producer splits a batch: a topic may take less than a batch. Raises Refused for a single record."""
        topic, partition, records = batch
        found = halves(records)
        if found is None:
            limit = message_bytes_max(self._client, topic)
            raise Refused(topic, partition, code, f"a record of {len(records)} bytes; max.message.bytes is {limit}")
        self.batch_bytes_max[topic] = min(found.nbytes, self.batch_bytes_max.get(topic, found.nbytes))
        return [Batch(topic, partition, found.first), Batch(topic, partition, found.second)]

    def _unanswered(self) -> list[Batch]:
        """Gives up all requests. What of them is stored is not stored again: brokers know the sequence numbers."""
        batches = [batch for requests in self._sent.values() for sent in requests for batch in sent.batches]
        self._sent.clear()
        self._produce_connections.close()
        return batches

    def _resend(self, pending: list[Batch], reason: str) -> None:
        """Sends batches again, those of a partition one after the other, until all are stored."""
        logger.warning("producer: %s; trying for %.0f s", reason, self._settings.delivery_s)
        self._produce_connections.close()
        while pending:
            for _ in RetryPolicy(self._settings.delivery_s, wait_max_s=1.0).attempts():
                left, reason = self._resent_once(pending, reason)
                if left != pending:
                    break
            else:
                topic, partition, _ = pending[0]
                raise Refused(topic, partition, ErrorCode.REQUEST_TIMED_OUT, reason)
            pending = left

    def _resent_once(self, pending: list[Batch], reason: str) -> tuple[list[Batch], str]:
        """Sends the first batch of each partition and waits. Returns what is left, in its order, and why."""
        first: dict[TopicPartition, Batch] = {}
        for batch in pending:
            first.setdefault(_where(batch), batch)
        missing = self._find_leaders(list({topic for topic, _ in first}))
        left: _Left = {}
        for address, group in self._by_leader(first.values()).items():
            if address is None:
                reason = next((error_name(code) for code in missing.values()), NO_LEADER)
                continue
            try:
                response = self._produce_connections.call(address, self._request(group), PRODUCE_NEWEST)
            except UnsupportedRequest as error:
                raise ClientError(str(error)) from None
            except (Unreachable, ProtocolError) as error:
                reason = str(error)
                continue
            found, why = self._left(group, response)
            left |= found
            reason = why or reason
        return [each for batch in pending for each in left.pop(_where(batch), [batch])], reason


def _where(batch: Batch) -> TopicPartition:
    return batch.topic, batch.partition
