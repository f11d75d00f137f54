"""Configs altered by real clients and tools: described as set, in effect at once, and lasting."""

from __future__ import annotations

import uuid
from typing import Any

import java_tools
import pytest
import scenarios
from broker_process import BrokerProcess
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)
from conftest import ON_A_FOLDER, require
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource as PythonConfigResource
from kafka.admin import ConfigResourceType
from scenarios import new_topic
from test_client_confluent import CLIENT, QUIET
from tool_shell import SHELL

SECONDS = 20.0
TOPIC, BROKER = ResourceType.TOPIC, ResourceType.BROKER
SET, DELETE, APPEND = AlterConfigOpType.SET, AlterConfigOpType.DELETE, AlterConfigOpType.APPEND


@pytest.fixture
def admin(broker: BrokerProcess) -> AdminClient:
    """librdkafka's admin client, without re-bootstrap: see test_admin_clients."""
    settings = {**QUIET, "bootstrap.servers": broker.bootstrap, "metadata.recovery.strategy": "none"}
    return AdminClient(settings)


def alter(admin: AdminClient, kind: ResourceType, name: str, *operations: tuple[str, Any, str | None]) -> None:
    """Raises KafkaException."""
    entries = [ConfigEntry(key, value or "", incremental_operation=what) for key, what, value in operations]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    (future,) = admin.incremental_alter_configs([resource], request_timeout=SECONDS).values()
    future.result(SECONDS)


def config(admin: AdminClient, kind: ResourceType, name: str, key: str) -> tuple[str, int]:
    (future,) = admin.describe_configs([ConfigResource(kind, name)], request_timeout=SECONDS).values()
    entry = future.result(SECONDS)[key]
    return entry.value, entry.source


def largest_record(broker: BrokerProcess, topic: str, size: int) -> KafkaError | None:
    """How the broker answers a record of this many bytes."""
    errors: list[KafkaError | None] = []
    producer = Producer({**QUIET, "bootstrap.servers": broker.bootstrap, "message.max.bytes": 2_000_000})
    producer.produce(topic, b"x" * size, on_delivery=lambda error, _: errors.append(error))
    producer.flush(SECONDS)
    (error,) = errors
    return error


def test_altered_topic_configs_apply_at_once_and_survive_restarts(broker: BrokerProcess, admin: AdminClient) -> None:
    topic = new_topic(broker, CLIENT, "limited", 1)
    assert largest_record(broker, topic, 5000) is None
    alter(admin, TOPIC, topic, ("max.message.bytes", SET, "1000"), ("cleanup.policy", APPEND, "compact"))
    error = largest_record(broker, topic, 5000)
    assert error is not None
    assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE
    for restart in (lambda: None, broker.kill, lambda: scenarios.lose_disk(broker) if broker.stop() == 0 else None):
        restart()
        if broker.process.poll() is not None:
            broker.start()
        assert config(admin, TOPIC, topic, "max.message.bytes") == ("1000", ConfigSource.DYNAMIC_TOPIC_CONFIG.value)
        assert config(admin, TOPIC, topic, "cleanup.policy")[0] == "delete,compact"
    alter(admin, TOPIC, topic, ("max.message.bytes", DELETE, None), ("cleanup.policy", SET, "delete"))
    assert largest_record(broker, topic, 5000) is None
    assert config(admin, TOPIC, topic, "max.message.bytes") == ("1048588", ConfigSource.DEFAULT_CONFIG.value)


def test_altered_broker_configs_apply_to_topics_and_survive_restarts(broker: BrokerProcess, admin: AdminClient) -> None:
    topic = new_topic(broker, CLIENT, "follows", 1)
    alter(admin, BROKER, "1", ("message.max.bytes", SET, "1000"))
    try:
        error = largest_record(broker, topic, 5000)
        assert error is not None
        assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE
        expected = ("1000", ConfigSource.DYNAMIC_BROKER_CONFIG.value)
        for _ in range(2):
            assert config(admin, TOPIC, topic, "max.message.bytes") == expected
            assert config(admin, BROKER, "1", "message.max.bytes") == expected
            broker.kill()
            broker.start()
        error = largest_record(broker, topic, 5000)
        assert error is not None
    finally:
        alter(admin, BROKER, "1", ("message.max.bytes", DELETE, None))
    assert largest_record(broker, topic, 5000) is None


@ON_A_FOLDER
@pytest.mark.parametrize(
    ("kind", "name", "key", "value", "code"),
    [
        (TOPIC, "nowhere-to-be-found", "retention.ms", "1", KafkaError.UNKNOWN_TOPIC_OR_PART),
        (TOPIC, "{topic}", "no.such.config", "1", KafkaError.INVALID_CONFIG),
        (TOPIC, "{topic}", "retention.ms", "soon", KafkaError.INVALID_CONFIG),
        (BROKER, "1", "log.retention.ms", "soon", KafkaError.INVALID_REQUEST),
        (BROKER, "1", "num.partitions", "3", KafkaError.INVALID_REQUEST),
    ],
)
def test_invalid_changes_are_refused(
    broker: BrokerProcess, admin: AdminClient, kind: ResourceType, name: str, key: str, value: str, code: int
) -> None:
    topic = new_topic(broker, CLIENT, "refuses", 1)
    with pytest.raises(KafkaException) as raised:
        alter(admin, kind, name.format(topic=topic), (key, SET, value))
    assert raised.value.args[0].code() == code


@ON_A_FOLDER
def test_kafka_python_alters_and_describes(broker: BrokerProcess) -> None:
    """With the old API, which replaces all configs."""
    topic = new_topic(broker, CLIENT, "by-python", 1, max_message_bytes="7777")
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        client.alter_configs([PythonConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": "4321"})])
        described = client.describe_configs([PythonConfigResource(ConfigResourceType.TOPIC, topic)])
        assert "4321" in str(described)
        client.describe_log_dirs()
    finally:
        client.close()


# -- Kafka's own tools ---------------------------------------------------------------------------------------------


@pytest.fixture
def tools() -> None:
    require(not java_tools.missing(), java_tools.missing())


def configs_tool(broker: BrokerProcess, *arguments: str) -> str:
    """kafka-configs.sh."""
    return SHELL.run("ConfigCommand", "--bootstrap-server", broker.bootstrap, *arguments).output


@ON_A_FOLDER
@pytest.mark.usefixtures("tools")
def test_the_config_command_alters_topics_and_brokers(broker: BrokerProcess) -> None:
    topic = new_topic(broker, CLIENT, "configured", 1)
    of_topic = ("--entity-type", "topics", "--entity-name", topic)
    configs_tool(broker, *of_topic, "--alter", "--add-config", "retention.ms=4321,cleanup.policy=[compact,delete]")
    described = configs_tool(broker, *of_topic, "--describe")
    assert "retention.ms=4321" in described
    assert "cleanup.policy=compact,delete" in described
    # As Apache Kafka 4.4: of retention.ms only what has its own name, or log.retention.ms and its fallbacks.
    assert "synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=4321}" in described
    assert "DEFAULT_CONFIG:log.cleanup.policy=delete}" in described
    configs_tool(broker, *of_topic, "--alter", "--delete-config", "retention.ms")
    assert "retention.ms" not in configs_tool(broker, *of_topic, "--describe")
    default = ("--entity-type", "brokers", "--entity-default")
    configs_tool(broker, *default, "--alter", "--add-config", "log.cleaner.backoff.ms=20000")
    assert "log.cleaner.backoff.ms=20000" in configs_tool(broker, *default, "--describe")
    of_broker = ("--entity-type", "brokers", "--entity-name", "1")
    assert "num.partitions=" in configs_tool(broker, *of_broker, "--describe", "--all")
    configs_tool(broker, *default, "--alter", "--delete-config", "log.cleaner.backoff.ms")
    with pytest.raises(java_tools.ToolError, match="Cannot update these configs dynamically"):
        configs_tool(broker, *of_broker, "--alter", "--add-config", "num.partitions=4")


@ON_A_FOLDER
@pytest.mark.usefixtures("tools")
def test_the_config_command_alters_groups_loggers_and_client_metrics(broker: BrokerProcess) -> None:
    group = ("--entity-type", "groups", "--entity-name", f"group-{uuid.uuid4()}")
    configs_tool(broker, *group, "--alter", "--add-config", "consumer.session.timeout.ms=50000")
    broker.kill()
    broker.start()
    assert "consumer.session.timeout.ms=50000" in configs_tool(broker, *group, "--describe")
    with pytest.raises(java_tools.ToolError, match=r"group\.consumer\.min\.session\.timeout\.ms"):
        configs_tool(broker, *group, "--alter", "--add-config", "consumer.session.timeout.ms=10")
    loggers = ("--entity-type", "broker-loggers", "--entity-name", "1")
    configs_tool(broker, *loggers, "--alter", "--add-config", "kbroker.wire=WARN")
    assert "kbroker.wire=WARN" in configs_tool(broker, *loggers, "--describe")
    configs_tool(broker, *loggers, "--alter", "--delete-config", "kbroker.wire")
    assert "kbroker.wire=INFO" in configs_tool(broker, *loggers, "--describe")


@ON_A_FOLDER
@pytest.mark.usefixtures("tools")
def test_a_java_client_pushes_the_metrics_that_were_subscribed_to(broker: BrokerProcess) -> None:
    """A Java producer asks which metrics are wanted and pushes them."""
    server = ("--bootstrap-server", broker.bootstrap)
    arguments = ("--name", "some", "--metrics", "org.apache.kafka.producer.", "--interval", "200")
    SHELL.run("ClientMetricsCommand", *server, "--alter", *arguments)
    assert "some" in SHELL.run("ClientMetricsCommand", *server, "--list").output
    described = SHELL.run("ClientMetricsCommand", *server, "--describe", "--name", "some").output
    assert "interval.ms=200" in described
    loggers = ("--entity-type", "broker-loggers", "--entity-name", "1")
    name = "kbroker.handlers.client_telemetry"
    configs_tool(broker, *loggers, "--alter", "--add-config", f"{name}=DEBUG")
    topic = new_topic(broker, CLIENT, "metered", 1)
    settings = f"bootstrap.servers={broker.bootstrap}"
    for _ in range(10):  # on a busy machine one may end before it knows the subscription
        SHELL.run(
            "ProducerPerformance", "--topic", topic, "--num-records", "300", "--record-size", "10",
            "--throughput", "300", "--producer-props", settings,
        )  # fmt: skip
        if "bytes of metrics" in broker.log():
            break
    else:
        raise AssertionError("no producer has pushed anything")
    SHELL.run("ClientMetricsCommand", *server, "--delete", "--name", "some")
    assert "some" not in SHELL.run("ClientMetricsCommand", *server, "--list").output
