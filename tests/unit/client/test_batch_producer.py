"""A producer of record batches: the order of batches, what is sent again, and what is refused."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from fake_broker import FakeBroker

from kbroker._fast.records.records import build_batch, iter_records, parse_batch_header
from kbroker.client import batch_producer
from kbroker.client.batch_producer import REQUESTS_MAX, Batch, BatchProducer
from kbroker.client.cluster_client import ClientError, ClusterClient
from kbroker.client.producer_session import ProducerSettings, Refused
from kbroker.errors import ErrorCode
from kbroker.limits import KIB
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.apis.cluster.k03_metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kbroker.protocol.apis.configs.k32_describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
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
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.INIT_PRODUCER_ID: (4, 5),
    ApiKey.ADD_PARTITIONS_TO_TXN: (3, 5),
    ApiKey.END_TXN: (4, 5),
}
PARTITIONS = 2
MUCH = 1 << 30


class Log:
    """A broker's answers. `answer` gives the error code of a batch, or None to close the connection instead."""

    def __init__(self) -> None:
        self.records: dict[int, list[int]] = {}  # base sequences by partition
        self.values: dict[int, list[bytes | None]] = {}
        self.bytes_max = MUCH  # of a batch
        self.leaders = [1] * PARTITIONS
        self.others: dict[int, FakeBroker] = {}  # by node id
        self.answer: Callable[[int, int], int | None] = lambda partition, sequence: 0
        self.topic_errors: list[int] = []  # of the next answers to Metadata
        self.leaderless = 0  # how often Metadata says so
        self.init = [0]  # error codes to come; the last one stays
        self.broker = FakeBroker(
            {
                ApiKey.PRODUCE: self.produce,
                ApiKey.METADATA: self._metadata,
                ApiKey.FIND_COORDINATOR: self._coordinator,
                ApiKey.DESCRIBE_CONFIGS: self._configs,
                ApiKey.INIT_PRODUCER_ID: lambda _: InitProducerIdResponse(
                    error_code=self.init.pop(0) if len(self.init) > 1 else self.init[0], producer_id=9, producer_epoch=1
                ),
                ApiKey.ADD_PARTITIONS_TO_TXN: self._added,
                ApiKey.END_TXN: lambda _: EndTxnResponse(),
            },
            VERSIONS,
        )

    def produce(self, request: ProduceRequest) -> Message | None:
        answered = []
        for part in request.topic_data[0].partition_data:
            data = bytes(part.records or b"")
            sequence = parse_batch_header(data).base_sequence
            code = self.answer(part.index, sequence) if len(data) <= self.bytes_max else ErrorCode.MESSAGE_TOO_LARGE
            if code is None:
                return None
            if code == 0:
                self.records.setdefault(part.index, []).append(sequence)
                self.values.setdefault(part.index, []).extend(each.value for each in iter_records(data))
            answered.append(PartitionProduceResponse(index=part.index, error_code=code, base_offset=0))
        return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=answered)])

    def _metadata(self, request: Any) -> Message:
        leaders = self.leaders
        if self.leaderless:
            self.leaderless -= 1
            leaders = [-1] * PARTITIONS
        partitions = [
            MetadataResponsePartition(partition_index=index, leader_id=leader, replica_nodes=[], isr_nodes=[])
            for index, leader in enumerate(leaders)
        ]
        brokers = [
            MetadataResponseBroker(node_id=node_id, host=broker.host, port=broker.port)
            for node_id, broker in {1: self.broker, **self.others}.items()
        ]
        error = self.topic_errors.pop(0) if self.topic_errors else 0
        topics = [MetadataResponseTopic(error_code=error, name="t", partitions=[] if error else partitions)]
        return MetadataResponse(brokers=brokers, controller_id=1, topics=topics if request.topics else [])

    def _configs(self, request: Any) -> Message:
        (resource,) = request.resources
        assert (resource.resource_name, resource.configuration_keys) == ("t", ["max.message.bytes"])
        found = DescribeConfigsResourceResult(name="max.message.bytes", value=str(self.bytes_max))
        return DescribeConfigsResponse(results=[DescribeConfigsResult(configs=[found])])

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
    given = ProducerSettings(
        log.broker.bootstrap, "c", connect_s=5.0, **{"request_s": 5.0, "delivery_s": 5.0, **settings}
    )
    producer = BatchProducer(ClusterClient(log.broker.bootstrap), given)
    producer.session.open()
    assert producer.partition_count("t") == PARTITIONS
    return producer


def batch(
    producer: BatchProducer, partition: int, sequence: int, values: Sequence[bytes] = (b"v",), codec: str = "none"
) -> Batch:
    records = build_batch(
        [(None, value, 1, ()) for value in values],
        codec=codec,
        transactional=producer.session.is_transactional,
        producer_id=producer.session.producer_id,
        producer_epoch=producer.session.producer_epoch,
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
    assert (producer.session.producer_id, producer.session.producer_epoch) == (9, 1)
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
    [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER],
)
def test_a_batch_is_refused_by_name(log: Log, code: ErrorCode) -> None:
    log.answer = lambda partition, sequence: code if partition == 1 else 0
    producer = opened(log)
    with pytest.raises(Refused) as caught:
        send_all(producer, 1)
    assert (caught.value.topic, caught.value.partition, caught.value.code) == ("t", 1, code)
    producer.close()


def stored_once(log: Log, partition: int, sequence: int) -> int:
    """As a broker answers: a sequence number out of order is refused, one that is stored is a duplicate."""
    following = len(log.values.get(partition, []))
    if sequence < following:
        return ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    return 0 if sequence == following else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_batches_that_are_too_large_are_split_in_their_order(log: Log, codec: str) -> None:
    """While others are on their way. Later batches are to be smaller at once."""
    log.bytes_max = 2 * KIB
    log.answer = lambda partition, sequence: stored_once(log, partition, sequence)
    chosen = random.Random(1)
    values = [chosen.randbytes(chosen.randrange(400)) for _ in range(500)]
    producer = opened(log)
    for start in range(0, 500, 50):
        producer.send([batch(producer, each, start, values[start : start + 50], codec) for each in range(PARTITIONS)])
    producer.flush()
    producer.close()
    assert log.values == dict.fromkeys(range(PARTITIONS), values)
    assert KIB // 2 < producer.batch_bytes_max["t"] <= 2 * KIB


@pytest.mark.parametrize("transactional_id", [None, "id"])
def test_a_split_batch_keeps_its_producer_and_its_sequence_numbers(log: Log, transactional_id: str | None) -> None:
    log.bytes_max = 2 * KIB
    producer = opened(log, transactional_id=transactional_id)
    producer.send([batch(producer, 0, 0x7FFFFFFE, [b"x" * KIB] * 3)])
    producer.flush()
    producer.close()
    assert log.records == {0: [0x7FFFFFFE, 0x7FFFFFFF, 0]}
    sent = [
        parse_batch_header(bytes(request.topic_data[0].partition_data[0].records))
        for request in log.seen(ApiKey.PRODUCE)
    ]
    assert {(each.producer_id, each.producer_epoch, each.is_transactional) for each in sent} == {
        (9, 1, transactional_id is not None)
    }


def test_a_single_record_that_is_too_large_is_named_with_its_size_and_the_limit(log: Log) -> None:
    log.bytes_max = 1000
    producer = opened(log)
    producer.send([batch(producer, 1, 0, [b"", b"x" * 2000])])
    with pytest.raises(Refused) as caught:
        producer.flush()
    producer.close()
    assert (caught.value.topic, caught.value.partition, caught.value.code) == ("t", 1, ErrorCode.MESSAGE_TOO_LARGE)
    assert caught.value.reason == "a record of 2070 bytes; max.message.bytes is 1000"


def test_a_slow_broker_does_not_hold_up_the_others(log: Log) -> None:
    released = threading.Event()

    def produce_late(request: ProduceRequest) -> Message | None:
        assert released.wait(60)
        return log.produce(request)

    slow = log.others[2] = FakeBroker({ApiKey.PRODUCE: produce_late}, VERSIONS)
    log.leaders = [1, 2]
    producer = opened(log, request_s=60.0)
    producer.send([batch(producer, 1, 0)])
    for sequence in range(3 * REQUESTS_MAX):
        producer.send([batch(producer, 0, sequence)])
    assert len(log.records[0]) >= 2 * REQUESTS_MAX
    assert 1 not in log.records
    released.set()
    producer.flush()
    producer.close()
    slow.close()
    assert log.records == {0: list(range(3 * REQUESTS_MAX)), 1: [0]}


@pytest.mark.parametrize("code", [ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
def test_a_topic_that_was_there_is_waited_for_as_long_as_a_batch(
    log: Log, code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_producer, "NEW_TOPIC_SECONDS", 0.0)
    producer = opened(log)
    refused = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    log.answer = lambda partition, sequence: refused.pop() if refused else 0
    log.topic_errors = [code] * 3
    send_all(producer, 1)
    producer.close()
    assert log.topic_errors == []
    assert log.records == {0: [0], 1: [0]}


def test_a_new_topic_without_leaders_is_waited_for(log: Log) -> None:
    log.topic_errors = [ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    producer = opened(log)
    send_all(producer, 1)
    producer.close()
    assert log.records == {0: [0], 1: [0]}


def test_a_topic_that_is_never_there_is_refused(log: Log) -> None:
    log.topic_errors = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 1000
    with pytest.raises(Refused, match="UNKNOWN_TOPIC_OR_PARTITION"):
        opened(log, delivery_s=0.01)


def test_a_batch_that_is_never_stored_is_given_up_with_its_reason(log: Log) -> None:
    log.answer = lambda partition, sequence: ErrorCode.NOT_ENOUGH_REPLICAS
    producer = opened(log, delivery_s=0.01)
    with pytest.raises(Refused) as caught:
        send_all(producer, 1)
    assert caught.value.reason == "NOT_ENOUGH_REPLICAS"
    producer.close()


def test_a_topic_that_is_refused_is_said_at_once(log: Log) -> None:
    producer = opened(log)
    log.topic_errors = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
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
    producer.session.commit()
    (ended,) = log.seen(ApiKey.END_TXN)
    assert (ended.transactional_id, ended.producer_id, ended.producer_epoch, ended.committed) == ("id", 9, 1, True)
    producer.send([batch(producer, 1, 2)])
    producer.flush()
    assert len(log.seen(ApiKey.ADD_PARTITIONS_TO_TXN)) == 3
    producer.close()


def test_an_abort_fences_what_is_still_on_its_way(log: Log) -> None:
    """By a higher epoch. With EndTxn alone, an older broker would append such a batch after the abort marker."""
    producer = opened(log, transactional_id="id")
    producer.send([batch(producer, 1, 0)])
    log.init = [ErrorCode.CONCURRENT_TRANSACTIONS, 0]
    producer.session.abort(5.0)
    named = [
        (each.transactional_id, each.producer_id, each.producer_epoch) for each in log.seen(ApiKey.INIT_PRODUCER_ID)
    ]
    assert named == [("id", -1, -1), ("id", 9, 1), ("id", 9, 1)]
    assert log.seen(ApiKey.END_TXN) == []
    producer.close()


def test_an_abort_leaves_the_transaction_of_a_newer_producer_alone(log: Log) -> None:
    producer = opened(log, transactional_id="id")
    producer.send([batch(producer, 1, 0)])
    log.init = [ErrorCode.PRODUCER_FENCED]
    with pytest.raises(ClientError, match="PRODUCER_FENCED"):
        producer.session.abort(5.0)
    producer.close()


def test_a_producer_id_that_is_refused_is_an_error(log: Log) -> None:
    log.init = [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
    settings = ProducerSettings(log.broker.bootstrap, transactional_id="id")
    producer = BatchProducer(ClusterClient(log.broker.bootstrap), settings)
    with pytest.raises(ClientError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        producer.session.open()
    producer.close()


def test_a_transaction_that_has_no_partition_needs_no_abort(log: Log) -> None:
    producer = opened(log, transactional_id="id")
    producer.session.abort(5.0)
    producer.session.commit()
    producer.close()
    assert len(log.seen(ApiKey.INIT_PRODUCER_ID)) == 1
    assert log.seen(ApiKey.END_TXN) == []


@pytest.mark.parametrize("creates", [True, False])
def test_topics_are_created_only_where_that_is_wanted(log: Log, creates: bool) -> None:
    producer = opened(log, creates_topics=creates)
    producer.close()
    assert log.seen(ApiKey.METADATA)[-1].allow_auto_topic_creation is creates


def test_a_partitions_first_batch_is_stored_before_the_next_is_sent(log: Log) -> None:
    """Else, when the first is refused, the broker takes the next one, and the first one's halves never again."""

    def answer(partition: int, sequence: int) -> int:
        """Of a producer that it does not know in a partition, a broker takes any sequence number."""
        first = log.records.get(partition, [sequence])[0]
        in_order = sequence == first + len(log.values.get(partition, ()))
        return 0 if in_order else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    log.answer = answer
    log.bytes_max = 2 * KIB
    producer = opened(log)
    values = [b"%04d" % number + b"x" * 100 for number in range(40)]
    producer.send([batch(producer, 0, 0, values[:30])])
    producer.send([batch(producer, 0, 30, values[30:])])
    producer.flush()
    producer.close()
    assert log.values[0] == values
