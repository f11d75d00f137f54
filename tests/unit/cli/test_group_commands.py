"""``kbroker group list``, ``describe``, ``delete`` and ``delete-offsets``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kbroker.cli.main import cli
from kbroker.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey
from tests.unit.cli.group_cluster import Group, GroupCluster, Log, group_cluster

HOST = "/127.0.0.1"


@pytest.fixture
def cluster() -> Iterator[GroupCluster]:
    """Topics orders (two partitions of 10 records) and payments (one of 5); a group of each type."""
    with group_cluster() as made:
        made.topics = {"orders": {0: Log([[5] * 10]), 1: Log([[5] * 10])}, "payments": {0: Log([[5] * 5])}}
        made.groups = {
            "readers": Group(
                state="Stable", members={"m1": {"orders": [0]}, "m2": {"orders": [1]}}, offsets={("orders", 0): 4}
            ),
            "newer": Group("consumer", "Stable", members={"m3": {"payments": [0]}}, offsets={("payments", 0): 5}),
            "shared": Group(
                "share", "Stable", "share", {"m4": {"orders": [0]}, "m5": {"orders": [0]}}, {("orders", 0): 2},
                {("orders", 0): 6},
            ),
            "simple": Group(protocol_type="", offsets={("orders", 0): 10, ("orders", 1): 3, ("gone", 0): 7}),
        }  # fmt: skip
        yield made


def run(cluster: GroupCluster, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["group", *arguments, "-b", cluster.bootstrap])


def rows(cluster: GroupCluster, *arguments: str) -> list[dict[str, Any]]:
    result = run(cluster, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def fails(result: Result, *said: str, code: int = 1) -> None:
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == code
    assert result.stderr.splitlines()[-len(said) :] == list(said)


def test_groups_are_listed_with_members_and_total_lag(cluster: GroupCluster) -> None:
    lines = run(cluster, "list").stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["GROUP", "STATE", "TYPE", "MEMBERS", "LAG"],
        ["newer", "Stable", "consumer", "1", "0"],
        ["readers", "Stable", "classic", "2", "6"],
        ["shared", "Stable", "share", "2", "6"],
        ["simple", "Empty", "classic", "0", "7"],
    ]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (("--state", "empty"), ["simple"]),
        (("--type", "share,CONSUMER"), ["newer", "shared"]),
        (("--type", "classic", "--type", "share", "--state", "Stable"), ["readers", "shared"]),
    ],
)
def test_the_list_is_filtered(cluster: GroupCluster, options: tuple[str, ...], names: list[str]) -> None:
    assert [row["group"] for row in rows(cluster, "list", *options)] == names


def test_an_unknown_state_is_refused_with_the_nearest(cluster: GroupCluster) -> None:
    result = run(cluster, "list", "--state", "stabel")
    fails(result, "Error: Invalid value for '--state': 'stabel': did you mean Stable?", code=2)


def test_no_groups_are_said(cluster: GroupCluster) -> None:
    assert run(cluster, "list", "--state", "Dead").stderr == "kbroker: no group matches\n"
    cluster.groups = {}
    assert run(cluster, "list").stderr == "kbroker: there are no groups\n"


def test_a_group_of_an_unknown_type_is_listed_but_not_described(cluster: GroupCluster) -> None:
    cluster.groups = {"s": Group("streams", "Stable")}
    assert rows(cluster, "list")[0]["members"] is None
    fails(
        run(cluster, "describe", "s"), "kbroker: s was deleted, or is a group of type streams: not supported"
    )


def test_many_groups_take_few_requests(cluster: GroupCluster) -> None:
    cluster.groups = {f"g{number}": Group(offsets={("orders", 0): number % 10}) for number in range(1200)}
    assert sum(row["lag"] for row in rows(cluster, "list")) == 120 * sum(range(1, 11))
    counts = {key: cluster.asked(key) for key in (ApiKey.LIST_GROUPS, ApiKey.DESCRIBE_GROUPS, ApiKey.OFFSET_FETCH)}
    assert counts == {ApiKey.LIST_GROUPS: 1, ApiKey.DESCRIBE_GROUPS: 3, ApiKey.OFFSET_FETCH: 3}
    assert (cluster.asked(ApiKey.FIND_COORDINATOR), cluster.asked(ApiKey.LIST_OFFSETS)) == (3, 1)


def test_assigned_and_committed_partitions_are_described(cluster: GroupCluster) -> None:
    first, second = rows(cluster, "describe", "readers")
    assert first.pop("lag_seconds") > 1e9
    assert first == {
        "group": "readers", "topic": "orders", "partition": 0, "committed_offset": 4, "end_offset": 10, "lag": 6,
        "member_id": "m1", "client_id": "client of m1", "host": HOST,
    }  # fmt: skip
    assert second == {
        "group": "readers", "topic": "orders", "partition": 1, "committed_offset": None, "end_offset": 10, "lag": None,
        "lag_seconds": None, "member_id": "m2", "client_id": "client of m2", "host": HOST,
    }  # fmt: skip


def test_a_group_of_the_consumer_protocol_is_described(cluster: GroupCluster) -> None:
    (row,) = rows(cluster, "describe", "newer")
    assert (row["committed_offset"], row["lag"], row["lag_seconds"], row["member_id"]) == (5, 0, 0, "m3")


def test_a_group_without_members_is_described_also_where_topics_are_gone(cluster: GroupCluster) -> None:
    heading, _, *lines = run(cluster, "describe", "simple").stdout.splitlines()
    assert heading == "simple: Empty, classic, no members, coordinator 1"
    assert [line.split()[:5] for line in lines] == [
        ["gone", "0", "7", "-", "-"],
        ["orders", "0", "10", "10", "0"],
        ["orders", "1", "3", "10", "7"],
    ]


def test_a_partition_without_a_leader_is_described_without_waiting(cluster: GroupCluster) -> None:
    cluster.topics["payments"][0].led = False
    (row,) = rows(cluster, "describe", "newer")
    assert (row["committed_offset"], row["end_offset"], row["lag"], row["lag_seconds"]) == (5, None, None, None)
    assert cluster.asked(ApiKey.LIST_OFFSETS) == 0


def test_a_share_group_has_start_offsets_and_its_own_lag(cluster: GroupCluster) -> None:
    (row,) = rows(cluster, "describe", "shared")
    assert row.pop("lag_seconds") > 1e9
    assert row == {
        "group": "shared", "topic": "orders", "partition": 0, "start_offset": 2, "end_offset": 10, "lag": 6
    }  # fmt: skip


def test_a_share_group_that_is_done_with_all_has_no_lag_time_though_its_start_is_behind(cluster: GroupCluster) -> None:
    cluster.groups["shared"].share_lags = {("orders", 0): 0}
    cluster.groups["shared"].share_next_offsets = {("orders", 0): 10}
    (row,) = rows(cluster, "describe", "shared")
    assert (row["start_offset"], row["lag"], row["lag_seconds"]) == (2, 0, 0)


def test_members_are_described_with_their_assignment(cluster: GroupCluster) -> None:
    assert rows(cluster, "describe", "newer", "--members") == [{
        "group": "newer", "member_id": "m3", "group_instance_id": None, "client_id": "client of m3", "host": HOST,
        "member_epoch": 7, "partitions": 1, "assignment": {"payments": [0]},
    }]  # fmt: skip
    table = run(cluster, "describe", "readers", "--members").stdout.splitlines()
    assert table[-1].split()[-2:] == ["1", "orders:1"]


def test_several_groups_are_described_in_turn(cluster: GroupCluster) -> None:
    assert [row["group"] for row in rows(cluster, "describe", "simple", "newer")] == ["simple"] * 3 + ["newer"]
    lines = run(cluster, "describe", "simple", "newer").stdout.splitlines()
    assert lines[5:7] == ["", "newer: Stable, consumer, assignor uniform, 1 member, coordinator 1"]


def test_nothing_to_describe_is_said(cluster: GroupCluster) -> None:
    cluster.groups = {"idle": Group()}
    assert run(cluster, "describe", "idle").stderr == (
        "kbroker: idle has no committed offsets and no assigned partitions\n"
    )
    assert run(cluster, "describe", "idle", "--members").stderr == "kbroker: idle has no members\n"


@pytest.mark.parametrize(
    ("command", "options"), [("describe", ()), ("delete", ()), ("delete-offsets", ("--topic", "orders"))]
)
def test_an_unknown_group_fails_with_the_nearest_name(
    cluster: GroupCluster, command: str, options: tuple[str, ...]
) -> None:
    result = run(cluster, command, "reader", *options)
    fails(result, "kbroker: there is no group 'reader'; did you mean 'readers'?")


def test_a_name_with_a_newline_stays_in_its_line(cluster: GroupCluster) -> None:
    fails(run(cluster, "describe", "a\nb"), "kbroker: there is no group 'a\\nb'")


def test_groups_are_deleted_and_each_failure_is_said(cluster: GroupCluster) -> None:
    result = run(cluster, "delete", "readers", "simple", "no-such")
    assert result.stdout == "deleted simple\n"
    fails(
        result,
        "kbroker: readers: the group has members: stop them first (NON_EMPTY_GROUP)",
        "kbroker: there is no group 'no-such'",
    )
    assert "simple" not in cluster.groups


def test_offsets_of_a_topic_or_of_partitions_are_deleted(cluster: GroupCluster) -> None:
    (row,) = rows(cluster, "delete-offsets", "simple", "--topic", "orders:1")
    assert row == {"group": "simple", "topic": "orders", "partition": 1, "committed_offset": 3}
    assert len(rows(cluster, "delete-offsets", "simple", "--topic", "orders", "--topic", "gone")) == 2
    assert cluster.groups["simple"].offsets == {}


def test_offsets_that_are_not_committed_are_said(cluster: GroupCluster) -> None:
    result = run(cluster, "delete-offsets", "readers", "--topic", "orders:0,1", "--topic", "order")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 2)
    assert result.stderr.splitlines() == [
        "kbroker: readers has no committed offset of orders:1",
        "kbroker: readers: there is no committed offset of topic 'order'; did you mean 'orders'?",
    ]


def test_to_delete_no_offset_fails_with_one_line(cluster: GroupCluster) -> None:
    rows(cluster, "delete-offsets", "simple", "--topic", "orders")
    result = run(cluster, "delete-offsets", "simple", "--topic", "orders")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("kbroker: simple: there is no committed offset of topic 'orders'")


def test_groups_that_exist_are_described_beside_those_that_do_not(cluster: GroupCluster) -> None:
    result = run(cluster, "describe", "simple", "nosuch", "readers")
    headings = [line.split(":")[0] for line in result.stdout.splitlines() if "coordinator 1" in line]
    assert (result.exit_code, headings) == (1, ["simple", "readers"])
    assert result.stderr == "kbroker: there is no group 'nosuch'\n"


def test_offsets_of_a_topic_that_members_read_stay(cluster: GroupCluster) -> None:
    cluster.refused = {("orders", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
    result = run(cluster, "delete-offsets", "readers", "--topic", "orders")
    assert result.stdout == ""
    fails(
        result,
        "kbroker: orders:0: the group's members are subscribed to the topic: stop them first "
        "(GROUP_SUBSCRIBED_TO_TOPIC)",
    )


def test_a_share_group_forgets_topics(cluster: GroupCluster) -> None:
    result = run(cluster, "delete-offsets", "shared", "--topic", "orders:0")
    fails(result, "Error: a share group forgets whole topics only: give --topic orders", code=2)
    result = run(cluster, "delete-offsets", "shared", "--topic", "orders")
    fails(result, "kbroker: shared: the group has members: stop them first (NON_EMPTY_GROUP)")
    cluster.groups["shared"].members = {}
    assert rows(cluster, "delete-offsets", "shared", "--topic", "orders") == [{"group": "shared", "topic": "orders"}]
    assert cluster.groups["shared"].offsets == {}
