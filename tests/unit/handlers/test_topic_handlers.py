"""CreateTopics, DeleteTopics, CreatePartitions and DescribeConfigs as clients see them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from kbroker.errors import ErrorCode
from kbroker.handlers import create_partitions, create_topics, delete_topics, describe_configs, metadata
from kbroker.protocol.apis.cluster.k03_metadata import MetadataRequest, MetadataRequestTopic
from kbroker.protocol.apis.configs.k32_describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kbroker.protocol.apis.topics.k19_create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kbroker.protocol.apis.topics.k20_delete_topics import DeleteTopicsRequest, DeleteTopicState
from kbroker.protocol.apis.topics.k37_create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from tests.unit.handlers.admin_context import NODE_ID, AdminBroker

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[AdminBroker]:
    broker = AdminBroker(tmp_path, {"log.retention.ms": 1234, "broker.rack": "r1", "auto.create.topics.enable": False})
    yield broker
    broker.close()


# -- CreateTopics --------------------------------------------------------------------------------------------------


def new(name: str, partitions: int = -1, factor: int = -1, **configs: str | None) -> CreatableTopic:
    named = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor, configs=named)


def create(broker: AdminBroker, *topics: CreatableTopic, version: int = 7, validate_only: bool = False) -> list[Any]:
    request = CreateTopicsRequest(topics=list(topics), timeout_ms=1000, validate_only=validate_only)
    found: list[Any] = broker.ask(create_topics, version, request).topics
    return found


@pytest.mark.parametrize("version", range(2, 8))
def test_a_topic_is_created_in_every_version(broker: AdminBroker, version: int) -> None:
    (result,) = create(broker, new("t", 3, 3, cleanup_policy="compact"), version=version)
    assert (result.error_code, result.name) == (0, "t")
    topic = broker.topics.image.by_name["t"]
    assert (topic.partitions, topic.configs) == (3, {"cleanup.policy": "compact"})
    assert len(broker.logs.by_name["t"].partitions) == 3
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (3, 1)
    if version >= 7:
        assert result.topic_id == topic.topic_id


@pytest.mark.parametrize("version", [5, 6, 7])
def test_configs_in_the_reply_are_never_null_and_have_a_real_source(broker: AdminBroker, version: int) -> None:
    made, failed = create(broker, new("t", segment_bytes="2000000"), new("bad/name"), version=version)
    assert failed.configs == []
    by_name = {config.name: config for config in made.configs}
    assert by_name["segment.bytes"].value == "2000000"
    assert by_name["segment.bytes"].config_source == 1
    assert by_name["retention.ms"].value == "1234"
    assert by_name["retention.ms"].config_source == 4
    assert by_name["cleanup.policy"].config_source == 5
    assert all(1 <= config.config_source <= 8 for config in made.configs)


def test_create_topics_runs_on_a_worker(broker: AdminBroker) -> None:
    request = CreateTopicsRequest(topics=[new("t")])
    assert isinstance(broker.start(create_topics, 7, request), Future)


def test_each_failure_has_its_own_code_and_message(broker: AdminBroker) -> None:
    broker.create("there")
    results = create(
        broker,
        new("there"),
        new("a", 0),
        new("b", 1, 0),
        new("c", nope="1"),
        new("d", retention_ms=None),
        new("e/"),
        new("twice"),
        new("twice"),
        new("good"),
    )
    assert [(result.name, result.error_code) for result in results] == [
        ("there", ErrorCode.TOPIC_ALREADY_EXISTS),
        ("a", ErrorCode.INVALID_PARTITIONS),
        ("b", ErrorCode.INVALID_REPLICATION_FACTOR),
        ("c", ErrorCode.INVALID_CONFIG),
        ("d", ErrorCode.INVALID_CONFIG),
        ("e/", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("twice", ErrorCode.INVALID_REQUEST),
        ("good", ErrorCode.NONE),
    ]
    assert all(result.error_message for result in results[:-1])
    assert results[-1].error_message is None


def test_manual_assignments_may_name_any_brokers(broker: AdminBroker) -> None:
    topic = new("t")
    topic.assignments = [CreatableReplicaAssignment(partition_index=i, broker_ids=[1, 2, 3]) for i in (0, 1)]
    (result,) = create(broker, topic)
    assert (result.error_code, result.num_partitions) == (0, 2)


def test_validate_only_answers_and_creates_nothing(broker: AdminBroker) -> None:
    (result,) = create(broker, new("t", 2), validate_only=True)
    assert (result.error_code, result.num_partitions, result.topic_id) == (0, 2, bytes(16))
    assert not broker.topics.image.by_name


def test_while_the_store_is_away_changes_are_for_the_admin_client_to_retry(broker: AdminBroker) -> None:
    broker.create("there")
    broker.store.away = True
    codes = [result.error_code for result in create(broker, new("a"), new("b/"))]
    assert codes == [ErrorCode.NOT_CONTROLLER, ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert delete(broker, "there")[0].error_code == ErrorCode.NOT_CONTROLLER
    assert add(broker, CreatePartitionsTopic(name="there", count=2, assignments=None)) == [ErrorCode.NOT_CONTROLLER]


# -- DeleteTopics --------------------------------------------------------------------------------------------------


def delete(broker: AdminBroker, *names: str, version: int = 5) -> list[Any]:
    if version >= 6:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names])
    else:
        request = DeleteTopicsRequest(topic_names=list(names))
    found: list[Any] = broker.ask(delete_topics, version, request).responses
    return found


@pytest.mark.parametrize("version", range(1, 7))
def test_topics_are_deleted_by_name(broker: AdminBroker, version: int) -> None:
    broker.create("a")
    broker.create("b")
    results = delete(broker, "a", "no", version=version)
    assert [(result.name, result.error_code) for result in results] == [("a", 0), ("no", 3)]
    assert set(broker.topics.image.by_name) == set(broker.logs.by_name) == {"b"}


def test_topics_are_deleted_by_id(broker: AdminBroker) -> None:
    topic = broker.create("a")
    other = broker.create("b")
    states = [
        DeleteTopicState(name=None, topic_id=topic.topic_id),
        DeleteTopicState(name=None, topic_id=b"x" * 16),
        DeleteTopicState(name="b", topic_id=other.topic_id),
        DeleteTopicState(name=None),
    ]
    results = broker.ask(delete_topics, 6, DeleteTopicsRequest(topics=states)).responses
    assert [(result.name, result.error_code) for result in results] == [
        ("a", 0),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
        ("b", ErrorCode.INVALID_REQUEST),
        (None, ErrorCode.INVALID_REQUEST),
    ]
    assert results[0].topic_id == topic.topic_id
    assert set(broker.topics.image.by_name) == {"b"}


def test_a_topic_named_twice_is_not_deleted(broker: AdminBroker) -> None:
    topic = broker.create("a")
    states = [DeleteTopicState(name="a"), DeleteTopicState(name=None, topic_id=topic.topic_id)]
    results = broker.ask(delete_topics, 6, DeleteTopicsRequest(topics=states)).responses
    assert [result.error_code for result in results] == [ErrorCode.INVALID_REQUEST] * 2
    assert set(broker.topics.image.by_name) == {"a"}


def test_internal_topics_cannot_be_deleted(broker: AdminBroker) -> None:
    broker.topics.ensure_internal_topic()
    assert delete(broker, "__consumer_offsets")[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_kafkas_metadata_topic_cannot_be_created(broker: AdminBroker) -> None:
    """An export of it would be taken for the metadata of the Kafka that starts on the folder."""
    (result,) = create(broker, CreatableTopic(name="__cluster_metadata", num_partitions=1, replication_factor=1))
    assert result.error_code == ErrorCode.INVALID_REQUEST
    asked = MetadataRequest(topics=[MetadataRequestTopic(name="__cluster_metadata")], allow_auto_topic_creation=True)
    (topic,) = broker.ask(metadata, 12, asked).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not broker.topics.image.by_name


@pytest.mark.parametrize(("version", "code"), [(2, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED)])
def test_deletion_can_be_disabled(tmp_path: Path, version: int, code: ErrorCode) -> None:
    broker = AdminBroker(tmp_path, {"delete.topic.enable": False})
    broker.create("a")
    assert delete(broker, "a", version=version)[0].error_code == code
    assert set(broker.topics.image.by_name) == {"a"}
    broker.close()


def test_a_topic_created_again_starts_empty_with_a_new_id(broker: AdminBroker) -> None:
    first = broker.create("a")
    broker.append("a", 1, 2)
    delete(broker, "a")
    second = broker.create("a")
    assert first.topic_id != second.topic_id
    assert broker.partition("a").next_offset == 0


# -- CreatePartitions ----------------------------------------------------------------------------------------------


def add(broker: AdminBroker, *topics: CreatePartitionsTopic, version: int = 3, **keywords: Any) -> list[int]:
    request = CreatePartitionsRequest(topics=list(topics), **keywords)
    return [result.error_code for result in broker.ask(create_partitions, version, request).results]


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added(broker: AdminBroker, version: int) -> None:
    broker.create("a", 2)
    broker.append("a", 1, index=1)
    assert add(broker, CreatePartitionsTopic(name="a", count=4, assignments=None), version=version) == [0]
    assert broker.topics.image.by_name["a"].partitions == 4
    assert [partition.next_offset for partition in broker.logs.by_name["a"].partitions] == [0, 1, 0, 0]


def test_create_partitions_refuses_bad_requests(broker: AdminBroker) -> None:
    for name in ("a", "b", "c"):
        broker.create(name, 2)
    one = [CreatePartitionsAssignment(broker_ids=[1])]
    codes = add(
        broker,
        CreatePartitionsTopic(name="a", count=2, assignments=None),
        CreatePartitionsTopic(name="b", count=4, assignments=one),
        CreatePartitionsTopic(name="no", count=4, assignments=None),
        CreatePartitionsTopic(name="c", count=3, assignments=None),
        CreatePartitionsTopic(name="c", count=4, assignments=None),
    )
    assert codes == [
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
    ]
    assert {topic.partitions for topic in broker.topics.image.by_name.values()} == {2}


def test_validate_only_adds_nothing(broker: AdminBroker) -> None:
    broker.create("a", 1)
    assert add(broker, CreatePartitionsTopic(name="a", count=2, assignments=None), validate_only=True) == [0]
    assert broker.topics.image.by_name["a"].partitions == 1


# -- DescribeConfigs -----------------------------------------------------------------------------------------------


def describe(broker: AdminBroker, kind: int, name: str, version: int = 4, **keywords: Any) -> Any:
    keys = keywords.pop("keys", None)
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    request = DescribeConfigsRequest(resources=[resource], **keywords)
    (result,) = broker.ask(describe_configs, version, request).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def configs_of(result: Any) -> dict[str, Any]:
    assert result.error_code == 0, result.error_message
    return {config.name: config for config in result.configs}


@pytest.mark.parametrize("version", range(1, 5))
def test_topic_configs_with_sources(broker: AdminBroker, version: int) -> None:
    broker.create("t", cleanup_policy="compact")
    configs = configs_of(describe(broker, TOPIC, "t", version))
    assert (configs["cleanup.policy"].value, configs["cleanup.policy"].config_source) == ("compact", 1)
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("1234", 4)
    assert (configs["segment.bytes"].value, configs["segment.bytes"].config_source) == ("1073741824", 5)
    assert not any(config.read_only or config.is_sensitive for config in configs.values())
    assert "message.format.version" not in configs
    if version >= 3:
        assert (configs["cleanup.policy"].config_type, configs["retention.ms"].config_type) == (7, 5)


def test_synonyms_in_order_of_precedence_and_only_when_asked(broker: AdminBroker) -> None:
    broker.create("t", retention_ms="7")
    config = configs_of(describe(broker, TOPIC, "t", include_synonyms=True))["retention.ms"]
    assert [(synonym.name, synonym.value, synonym.source) for synonym in config.synonyms] == [
        ("retention.ms", "7", 1),
        ("log.retention.ms", "1234", 4),
        ("log.retention.hours", "168", 5),
    ]
    assert configs_of(describe(broker, TOPIC, "t"))["retention.ms"].synonyms == []


def test_documentation_only_when_asked(broker: AdminBroker) -> None:
    broker.create("t")
    assert configs_of(describe(broker, TOPIC, "t"))["retention.ms"].documentation is None
    documented = configs_of(describe(broker, TOPIC, "t", include_documentation=True))
    assert all(config.documentation for config in documented.values())


def test_keys_select_configs_and_none_means_all(broker: AdminBroker) -> None:
    broker.create("t")
    everything = set(configs_of(describe(broker, TOPIC, "t", keys=None)))
    assert set(configs_of(describe(broker, TOPIC, "t", keys=[]))) == everything
    assert set(configs_of(describe(broker, TOPIC, "t", keys=["retention.ms", "no.such"]))) == {"retention.ms"}


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "no", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a/", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, str(NODE_ID + 1), ErrorCode.INVALID_REQUEST),
        (BROKER, "x", ErrorCode.INVALID_REQUEST),
        (BROKER_LOGGER, "", ErrorCode.INVALID_REQUEST),
        (BROKER_LOGGER, str(NODE_ID + 1), ErrorCode.INVALID_REQUEST),
        (GROUP, "", ErrorCode.INVALID_REQUEST),
        (CLIENT_METRICS, "", ErrorCode.INVALID_REQUEST),
        (99, "x", ErrorCode.INVALID_REQUEST),
    ],
)
def test_describe_configs_refuses_bad_resources(broker: AdminBroker, kind: int, name: str, code: ErrorCode) -> None:
    result = describe(broker, kind, name)
    assert (result.error_code, result.configs) == (code, [])
    assert result.error_message


def test_broker_configs_are_what_tools_read(broker: AdminBroker) -> None:
    configs = configs_of(describe(broker, BROKER, str(NODE_ID)))
    assert "inter.broker.protocol.version" not in configs, "Kafka 4 has none: the release is metadata.version's"
    assert configs["default.replication.factor"].value == "1"
    assert (configs["auto.create.topics.enable"].value, configs["auto.create.topics.enable"].config_source) == (
        "false",
        4,
    )
    assert configs["broker.rack"].value == "r1"
    assert configs["num.partitions"].config_source == 5
    assert configs["log.retention.ms"].value == "1234"
    assert configs["num.partitions"].read_only
    assert not configs["log.retention.ms"].read_only
    assert all(1 <= config.config_source <= 8 for config in configs.values())


def test_the_configs_of_all_brokers_are_those_that_were_altered(broker: AdminBroker) -> None:
    assert configs_of(describe(broker, BROKER, "")) == {}


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [(CLIENT_METRICS, "interval.ms", "300000"), (GROUP, "consumer.session.timeout.ms", "45000")],
)
def test_groups_and_client_metrics_without_own_configs_have_the_defaults(
    broker: AdminBroker, kind: int, key: str, value: str
) -> None:
    configs = configs_of(describe(broker, kind, "unheard of"))
    assert (configs[key].value, configs[key].config_source, configs[key].read_only) == (value, 5, False)
