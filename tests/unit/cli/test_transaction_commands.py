"""The transaction commands: which transactions hang, and what is aborted."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from kbroker.cli.main import cli
from kbroker.clock import SystemClock
from kbroker.protocol.apis.transactions.k61_describe_producers import ProducerState
from kbroker.protocol.apis.transactions.k65_describe_transactions import TopicData, TransactionState
from tests.unit.cli.topic_cluster import Log, TopicCluster, topic_cluster

HOUR_MS = 3_600_000


@pytest.fixture
def cluster() -> Iterator[TopicCluster]:
    with topic_cluster() as made:
        yield made


def run(cluster: TopicCluster, *arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, ["transaction", *arguments, "-b", cluster.broker.bootstrap])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def producer(producer_id: int, start_offset: int = -1, idle_ms: int = HOUR_MS, epoch: int = 3) -> ProducerState:
    return ProducerState(
        producer_id=producer_id,
        producer_epoch=epoch,
        coordinator_epoch=-1,
        last_timestamp=SystemClock().now_ms() - idle_ms,
        current_txn_start_offset=start_offset,
    )


def ongoing(producer_id: int, *partitions: tuple[str, int]) -> TransactionState:
    return TransactionState(
        producer_id=producer_id,
        transaction_state="Ongoing",
        transaction_timeout_ms=60_000,
        transaction_start_time_ms=1000,
        topics=[TopicData(topic=topic, partitions=[index]) for topic, index in partitions],
    )


def test_transactions_are_listed_by_id(cluster: TopicCluster) -> None:
    cluster.transactions = {"b": ongoing(2), "a": ongoing(1)}
    assert run(cluster, "list").stdout.splitlines() == [
        "TRANSACTIONAL ID  COORDINATOR  PRODUCER ID  STATE",
        "a                           1            1  Ongoing",
        "b                           1            2  Ongoing",
    ]


def test_a_transaction_is_described(cluster: TopicCluster) -> None:
    cluster.transactions["payments"] = ongoing(7, ("t", 0), ("u", 1))
    row = json.loads(run(cluster, "describe", "payments", "--json").stdout)
    assert row.pop("duration_seconds") > HOUR_MS / 1000
    assert row == {
        "transactional_id": "payments", "coordinator_id": 1, "producer_id": 7, "producer_epoch": 0, "state": "Ongoing",
        "timeout_ms": 60_000, "start_timestamp": 1000, "topic_partitions": ["t-0", "u-1"],
    }  # fmt: skip


def test_an_unknown_transactional_id_gets_the_nearest(cluster: TopicCluster) -> None:
    cluster.transactions["payments"] = ongoing(7)
    result = run(cluster, "describe", "paymnets", code=1)
    assert result.stderr == "kbroker: there is no transactional id 'paymnets'; did you mean 'payments'?\n"


def test_nothing_to_list_is_said_on_stderr(cluster: TopicCluster) -> None:
    assert run(cluster, "list").stderr == "kbroker: there are no transactions\n"
    assert run(cluster, "list", "--producer-id", "5").stderr == "kbroker: there are no such transactions\n"


@pytest.mark.parametrize(("text", "sent"), [("1500", 1500), ("1h", HOUR_MS), ("1m30s", 90_000)])
def test_the_duration_to_list_is_a_number_of_ms_or_a_duration(cluster: TopicCluster, text: str, sent: int) -> None:
    run(cluster, "list", "--duration-filter", text)
    assert cluster.duration_filter == sent


def hanging(cluster: TopicCluster, *options: str) -> list[int]:
    """The producers of the transactions found."""
    return [
        json.loads(line)["producer_id"] for line in run(cluster, "find-hanging", *options, "--json").stdout.splitlines()
    ]


def test_a_transaction_hangs_that_no_coordinator_knows(cluster: TopicCluster) -> None:
    cluster.topics["t"] = [
        Log(producers=[producer(1, 10), producer(2, 20), producer(3, 30), producer(4)]),
        Log(producers=[producer(2, 25)]),
        Log(producers=[producer(5, 5)], leader=-1),
    ]
    cluster.transactions = {"known": ongoing(2, ("t", 0)), "between transactions": ongoing(3)}
    found = [(1, 0), (3, 0), (2, 1)]
    rows = [json.loads(line) for line in run(cluster, "find-hanging", "--json").stdout.splitlines()]
    assert [(row["producer_id"], row["partition"]) for row in rows] == found


def test_a_young_transaction_does_not_hang(cluster: TopicCluster) -> None:
    cluster.topics["t"] = [Log(producers=[producer(1, 10, idle_ms=14 * 60_000), producer(2, 20, idle_ms=16 * 60_000)])]
    assert hanging(cluster) == [2]
    assert hanging(cluster, "--max-transaction-timeout", "1") == [1, 2]


def test_the_search_can_be_narrowed(cluster: TopicCluster) -> None:
    cluster.topics = {"t": [Log(producers=[producer(1, 1)]), Log(producers=[producer(2, 1)])],
                      "u": [Log(producers=[producer(3, 1)])]}  # fmt: skip
    assert hanging(cluster) == [1, 2, 3]
    assert hanging(cluster, "--topic", "t") == [1, 2]
    assert hanging(cluster, "--topic", "t:1") == [2]
    assert hanging(cluster, "--broker-id", "1") == [1, 2, 3]
    assert hanging(cluster, "--broker-id", "2") == []


@pytest.mark.parametrize("option", [("--start-offset", "20"), ("--producer-id", "2")])
def test_an_abort_has_the_producers_epoch(cluster: TopicCluster, option: tuple[str, str]) -> None:
    cluster.topics["t"] = [Log(), Log(producers=[producer(1, 10), producer(2, 20, epoch=9)])]
    result = run(cluster, "abort-hanging", "t:1", *option)
    assert result.stdout == "aborted the transaction of producer 2 in t-1\n"
    (marker,) = cluster.markers
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (2, 9, 0)
    assert marker.transaction_result is False
    assert [(topic.name, topic.partition_indexes) for topic in marker.topics] == [("t", [1])]


@pytest.mark.parametrize("idle_ms", [HOUR_MS, 0])
def test_a_transaction_that_may_end_by_itself_is_aborted_by_force_only(cluster: TopicCluster, idle_ms: int) -> None:
    cluster.topics["t"] = [Log(producers=[producer(2, 20, idle_ms)])]
    if idle_ms:
        cluster.transactions["known"] = ongoing(2, ("t", 0))
    assert "does not hang" in run(cluster, "abort-hanging", "t:0", "--producer-id", "2", code=1).stderr
    assert cluster.markers == []
    run(cluster, "abort-hanging", "t:0", "--producer-id", "2", "--force")
    assert len(cluster.markers) == 1


def test_an_abort_of_what_is_not_open_says_what_is(cluster: TopicCluster) -> None:
    cluster.topics["t"] = [Log(producers=[producer(2, 20)])]
    result = run(cluster, "abort-hanging", "t:0", "--start-offset", "21", code=1)
    assert "t:0 has no such open transaction; those that it has: producer 2 from offset 20" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("list", "--state", "Lost"), "'Lost' is not one of"),
        (("list", "--producer-id", "x"), "'x' is not a valid integer."),
        (("list", "--duration-filter", "soon"), "'soon' is not a duration"),
        (("list", "--duration-filter", str(2**63)), "is too long"),
        (("find-hanging", "--max-transaction-timeout", "x"), "'x' is not a valid number."),
        (("abort-hanging", "t:0"), "--start-offset or --producer-id"),
        (("abort-hanging", "t", "--start-offset", "1"), "'t' is not TOPIC:PARTITION"),
        (("abort-hanging", "t:0,1", "--start-offset", "1"), "'t:0,1' is not TOPIC:PARTITION"),
        (("describe-producers", "t:"), "'' is not a partition"),
        (("find-hanging", "--max-transaction-timeout", "-1"), "-1.0 is not in the range"),
    ],
)
def test_wrong_usage_of_transaction_is_said(cluster: TopicCluster, arguments: tuple[str, ...], said: str) -> None:
    assert said in run(cluster, *arguments, code=2).stderr
