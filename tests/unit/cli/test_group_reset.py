"""``kbroker group reset-offsets``: scopes, targets, and what stops it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kbroker.cli.main import cli
from kbroker.clock import SystemClock
from kbroker.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey
from tests.unit.cli.group_cluster import Group, GroupCluster, Log, group_cluster

HOUR_MS = 3_600_000


@pytest.fixture
def cluster() -> Iterator[GroupCluster]:
    """Topic t: partition 0 holds offsets 100 to 109, of which 105 and later are of the last hour; 1 is empty."""
    now_ms = SystemClock().now_ms()
    old, new = now_ms - 30 * HOUR_MS, now_ms - HOUR_MS // 2
    with group_cluster() as made:
        made.topics = {"t": {0: Log([[old] * 5, [new] * 5], start=100), 1: Log()}}
        made.groups = {"g": Group(offsets={("t", 0): 104})}
        yield made


def run(cluster: GroupCluster, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["group", "reset-offsets", *arguments, "-b", cluster.bootstrap])


def planned(cluster: GroupCluster, *arguments: str) -> dict[tuple[str, int], int]:
    result = run(cluster, "g", *arguments, "--json")
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = [json.loads(line) for line in result.stdout.splitlines()]
    return {(row["topic"], row["partition"]): row["new_offset"] for row in found}


def fails(result: Result, said: str, code: int = 1) -> None:
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == code
    assert said in result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("target", "offset"),
    [
        (("--to-earliest",), 100),
        (("--to-latest",), 110),
        (("--to-current",), 104),
        (("--to-offset", "107"), 107),
        (("--to-offset", "0"), 100),
        (("--to-offset", "-3"), 100),
        (("--to-offset", str(2**70)), 110),
        (("--to-datetime", "-1h"), 105),
        (("--to-datetime", "0"), 100),
        (("--to-datetime", "2100-01-01"), 110),
        (("--by-duration", "PT1H"), 105),
        (("--by-duration", "2d"), 100),
        (("--by-duration", "9999999999999w"), 100),
        (("--shift-by", "3"), 107),
        (("--shift-by", "-3"), 101),
        (("--shift-by", "-50"), 100),
        (("--shift-by", "50"), 110),
    ],
)
def test_each_target_gives_its_offset(cluster: GroupCluster, target: tuple[str, ...], offset: int) -> None:
    assert planned(cluster, "--topic", "t:0", *target) == {("t", 0): offset}


@pytest.mark.parametrize(
    ("scope", "partitions"),
    [(("--topic", "t"), [0, 1]), (("--topic", "t:1", "--topic", "t:0"), [0, 1]), (("--all-topics",), [0])],
)
def test_the_scope_names_the_partitions(cluster: GroupCluster, scope: tuple[str, ...], partitions: list[int]) -> None:
    assert list(planned(cluster, *scope, "--to-latest")) == [("t", index) for index in partitions]


def test_a_partition_without_a_commit_goes_to_the_end_as_current(cluster: GroupCluster) -> None:
    assert planned(cluster, "--topic", "t", "--to-current") == {("t", 0): 104, ("t", 1): 0}


def test_a_partition_without_a_commit_is_not_shifted(cluster: GroupCluster) -> None:
    fails(run(cluster, "g", "--topic", "t", "--shift-by", "1"), "t:1 has no committed offset that could be shifted")


def test_an_offset_outside_the_log_is_remarked(cluster: GroupCluster) -> None:
    result = run(cluster, "g", "--topic", "t:0", "--to-offset", "7", "--dry-run")
    assert result.stderr == "kbroker: t:0: 7 is before the log's start: set to 100\n"
    result = run(cluster, "g", "--topic", "t:0", "--to-offset", "700", "--dry-run")
    assert result.stderr == "kbroker: t:0: 700 is after the log's end: set to 110\n"


def test_nothing_is_set_without_execute(cluster: GroupCluster) -> None:
    result = run(cluster, "g", "--topic", "t:0", "--to-earliest")
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["TOPIC", "PARTITION", "OFFSET", "NEW-OFFSET"],
        ["t", "0", "104", "100"],
    ]
    assert result.stderr == "kbroker: nothing was changed: add --execute to set these offsets\n"
    assert cluster.asked(ApiKey.OFFSET_COMMIT) == 0


def test_execute_sets_the_offsets(cluster: GroupCluster) -> None:
    assert planned(cluster, "--topic", "t", "--to-earliest", "--execute") == {("t", 0): 100, ("t", 1): 0}
    assert cluster.groups["g"].offsets == {("t", 0): 100, ("t", 1): 0}


def test_partitions_that_are_refused_are_named(cluster: GroupCluster) -> None:
    cluster.refused = {("t", 1): ErrorCode.OFFSET_METADATA_TOO_LARGE}
    result = run(cluster, "g", "--topic", "t", "--to-earliest", "--execute")
    fails(result, "kbroker: t:1: OFFSET_METADATA_TOO_LARGE")
    assert len(result.stdout.splitlines()) == 2  # the heading, and the partition that was reset


@pytest.mark.parametrize("options", [(), ("--execute",)])
def test_a_group_with_members_is_refused(cluster: GroupCluster, options: tuple[str, ...]) -> None:
    cluster.groups["g"].state = "Stable"
    result = run(cluster, "g", "--topic", "t", "--to-earliest", *options)
    fails(result, "kbroker: g has members (its state is Stable): stop them first")


def test_a_group_that_does_not_exist_is_created(cluster: GroupCluster) -> None:
    result = run(cluster, "new", "--topic", "t:0", "--to-earliest", "--execute")
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        "kbroker: there is no group 'new'",
        "kbroker: the group is created by --execute",
    ]
    assert cluster.groups["new"].offsets == {("t", 0): 100}


def test_a_group_that_does_not_exist_has_no_topics(cluster: GroupCluster) -> None:
    cluster.groups["readers"] = Group()
    result = run(cluster, "reader", "--all-topics", "--to-earliest")
    fails(result, "kbroker: there is no group 'reader'; did you mean 'readers'?")


def test_a_group_without_offsets_has_nothing_to_reset(cluster: GroupCluster) -> None:
    cluster.groups["g"].offsets = {}
    result = run(cluster, "g", "--all-topics", "--to-earliest", "--execute")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "kbroker: g has no offsets to reset\n")


def test_a_share_group_is_reset(cluster: GroupCluster) -> None:
    cluster.groups["g"] = Group("share", offsets={("t", 0): 101})
    result = run(cluster, "g", "--topic", "t:0", "--shift-by", "2", "--execute", "--json")
    assert json.loads(result.stdout) == {
        "group": "g", "topic": "t", "partition": 0, "start_offset": 101, "new_offset": 103
    }  # fmt: skip
    assert cluster.groups["g"].offsets == {("t", 0): 103}
    assert cluster.asked(ApiKey.OFFSET_COMMIT) == 0


def test_a_share_group_stays_at_the_first_record_that_it_is_not_done_with(cluster: GroupCluster) -> None:
    cluster.groups["g"] = Group("share", offsets={("t", 0): 101}, share_next_offsets={("t", 0): 104})
    result = run(cluster, "g", "--topic", "t:0", "--to-current", "--execute")
    assert result.exit_code == 0, result.output
    assert cluster.groups["g"].offsets == {("t", 0): 104}


def test_exported_offsets_are_read_back(cluster: GroupCluster, tmp_path: Path) -> None:
    result = run(cluster, "g", "--all-topics", "--to-current", "--export")
    assert (result.stdout, result.stderr) == ("t,0,104\n", "")
    (tmp_path / "offsets.csv").write_text(result.stdout)
    cluster.groups["g"].offsets = {("t", 0): 100}
    assert planned(cluster, "--from-file", str(tmp_path / "offsets.csv"), "--execute") == {("t", 0): 104}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--topic", "tt", "--to-latest"), "there is no topic 'tt'"),
        (("--topic", "t:5", "--to-latest"), "t has no partition 5"),
    ],
)
def test_what_does_not_exist_is_named(cluster: GroupCluster, arguments: tuple[str, ...], said: str) -> None:
    fails(run(cluster, "g", *arguments), said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give one of --to-earliest"),
        (("--to-latest",), "give either --topic, --all-topics or --from-file"),
        (("--topic", "t"), "give one of --to-earliest"),
        (("--topic", "t", "--to-latest", "--to-offset", "0"), "--to-latest, --to-offset exclude each other"),
        (("--topic", "t", "--all-topics", "--to-latest"), "give either --topic, --all-topics or --from-file"),
        (("--topic", "", "--to-latest"), "names no topic"),
        (("--topic", "t:x", "--to-latest"), "'x' is not a partition"),
        (("--topic", "t", "--to-offset", "x"), "not a valid integer"),
        (("--topic", "t", "--to-datetime", "soon"), "--to-datetime: 'soon' is not a time"),
        (("--topic", "t", "--by-duration", "long"), "--by-duration: 'long' is not a duration"),
        (("--topic", "t", "--to-latest", "--dry-run", "--execute"), "exclude each other"),
        (("--topic", "t", "--to-latest", "--export", "--json"), "--export prints CSV"),
        (("--from-file", "/no/such/file"), "--from-file: cannot read /no/such/file"),
        (("--from-file", __file__, "--topic", "t"), "--from-file"),
    ],
)
def test_wrong_usage_is_said(cluster: GroupCluster, arguments: tuple[str, ...], said: str) -> None:
    fails(run(cluster, "g", *arguments), said, code=2)
    assert cluster.broker.seen == []
