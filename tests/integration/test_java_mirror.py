"""MirrorMaker 2 between Apache Kafka and kbroker, both ways at once, with the offsets of groups translated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import java_tools
import pytest
from broker_process import BrokerProcess
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec
from conftest import ON_A_FOLDER, require
from java_program import JavaProgram
from served_apis import need
from test_client_confluent import QUIET
from until import until

from bench.e2e.servers import Kafka
from kbroker.protocol.api_keys import ApiKey

pytestmark = [pytest.mark.java, pytest.mark.slow, ON_A_FOLDER]
PARTITIONS = 2
RECORDS = 200  # sent at a time
RETENTION_MS = "86400001"  # of the topics that are mirrored
SETTINGS = {
    "topics": "orders-.*",
    "groups": "billing-.*",
    "refresh.topics.interval.seconds": 1,
    "refresh.groups.interval.seconds": 1,
    "emit.checkpoints.interval.seconds": 1,
    "sync.group.offsets.enabled": "true",
    "sync.group.offsets.interval.seconds": 1,
    "emit.heartbeats.interval.seconds": 1,
    "offset.lag.max": 0,
    "offset.flush.interval.ms": 500,
    "scheduled.rebalance.max.delay.ms": 0,
    "consumer.reconnect.backoff.max.ms": 300,
    "producer.reconnect.backoff.max.ms": 300,
    "admin.reconnect.backoff.max.ms": 300,
    "replication.factor": 1,
    **{
        f"{kind}.replication.factor": 1
        for kind in (
            "checkpoints.topic", "heartbeats.topic", "offset-syncs.topic", "config.storage", "offset.storage",
            "status.storage",
        )
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Apache Kafka, one node."""
    require(not java_tools.missing(), java_tools.missing())
    server = Kafka(tmp_path_factory.mktemp("kafka"))
    try:
        yield server.start()
    finally:
        server.stop()


class Cluster:
    """One of the two sides."""

    def __init__(self, name: str, bootstrap: str) -> None:
        self.name, self.bootstrap = name, bootstrap
        self.admin = AdminClient({**QUIET, "bootstrap.servers": bootstrap, "metadata.recovery.strategy": "none"})

    def create(self, topic: str) -> None:
        configs = {"retention.ms": RETENTION_MS}
        (created,) = self.admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=configs)]).values()
        created.result(30)

    def send(self, topic: str, first: int) -> None:
        producer = Producer({**QUIET, "bootstrap.servers": self.bootstrap, "enable.idempotence": True})
        for number in range(first, first + RECORDS):
            producer.produce(topic, b"%d" % number, b"key", partition=number % PARTITIONS, headers=[("h", b"v")])
        assert producer.flush(30) == 0

    def ends(self, topic: str) -> list[int]:
        """The end offsets; none when there is no such topic."""
        if topic not in self.admin.list_topics(timeout=20).topics:
            return []
        asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(PARTITIONS)}
        return [future.result(20).offset for future in self.admin.list_offsets(asked).values()]

    def read(self, topic: str, starts: dict[int, int], count: int) -> list[int]:
        """So many numbers, from these offsets on."""
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "none", "enable.auto.commit": False}
        consumer = Consumer({**QUIET, **settings})
        try:
            consumer.assign([TopicPartition(topic, partition, offset) for partition, offset in starts.items()])
            messages = consumer.consume(count, 20)
            assert [message.error() for message in messages] == [None] * count
            return [int(message.value()) for message in messages]
        finally:
            consumer.close()

    def commit(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        """Sets a group's offsets, as if it had read so far."""
        wanted = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        asked = [ConsumerGroupTopicPartitions(group, wanted)]
        (altered,) = self.admin.alter_consumer_group_offsets(asked).values()
        altered.result(20)

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """A group's offsets of one topic."""
        (found,) = self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
        entries = found.result(20).topic_partitions
        return {entry.partition: entry.offset for entry in entries if entry.topic == topic and entry.offset >= 0}

    def retention_ms(self, topic: str) -> str:
        (config,) = self.admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
        return config.result(20)["retention.ms"].value


class Flow:
    """One direction: a topic, its mirror, and a group that reads it."""

    def __init__(self, source: Cluster, target: Cluster, serial: int) -> None:
        self.source, self.target = source, target
        self.topic, self.group = f"orders-{source.name}-{serial}", f"billing-{source.name}-{serial}"
        self.mirror = f"{source.name}.{self.topic}"
        self.sent = 0
        source.create(self.topic)

    def send(self) -> None:
        self.source.send(self.topic, self.sent)
        self.sent += RECORDS

    def wait_mirrored(self) -> None:
        """All records have come, in order, at the offsets of the source."""
        ends = [self.sent // PARTITIONS] * PARTITIONS
        until(
            lambda: self.target.ends(self.mirror) == ends,
            lambda: f"end offsets {ends} in {self.mirror}: {self.target.ends(self.mirror)}",
            retried=(KafkaException,),  # Kafka answers NOT_LEADER_OR_FOLLOWER for a topic that it has just created
        )
        read = self.target.read(self.mirror, dict.fromkeys(range(PARTITIONS), 0), self.sent)
        for partition in range(PARTITIONS):
            mine = [number for number in read if number % PARTITIONS == partition]
            assert mine == list(range(partition, self.sent, PARTITIONS))

    def wait_translated(self, mirror_maker: JavaProgram) -> None:
        """A group that has read all is at the end of the mirror, also according to MirrorMaker's client."""
        ends = dict(enumerate(self.source.ends(self.topic)))
        self.source.commit(self.group, self.topic, ends)
        until(
            lambda: self.target.committed(self.group, self.mirror) == ends,
            lambda: f"translation to {ends}: {self.target.committed(self.group, self.mirror)}",
        )
        seen = len(mirror_maker.events)
        mirror_maker.tell("translate", self.source.name, self.target.bootstrap, self.group)
        told = len(list(mirror_maker.find("translation", self.group)))
        mirror_maker.wait_event("translation", self.group, count=told + 1)
        answers = [event.fields for event in mirror_maker.events[seen:] if event.name == "translated"]
        assert sorted(answers) == [(self.group, self.mirror, str(part), str(end)) for part, end in ends.items()]


def start(class_path: str, sides: tuple[Cluster, Cluster], log_path: Path) -> JavaProgram:
    """MirrorMaker 2 with both flows."""
    first, second = (cluster.name for cluster in sides)
    settings = {
        "clusters": f"{first},{second}",
        **{f"{cluster.name}.bootstrap.servers": cluster.bootstrap for cluster in sides},
        f"{first}->{second}.enabled": "true",
        f"{second}->{first}.enabled": "true",
        **SETTINGS,
    }
    arguments = [f"{name}={value}" for name, value in settings.items()]
    program = JavaProgram(class_path, "MirrorFlows", *arguments, log_path=log_path, heap="384m")
    program.wait_event("ready")
    return program


def test_mirror_maker_copies_both_ways(kafka: Kafka, broker: BrokerProcess, tmp_path: Path) -> None:
    """Before and after a kill of the broker."""
    need(broker, ApiKey.INCREMENTAL_ALTER_CONFIGS)  # without, MirrorMaker's source connector fails
    apache, ours = Cluster("apache", kafka.bootstrap), Cluster("ours", broker.bootstrap)
    flows = [Flow(apache, ours, 1), Flow(ours, apache, 2)]
    for flow in flows:
        flow.send()
    with start(java_tools.compiled_mirror(), (apache, ours), tmp_path / "mirror.log") as mirror_maker:
        for flow in flows:
            flow.wait_mirrored()
            flow.wait_translated(mirror_maker)
            assert flow.target.retention_ms(flow.mirror) == RETENTION_MS
        broker.kill()
        broker.start()
        for flow in flows:
            flow.send()
        for flow in flows:
            until(lambda flow=flow: sum(flow.target.ends(flow.mirror)) >= flow.sent, f"mirror {flow.mirror}")
            flow.wait_translated(mirror_maker)
        mirrored = {name for name in ours.admin.list_topics(timeout=20).topics if "orders-" in name}
        assert mirrored == {flows[0].mirror, flows[1].topic}
        mirror_maker.finish()
