"""Altered configs over restarts: from the bucket alone, and held against the local copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kbroker.clock import ManualClock
from kbroker.cluster.config_changes import ConfigChange, ConfigOperation, Operation, ResourceType
from kbroker.cluster.config_defs import BrokerConfigs, ConfigSource
from kbroker.cluster.group_configs import check_group_configs, describe_group, group_config_values
from kbroker.cluster.image import TopicImage
from kbroker.cluster.metadata_log import RETRY_AFTER_SECONDS, MetadataLog
from kbroker.cluster.replica import MetadataReplica
from kbroker.cluster.sqlite_store import SqliteStore
from kbroker.cluster.topic_rules import NewTopic
from kbroker.cluster.topics import Topics
from kbroker.errors import ErrorCode, KafkaError, StartError
from tests.unit.cluster.metadata_fakes import Bucket, BucketLog

NODE_ID = 3


class Start:
    """One start of a broker on a bucket and a local file."""

    def __init__(self, bucket: Bucket, path: Path | str = ":memory:", **settings: Any) -> None:
        configs = BrokerConfigs({"node.id": NODE_ID, **{k.replace("__", "."): v for k, v in settings.items()}})
        self.store = SqliteStore(path)
        self.clock = ManualClock()
        log = MetadataLog(BucketLog(bucket), MetadataReplica(self.store, "cluster"), self.clock)
        self.topics = Topics(log, "cluster", configs)
        self.topics.load()

    def set(self, kind: ResourceType, name: str, **configs: str) -> KafkaError | None:
        operations = [ConfigOperation(k.replace("__", "."), Operation.SET, v) for k, v in configs.items()]
        (error,) = self.topics.alter_configs([ConfigChange(kind, name, operations)])
        return error

    def create(self, name: str, **configs: str) -> None:
        named = {key.replace("__", "."): value for key, value in configs.items()}
        (topic,) = self.topics.create_topics([NewTopic(name, 1, configs=named)])
        assert isinstance(topic, TopicImage), topic


def altered(bucket: Bucket, path: Path | str = ":memory:") -> Start:
    """A start that altered something of every kind."""
    start = Start(bucket, path)
    start.create("t")
    assert start.set(ResourceType.TOPIC, "t", retention__ms="5") is None
    assert start.set(ResourceType.BROKER, "", log__retention__ms="6", message__max__bytes="7") is None
    assert start.set(ResourceType.BROKER, str(NODE_ID), message__max__bytes="8") is None
    assert start.set(ResourceType.GROUP, "g / ü", consumer__session__timeout__ms="50000") is None
    assert start.set(ResourceType.CLIENT_METRICS, "m", metrics="*") is None
    return start


@pytest.mark.parametrize("broker_first", [False, True])
def test_changes_of_one_request_are_validated_together(broker_first: bool) -> None:
    bucket = Bucket()
    start = Start(bucket)
    start.create("t")
    changes = [
        ConfigChange(kind, name, [ConfigOperation(key, Operation.SET, value)])
        for kind, name, key, value in (
            (ResourceType.TOPIC, "t", "min.compaction.lag.ms", "2000"),
            (ResourceType.BROKER, "", "log.cleaner.max.compaction.lag.ms", "1000"),
        )
    ]
    first, second = start.topics.alter_configs(changes[::-1] if broker_first else changes)
    assert first is None
    assert second is not None
    Start(bucket)  # a start is still possible


def test_configs_survive_the_loss_of_the_disk() -> None:
    bucket = Bucket()
    before = altered(bucket).topics
    after = Start(bucket).topics
    assert after.image == before.image
    assert after.broker_configs.topic_defaults == {"retention.ms": "6", "max.message.bytes": "8"}
    config = after.config_of(after.image.by_name["t"])
    assert (config.retention_ms, config.max_message_bytes) == (5, 8)
    assert after.group_config("g / ü")["consumer.session.timeout.ms"] == 50_000
    assert after.image.client_metrics == {"m": {"metrics": "*"}}


def test_configs_of_another_node_id_are_kept_for_it() -> None:
    bucket = Bucket()
    altered(bucket)
    other = Start(bucket, node__id=9).topics
    assert other.broker_configs.number("message.max.bytes") == 7


def test_the_local_copy_holds_configs_and_proves_a_loss(tmp_path: Path) -> None:
    bucket = Bucket()
    start = altered(bucket, tmp_path / "m.db")
    start.store.close()
    again = Start(bucket, tmp_path / "m.db")
    assert again.set(ResourceType.GROUP, "g / ü", consumer__session__timeout__ms="51000") is None
    again.store.close()
    Start(bucket, tmp_path / "m.db").store.close()
    bucket.records.pop()
    with pytest.raises(StartError, match="the bucket has lost records"):
        Start(bucket, tmp_path / "m.db")


def test_a_checkpoint_has_configs() -> None:
    bucket = Bucket()
    topics = altered(bucket).topics
    BucketLog(bucket).checkpoint(topics.image.to_json(), topics.image.number)
    after = Start(bucket).topics
    assert after.image == topics.image


def test_a_change_in_doubt_takes_effect_when_it_is_settled() -> None:
    bucket = Bucket()
    start = Start(bucket)
    start.create("t")
    bucket.faults.append("lost answer")
    error = start.set(ResourceType.BROKER, "", message__max__bytes="7")
    assert error is not None
    assert error.code == ErrorCode.NOT_CONTROLLER
    assert start.topics.broker_configs.topic_defaults == {}
    start.clock.advance(RETRY_AFTER_SECONDS)
    assert start.set(ResourceType.GROUP, "g", consumer__session__timeout__ms="50000") is None
    assert start.topics.broker_configs.topic_defaults == {"max.message.bytes": "7"}


def test_settings_that_a_topic_refuses_stop_the_start() -> None:
    bucket = Bucket()
    Start(bucket).create("t", max__compaction__lag__ms="10")
    with pytest.raises(StartError, match="topic t has configs"):
        Start(bucket, log__cleaner__min__compaction__lag__ms=11)


# -- groups ----------------------------------------------------------------------------------------------------------


def test_a_groups_configs_come_before_the_brokers() -> None:
    broker = BrokerConfigs({"group.consumer.session.timeout.ms": 55_000})
    entries = {
        entry.definition.name: entry for entry in describe_group({"consumer.session.timeout.ms": "50000"}, broker)
    }
    session = entries["consumer.session.timeout.ms"]
    assert [(synonym.name, synonym.value, synonym.source) for synonym in session.synonyms] == [
        ("consumer.session.timeout.ms", "50000", ConfigSource.GROUP),
        ("group.consumer.session.timeout.ms", "55000", ConfigSource.STATIC_BROKER),
        ("group.consumer.session.timeout.ms", "45000", ConfigSource.DEFAULT),
    ]
    assert entries["share.auto.offset.reset"].value == "latest"
    assert group_config_values({}, broker)["consumer.session.timeout.ms"] == 55_000


def test_values_out_of_the_brokers_bounds_are_clamped() -> None:
    broker = BrokerConfigs({"group.consumer.max.session.timeout.ms": 48_000})
    assert (
        group_config_values({"consumer.session.timeout.ms": "50000"}, broker)["consumer.session.timeout.ms"] == 48_000
    )


@pytest.mark.parametrize(
    ("name", "value", "legal"),
    [
        ("share.auto.offset.reset", "earliest", True),
        ("share.auto.offset.reset", "by_duration:P3DT3H4M", True),
        ("share.auto.offset.reset", "by_duration:PT0.5S", True),
        ("share.auto.offset.reset", "by_duration:P", False),
        ("share.auto.offset.reset", "by_duration:P1DT", False),
        ("share.auto.offset.reset", "now", False),
        ("share.isolation.level", "read_committed", True),
        ("share.isolation.level", "read", False),
        ("share.record.lock.duration.ms", "15000", True),
        ("share.record.lock.duration.ms", "14999", False),
        ("share.delivery.count.limit", "11", False),
        ("consumer.heartbeat.interval.ms", "15001", False),
        ("streams.num.standby.replicas", "3", False),
    ],
)
def test_group_configs_are_bounded_by_the_brokers(name: str, value: str, legal: bool) -> None:
    if legal:
        check_group_configs({name: value}, BrokerConfigs())
        return
    with pytest.raises(KafkaError) as raised:
        check_group_configs({name: value}, BrokerConfigs())
    assert raised.value.code == ErrorCode.INVALID_CONFIG


def test_a_session_is_longer_than_a_heartbeat_interval() -> None:
    broker = BrokerConfigs({"group.consumer.max.heartbeat.interval.ms": 60_000})
    with pytest.raises(KafkaError, match="must be greater than"):
        check_group_configs({"consumer.heartbeat.interval.ms": "45000"}, broker)


def test_the_object_format_cannot_be_changed() -> None:
    start = Start(Bucket())
    start.create("klix")
    start.create("kfs", kbroker__object__format="kfs")
    for name, value in (("klix", "kfs"), ("kfs", "klix")):
        error = start.set(ResourceType.TOPIC, name, kbroker__object__format=value)
        assert error is not None
        assert (error.code, "cannot be changed" in error.message) == (ErrorCode.INVALID_CONFIG, True)
    assert start.set(ResourceType.TOPIC, "klix", kbroker__object__format="klix") is None
    assert start.set(ResourceType.TOPIC, "kfs", retention__ms="5") is None
    replaced = ConfigChange(
        ResourceType.TOPIC, "kfs", [ConfigOperation("retention.ms", Operation.SET, "6")], replace=True
    )
    (error,) = start.topics.alter_configs([replaced])
    assert error is not None  # the format is not named, so it would go
    assert "cannot be changed" in error.message
