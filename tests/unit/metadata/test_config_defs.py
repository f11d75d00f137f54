"""Broker configs: the table, what a running broker shows, and the defaults that topics get."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.config import KAFKA_DEFAULTS
from kbroker.metadata.config_defs import BROKER_CONFIGS, BrokerConfigs, ConfigSource
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


def test_settings_that_were_given_are_the_topics_defaults() -> None:
    configs = running(log_retention_ms=77, log_cleanup_policy="compact", num_partitions=3)
    assert configs.topic_defaults == {"retention.ms": "77", "cleanup.policy": "compact"}
    assert parse_topic_config({}, configs.topic_defaults).retention_ms == 77
    assert configs.number("num.partitions") == 3


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
