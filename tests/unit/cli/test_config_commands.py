"""The config commands: sources and defaults, what is sensitive, names that do not exist, which broker is asked."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from kbroker.cli.main import cli
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.apis.configs.k32_describe_configs import DescribeConfigsResourceResult, DescribeConfigsSynonym
from tests.unit.cli.topic_cluster import Log, TopicCluster, topic_cluster

TOPIC, BROKER, GROUP = 2, 4, 32
DYNAMIC_TOPIC, STATIC_BROKER, DEFAULT = 1, 4, 5


@pytest.fixture
def cluster() -> Iterator[TopicCluster]:
    with topic_cluster() as made:
        made.topics["orders"] = [Log()]
        yield made


def run(cluster: TopicCluster, *arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, ["config", *arguments, "-b", cluster.broker.bootstrap])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def config(
    name: str, value: str | None, source: int = DEFAULT, sensitive: bool = False
) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(name=name, value=value, config_source=source, is_sensitive=sensitive)


def with_synonyms(name: str, *synonyms: tuple[str, str, int]) -> DescribeConfigsResourceResult:
    found = config(name, synonyms[0][1], synonyms[0][2])
    found.synonyms = [DescribeConfigsSynonym(name=name, value=value, source=source) for name, value, source in synonyms]
    return found


def test_configs_with_their_default_are_shown_on_demand(cluster: TopicCluster) -> None:
    cluster.configs[TOPIC, "orders"] = [config("b", "2"), config("a", "1", DYNAMIC_TOPIC)]
    heading, row = run(cluster, "describe", "topic", "orders").stdout.splitlines()
    assert heading.split() == ["CONFIG", "VALUE", "DEFAULT", "SOURCE", "READ-ONLY"]
    assert row.split() == ["a", "1", "-", "DYNAMIC_TOPIC_CONFIG", "no"]
    everything = run(cluster, "describe", "topics", "orders", "--all").stdout.splitlines()
    assert everything[2].split() == ["b", "2", "2", "DEFAULT_CONFIG", "no"]


def test_nothing_but_defaults_is_said_on_stderr(cluster: TopicCluster) -> None:
    result = run(cluster, "describe", "broker", "default")
    assert (result.stdout, result.stderr) == ("", "kbroker: all configs of all brokers have their default\n")


@pytest.mark.parametrize(
    ("synonyms", "default"),
    [
        ([("segment.bytes", "1", DYNAMIC_TOPIC), ("log.segment.bytes", "2", DEFAULT)], "2"),
        ([("retention.ms", "1", DYNAMIC_TOPIC), ("log.retention.hours", "168", DEFAULT)], "604800000"),
        ([("retention.ms", "1", DYNAMIC_TOPIC), ("log.retention.minutes", "-1", STATIC_BROKER)], "-1"),
        ([("retention.ms", "1", DYNAMIC_TOPIC), ("log.retention.ms", "3", STATIC_BROKER)], "3"),
        ([("retention.ms", "1", DYNAMIC_TOPIC)], None),
    ],
)
def test_the_default_is_the_value_without_the_config(
    cluster: TopicCluster, synonyms: list[tuple[str, str, int]], default: str | None
) -> None:
    cluster.configs[TOPIC, "orders"] = [with_synonyms(synonyms[0][0], *synonyms)]
    assert json.loads(run(cluster, "describe", "topic", "orders", "--json").stdout)["default"] == default


@pytest.mark.parametrize(
    ("name", "brokers", "default"),
    [
        ("retention.ms", {"log.retention.hours": "168", "log.retention.minutes": None}, "604800000"),
        ("retention.ms", {"log.retention.hours": "168", "log.retention.minutes": "2"}, "120000"),
        ("retention.ms", {"log.retention.hours": "168", "log.retention.ms": "-1"}, "-1"),
        ("segment.ms", {"log.roll.hours": "2"}, "7200000"),
        ("segment.jitter.ms", {"log.roll.jitter.hours": "0"}, "0"),
        ("cleanup.policy", {"log.cleanup.policy": "delete"}, None),
    ],
)
def test_a_time_without_a_synonym_has_the_brokers_default(
    cluster: TopicCluster, name: str, brokers: dict[str, str | None], default: str | None
) -> None:
    cluster.configs[TOPIC, "orders"] = [with_synonyms(name, (name, "1", DYNAMIC_TOPIC))]
    cluster.configs[BROKER, "1"] = [config(each, value) for each, value in brokers.items()]
    assert json.loads(run(cluster, "describe", "topic", "orders", "--json").stdout)["default"] == default


def test_a_failure_names_the_broker(cluster: TopicCluster) -> None:
    cluster.configs[BROKER, "1"] = cluster.configs[BROKER, ""] = [config("a", "1")]
    refused = run(cluster, "alter", "broker", "1", "--set", "zzz=1", code=1)
    assert refused.stderr.startswith("kbroker: broker 1: INVALID_CONFIG")
    refused = run(cluster, "alter", "broker", "default", "--set", "zzz=1", code=1)
    assert refused.stderr.startswith("kbroker: all brokers: INVALID_CONFIG")


def test_a_sensitive_value_is_not_shown(cluster: TopicCluster) -> None:
    cluster.configs[BROKER, "1"] = [config("ssl.key.password", None, STATIC_BROKER, sensitive=True)]
    assert "(sensitive)" in run(cluster, "describe", "broker", "1").stdout
    row = json.loads(run(cluster, "describe", "broker", "1", "--json").stdout)
    assert (row["value"], row["sensitive"]) == (None, True)


def test_a_topic_may_have_the_name_that_stands_for_all_brokers(cluster: TopicCluster) -> None:
    cluster.topics["default"] = [Log()]
    cluster.configs[TOPIC, "default"] = [config("a", "1", DYNAMIC_TOPIC)]
    assert "DYNAMIC_TOPIC_CONFIG" in run(cluster, "describe", "topic", "default").stdout


def test_configs_are_set_and_deleted_together(cluster: TopicCluster) -> None:
    cluster.configs[GROUP, "g"] = [config("a", "1"), config("b", "2")]
    result = run(cluster, "alter", "group", "g", "--set", "a=x=y", "--delete", "b", "--delete", "b")
    assert result.stdout == "altered group g: a=x=y, b deleted\n"
    assert cluster.altered == [(GROUP, "g", {"a": (0, "x=y"), "b": (1, None)})]


def test_all_brokers_have_the_empty_name(cluster: TopicCluster) -> None:
    cluster.configs[BROKER, ""] = [config("a", "1")]
    assert run(cluster, "alter", "broker", "default", "--set", "a=1").stdout == "altered all brokers: a=1\n"
    assert cluster.altered[0][1] == ""


@pytest.mark.parametrize("option", [("--set", "retenton.ms=1"), ("--delete", "retenton.ms")])
def test_an_unknown_config_gets_the_nearest_name(cluster: TopicCluster, option: tuple[str, str]) -> None:
    cluster.configs[TOPIC, "orders"] = [config("retention.ms", "1"), config("retention.bytes", "1")]
    assert "did you mean" in (said := run(cluster, "alter", "topic", "orders", *option, code=1).stderr)
    assert "retention.ms" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("describe", "topic", "ordres"), "there is no topic 'ordres'; did you mean 'orders'?"),
        (("describe", "broker", "7"), "there is no broker '7'"),
        (("describe", "broker", "one"), "there is no broker 'one'"),
        (("alter", "topic", "nope", "--set", "a=1"), "there is no topic 'nope'"),
    ],
)
def test_a_resource_that_does_not_exist_is_named(cluster: TopicCluster, arguments: tuple[str, ...], said: str) -> None:
    assert said in run(cluster, *arguments, code=1).stderr
    assert not [key for key, _, _ in cluster.broker.seen if key == ApiKey.INCREMENTAL_ALTER_CONFIGS]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("describe", "topik", "t"), "did you mean topic?"),
        (("describe", "user", "t"), "'user' is none of topic, broker"),
        (("alter", "topic", "orders"), "nothing to do"),
        (("alter", "topic", "orders", "--set", "a"), "'a' is not NAME=VALUE"),
        (("alter", "topic", "orders", "--set", "a=1", "--delete", "a"), "a is both set and deleted"),
    ],
)
def test_wrong_usage_of_config_is_said(cluster: TopicCluster, arguments: tuple[str, ...], said: str) -> None:
    assert said in run(cluster, *arguments, code=2).stderr
