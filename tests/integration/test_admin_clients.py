"""Admin calls of real clients: topics, configs, partitions, groups, and offsets by time, over a folder and S3."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
import scenarios
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from broker_process import BrokerProcess
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec
from conftest import ON_A_FOLDER
from kafka import KafkaAdminClient
from scenarios import IDEMPOTENT, assert_all_read, end_offsets, new_topic
from test_client_confluent import CLIENT, QUIET
from workload import FIRST_TIMESTAMP_MS, Message, generated, spread

SECONDS = 20.0


@pytest.fixture
def admin(broker: BrokerProcess) -> AdminClient:
    """librdkafka's admin client.

    Without re-bootstrap: after a restart of the broker, librdkafka 2.16 may go on waiting on the entry that it has
    dropped, and never send the request.
    """
    settings = {**QUIET, "bootstrap.servers": broker.bootstrap, "metadata.recovery.strategy": "none"}
    return AdminClient(settings)


def done(futures: dict[Any, Any]) -> Any:
    """The result of the only future. Raises KafkaException."""
    (future,) = futures.values()
    return future.result(SECONDS)


def error_of(futures: dict[Any, Any]) -> int:
    """The error code that the only future fails with."""
    with pytest.raises(KafkaException) as raised:
        done(futures)
    return raised.value.args[0].code()


def topic_id(admin: AdminClient, topic: str) -> str:
    """The id of a topic, as DescribeTopics tells it."""
    return str(done(admin.describe_topics(TopicCollection([topic]))).topic_id)


def topic_config(admin: AdminClient, topic: str) -> dict[str, Any]:
    """The configs of a topic by name."""
    return done(admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]))


@pytest.mark.feature("confluent-kafka", "admin")
@ON_A_FOLDER
def test_topics_are_created_described_and_deleted(broker: BrokerProcess, admin: AdminClient) -> None:
    topic = f"made-{uuid.uuid4()}"
    done(admin.create_topics([NewTopic(topic, 5, 1, config={"retention.ms": "1234567", "cleanup.policy": "compact"})]))
    described = done(admin.describe_topics(TopicCollection([topic])))
    assert [partition.id for partition in described.partitions] == list(range(5))
    assert all(partition.leader.id == 1 for partition in described.partitions)
    assert all([node.id for node in partition.isr] == [1] for partition in described.partitions)
    config = topic_config(admin, topic)
    assert (config["retention.ms"].value, config["retention.ms"].is_default) == ("1234567", False)
    assert config["cleanup.policy"].value == "compact"
    assert (config["max.message.bytes"].value, config["max.message.bytes"].is_default) == ("1048588", True)
    assert topic in admin.list_topics(timeout=SECONDS).topics
    done(admin.delete_topics([topic]))
    assert topic not in admin.list_topics(timeout=SECONDS).topics
    assert error_of(admin.delete_topics([topic])) == KafkaError.UNKNOWN_TOPIC_OR_PART


@ON_A_FOLDER
@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (NewTopic("bad name", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("x" * 250, 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("no-partitions", 0, 1), KafkaError.INVALID_PARTITIONS),
        (NewTopic("bad-config", 1, 1, config={"retention.ms": "soon"}), KafkaError.INVALID_CONFIG),
        (NewTopic("unknown-config", 1, 1, config={"no.such.config": "1"}), KafkaError.INVALID_CONFIG),
    ],
    ids=lambda value: value.topic[:16] if isinstance(value, NewTopic) else "",
)
def test_invalid_topics_are_refused(broker: BrokerProcess, admin: AdminClient, topic: NewTopic, code: int) -> None:
    assert error_of(admin.create_topics([topic])) == code
    assert topic.topic not in admin.list_topics(timeout=SECONDS).topics


@ON_A_FOLDER
def test_a_topic_that_exists_is_refused(broker: BrokerProcess, admin: AdminClient) -> None:
    topic = new_topic(broker, CLIENT, "exists", 1)
    assert error_of(admin.create_topics([NewTopic(topic, 1, 1)])) == KafkaError.TOPIC_ALREADY_EXISTS


@ON_A_FOLDER
def test_validate_only_creates_nothing(broker: BrokerProcess, admin: AdminClient) -> None:
    done(admin.create_topics([NewTopic("only-validated", 3, 1)], validate_only=True))
    assert "only-validated" not in admin.list_topics(timeout=SECONDS).topics


def test_topics_survive_restarts(broker: BrokerProcess, admin: AdminClient) -> None:
    """Ids, partitions and configs are the same after a kill -9 and on an empty disk."""
    topic = new_topic(broker, CLIENT, "lasting", 7, retention_ms="7777777")
    found = topic_id(admin, topic)
    broker.kill()
    broker.start()
    assert topic_id(admin, topic) == found
    assert broker.stop() == 0
    scenarios.lose_disk(broker)
    broker.start()
    assert topic_id(admin, topic) == found
    assert topic_config(admin, topic)["retention.ms"].value == "7777777"
    assert end_offsets(broker, topic, 7) == [0] * 7


def test_a_recreated_topic_is_empty_and_has_a_new_id(broker: BrokerProcess, admin: AdminClient) -> None:
    """Records of the old id in objects, log files and memory are gone, also after a restart."""
    topic = new_topic(broker, CLIENT, "again", 2)
    first_id = topic_id(admin, topic)
    old = spread(generated(60, seed=1), 2)
    scenarios.send(broker, CLIENT, topic, old, "none", IDEMPOTENT)
    broker.flush()
    scenarios.send(broker, CLIENT, topic, old, "none", IDEMPOTENT)
    done(admin.delete_topics([topic]))
    done(admin.create_topics([NewTopic(topic, 2, 1)]))
    assert topic_id(admin, topic) != first_id
    assert end_offsets(broker, topic, 2) == [0, 0]
    new = spread(generated(30, seed=2), 2)
    scenarios.send(broker, CLIENT, topic, new, "none", IDEMPOTENT)
    assert_all_read(broker, CLIENT, topic, new)
    broker.kill()
    broker.start()
    assert_all_read(broker, CLIENT, topic, new, subscribe=False)
    assert broker.stop() == 0
    scenarios.lose_disk(broker)
    broker.start()
    assert_all_read(broker, CLIENT, topic, new, subscribe=False)


@ON_A_FOLDER
def test_deleting_a_topic_removes_its_committed_offsets(broker: BrokerProcess, admin: AdminClient) -> None:
    topic, group = new_topic(broker, CLIENT, "committed", 1), "group-of-deleted"
    sent = spread(generated(5, seed=1), 1)
    scenarios.send(broker, CLIENT, topic, sent, "none", IDEMPOTENT)
    CLIENT.read_subscribed(broker.bootstrap, topic, group, 5)
    assert committed(admin, group) == {(topic, 0): 5}
    done(admin.delete_topics([topic]))
    assert committed(admin, group) == {}


def committed(admin: AdminClient, group: str) -> dict[tuple[str, int], int]:
    """All committed offsets of a group."""
    found = done(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]))
    return {(entry.topic, entry.partition): entry.offset for entry in found.topic_partitions if entry.offset >= 0}


@pytest.mark.feature("confluent-kafka", "admin")
def test_partitions_are_added_and_never_removed(broker: BrokerProcess, admin: AdminClient) -> None:
    """New partitions take data at once; fewer than there are is refused; all as before after a restart."""
    topic = new_topic(broker, CLIENT, "grows", 2)
    total = spread(generated(20, seed=1), 2)
    scenarios.send(broker, CLIENT, topic, total, "none", IDEMPOTENT)
    done(admin.create_partitions([NewPartitions(topic, 4)]))
    more = spread(generated(40, seed=2), 4)
    scenarios.send(broker, CLIENT, topic, more, "none", IDEMPOTENT)
    scenarios.add(total, more)
    assert_all_read(broker, CLIENT, topic, total)
    assert error_of(admin.create_partitions([NewPartitions(topic, 3)])) == KafkaError.INVALID_PARTITIONS
    broker.kill()
    broker.start()
    assert_all_read(broker, CLIENT, topic, total, subscribe=False)


@ON_A_FOLDER
def test_broker_configs_are_described(broker: BrokerProcess, admin: AdminClient) -> None:
    """Those that UIs and connectors read."""
    config = done(admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, "1")]))
    assert config["default.replication.factor"].value == "1"
    assert config["auto.create.topics.enable"].value == "true"


@ON_A_FOLDER
def test_configs_of_an_unknown_topic_are_an_error(broker: BrokerProcess, admin: AdminClient) -> None:
    asked = [ConfigResource(ConfigResource.Type.TOPIC, "nowhere-to-be-found")]
    assert error_of(admin.describe_configs(asked)) == KafkaError.UNKNOWN_TOPIC_OR_PART


@ON_A_FOLDER
def test_cluster_is_described(broker: BrokerProcess, admin: AdminClient) -> None:
    cluster = admin.describe_cluster(request_timeout=SECONDS).result(SECONDS)
    assert len(cluster.cluster_id) == 22
    assert [(node.id, node.host, node.port) for node in cluster.nodes] == [(1, broker.host, broker.port)]
    assert cluster.controller.id == 1


@pytest.mark.feature("confluent-kafka", "admin")
@ON_A_FOLDER
def test_groups_are_listed_described_and_deleted(broker: BrokerProcess, admin: AdminClient) -> None:
    topic, group = new_topic(broker, CLIENT, "grouped", 3), "group-to-delete"
    scenarios.send(broker, CLIENT, topic, spread(generated(30, seed=1), 3), "none", IDEMPOTENT)
    CLIENT.read_subscribed(broker.bootstrap, topic, group, 30)
    listed = admin.list_consumer_groups(request_timeout=SECONDS).result(SECONDS)
    assert listed.errors == []
    assert group in [entry.group_id for entry in listed.valid]
    described = done(admin.describe_consumer_groups([group]))
    assert (described.state.name, described.members) == ("EMPTY", [])
    assert committed(admin, group) == {(topic, partition): 10 for partition in range(3)}
    done(admin.delete_consumer_groups([group]))
    assert error_of(admin.delete_consumer_groups([group])) == KafkaError.GROUP_ID_NOT_FOUND
    listed = admin.list_consumer_groups(request_timeout=SECONDS).result(SECONDS)
    assert group not in [entry.group_id for entry in listed.valid]


@pytest.mark.feature("confluent-kafka", "admin")
@ON_A_FOLDER
def test_offsets_of_an_empty_group_are_altered(broker: BrokerProcess, admin: AdminClient) -> None:
    """They survive a kill -9."""
    topic, group = new_topic(broker, CLIENT, "altered", 2), "group-to-alter"
    wanted = [TopicPartition(topic, 0, 4), TopicPartition(topic, 1, 9)]
    done(admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)]))
    broker.kill()
    broker.start()
    assert committed(admin, group) == {(topic, 0): 4, (topic, 1): 9}


@pytest.mark.feature("kafka-python", "admin")
@ON_A_FOLDER
def test_kafka_python_administers_topics(broker: BrokerProcess) -> None:
    """It sends other versions of the requests."""
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    topic = new_topic(broker, CLIENT, "by-python", 2)
    assert topic in client.list_topics()
    (described,) = client.describe_topics([topic])
    assert len(described["partitions"]) == 2
    assert client.describe_cluster()["cluster_id"]
    client.delete_topics([topic])
    assert topic not in client.list_topics()
    client.close()


def test_offsets_are_found_by_time_wherever_the_record_is(broker: BrokerProcess, admin: AdminClient) -> None:
    """Times that lie in objects, in log files, in memory, before all and after all."""
    topic = new_topic(broker, CLIENT, "timed", 1)
    messages = [Message(b"k", b"v%d" % n, (), FIRST_TIMESTAMP_MS + n * 1000) for n in range(300)]
    parts = [{0: messages[start : start + 100]} for start in (0, 100, 200)]
    scenarios.send(broker, CLIENT, topic, parts[0], "zstd", IDEMPOTENT)
    assert broker.stop() == 0
    scenarios.lose_disk(broker)
    broker.start()
    scenarios.send(broker, CLIENT, topic, parts[1], "lz4", IDEMPOTENT)
    broker.kill()
    broker.start()
    scenarios.send(broker, CLIENT, topic, parts[2], "none", IDEMPOTENT)
    partition = TopicPartition(topic, 0)

    def offset_of(spec: OffsetSpec) -> int:
        return done(admin.list_offsets({partition: spec}, request_timeout=SECONDS)).offset

    for number in (0, 1, 42, 99, 100, 101, 157, 199, 200, 233, 299):
        exact = FIRST_TIMESTAMP_MS + number * 1000
        assert offset_of(OffsetSpec.for_timestamp(exact)) == number
        assert offset_of(OffsetSpec.for_timestamp(exact - 1)) == number
    assert offset_of(OffsetSpec.for_timestamp(0)) == 0
    assert offset_of(OffsetSpec.for_timestamp(FIRST_TIMESTAMP_MS + 300_000)) == -1
    assert offset_of(OffsetSpec.earliest()) == 0
    assert offset_of(OffsetSpec.latest()) == 300
    assert offset_of(OffsetSpec.max_timestamp()) == 299
    assert asyncio.run(_offset_for_time(broker, topic, FIRST_TIMESTAMP_MS + 42_000)) == 42  # an old version


async def _offset_for_time(broker: BrokerProcess, topic: str, timestamp_ms: int) -> int:
    async with AIOKafkaConsumer(bootstrap_servers=broker.bootstrap) as consumer:
        partition = AioTopicPartition(topic, 0)
        consumer.assign([partition])
        found = await consumer.offsets_for_times({partition: timestamp_ms})
        return found[partition].offset


@ON_A_FOLDER
def test_a_produce_creates_a_missing_topic(broker: BrokerProcess, admin: AdminClient) -> None:
    """The topic has the broker's defaults."""
    topic = f"auto-{uuid.uuid4()}"
    sent = spread([Message(None, b"%d" % n) for n in range(10)], 1)
    scenarios.send(broker, CLIENT, topic, sent, "none", IDEMPOTENT)
    assert_all_read(broker, CLIENT, topic, sent)
