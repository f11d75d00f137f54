"""The time and the result of compaction: the same records with the same configs in kbroker and in Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import java_tools
import pytest
from broker_process import BrokerProcess
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from conftest import SMALL
from kafka_server import KafkaServer
from until import until

SECONDS = 60.0
pytestmark = [pytest.mark.java, pytest.mark.skipif(bool(java_tools.missing()), reason=java_tools.missing())]

QUIET = {"log_level": 0}
KEYS = 10
UPDATES = 400
HOUR = "3600000"
# Topic: its configs, and whether records older than a second are compacted although few were written.
RULES: dict[str, tuple[dict[str, str], bool]] = {
    "lag": ({"segment.ms": "100", "max.compaction.lag.ms": "500", "min.cleanable.dirty.ratio": "1"}, True),
    "lag-rolls": ({"segment.ms": HOUR, "max.compaction.lag.ms": "500", "min.cleanable.dirty.ratio": "1"}, True),
    "ratio": ({"segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}, True),
    "clean-enough": ({"segment.ms": "100", "min.cleanable.dirty.ratio": "1"}, False),
    "young": ({"segment.ms": "100", "min.cleanable.dirty.ratio": "0.01", "min.compaction.lag.ms": HOUR}, False),
    "active": ({"segment.ms": HOUR, "min.cleanable.dirty.ratio": "0.01"}, False),
}
COMPACTED = [topic for topic, (_, compacted) in RULES.items() if compacted]

Record = tuple[int, bytes, bytes | None]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[str]]:
    """Their addresses: kbroker's, then Kafka's. Both cleaners check twenty times a second."""
    broker = BrokerProcess(tmp_path / "data", *SMALL, "--set", "log.cleaner.backoff.ms=50")
    kafka = KafkaServer(tmp_path / "kafka-logs", log_cleaner_backoff_ms="50")
    try:
        broker.start()
        kafka.start()
        yield [broker.bootstrap, kafka.bootstrap]
    finally:
        broker.kill()
        kafka.kill()


def write(bootstrap: str, topic: str, records: list[tuple[bytes, bytes | None]]) -> None:
    """In batches of ten, so that they are cut the same way everywhere."""
    producer = Producer({**QUIET, "bootstrap.servers": bootstrap, "linger.ms": 1000})
    for first in range(0, len(records), 10):
        for key, value in records[first : first + 10]:
            producer.produce(topic, value, key, partition=0)
        assert producer.flush(SECONDS) == 0


def read(bootstrap: str, topic: str) -> list[Record]:
    consumer = Consumer({**QUIET, "bootstrap.servers": bootstrap, "group.id": "r", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while not (message := consumer.poll(SECONDS)).error():
        found.append((message.offset(), message.key(), message.value()))
    consumer.close()
    return found


def compacted(bootstrap: str, topic: str) -> bool:
    """All but the newest batch, which is Kafka's active segment."""
    return len(read(bootstrap, topic)) <= KEYS + 1


def test_compaction_keeps_the_records_that_kafka_keeps(servers: list[str]) -> None:
    updates: list[tuple[bytes, bytes | None]] = [(b"%d" % (n % KEYS), b"%d" % n) for n in range(UPDATES)]
    for bootstrap in servers:
        admin = AdminClient({**QUIET, "bootstrap.servers": bootstrap})
        new = [NewTopic(topic, 1, 1, config={"cleanup.policy": "compact", **configs})
               for topic, (configs, _) in RULES.items()]  # fmt: skip
        for created in admin.create_topics(new).values():
            created.result(SECONDS)
        for topic in RULES:
            write(bootstrap, topic, updates)
    ours, kafka = servers
    # Here it is compacted now or soon; Kafka's active segments need a later append.
    for topic in COMPACTED:
        until(lambda topic=topic: compacted(ours, topic), f"compacted {topic}")  # type: ignore[misc]
    for topic in RULES:
        for bootstrap in servers:
            write(bootstrap, topic, [(b"last", b"")])
    for topic in COMPACTED:
        for bootstrap in servers:
            until(lambda at=bootstrap, topic=topic: compacted(at, topic), f"compacted {topic}")  # type: ignore[misc]
        assert read(ours, topic) == read(kafka, topic)
    # The other topics were checked as often as these.
    for topic in RULES.keys() - COMPACTED:
        assert len(read(ours, topic)) == len(read(kafka, topic)) == UPDATES + 1, topic
