"""The producer against brokers that refuse, fail and forget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kbroker._fast.records.records import iter_batches, iter_records
from kbroker.cli.failure import CommandFailed
from kbroker.cli.records.line_records import Outgoing
from kbroker.cli.records.partitions import Topics, created_partitions_of, partitions_of
from kbroker.cli.records.producer import Delivery, Producer, RecordTooLarge
from kbroker.client.cluster_client import ClusterClient
from kbroker.clock import ManualClock
from kbroker.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.apis.cluster.k03_metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kbroker.protocol.apis.records.k00_produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from kbroker.protocol.apis.transactions.k22_init_producer_id import InitProducerIdResponse
from kbroker.protocol.fields import Message
from kbroker.protocol.partitioner import partition_of
from kbroker.retry_policy import RetryPolicy
from tests.unit.client.fake_broker import NO_ANSWER, FakeBroker

VERSIONS = {ApiKey.PRODUCE: (3, 12), ApiKey.METADATA: (0, 12), ApiKey.INIT_PRODUCER_ID: (0, 5)}
PARTITIONS = 3
PRODUCER_ID = 77

Verdict = Callable[[int, Any, list], int | None]  # partition, header of the batch, records: code; None: hang up


class Log:
    """A broker with one topic, which stores what `verdict` says it may, once for each sequence."""

    def __init__(self, verdict: Verdict = lambda *batch: 0) -> None:
        self.verdict = verdict
        self.stored: dict[int, list] = {index: [] for index in range(PARTITIONS)}
        self.batches: list[tuple[int, Any]] = []
        self.topics = ["t"]
        self.creates: str | None = None
        self.hangs_up = False  # whatever it is asked
        self._known: set[tuple[int, int]] = set()  # partition and base sequence
        self.broker = FakeBroker(
            {
                ApiKey.PRODUCE: self._produce,
                ApiKey.METADATA: self._metadata,
                ApiKey.INIT_PRODUCER_ID: lambda request: InitProducerIdResponse(
                    producer_id=PRODUCER_ID, producer_epoch=4
                ),
            },
            VERSIONS,
        )

    def client(self) -> ClusterClient:
        return ClusterClient(self.broker.bootstrap, retries=RetryPolicy(60, wait=lambda seconds: False))

    def producer(self, **delivery: Any) -> Producer:
        client = self.client()
        return Producer(client, Topics(client, partitions_of), Delivery(**delivery), ManualClock())

    def values(self) -> dict[int, list[bytes | None]]:
        return {index: [record.value for record in records] for index, records in self.stored.items()}

    def _produce(self, request: Any) -> Message | None:
        answers = []
        for data in request.topic_data[0].partition_data:
            ((header, batch),) = iter_batches(data.records, check_crc=True)
            records = list(iter_records(batch))
            self.batches.append((data.index, header))
            code = self.verdict(data.index, header, records)
            is_new = header.base_sequence < 0 or (data.index, header.base_sequence) not in self._known
            if code in (0, None) and is_new:
                self._known.add((data.index, header.base_sequence))
                self.stored[data.index] += records
            if code is None:
                return None
            answers.append(PartitionProduceResponse(index=data.index, error_code=code, error_message=None))
        if request.acks == 0:
            return NO_ANSWER
        return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=answers)])

    def _metadata(self, request: Any) -> MetadataResponse | None:
        if self.hangs_up:
            return None
        asked = [topic.name for topic in request.topics] if request.topics is not None else self.topics
        if request.allow_auto_topic_creation and self.creates in asked:
            self.topics.append(self.creates)
            self.creates = None
            return self._cluster([(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for name in asked])
        return self._cluster(
            [(name, 0 if name in self.topics else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for name in asked]
        )

    def _cluster(self, topics: list[tuple[str, int]]) -> MetadataResponse:
        partitions = [
            MetadataResponsePartition(error_code=0, partition_index=index, leader_id=1) for index in range(PARTITIONS)
        ]
        return MetadataResponse(
            controller_id=1,
            brokers=[MetadataResponseBroker(node_id=1, host=self.broker.host, port=self.broker.port)],
            topics=[
                MetadataResponseTopic(error_code=code, name=name, partitions=[] if code else partitions)
                for name, code in topics
            ],
        )


def records(*values: bytes, partition: int | None = 0, key: bytes | None = None) -> list[Outgoing]:
    return [Outgoing("t", partition, 5, key, value, []) for value in values]


def test_records_keep_their_order_and_their_parts() -> None:
    log = Log()
    headers = [("h", b"\xff"), ("h", None)]
    log.producer().send([
        Outgoing("t", 1, 5, b"k", None, headers), Outgoing("t", 1, None, None, b"", []), *records(b"other"),
    ])  # fmt: skip
    first, second = log.stored[1]
    assert first[1:] == (5, 0, b"k", None, headers)
    assert second[1:] == (ManualClock().now_ms(), 0, None, b"", [])
    assert log.values()[0] == [b"other"]


def test_keys_choose_partitions_and_records_without_a_key_go_together() -> None:
    log = Log()
    sent = [Outgoing("t", None, 5, b"%d" % number, b"keyed %d" % number, []) for number in range(50)]
    log.producer().send([*sent, *records(*[b"none"] * 50, partition=None)])
    assert [values.count(b"none") for values in log.values().values() if b"none" in values] == [50]
    for index, stored in log.stored.items():
        assert all(partition_of(record.key, PARTITIONS) == index for record in stored if record.key is not None)


def test_sequences_number_the_records_of_each_partition() -> None:
    log = Log()
    producer = log.producer()
    producer.send(records(b"a", b"b") + records(b"c", partition=2))
    producer.send(records(b"d"))
    assert [(index, header.base_sequence) for index, header in log.batches] == [(0, 0), (2, 0), (0, 2)]
    assert {(header.producer_id, header.producer_epoch) for _, header in log.batches} == {(PRODUCER_ID, 4)}


def test_a_batch_whose_answer_was_lost_is_stored_once() -> None:
    answers = iter([None, 0])
    log = Log(lambda *batch: next(answers))
    log.producer().send(records(b"a", b"b"))
    assert log.values()[0] == [b"a", b"b"]
    assert len(log.batches) == 2


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT]
)
def test_what_may_pass_is_sent_again(code: ErrorCode) -> None:
    answers = iter([code, code, 0])
    log = Log(lambda *batch: next(answers))
    log.producer().send(records(b"a"))
    assert log.values()[0] == [b"a"]


def test_a_duplicate_is_as_good_as_stored() -> None:
    log = Log(lambda *batch: ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    producer = log.producer()
    producer.send(records(b"a"))
    producer.send(records(b"b"))
    assert [header.base_sequence for _, header in log.batches] == [0, 1]


def test_only_refused_partitions_are_sent_again() -> None:
    answers = iter([0, ErrorCode.NOT_ENOUGH_REPLICAS, 0])
    log = Log(lambda *batch: next(answers))
    log.producer().send(records(b"a") + records(b"b", partition=1))
    assert [index for index, _ in log.batches] == [0, 1, 1]


def test_another_error_names_the_partition() -> None:
    log = Log(lambda *batch: ErrorCode.INVALID_RECORD)
    with pytest.raises(CommandFailed, match="t-0: INVALID_RECORD"):
        log.producer().send(records(b"a"))


def test_a_batch_that_is_too_large_is_sent_in_parts_in_order() -> None:
    log = Log(lambda index, header, found: ErrorCode.MESSAGE_TOO_LARGE if len(found) > 3 else 0)
    producer = log.producer()
    values = [b"%d" % number for number in range(20)]
    producer.send(records(*values))
    producer.send(records(b"last"))
    assert log.values()[0] == [*values, b"last"]
    stored = [header.base_sequence for _, header in log.batches if header.record_count <= 3]
    assert stored == sorted(stored)


def test_a_record_that_is_too_large_is_found_and_those_before_it_are_stored() -> None:
    def verdict(index: int, header: Any, found: list) -> int:
        return ErrorCode.MESSAGE_TOO_LARGE if any(len(record.value) > 10 for record in found) else 0

    log = Log(verdict)
    sent = [Outgoing("t", number % 2, 5, None, b"%d" % number, []) for number in range(12)]
    sent[7] = sent[7]._replace(value=bytes(11))
    with pytest.raises(RecordTooLarge, match=r"t-1: .*MESSAGE_TOO_LARGE") as failure:
        log.producer().send(sent)
    assert failure.value.position == 7
    assert log.values() == {0: [b"0", b"2", b"4", b"6", b"8", b"10"], 1: [b"1", b"3", b"5"], 2: []}


@pytest.mark.parametrize("acks", [0, 1])
def test_without_acks_of_all_records_have_no_sequence(acks: int) -> None:
    log = Log()
    producer = log.producer(acks=acks, codec="lz4")
    producer.send(records(b"a"))
    producer.send(records(b"b"))
    producer.send(records(b"c"))  # its request for metadata is answered after all before it
    assert log.values()[0][:2] == [b"a", b"b"]
    assert all(header.base_sequence == -1 for _, header in log.batches)
    assert not [key for key, _, _ in log.broker.seen if key == ApiKey.INIT_PRODUCER_ID]


def test_an_unknown_topic_names_the_nearest() -> None:
    log = Log()
    log.topics = ["orders", "payments"]
    with pytest.raises(CommandFailed, match="there is no topic 'order'; did you mean 'orders'"):
        partitions_of(log.client(), "order")


def test_a_topic_that_the_broker_creates_is_waited_for() -> None:
    log = Log()
    log.creates = "new"
    retries = RetryPolicy(60, wait=lambda seconds: False)
    said: list[str] = []
    assert created_partitions_of(log.client(), "new", said.append, retries) == [0, 1, 2]
    assert said == ["topic new did not exist: created with 3 partitions"]
    assert created_partitions_of(log.client(), "new", said.append, retries) == [0, 1, 2]
    assert len(said) == 1


def test_a_topic_that_the_broker_does_not_create_is_given_up() -> None:
    log = Log()
    retries = RetryPolicy(60, wait=lambda seconds: True)
    with pytest.raises(CommandFailed, match="there is no topic 'other'"):
        created_partitions_of(log.client(), "other", pytest.fail, retries)
