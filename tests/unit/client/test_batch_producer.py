"""A producer of record batches: the order of batches, what is sent again, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake_broker import FakeBroker

from kbroker._fast.records.records import build_batch, parse_batch_header
from kbroker.client.batch_producer import Batch, BatchProducer, ProducerSettings, Refused
from kbroker.client.cluster_client import ClientError, ClusterClient
from kbroker.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.apis.cluster.k03_metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kbroker.protocol.apis.groups.k10_find_coordinator import Coordinator, FindCoordinatorResponse
from kbroker.protocol.apis.records.k00_produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from kbroker.protocol.apis.transactions.k22_init_producer_id import InitProducerIdResponse
from kbroker.protocol.apis.transactions.k24_add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from kbroker.protocol.apis.transactions.k26_end_txn import EndTxnResponse
from kbroker.protocol.fields import Message

VERSIONS = {
    ApiKey.PRODUCE: (3, 13),
    ApiKey.METADATA: (9, 12),
    ApiKey.FIND_COORDINATOR: (4, 4),
    ApiKey.INIT_PRODUCER_ID: (4, 5),
    ApiKey.ADD_PARTITIONS_TO_TXN: (3, 5),
    ApiKey.END_TXN: (4, 5),
}
PARTITIONS = 2


class Log:
    """A broker's answers. `answer` gives the error code of a batch, or None to close the connection instead."""

    def __init__(self) -> None:
        self.records: dict[int, list[int]] = {}  # base sequences by partition
        self.answer: Callable[[int, int], int | None] = lambda partition, sequence: 0
        self.topic_error = 0
        self.leaderless = 0  # how often Metadata says so
        self.init = [0]  # error codes to come; the last one stays
        self.broker = FakeBroker(
            {
                ApiKey.PRODUCE: self._produce,
                ApiKey.METADATA: self._metadata,
                ApiKey.FIND_COORDINATOR: self._coordinator,
                ApiKey.INIT_PRODUCER_ID: lambda _: InitProducerIdResponse(
                    error_code=self.init.pop(0) if len(self.init) > 1 else self.init[0], producer_id=9, producer_epoch=1
                ),
                ApiKey.ADD_PARTITIONS_TO_TXN: self._added,
                ApiKey.END_TXN: lambda _: EndTxnResponse(),
            },
            VERSIONS,
        )

    def _produce(self, request: ProduceRequest) -> Message | None:
        answered = []
        for part in request.topic_data[0].partition_data:
            sequence = parse_batch_header(bytes(part.records or b"")).base_sequence
            code = self.answer(part.index, sequence)
            if code is None:
                return None
            if code == 0:
                self.records.setdefault(part.index, []).append(sequence)
            answered.append(PartitionProduceResponse(index=part.index, error_code=code, base_offset=0))
        return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=answered)])

    def _metadata(self, request: Any) -> Message:
        leader = 1
        if self.leaderless:
            self.leaderless -= 1
            leader = -1
        partitions = [
            MetadataResponsePartition(partition_index=index, leader_id=leader, replica_nodes=[], isr_nodes=[])
            for index in range(PARTITIONS)
        ]
        broker = MetadataResponseBroker(node_id=1, host=self.broker.host, port=self.broker.port)
        topics = [MetadataResponseTopic(error_code=self.topic_error, name="t", partitions=partitions)]
        return MetadataResponse(brokers=[broker], controller_id=1, topics=topics if request.topics else [])

    def _coordinator(self, request: Any) -> Message:
        (key,) = request.coordinator_keys
        found = Coordinator(key=key, node_id=1, host=self.broker.host, port=self.broker.port)
        return FindCoordinatorResponse(coordinators=[found])

    def _added(self, request: Any) -> Message:
        (topic,) = request.v3_and_below_topics
        results = [
            AddPartitionsToTxnPartitionResult(partition_index=each, partition_error_code=0) for each in topic.partitions
        ]
        topics = [AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=results)]
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)

    def seen(self, key: ApiKey) -> list[Any]:
        return [request for found, _, request in self.broker.seen if found == key]


@pytest.fixture
def log() -> Iterator[Log]:
    found = Log()
    yield found
    found.broker.close()


def opened(log: Log, **settings: Any) -> BatchProducer:
    given = ProducerSettings(log.broker.bootstrap, "c", 5.0, 5.0, **{"delivery_s": 5.0, **settings})
    producer = BatchProducer(ClusterClient(log.broker.bootstrap), given)
    producer.open()
    assert producer.partition_count("t") == PARTITIONS
    return producer


def batch(producer: BatchProducer, partition: int, sequence: int) -> Batch:
    records = build_batch(
        [(None, b"v", 1, ())],
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=sequence,
    )
    return Batch("t", partition, records)


def send_all(producer: BatchProducer, rounds: int) -> None:
    for sequence in range(rounds):
        producer.send([batch(producer, partition, sequence) for partition in range(PARTITIONS)])
    producer.flush()


def test_batches_are_stored_in_their_order(log: Log) -> None:
    producer = opened(log)
    send_all(producer, 20)
    producer.close()
    assert log.records == {0: list(range(20)), 1: list(range(20))}
    assert (producer.producer_id, producer.producer_epoch) == (9, 1)
    assert {version for key, version, _ in log.broker.seen if key == ApiKey.PRODUCE} == {11}


@pytest.mark.parametrize("code", [None, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS])
def test_what_is_unanswered_is_sent_again_from_the_batch_that_failed(log: Log, code: int | None) -> None:
    failed: list[int] = []

    def answer(partition: int, sequence: int) -> int | None:
        """As a broker does: a sequence number out of order is refused, one that is stored is a duplicate."""
        stored = log.records.get(partition, [])
        if partition == 1 and sequence == 3 and not failed:
            failed.append(sequence)
            return code
        if sequence < len(stored):
            return ErrorCode.DUPLICATE_SEQUENCE_NUMBER
        return 0 if sequence == len(stored) else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    log.answer = answer
    producer = opened(log)
    send_all(producer, 10)
    producer.close()
    assert failed == [3]
    assert log.records == {0: list(range(10)), 1: list(range(10))}


def test_a_partition_without_leader_is_waited_for(log: Log) -> None:
    log.leaderless = 2
    producer = opened(log)
    send_all(producer, 2)
    producer.close()
    assert log.records == {0: [0, 1], 1: [0, 1]}


@pytest.mark.parametrize(
    "code",
    [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER],
)
def test_a_batch_is_refused_by_name(log: Log, code: ErrorCode) -> None:
    log.answer = lambda partition, sequence: code if partition == 1 else 0
    producer = opened(log)
    with pytest.raises(Refused) as caught:
        send_all(producer, 1)
    assert (caught.value.topic, caught.value.partition, caught.value.code) == ("t", 1, code)
    producer.close()


def test_a_batch_that_is_never_stored_is_given_up_with_its_reason(log: Log) -> None:
    log.answer = lambda partition, sequence: ErrorCode.NOT_ENOUGH_REPLICAS
    producer = opened(log, delivery_s=0.01)
    with pytest.raises(Refused) as caught:
        send_all(producer, 1)
    assert caught.value.reason == "NOT_ENOUGH_REPLICAS"
    producer.close()


def test_a_topic_that_is_refused_is_said_at_once(log: Log) -> None:
    producer = opened(log)
    log.topic_error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    producer.forget_topics()
    with pytest.raises(Refused) as caught:
        producer.partition_count("t")
    assert (caught.value.partition, caught.value.code) == (None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    producer.close()


def test_a_partition_that_is_gone_is_refused(log: Log) -> None:
    producer = opened(log)
    with pytest.raises(Refused, match="UNKNOWN_TOPIC_OR_PARTITION"):
        producer.send([batch(producer, PARTITIONS, 0)])
    producer.close()


def test_partitions_are_added_to_a_transaction_once(log: Log) -> None:
    log.init = [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS, 0]
    producer = opened(log, transactional_id="id")
    producer.send([batch(producer, 1, 0)])
    producer.send([batch(producer, 0, 0), batch(producer, 1, 1)])
    producer.flush()
    added = [each.v3_and_below_topics[0].partitions for each in log.seen(ApiKey.ADD_PARTITIONS_TO_TXN)]
    assert added == [[1], [0]]
    assert {request.transactional_id for request in log.seen(ApiKey.PRODUCE)} == {"id"}
    producer.abort(5.0)
    (ended,) = log.seen(ApiKey.END_TXN)
    assert (ended.transactional_id, ended.producer_id, ended.producer_epoch, ended.committed) == ("id", 9, 1, False)
    producer.close()


def test_a_producer_id_that_is_refused_is_an_error(log: Log) -> None:
    log.init = [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
    settings = ProducerSettings(log.broker.bootstrap, transactional_id="id")
    producer = BatchProducer(ClusterClient(log.broker.bootstrap), settings)
    with pytest.raises(ClientError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        producer.open()
    producer.close()


def test_a_transaction_that_has_no_partition_needs_no_abort(log: Log) -> None:
    producer = opened(log, transactional_id="id")
    producer.abort(5.0)
    producer.close()
    assert log.seen(ApiKey.END_TXN) == []
