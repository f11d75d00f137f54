"""An idempotent producer of record batches: pipelined, in order in each partition, exactly once (KIP-98)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kbroker.client.broker_connections import Address, BrokerConnections, Unreachable
from kbroker.client.cluster_client import RETRIABLE, ClientError, ClusterClient, CoordinatorKind, Timeouts
from kbroker.client.connection import ClientConnection, UnsupportedRequest
from kbroker.errors import ErrorCode, ProtocolError, error_name
from kbroker.protocol.apis.cluster.k03_metadata import MetadataRequest, MetadataRequestTopic
from kbroker.protocol.apis.records.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.apis.transactions.k22_init_producer_id import InitProducerIdRequest
from kbroker.protocol.apis.transactions.k24_add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from kbroker.protocol.apis.transactions.k26_end_txn import EndTxnRequest
from kbroker.protocol.fields import Message
from kbroker.retry_policy import RetryPolicy

logger = logging.getLogger(__name__)

ROUNDS_MAX = 5  # unanswered: brokers know a producer's last five batches of a partition
PRODUCE_NEWEST = 11  # 12 would add partitions to transactions by itself, and needs epochs that change (KIP-890)
ADD_PARTITIONS_NEWEST = 3  # above it the request is for brokers
INIT_NEWEST, END_TXN_NEWEST = 4, 4
UNKNOWN_TOPIC_SECONDS = 30.0  # until a topic that the cluster does not know is given up
ACKS_ALL = -1

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
_NOT_YET = {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}  # the coordinator's copy may lag
_UNKNOWN_TOPIC = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE)


class Refused(Exception):
    """The cluster does not take a batch, or a topic: its error code. `partition` is None for a topic."""

    def __init__(self, topic: str, partition: int | None, code: int, reason: str | None = None) -> None:
        super().__init__(f"{topic}: {error_name(code)}")
        self.topic = topic
        self.partition = partition
        self.code = code
        self.reason = reason  # why it was retried until its time was over


class Batch(NamedTuple):
    """A record batch, which carries the producer's id and its sequence numbers."""

    topic: str
    partition: int
    records: bytes


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """`delivery_s` bounds the retries of a batch; `transaction_ms` how long a transaction may be open."""

    bootstrap: str
    client_id: str = "kbroker"
    request_s: float = 30.0
    connect_s: float = 10.0
    delivery_s: float = 120.0
    transactional_id: str | None = None
    transaction_ms: int = 60_000


class _Sent(NamedTuple):
    """A request that is unanswered."""

    round: int
    connection: ClientConnection
    batches: list[Batch]


class BatchProducer:
    """Batches of a partition are sent in the order of their sequence numbers. Not thread-safe.

    Calls raise Refused, and ClientError if the cluster does not answer. After either, only abort() and close() are
    of use: what was sent may have been stored.
    """

    def __init__(self, client: ClusterClient, settings: ProducerSettings) -> None:
        """Owns `client`. ValueError names an address that is none."""
        self._client = client
        self._settings = settings
        self._produce_connections = BrokerConnections(
            settings.bootstrap, settings.client_id, settings.request_s, settings.connect_s
        )
        self._leaders: dict[str, list[Address | None]] = {}
        self._sent: deque[_Sent] = deque()
        self._rounds = 0
        self._transaction: set[tuple[str, int]] = set()  # its partitions
        self._is_open = False
        self.producer_id, self.producer_epoch = -1, -1

    def close(self) -> None:
        """Closes the connections. An open transaction stays open."""
        self._client.close()
        self._produce_connections.close()

    # -- the producer id and the transaction

    def open(self) -> None:
        """Gets the producer id. With a transactional id, its open transaction is aborted and other producers fenced."""
        settings = self._settings
        request = InitProducerIdRequest(
            transactional_id=settings.transactional_id, transaction_timeout_ms=settings.transaction_ms
        )
        response = self._asked(request, INIT_NEWEST, lambda response: [response.error_code])
        if response.error_code:
            raise ClientError(error_name(response.error_code))
        self.producer_id, self.producer_epoch = response.producer_id, response.producer_epoch

    def abort(self, seconds: float) -> None:
        """Aborts the transaction, if there is one. ClientError if its coordinator does not answer within `seconds`."""
        settings = self._settings
        if not self._is_open:
            return
        timeouts = Timeouts(seconds, seconds, min(seconds, settings.connect_s))
        client = ClusterClient(settings.bootstrap, settings.client_id, timeouts)
        request = EndTxnRequest(
            transactional_id=settings.transactional_id or "",
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            committed=False,
        )
        try:
            response = client.coordinator(
                CoordinatorKind.TRANSACTION,
                settings.transactional_id or "",
                request,
                lambda response: [response.error_code],
                END_TXN_NEWEST,
            )
        finally:
            client.close()
        if response.error_code:
            raise ClientError(error_name(response.error_code))

    def _asked(self, request: Message, newest: int, codes: Any) -> Any:
        """The answer of the transaction's coordinator, once an earlier transaction has ended; of any without one."""
        name = self._settings.transactional_id
        for _ in RetryPolicy(self._settings.delivery_s, first_wait_s=0.02, wait_max_s=1.0).attempts():
            if name is None:
                response = self._client.any_broker(request, newest, codes)
            else:
                response = self._client.coordinator(CoordinatorKind.TRANSACTION, name, request, codes, newest)
            if _NOT_YET.isdisjoint(codes(response)):
                break
        return response

    def _add_to_transaction(self, batches: Iterable[Batch]) -> None:
        added: dict[str, list[int]] = {}
        for batch in batches:
            if (batch.topic, batch.partition) not in self._transaction:
                added.setdefault(batch.topic, []).append(batch.partition)
        if not added:
            return
        self._is_open = True
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._settings.transactional_id or "",
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=topic, partitions=partitions) for topic, partitions in added.items()
            ],
        )
        response = self._asked(request, ADD_PARTITIONS_NEWEST, lambda answer: [each[2] for each in _results(answer)])
        for topic, partition, code in _results(response):
            if code not in (ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED):
                raise Refused(topic, partition, code)
            self._transaction.add((topic, partition))

    # -- where to send

    def partition_count(self, topic: str) -> int:
        """Of a topic, which is created if the cluster creates topics by itself."""
        if topic not in self._leaders:
            self._find_leaders([topic])
        return len(self._leaders[topic])

    def forget_topics(self) -> None:
        """The next batch asks for its topic again, which may have more partitions."""
        self._leaders.clear()

    def _find_leaders(self, topics: Sequence[str]) -> None:
        """Waits a while for topics that are not known yet; partitions may still have no leader."""
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic) for topic in topics], allow_auto_topic_creation=True
        )
        seconds = min(UNKNOWN_TOPIC_SECONDS, self._settings.delivery_s)
        for _ in RetryPolicy(seconds, first_wait_s=0.05, wait_max_s=1.0).attempts():
            response = self._client.any_broker(request)
            if not any(topic.error_code in _UNKNOWN_TOPIC for topic in response.topics):
                break
        brokers = {each.node_id: (each.host, each.port) for each in response.brokers}
        for topic in response.topics:
            if topic.error_code:
                raise Refused(topic.name, None, topic.error_code)
            leaders: list[Address | None] = [None] * len(topic.partitions)
            for part in topic.partitions:
                leaders[part.partition_index] = brokers.get(part.leader_id)
            self._leaders[topic.name] = leaders

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
        """Sends at most one batch for each partition. Waits for what was sent ROUNDS_MAX calls ago."""
        if self._settings.transactional_id is not None:
            self._add_to_transaction(batches)
        groups = self._by_leader(batches)
        self._rounds += 1
        while self._sent and self._sent[0].round <= self._rounds - ROUNDS_MAX:
            self._take_answer()
        unsent: list[Batch] = []
        reason = "no leader"
        for address, group in groups.items():
            try:
                if address is None:
                    raise Unreachable(reason)
                connection = self._produce_connections.connected(address)
                connection.send(self._request(group), PRODUCE_NEWEST)
                self._sent.append(_Sent(self._rounds, connection, group))
            except (OSError, ProtocolError, Unreachable) as error:
                unsent += group
                reason = str(error)
            except UnsupportedRequest as error:
                raise ClientError(str(error)) from None
        if unsent:
            self._resend([*self._unanswered(), *unsent], reason)

    def flush(self) -> None:
        """Waits until every batch is stored."""
        while self._sent:
            self._take_answer()

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

    def _take_answer(self) -> None:
        """Of the oldest request. If it is not that all is stored, sends again everything that is unanswered."""
        _, connection, group = self._sent.popleft()
        try:
            failed, reason = self._unstored(group, connection.receive())
        except (OSError, ProtocolError) as error:
            failed, reason = group, str(error)
        if failed:
            self._resend([*failed, *self._unanswered()], reason)

    def _unstored(self, group: list[Batch], response: Any) -> tuple[list[Batch], str]:
        """The batches to send again, and why. Raises Refused."""
        codes = {
            (topic.name, part.index): part.error_code
            for topic in response.responses
            for part in topic.partition_responses
        }
        failed, reason = [], ""
        for batch in group:
            code = codes.get((batch.topic, batch.partition), ErrorCode.NETWORK_EXCEPTION)
            if code in _STORED:
                continue
            if code not in _RESENT:
                raise Refused(batch.topic, batch.partition, code)
            failed.append(batch)
            reason = error_name(code)
        return failed, reason

    def _unanswered(self) -> list[Batch]:
        """Gives up all requests. What of them is stored is not stored again: brokers know the sequence numbers."""
        batches = [batch for sent in self._sent for batch in sent.batches]
        self._sent.clear()
        self._produce_connections.close()
        return batches

    def _resend(self, pending: list[Batch], reason: str) -> None:
        """Sends batches again, those of a partition one after the other, until all are stored."""
        logger.warning("producer: %s; trying for %.0f s", reason, self._settings.delivery_s)
        self._produce_connections.close()
        while pending:
            before = len(pending)
            for _ in RetryPolicy(self._settings.delivery_s, wait_max_s=1.0).attempts():
                pending, reason = self._resent_once(pending, reason)
                if len(pending) < before:
                    break
            else:
                topic, partition, _ = pending[0]
                raise Refused(topic, partition, ErrorCode.REQUEST_TIMED_OUT, reason)

    def _resent_once(self, pending: list[Batch], reason: str) -> tuple[list[Batch], str]:
        """Sends the first batch of each partition and waits. Returns what is left, in its order, and why."""
        first: dict[tuple[str, int], Batch] = {}
        for batch in pending:
            first.setdefault((batch.topic, batch.partition), batch)
        self._find_leaders(list({topic for topic, _ in first}))
        stored: set[int] = set()
        for address, group in self._by_leader(first.values()).items():
            if address is None:
                reason = "no leader"
                continue
            try:
                response = self._produce_connections.call(address, self._request(group), PRODUCE_NEWEST)
            except UnsupportedRequest as error:
                raise ClientError(str(error)) from None
            except (Unreachable, ProtocolError) as error:
                reason = str(error)
                continue
            failed, why = self._unstored(group, response)
            reason = why or reason
            stored |= {id(batch) for batch in group} - {id(batch) for batch in failed}
        return [batch for batch in pending if id(batch) not in stored], reason


def _results(response: Any) -> list[tuple[str, int, int]]:
    return [
        (topic.name, part.partition_index, part.partition_error_code)
        for topic in response.results_by_topic_v3_and_below
        for part in topic.results_by_partition
    ]
