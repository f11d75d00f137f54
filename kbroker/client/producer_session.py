"""A producer's id and epoch, and its transaction, as the coordinator knows them (KIP-98, KIP-360)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kbroker.client.cluster_client import ClientError, ClusterClient, CoordinatorKind, Timeouts, TopicPartition
from kbroker.errors import ErrorCode, error_name
from kbroker.protocol.apis.transactions.k22_init_producer_id import InitProducerIdRequest
from kbroker.protocol.apis.transactions.k24_add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from kbroker.protocol.apis.transactions.k25_add_offsets_to_txn import AddOffsetsToTxnRequest
from kbroker.protocol.apis.transactions.k26_end_txn import EndTxnRequest
from kbroker.protocol.apis.transactions.k28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kbroker.protocol.fields import Message
from kbroker.retry_policy import RetryPolicy

ADD_PARTITIONS_NEWEST = 3  # above it the request is for brokers
ADD_OFFSETS_NEWEST, OFFSETS_NEWEST = 3, 3  # 5 adds offsets by itself (KIP-890)
INIT_NEWEST, END_TXN_NEWEST = 4, 4  # later ones need epochs that change

# An earlier transaction is being ended, or the coordinator's copy of the metadata lags.
_NOT_YET = {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


class Refused(Exception):
    """The cluster does not take a batch, or a topic: its error code. `partition` is None for a topic."""

    def __init__(self, topic: str, partition: int | None, code: int, reason: str | None = None) -> None:
        super().__init__(f"{topic}: {error_name(code)}")
        self.topic = topic
        self.partition = partition
        self.code = code
        self.reason = reason  # why it was retried until its time was over, or what is too large


class SessionRefused(ClientError):
    """A coordinator does not take a request about the transaction or the producer id."""

    def __init__(self, code: int) -> None:
        super().__init__(error_name(code))
        self.code = code


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """`delivery_s` bounds the retries of a batch; `transaction_ms` how long a transaction may be open. `creates_topics`
    lets the cluster create a topic that is not there."""

    bootstrap: str
    client_id: str = "kbroker"
    request_s: float = 30.0
    connect_s: float = 10.0
    delivery_s: float = 120.0
    transactional_id: str | None = None
    transaction_ms: int = 60_000
    creates_topics: bool = True


class ProducerSession:
    """Borrows `client`. Not thread-safe. Calls raise SessionRefused, and ClientError if no coordinator answers."""

    def __init__(self, client: ClusterClient, settings: ProducerSettings) -> None:
        self._client = client
        self._settings = settings
        self._name = settings.transactional_id or ""
        self._partitions: set[TopicPartition] = set()  # of the transaction
        self._is_open = False
        self.producer_id, self.producer_epoch = -1, -1

    @property
    def is_transactional(self) -> bool:
        """Whether there is a transactional id."""
        return self._settings.transactional_id is not None

    def open(self) -> None:
        """Gets the producer id. With a transactional id, its open transaction is aborted and other producers fenced."""
        self._abandon()
        response = self._asked(self._init_request(-1, -1), INIT_NEWEST, lambda response: [response.error_code])
        _check(response.error_code)
        self.producer_id, self.producer_epoch = response.producer_id, response.producer_epoch

    def add_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Adds those that the transaction does not have yet, if this is transactional. Raises Refused."""
        added: dict[str, list[int]] = {}
        for topic, partition in partitions if self.is_transactional else ():
            if (topic, partition) not in self._partitions:
                added.setdefault(topic, []).append(partition)
        if not added:
            return
        self._is_open = True
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=topic, partitions=parts) for topic, parts in added.items()
            ],
        )
        response = self._asked(request, ADD_PARTITIONS_NEWEST, lambda answer: [each[2] for each in _results(answer)])
        for topic, partition, code in _results(response):
            if code not in (ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED):
                raise Refused(topic, partition, code)
            self._partitions.add((topic, partition))

    def add_offset(self, group: str, where: TopicPartition, offset: int, metadata: str) -> None:
        """Commits a group's offset with the transaction."""
        self._is_open = True
        topic, partition = where
        added = AddOffsetsToTxnRequest(
            transactional_id=self._name,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            group_id=group,
        )
        _check(self._asked(added, ADD_OFFSETS_NEWEST, lambda response: [response.error_code]).error_code)
        part = TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=metadata
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self._name,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[part])],
        )

        def codes(response: Any) -> list[int]:
            return [part.error_code for topic in response.topics for part in topic.partitions]

        for _ in self._retries().attempts():
            response = self._client.coordinator(CoordinatorKind.GROUP, group, request, codes, OFFSETS_NEWEST)
            if _NOT_YET.isdisjoint(codes(response)):
                break
        _check(next(filter(None, codes(response)), ErrorCode.NONE))

    def commit(self) -> None:
        """Commits the transaction, if there is one. After ClientError it may be committed or not."""
        if not self._is_open:
            return
        request = EndTxnRequest(
            transactional_id=self._name,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            committed=True,
        )
        _check(self._asked(request, END_TXN_NEWEST, lambda response: [response.error_code]).error_code)
        self._abandon()

    def abort(self, seconds: float) -> None:
        """Aborts the transaction, if there is one; afterwards only `open` is of use. ClientError after `seconds`.

        InitProducerId fences requests that are still on their way to a partition. EndTxn leaves them the same epoch:
        brokers before Kafka 3.6 would begin a transaction with them that nothing ends.
        """
        if not self._is_open:
            return
        settings = self._settings
        timeouts = Timeouts(seconds, seconds, min(seconds, settings.connect_s))
        client = ClusterClient(settings.bootstrap, settings.client_id, timeouts)
        request = self._init_request(self.producer_id, self.producer_epoch)
        try:
            for _ in RetryPolicy(seconds, first_wait_s=0.02, wait_max_s=1.0).attempts():
                code = client.coordinator(
                    CoordinatorKind.TRANSACTION,
                    self._name,
                    request,
                    lambda response: [response.error_code],
                    INIT_NEWEST,
                ).error_code
                if code != ErrorCode.CONCURRENT_TRANSACTIONS:
                    break
        finally:
            client.close()
        _check(code)
        self._abandon()

    def _abandon(self) -> None:
        self._partitions.clear()
        self._is_open = False

    def _init_request(self, producer_id: int, producer_epoch: int) -> InitProducerIdRequest:
        return InitProducerIdRequest(
            transactional_id=self._settings.transactional_id,
            transaction_timeout_ms=self._settings.transaction_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )

    def _asked(self, request: Message, newest: int, codes: Callable[[Any], Iterable[int]]) -> Any:
        """The answer of the transaction's coordinator, once an earlier transaction has ended; of any without one."""
        for _ in self._retries().attempts():
            if self.is_transactional:
                response = self._client.coordinator(CoordinatorKind.TRANSACTION, self._name, request, codes, newest)
            else:
                response = self._client.any_broker(request, newest, codes)
            if _NOT_YET.isdisjoint(codes(response)):
                break
        return response

    def _retries(self) -> RetryPolicy:
        return RetryPolicy(self._settings.delivery_s, first_wait_s=0.02, wait_max_s=1.0)


def _check(code: int) -> None:
    if code:
        raise SessionRefused(code)


def _results(response: Any) -> list[tuple[str, int, int]]:
    return [
        (topic.name, part.partition_index, part.partition_error_code)
        for topic in response.results_by_topic_v3_and_below
        for part in topic.results_by_partition
    ]
