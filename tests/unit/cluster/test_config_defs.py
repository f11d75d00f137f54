"""Broker configs: the table, what a running broker shows, and the defaults that topics get."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.app.kafka_settings import KAFKA_DEFAULTS
from kbroker.cluster.broker_config_table import BROKER_CONFIGS, COARSER, DYNAMIC
from kbroker.cluster.config_defs import BrokerConfigs, ConfigSource
from kbroker.topic_config import TOPIC_CONFIGS, parse_topic_config


def running(**changes: object) -> BrokerConfigs:
    kafka = KAFKA_DEFAULTS | {name.replace("_", "."): value for name, value in changes.items()}
    return BrokerConfigs.of_broker(
        kafka, node_id=4, listen=("0.0.0.0", 9092), advertised=("broker.example", 9093), data_dir=Path("/data")
    )


def test_every_default_of_the_table_has_its_type() -> None:
    for definition in BROKER_CONFIGS.values():
        if definition.default is not None:
            definition.parse(definition.default)


def test_every_setting_that_kbroker_reads_is_described() -> None:
    assert set(KAFKA_DEFAULTS) <= set(BROKER_CONFIGS)


def test_every_topic_synonym_is_a_broker_config() -> None:
    assert {topic.synonym for topic in TOPIC_CONFIGS.values() if topic.synonym} <= set(BROKER_CONFIGS)


def test_settings_at_their_default_are_shown_as_default() -> None:
    shown = {entry.definition.name: entry for entry in running().describe()}
    given = {name for name, entry in shown.items() if entry.source is ConfigSource.STATIC_BROKER}
    assert given == {"node.id", "broker.id", "listeners", "advertised.listeners", "log.dirs"}
    assert shown["node.id"].value == shown["broker.id"].value == "4"
    assert shown["advertised.listeners"].value == "PLAINTEXT://broker.example:9093"
    assert shown["log.dirs"].value == "/data"
    assert shown["broker.rack"].value is None


def test_a_listener_on_ipv6_has_brackets() -> None:
    address = ("::1", 9092)
    shown = BrokerConfigs.of_broker({}, node_id=4, listen=address, advertised=address, data_dir=Path("/data"))
    assert shown.text("listeners") == shown.text("advertised.listeners") == "PLAINTEXT://[::1]:9092"


def test_settings_that_were_given_are_the_topics_defaults() -> None:
    configs = running(log_retention_ms=77, log_cleanup_policy="compact", num_partitions=3)
    assert configs.topic_defaults == {"retention.ms": "77", "cleanup.policy": "compact"}
    assert configs.node_id == 4
    assert parse_topic_config({}, configs.topic_defaults).retention_ms == 77
    assert configs.number("num.partitions") == 3


@pytest.mark.parametrize(
    ("settings", "retention_ms"),
    [
        ({}, None),
        ({"log_retention_hours": 2}, "7200000"),
        ({"log_retention_hours": -1}, "-1"),
        ({"log_retention_hours": 2, "log_retention_minutes": 5}, "300000"),
        ({"log_retention_hours": 2, "log_retention_minutes": 5, "log_retention_ms": 9}, "9"),
    ],
)
def test_the_finest_unit_of_retention_decides(settings: dict[str, object], retention_ms: str | None) -> None:
    assert running(**settings).topic_defaults.get("retention.ms") == retention_ms
    assert running().text("log.retention.ms") == "604800000"


def test_what_was_altered_at_run_time_comes_first() -> None:
    started = running(log_retention_ms=77)
    configs = started.altered({"log.retention.ms": "1"}, {"log.retention.ms": "2", "message.max.bytes": "3"})
    assert (configs.text("log.retention.ms"), configs.number("message.max.bytes")) == ("1", 3)
    assert configs.topic_defaults == {"retention.ms": "1", "max.message.bytes": "3"}
    assert [(synonym.name, synonym.value, int(synonym.source)) for synonym in configs.synonyms("log.retention.ms")] == [
        ("log.retention.ms", "1", 2),
        ("log.retention.ms", "2", 3),
        ("log.retention.ms", "77", 4),
        ("log.retention.hours", "168", 5),
    ]
    assert [entry.definition.name for entry in configs.describe_default()] == ["log.retention.ms", "message.max.bytes"]
    assert configs.altered({}, {}).topic_defaults == started.topic_defaults == {"retention.ms": "77"}


@pytest.mark.parametrize(
    ("settings", "overrides", "expected"),
    [
        ({}, {}, (5, [])),
        ({"log_retention_hours": 2}, {}, (5, [])),
        ({"log_retention_hours": 2}, {"retention.ms": "8"}, (1, [("retention.ms", "8", 1)])),
        ({"log_retention_ms": 9}, {}, (4, [("log.retention.ms", "9", 4), ("log.retention.hours", "168", 5)])),
    ],
)
def test_a_topics_synonyms_begin_with_the_finest_unit(
    settings: dict[str, object], overrides: dict[str, str], expected: tuple[int, list[tuple[str, str, int]]]
) -> None:
    """As Apache Kafka shows them: those of a coarser unit alone are none, though they decide the value."""
    (shown,) = (e for e in running(**settings).describe_topic(overrides) if e.definition.name == "retention.ms")
    assert (shown.source, [tuple(synonym) for synonym in shown.synonyms]) == expected


def test_only_run_time_configs_are_not_read_only() -> None:
    assert {entry.definition.name for entry in running().describe() if not entry.read_only} == set(DYNAMIC)
    assert set(BROKER_CONFIGS) >= DYNAMIC
    assert {name for finer, coarser in COARSER.items() for name, _ in coarser} <= set(BROKER_CONFIGS)
    assert set(COARSER) <= DYNAMIC


def test_a_stored_config_that_cannot_be_used_is_left_out_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    configs = running().altered({"log.retention.ms": "soon", "node.id": "5", "no.such": "1"}, {"max.connections": "9"})
    assert configs.topic_defaults == {}
    assert (configs.node_id, configs.number("max.connections")) == (4, 9)
    assert caplog.text.count("is ignored") == 3


@pytest.mark.parametrize(("value", "expected"), [(True, True), (False, False)])
def test_booleans_are_written_as_kafka_does(value: bool, expected: bool) -> None:
    configs = running(auto_create_topics_enable=value)
    assert configs.text("auto.create.topics.enable") == ("true" if value else "false")
    assert configs.enabled("auto.create.topics.enable") is expected


def test_a_name_outside_the_table_is_shown_and_an_unknown_one_is_an_error() -> None:
    configs = BrokerConfigs({"my.own": 1})
    assert "my.own" in {entry.definition.name for entry in configs.describe()}
    with pytest.raises(KeyError):
        configs.text("no.such")
