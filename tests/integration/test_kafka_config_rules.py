"""Names, types, defaults and bounds of every config, compared with the rules in Apache Kafka's jars."""

from __future__ import annotations

import java_tools
import pytest
from conftest import require

from kbroker.cluster.broker_config_table import BROKER_CONFIGS, DYNAMIC
from kbroker.cluster.group_configs import GROUP_CONFIGS
from kbroker.topic_config import TOPIC_CONFIGS, ConfigType
from scripts.compare_kafka import PROBES, Tables, release_tables, takes

pytestmark = pytest.mark.java
TABLES = {"topic": TOPIC_CONFIGS, "broker": BROKER_CONFIGS, "group": GROUP_CONFIGS}
# Configs of 4.4 that are not served yet.
NOT_YET = {"errors.deadletterqueue.group.enable"}
OUR_DEFAULTS = {
    "log.cleaner.io.max.bytes.per.second": "5.0E7",  # compaction reads and writes the object store
    "log.dir": None,
    "max.connections": "20000",
    "node.id": "-1",
    "process.roles": "broker,controller",
}
# Kafka drops duplicates before it validates a topic's list: config_spellings.json.
DOUBLES_TAKEN = ("cleanup.policy", "compact, compact", "Kafka refuses it")
# Kafka takes them at run time alone.
THROTTLES = {
    "follower.replication.throttled.rate", "leader.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
}  # fmt: skip
# Values that no topic can have, so that they cannot be defaults for topics; and a negative rate.
STRICTER = {
    "log.cleaner.io.max.bytes.per.second",
    "log.flush.interval.ms",
    "log.retention.ms",
    "log.roll.jitter.ms",
    "log.roll.ms",
    "max.connections.per.ip.overrides",  # Kafka refuses them when it uses them
}


@pytest.fixture(scope="module")
def kafka() -> Tables:
    """The configs in the jars in .tools."""
    require(not java_tools.missing(), java_tools.missing())
    return release_tables()


@pytest.mark.parametrize("kind", TABLES)
def test_types_and_defaults_are_kafkas(kafka: Tables, kind: str) -> None:
    different = {}
    for name, definition in TABLES[kind].items():
        row = kafka[f"{kind} config"].get(name)
        ours = (definition.type.name, definition.default)
        if row is not None and ours != (row["type"], row["default"]):
            different[name] = ours
    expected = {name: (BROKER_CONFIGS[name].type.name, default) for name, default in OUR_DEFAULTS.items()}
    assert different == (expected if kind == "broker" else {})


def test_every_broker_config_is_kafkas_or_our_own(kafka: Tables) -> None:
    extra = {name for name in BROKER_CONFIGS if not name.startswith("kbroker.")} - kafka["broker config"].keys()
    assert extra == THROTTLES


def test_every_topic_config_of_kafka_is_known(kafka: Tables) -> None:
    wanted = kafka["topic config"].keys()
    assert wanted - TOPIC_CONFIGS.keys() <= NOT_YET
    extra = {name for name, definition in TOPIC_CONFIGS.items() if not definition.hidden} - wanted
    assert {name for name in extra if not name.startswith("kbroker.")} == set()


@pytest.mark.parametrize("kind", TABLES)
def test_the_values_that_kafka_accepts_are_accepted(kafka: Tables, kind: str) -> None:
    """Of those that can be altered."""
    different = [
        (name, text, "Kafka takes it" if text in row["takes"] else "Kafka refuses it")
        for name, row in kafka[f"{kind} config"].items()
        if name in TABLES[kind] and (kind != "broker" or name in DYNAMIC)
        for text in PROBES
        if takes(TABLES[kind][name], text) != (text in row["takes"])
    ]
    if kind == "topic":
        different.remove(DOUBLES_TAKEN)
    assert [each for each in different if each[0] not in STRICTER] == []
    assert {(name, result) for name, _, result in different} == {
        (name, "Kafka takes it") for name in STRICTER if kind == "broker"
    }


def test_codes_of_types_cover_kafkas(kafka: Tables) -> None:
    types = {row["type"] for kind in TABLES for row in kafka[f"{kind} config"].values()}
    assert types <= set(ConfigType.__members__)
