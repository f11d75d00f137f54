"""Sends records to their partitions' leaders, in order, each once: an idempotent producer with one request at a time.

kafka-python's producer takes neither a null header value nor a record without key and value, has no bound on what it
holds, and does not say which records of a failed batch are stored.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kbroker._fast.records.records import build_batch
from kbroker.cli.failure import CommandFailed, check, reason
from kbroker.cli.records.line_records import Outgoing
from kbroker.cli.records.partitions import Topics
from kbroker.client.cluster_client import RETRIABLE, ClusterClient, TopicPartition
from kbroker.clock import Clock
from kbroker.errors import ErrorCode
from kbroker.protocol.apis.records.k00_produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kbroker.protocol.apis.transactions.k22_init_producer_id import InitProducerIdRequest
from kbroker.protocol.partitioner import partition_of

ACKS_ALL = -1
NEWEST = 12  # the last version that names topics
SEQUENCES = 2**31
# What Kafka's producer sends again, beside what any client asks again.
PRODUCE_RETRIABLE = RETRIABLE | {
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.CORRUPT_MESSAGE,
}
TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)

Numbered = tuple[int, Outgoing]  # a record and its position in what `send` was given


@dataclass(frozen=True, slots=True)
class Delivery:
    """How records are sent: `acks` of the protocol, compression, and the time-out of each request."""

    acks: int = ACKS_ALL
    codec: str = "none"
    request_timeout_s: float = 30.0


class RecordTooLarge(CommandFailed):
    """A topic does not take a record of this size. What `send` was given before its `position` is stored."""

    def __init__(self, position: int, message: str) -> None:
        super().__init__(message)
        self.position = position


class Producer:
    """Not thread-safe. A retry after a lost connection is not stored twice with acks=all (KIP-98)."""

    def __init__(self, client: ClusterClient, topics: Topics, delivery: Delivery, clock: Clock) -> None:
        self._client = client
        self._topics = topics
        self._delivery = delivery
        self._clock = clock
        self._producer: tuple[int, int] | None = None  # id and epoch
        self._sequences: dict[TopicPartition, int] = {}

    def send(self, records: Iterable[Outgoing]) -> None:
        """Returns when all are acknowledged. CommandFailed and ClientError: some may be stored."""
        by_partition: dict[TopicPartition, list[Numbered]] = {}
        now_ms = self._clock.now_ms()
        without_key: dict[str, int] = {}  # partitions: records without a key go together (KIP-480)
        for position, record in enumerate(records):
            partition = record.partition
            if partition is None:
                partition = self._partition(record, without_key)
            if record.timestamp_ms is None:
                record = record._replace(timestamp_ms=now_ms)
            by_partition.setdefault((record.topic, partition), []).append((position, record))
        if refused := self._deliver(by_partition):
            raise min(refused, key=lambda each: each.position)

    def _partition(self, record: Outgoing, without_key: dict[str, int]) -> int:
        partitions = self._topics.partitions(record.topic)
        if record.key is not None:
            return partitions[partition_of(record.key, len(partitions))]
        if record.topic not in without_key:
            without_key[record.topic] = random.choice(partitions)
        return without_key[record.topic]

    def _deliver(self, by_partition: Mapping[TopicPartition, Sequence[Numbered]]) -> list[RecordTooLarge]:
        """Sends a batch for each partition, in halves where it is too large for its topic.

        A record that is too large by itself ends what is sent to its partition, and is in the result.
        """
        refused: list[RecordTooLarge] = []
        for target, text in self._append(by_partition).items():
            records = by_partition[target]
            if len(records) == 1:
                refused.append(RecordTooLarge(records[0][0], text))
                continue
            middle = len(records) // 2
            refused += self._deliver({target: records[:middle]}) or self._deliver({target: records[middle:]})
        return refused

    def _append(self, by_partition: Mapping[TopicPartition, Sequence[Numbered]]) -> dict[TopicPartition, str]:
        """Sends a batch for each partition. The result has those that were too large, and what the broker said."""
        batches = {target: self._batch(target, records) for target, records in by_partition.items()}
        asked: list[TopicPartition] = []  # of the last request

        def build(partitions: Mapping[str, Sequence[int]]) -> ProduceRequest:
            asked[:] = [(topic, index) for topic, indexes in partitions.items() for index in indexes]
            data = [
                TopicProduceData(
                    name=topic,
                    partition_data=[
                        PartitionProduceData(index=index, records=batches[topic, index]) for index in indexes
                    ],
                )
                for topic, indexes in partitions.items()
            ]
            timeout_ms = int(self._delivery.request_timeout_s * 1000)
            return ProduceRequest(acks=self._delivery.acks, timeout_ms=timeout_ms, topic_data=data)

        def read(response: ProduceResponse | None) -> Iterator[tuple[str, int, int, str | None]]:
            if response is None:  # acks=0
                yield from ((topic, index, ErrorCode.NONE, None) for topic, index in asked)
                return
            for topic in response.responses:
                for part in topic.partition_responses:
                    yield topic.name, part.index, part.error_code, part.error_message

        too_large = {}
        for target, answer in self._client.by_leader(batches, build, read, NEWEST, PRODUCE_RETRIABLE).items():
            name = f"{target[0]}-{target[1]}"
            if answer.error_code in TOO_LARGE:
                too_large[target] = f"{name}: {reason(answer.error_code, answer.value)}"
                continue
            if answer.error_code != ErrorCode.DUPLICATE_SEQUENCE_NUMBER:  # of which an earlier try was stored
                check(answer.error_code, name, answer.value)
            self._sequences[target] = (self._sequences.get(target, 0) + len(by_partition[target])) % SEQUENCES
        return too_large

    def _batch(self, target: TopicPartition, records: Sequence[Numbered]) -> bytes:
        lines = [(record.key, record.value, record.timestamp_ms or 0, record.headers) for _, record in records]
        if self._delivery.acks != ACKS_ALL:
            return build_batch(lines, codec=self._delivery.codec)
        if self._producer is None:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
            answer = self._client.any_broker(request, codes=lambda response: [response.error_code])
            check(answer.error_code, "no producer id")
            self._producer = answer.producer_id, answer.producer_epoch
        return build_batch(
            lines,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            base_sequence=self._sequences.get(target, 0),
            codec=self._delivery.codec,
        )
