"""Group offsets, committed alone and in transactions, while their topic is compacted at once and read again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_process import BrokerProcess
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from conftest import SMALL
from until import until

SECONDS = 30.0
PARTITIONS = 3
OFFSETS = "__consumer_offsets"
QUIET = {"log_level": 0}
AT_ONCE = {
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
    "max.compaction.lag.ms": "200",
    "delete.retention.ms": "0",
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker whose cleaner hardly pauses."""
    process = BrokerProcess(tmp_path / "data", *SMALL, "--set", "log.cleaner.backoff.ms=50").start()
    yield process
    process.kill()


def member(broker: BrokerProcess, group: str) -> Consumer:
    return Consumer({**QUIET, "bootstrap.servers": broker.bootstrap, "group.id": group, "enable.auto.commit": False})


def commit_alone(broker: BrokerProcess, group: str, topic: str, offsets: range) -> None:
    consumer = member(broker, group)
    for offset in offsets:
        consumer.commit(offsets=[TopicPartition(topic, n, offset) for n in range(PARTITIONS)], asynchronous=False)
    consumer.close()


def commit_in_transactions(broker: BrokerProcess, group: str, topic: str, offsets: range) -> None:
    """Every second one is aborted; the last is not."""
    consumer = member(broker, group)
    producer = Producer({**QUIET, "bootstrap.servers": broker.bootstrap, "transactional.id": group})
    producer.init_transactions(SECONDS)
    for offset in offsets:
        producer.begin_transaction()
        places = [TopicPartition(topic, n, offset) for n in range(PARTITIONS)]
        producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), SECONDS)
        if (offsets[-1] - offset) % 2:
            producer.abort_transaction(SECONDS)
        else:
            producer.commit_transaction(SECONDS)
    consumer.close()


def committed(broker: BrokerProcess, group: str, topic: str) -> list[int]:
    consumer = member(broker, group)
    found = consumer.committed([TopicPartition(topic, n) for n in range(PARTITIONS)], SECONDS)
    consumer.close()
    return [place.offset for place in found]


def kept_records(broker: BrokerProcess) -> int:
    """Of all partitions of the internal topic."""
    consumer = Consumer({**QUIET, "bootstrap.servers": broker.bootstrap, "group.id": "r", "enable.partition.eof": True})
    partitions = consumer.list_topics(OFFSETS, SECONDS).topics[OFFSETS].partitions
    consumer.assign([TopicPartition(OFFSETS, number, 0) for number in partitions])
    count, ends = 0, 0
    while ends < len(partitions):
        message = consumer.poll(SECONDS)
        assert message is not None
        ends += message.error() is not None
        count += message.error() is None
    consumer.close()
    return count


def test_committed_offsets_survive_compaction_and_kills(broker: BrokerProcess) -> None:
    admin = AdminClient({**QUIET, "bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(SECONDS)
    committed(broker, "alone", "t")  # the internal topic exists from now on
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in AT_ONCE.items()]
    resource = ConfigResource(ConfigResource.Type.TOPIC, OFFSETS, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(SECONDS)
    for turn in range(3):
        first = 100 * turn
        commit_alone(broker, "alone", "t", range(first, first + 60))
        commit_in_transactions(broker, "together", "t", range(first, first + 20))
        if turn != 1:
            until(lambda: kept_records(broker) <= 40, "compacted offsets")
        broker.kill()
        broker.start()
        assert committed(broker, "alone", "t") == [first + 59] * PARTITIONS
        assert committed(broker, "together", "t") == [first + 19] * PARTITIONS
