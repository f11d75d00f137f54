"""The topic commands: what they show and change, with partitions that have no leader or an error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kbroker.cli.main import cli
from kbroker.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.apis.configs.k32_describe_configs import DescribeConfigsResourceResult
from tests.unit.cli.topic_cluster import Log, TopicCluster, topic_cluster

TOPIC_RESOURCE = 2
FAR_AHEAD = "2999-01-01"


@pytest.fixture
def cluster() -> Iterator[TopicCluster]:
    with topic_cluster() as made:
        yield made


def run(cluster: TopicCluster, *arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, [*arguments, "-b", cluster.broker.bootstrap])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def run_json(cluster: TopicCluster, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(cluster, *arguments, "--json", code=code).stdout.splitlines()]


def test_list_adds_up_partitions(cluster: TopicCluster) -> None:
    cluster.topics["b"] = [Log(start=5, high=10, size=100), Log(high=3, size=50)]
    cluster.topics["a"] = [Log()]
    cluster.configs[TOPIC_RESOURCE, "b"] = [
        DescribeConfigsResourceResult(name="retention.ms", value="1"),
        DescribeConfigsResourceResult(name="cleanup.policy", value="compact"),
    ]
    assert run_json(cluster, "topic", "list") == [
        {"topic": "a", "partitions": 1, "size_bytes": 0, "records": 0, "cleanup_policy": None, "internal": False},
        {
            "topic": "b",
            "partitions": 2,
            "size_bytes": 150,
            "records": 8,
            "cleanup_policy": "compact",
            "internal": False,
        },
    ]
    assert run(cluster, "topic", "list").stdout.splitlines() == [
        "TOPIC  PARTITIONS   SIZE  RECORDS  POLICY",
        "a               1    0 B        0  -",
        "b               2  150 B        8  compact",
    ]


def test_internal_topics_can_be_left_out(cluster: TopicCluster) -> None:
    cluster.topics = {"__consumer_offsets": [Log()], "a": [Log()]}
    assert [row["topic"] for row in run_json(cluster, "topic", "list")] == ["__consumer_offsets", "a"]
    assert [row["topic"] for row in run_json(cluster, "topic", "list", "--exclude-internal")] == ["a"]


def test_no_topics_are_said_on_stderr(cluster: TopicCluster) -> None:
    result = run(cluster, "topic", "list")
    assert (result.stdout, result.stderr) == ("", "kbroker: there are no topics\n")


def test_a_partition_without_a_leader_is_not_asked_for(cluster: TopicCluster) -> None:
    cluster.topics["t"] = [Log(high=3), Log(leader=-1)]
    (row,) = run_json(cluster, "topic", "list")
    assert (row["records"], row["size_bytes"]) == (None, None)
    (topic,) = run_json(cluster, "topic", "describe", "t")
    assert [(part["leader"], part["end_offset"]) for part in topic["partitions"]] == [(1, 3), (None, None)]


def test_describe_shows_each_kind_of_offset(cluster: TopicCluster) -> None:
    cluster.topics["t"] = [Log(start=1, stable=4, high=6, end=8, newest=1000, size=2048, unflushed=0)]
    (topic,) = run_json(cluster, "topic", "describe", "t")
    (part,) = topic["partitions"]
    assert part == {
        "partition": 0, "leader": 1, "leader_epoch": -1, "replicas": [1], "isr": [1], "start_offset": 1,
        "end_offset": 8, "last_stable_offset": 4, "high_watermark": 6, "size_bytes": 2048, "unflushed_bytes": 0,
        "newest_timestamp": 1000,
    }  # fmt: skip
    assert run(cluster, "topic", "describe", "t").stdout.splitlines()[1:] == [
        "PARTITION  LEADER  START  END  STABLE  HIGH     SIZE  UNFLUSHED                    NEWEST",
        "        0       1      1    8       4     6  2.0 KiB        0 B  1970-01-01T00:00:01.000Z",
    ]


def test_a_broker_that_does_not_say_what_is_unflushed_leaves_it_open(cluster: TopicCluster) -> None:
    cluster.topics["t"] = [Log(size=10)]
    (topic,) = run_json(cluster, "topic", "describe", "t")
    assert topic["partitions"][0]["unflushed_bytes"] is None


def test_a_partition_with_an_error_does_not_hide_the_others(cluster: TopicCluster) -> None:
    cluster.topics["t"] = [Log(high=1, error=ErrorCode.UNKNOWN_SERVER_ERROR), Log(high=2)]
    result = run(cluster, "topic", "describe", "t", "--json")
    assert [part["end_offset"] for part in json.loads(result.stdout)["partitions"]] == [None, 2]
    assert result.stderr == "kbroker: t-0: UNKNOWN_SERVER_ERROR\n"


def test_configs_that_differ_from_the_default_are_described(cluster: TopicCluster) -> None:
    cluster.topics["t"] = [Log()]
    cluster.configs[TOPIC_RESOURCE, "t"] = [
        DescribeConfigsResourceResult(name="retention.ms", value="7", config_source=1),
        DescribeConfigsResourceResult(name="cleanup.policy", value="delete", config_source=5),
    ]
    assert run_json(cluster, "topic", "describe", "t")[0]["configs"] == {"retention.ms": "7"}
    everything = run_json(cluster, "topic", "describe", "t", "--all-configs")[0]["configs"]
    assert everything == {"cleanup.policy": "delete", "retention.ms": "7"}
    assert "configs: retention.ms=7" in run(cluster, "topic", "describe", "t").stdout


def test_topics_are_described_once_and_in_order(cluster: TopicCluster) -> None:
    cluster.topics = {"b": [Log()], "a": [Log()]}
    assert [topic["topic"] for topic in run_json(cluster, "topic", "describe", "b", "a", "b")] == ["a", "b"]


def test_topics_that_exist_are_described_beside_those_that_do_not(cluster: TopicCluster) -> None:
    cluster.topics = {"orders": [Log()], "copy": [Log()]}
    result = run(cluster, "topic", "describe", "orders", "nope2", "copy", "ordesr", code=1)
    assert [line.split(":")[0] for line in result.stdout.splitlines() if ": 1 partition" in line] == ["copy", "orders"]
    assert result.stderr.splitlines() == [
        "kbroker: there is no topic 'nope2'",
        "kbroker: there is no topic 'ordesr'; did you mean 'orders'?",
    ]


def test_replicas_that_a_broker_does_not_make_are_remarked(cluster: TopicCluster) -> None:
    result = run(cluster, "topic", "create", "x", "-r", "3")
    assert result.stdout == "created x with 1 partition\n"
    assert result.stderr == "kbroker: x: its replication factor is 1: the object store replicates the data\n"
    for factor, options in ((1, ()), (1, ("-r", "1")), (3, ("-r", "3"))):
        cluster.replication_factor = factor
        assert run(cluster, "topic", "create", "x", *options).stderr == ""


@pytest.mark.parametrize("arguments", [("describe", "ordesr"), ("alter", "ordesr", "-p", "3"),
                                       ("partitions", "ordesr", "3"), ("trim", "ordesr", "--before", "1")])  # fmt: skip
def test_an_unknown_topic_gets_the_nearest_name(cluster: TopicCluster, arguments: tuple[str, ...]) -> None:
    cluster.topics["orders"] = [Log()]
    result = run(cluster, "topic", *arguments, code=1)
    assert result.stderr == "kbroker: there is no topic 'ordesr'; did you mean 'orders'?\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("describe",), "Missing argument"),
        (("create", "t", "-c", "nonsense"), "'nonsense' is not NAME=VALUE"),
        (("create", "t", "-c", "=1"), "without the name"),
        (("create", "t", "-p", "0"), "0 is not in the range"),
        (("create", "t", "-p", "abc"), "'abc' is not a valid integer."),
        (("alter", "t"), "nothing to do"),
        (("alter", "t", "--config", "a=1", "--delete-config", "a"), "a is both set and deleted"),
        (("trim", "t"), "Missing option '--before'"),
        (("trim", "t", "--before", "soon"), "'soon' is not a time"),
        (("trim", "t", "--before", str(2**63)), "is not an offset"),
        (("trim", "t", "--before", FAR_AHEAD), "is in the future"),
        (("trim", "t:x", "--before", "1"), "'x' is not a partition"),
    ],
)
def test_wrong_usage_is_said(cluster: TopicCluster, arguments: tuple[str, ...], said: str) -> None:
    assert said in run(cluster, "topic", *arguments, code=2).stderr


# -- trim ------------------------------------------------------------------------------------------------------------


def starts(cluster: TopicCluster, topic: str = "t") -> list[int]:
    return [log.start for log in cluster.topics[topic]]


def test_trim_moves_the_start_of_each_partition_chosen(cluster: TopicCluster) -> None:
    cluster.topics["t"] = [Log(high=10), Log(start=4, high=10), Log(high=10)]
    rows = run_json(cluster, "topic", "trim", "t:0,1", "--before", "3")
    assert [(row["partition"], row["start_offset"], row["records"]) for row in rows] == [(0, 3, 3), (1, 4, 0)]
    assert starts(cluster) == [3, 4, 0]


def test_a_dry_run_trims_nothing(cluster: TopicCluster) -> None:
    cluster.topics["t"] = [Log(high=10)]
    result = run(cluster, "topic", "trim", "t", "--before", "latest", "--dry-run", "--json")
    assert json.loads(result.stdout)["records"] == 10
    assert "dry run" in result.stderr
    assert starts(cluster) == [0]


def test_trim_by_time_keeps_the_first_record_from_that_time_on(cluster: TopicCluster) -> None:
    cluster.topics["t"] = [Log(high=10, by_time=6), Log(high=10, by_time=-1), Log(high=10, by_time=12)]
    run(cluster, "topic", "trim", "t", "--before", "@1000")
    assert starts(cluster) == [6, 10, 10], "no record is as young; and never beyond the end as it was first seen"
    asked = [request for key, _, request in cluster.broker.seen if key == ApiKey.LIST_OFFSETS]
    assert asked[-1].topics[0].partitions[0].timestamp == 1000


def test_an_offset_beyond_an_end_trims_no_partition(cluster: TopicCluster) -> None:
    cluster.topics["t"] = [Log(high=100), Log(high=10)]
    assert "t-1 ends at offset 10, before 50" in run(cluster, "topic", "trim", "t", "--before", "50", code=1).stderr
    assert starts(cluster) == [0, 0]


def test_a_partition_that_the_topic_lacks_is_named(cluster: TopicCluster) -> None:
    cluster.topics["t"] = [Log(), Log()]
    result = run(cluster, "topic", "trim", "t:7", "--before", "0", code=1)
    assert "t has no partition 7: they are 0 to 1" in result.stderr


def test_a_partition_that_could_not_be_trimmed_is_shown(cluster: TopicCluster) -> None:
    cluster.topics["t"] = [Log(high=5), Log(high=5, trim_error=ErrorCode.POLICY_VIOLATION)]
    rows = run_json(cluster, "topic", "trim", "t", "--before", "5", code=1)
    assert [(row["start_offset"], row["records"]) for row in rows] == [(5, 5), (0, 0)]
    assert "its cleanup.policy has no `delete`" in rows[1]["error"]
