"""Producers that partitions know, and which of their transactions hang."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kbroker.cli.failure import check
from kbroker.cli.transaction.coordinators import open_transactions
from kbroker.client.cluster_client import ClusterClient, TopicPartition
from kbroker.clock import SystemClock
from kbroker.protocol.apis.transactions.k61_describe_producers import (
    DescribeProducersRequest,
    ProducerState,
    TopicRequest,
)
from kbroker.protocol.apis.transactions.k65_describe_transactions import TransactionState


class OpenTransaction(NamedTuple):
    """A transaction that is open in a partition."""

    topic: str
    partition: int
    producer: ProducerState


def producers(client: ClusterClient, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, list[ProducerState]]:
    """The producers that the leader of each partition knows. Raises CommandFailed for a partition's error."""

    def build(asked: Mapping[str, Sequence[int]]) -> DescribeProducersRequest:
        topics = [TopicRequest(name=topic, partition_indexes=list(indexes)) for topic, indexes in asked.items()]
        return DescribeProducersRequest(topics=topics)

    def read(response: Any) -> Iterator[tuple[str, int, int, Any]]:
        for topic in response.topics:
            for part in topic.partitions:
                yield topic.name, part.partition_index, part.error_code, part

    answers = client.by_leader(partitions, build, read)
    for (topic, index), answer in answers.items():
        check(answer.error_code, f"{topic}-{index}", answer.value.error_message if answer.value else None)
    return {each: answer.value.active_producers for each, answer in answers.items()}


def opened(found: Mapping[TopicPartition, Sequence[ProducerState]]) -> list[OpenTransaction]:
    """The open transactions among the producers of partitions."""
    return [
        OpenTransaction(topic, index, producer)
        for (topic, index), states in found.items()
        for producer in states
        if producer.current_txn_start_offset >= 0
    ]


def hanging(client: ClusterClient, candidates: Sequence[OpenTransaction], idle_ms: float) -> list[OpenTransaction]:
    """Those without a record for `idle_ms` that no coordinator will end (KIP-664).

    A coordinator that is ending a transaction may know the producer by its next id already: `idle_ms` must cover that.
    """
    now_ms = SystemClock().now_ms()
    idle = [each for each in candidates if now_ms - each.producer.last_timestamp >= idle_ms]
    known = open_transactions(client, [each.producer.producer_id for each in idle])
    return [each for each in idle if not _is_coordinated(each, known.get(each.producer.producer_id))]


def _is_coordinated(opened: OpenTransaction, state: TransactionState | None) -> bool:
    if state is None:
        return False
    return any(topic.topic == opened.topic and opened.partition in topic.partitions for topic in state.topics)
