"""``kbroker group`` against a real broker with real members, and beside Apache Kafka's own tool."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import java_tools
import pytest
from broker_process import BrokerProcess
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from conftest import ON_A_FOLDER, SMALL, Store, require
from kafka_server import KafkaServer
from test_client_confluent import QUIET
from tool_shell import SHELL
from until import until

from kbroker.cli.group.commit import alter_share_offsets
from kbroker.client.cluster_client import ClusterClient

pytestmark = ON_A_FOLDER
KAFKA_TOOL = "consumer.group.ConsumerGroupCommand"
KAFKA_COLUMNS = (
    "group", "topic", "partition", "committed_offset", "end_offset", "lag", "member_id", "host", "client_id",
)  # fmt: skip
POLL_SECONDS = 30.0
_serial = itertools.count()


@pytest.fixture(scope="module")
def broker_process(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with share groups."""
    data_dir: Path = tmp_path_factory.mktemp(store.kind) / "data"
    process = BrokerProcess(data_dir, *store.options, *SMALL, "--share-groups")
    yield process
    process.kill()


class Cluster:
    """Topics, commits and members of a cluster, and the commands against it."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.client = {**QUIET, "bootstrap.servers": bootstrap}

    def run(self, *arguments: str, code: int = 0) -> tuple[list[str], list[str]]:
        """The lines on stdout and stderr of a command that ends with this code."""
        result = subprocess.run(
            [sys.executable, "-m", "kbroker", "group", *arguments, "-b", self.bootstrap],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert result.returncode == code, result.stderr
        return result.stdout.splitlines(), result.stderr.splitlines()

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run(*arguments, "--json")[0]]

    def new_topic(self, *counts: int, seconds_old: float = 0) -> str:
        """A topic with so many records in each partition, all of the same age."""
        topic = f"cli-groups-{next(_serial)}"
        admin = AdminClient(self.client)
        admin.create_topics([NewTopic(topic, len(counts), 1)])[topic].result(POLL_SECONDS)
        producer = Producer(self.client)
        timestamp_ms = int((time.time() - seconds_old) * 1000)
        for partition, count in enumerate(counts):
            for number in range(count):
                producer.produce(topic, b"%d" % number, partition=partition, timestamp=timestamp_ms)
        assert producer.flush(POLL_SECONDS) == 0
        return topic

    def commit(self, group: str, topic: str, *offsets: int) -> None:
        """Commits without being a member."""
        consumer = Consumer({**self.client, "group.id": group, "enable.auto.commit": False})
        try:
            partitions = [TopicPartition(topic, partition, offset) for partition, offset in enumerate(offsets)]
            consumer.commit(offsets=partitions, asynchronous=False)
        finally:
            consumer.close()

    def join(self, group: str, topic: str, **options: str) -> Consumer:
        """A member that has read a record and committed it; close it."""
        named = {name.replace("_", "."): value for name, value in options.items()}
        consumer = Consumer({
            **self.client, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False, **named,
        })  # fmt: skip
        consumer.subscribe([topic])
        message = consumer.poll(POLL_SECONDS)
        assert message is not None
        assert message.error() is None
        consumer.commit(message, asynchronous=False)
        return consumer


@pytest.fixture
def cluster(broker: BrokerProcess) -> Cluster:
    return Cluster(broker.bootstrap)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_is_shown_refused_and_deleted(cluster: Cluster, protocol: str) -> None:
    topic, group = cluster.new_topic(3, seconds_old=100), f"members of {protocol}"
    consumer = cluster.join(group, topic, group_protocol=protocol, client_id="reader")
    try:
        (listed,) = [row for row in cluster.rows("list", "--type", protocol) if row["group"] == group]
        assert (listed["state"], listed["members"], listed["lag"]) == ("Stable", 1, 2)
        (row,) = cluster.rows("describe", group)
        assert 100 <= row.pop("lag_seconds") < 1000
        member_id = row.pop("member_id")
        assert row == {
            "group": group, "topic": topic, "partition": 0, "committed_offset": 1, "end_offset": 3, "lag": 2,
            "client_id": "reader", "host": "/127.0.0.1",
        }  # fmt: skip
        (member,) = cluster.rows("describe", group, "--members")
        assert (member["member_id"], member["assignment"]) == (member_id, {topic: [0]})
        assert "has members" in cluster.run("reset-offsets", group, "--all-topics", "--to-latest", code=1)[1][0]
        assert "NON_EMPTY_GROUP" in cluster.run("delete", group, code=1)[1][0]
        assert "GROUP_SUBSCRIBED_TO_TOPIC" in cluster.run("delete-offsets", group, "--topic", topic, code=1)[1][0]
    finally:
        consumer.close()
    assert cluster.run("delete", group)[0] == [f"deleted {group}"]
    assert cluster.run("describe", group, code=1)[1] == [f"kbroker: there is no group {group!r}"]


def test_offsets_that_are_reset_are_where_a_member_starts(cluster: Cluster) -> None:
    topic, group = cluster.new_topic(10, 10), "reset"
    cluster.commit(group, topic, 2, 9)
    cluster.run("reset-offsets", group, "--topic", f"{topic}:0", "--shift-by", "5", "--execute")
    cluster.run("reset-offsets", group, "--topic", f"{topic}:1", "--to-latest", "--execute")
    assert [row["committed_offset"] for row in cluster.rows("describe", group)] == [7, 10]
    consumer = Consumer({**cluster.client, "group.id": group, "enable.auto.commit": False})
    try:
        consumer.subscribe([topic])
        message = consumer.poll(POLL_SECONDS)
        assert (message.partition(), message.offset()) == (0, 7)
    finally:
        consumer.close()


def test_offsets_are_deleted(cluster: Cluster) -> None:
    topic, group = cluster.new_topic(1, 1), "deleted"
    cluster.commit(group, topic, 1, 1)
    cluster.run("delete-offsets", group, "--topic", f"{topic}:1")
    assert [row["partition"] for row in cluster.rows("describe", group)] == [0]


def test_a_share_group_is_described_reset_and_forgets_topics(cluster: Cluster) -> None:
    topic, group = cluster.new_topic(10, 4), "shared"
    client = ClusterClient(cluster.bootstrap)
    assert alter_share_offsets(client, group, {(topic, 0): 3, (topic, 1): 4}) == {}
    client.close()
    rows = cluster.rows("describe", group)
    assert [(row["start_offset"], row["end_offset"], row["lag"]) for row in rows] == [(3, 10, 7), (4, 4, 0)]
    assert rows[1]["lag_seconds"] == 0
    cluster.run("reset-offsets", group, "--all-topics", "--to-earliest", "--execute")
    assert [row["start_offset"] for row in cluster.rows("describe", group)] == [0, 0]
    assert cluster.rows("list", "--type", "share")[0]["lag"] == 14
    cluster.run("delete-offsets", group, "--topic", topic)
    assert cluster.rows("describe", group) == []
    assert cluster.run("delete", group)[0] == [f"deleted {group}"]


def test_lag_in_seconds_is_known_of_records_in_objects_only(broker: BrokerProcess, cluster: Cluster) -> None:
    topic = cluster.new_topic(50, seconds_old=500)
    cluster.commit("cold", topic, 20)
    assert broker.stop() == 0
    shutil.rmtree(broker.data_dir)
    broker.start()
    (row,) = cluster.rows("describe", "cold")
    assert 500 <= row["lag_seconds"] < 1500
    assert row["lag"] == 30


def kafka_rows(cluster: Cluster, *arguments: str) -> list[list[str]]:
    """What Kafka's tool prints below its headings, in order."""
    printed = SHELL.run(KAFKA_TOOL, "--bootstrap-server", cluster.bootstrap, *arguments)
    return sorted(line.split() for line in printed.lines() if not line.startswith(("GROUP ", "Consumer group ")))


def kafka_csv(cluster: Cluster, *arguments: str) -> str:
    """What Kafka's tool exports."""
    return SHELL.run(KAFKA_TOOL, "--bootstrap-server", cluster.bootstrap, *arguments, "--export", "--dry-run").output


@pytest.mark.java
def test_kafkas_tool_prints_the_same_numbers(cluster: Cluster) -> None:
    require(not java_tools.missing(), java_tools.missing())
    topic, group = cluster.new_topic(5, 5, 5), "compared"
    consumer = cluster.join(group, topic, client_id="reader")
    try:
        rows = cluster.rows("describe", group)
        ours = [["-" if row[field] is None else str(row[field]) for field in KAFKA_COLUMNS] for row in rows]
        assert ours == kafka_rows(cluster, "--describe", "--group", group)
    finally:
        consumer.close()


@pytest.mark.java
def test_offsets_are_exchanged_with_kafkas_tool(cluster: Cluster, tmp_path: Path) -> None:
    require(not java_tools.missing(), java_tools.missing())
    topic, group = cluster.new_topic(5, 5), "exchanged"
    cluster.commit(group, topic, 2, 4)
    cluster.commit("of-two", topic, 1)
    path = tmp_path / "offsets.csv"
    reset = ("--reset-offsets", "--group", group)
    path.write_text("\n".join(cluster.run("reset-offsets", group, "--all-topics", "--to-current", "--export")[0]))
    printed = kafka_rows(cluster, *reset, "--from-file", str(path), "--dry-run")
    assert printed == [[group, topic, "0", "2"], [group, topic, "1", "4"]]
    path.write_text(kafka_csv(cluster, *reset, "--all-topics", "--shift-by", "-1"))
    rows = cluster.rows("reset-offsets", group, "--from-file", str(path), "--execute")
    assert [row["new_offset"] for row in rows] == [1, 3]
    path.write_text(kafka_csv(cluster, *reset, "--group", "of-two", "--all-topics", "--to-latest"))
    assert [row["new_offset"] for row in cluster.rows("reset-offsets", group, "--from-file", str(path))] == [5, 5]


@pytest.mark.java
def test_the_commands_work_with_apache_kafka(store: Store, tmp_path: Path) -> None:
    require(not java_tools.missing(), java_tools.missing())
    server = KafkaServer(tmp_path / "kafka").start()
    try:
        cluster = Cluster(server.bootstrap)
        topic, group = cluster.new_topic(6, 0, seconds_old=50), "on kafka"
        consumer = cluster.join(group, topic, group_protocol="consumer", client_id="reader")
        try:
            first, second = cluster.rows("describe", group)
            assert (first["committed_offset"], first["lag"], first["client_id"]) == (1, 5, "reader")
            assert first["lag_seconds"] >= 50
            assert (second["committed_offset"], second["end_offset"]) == (None, 0)
        finally:
            consumer.close()
        until(lambda: cluster.rows("list")[0]["state"] == "Empty", "group without members")
        cluster.run("reset-offsets", group, "--topic", f"{topic}:0", "--to-earliest", "--execute")
        assert cluster.rows("describe", group)[0]["committed_offset"] == 0
        assert cluster.run("delete", group)[0] == [f"deleted {group}"]
    finally:
        server.stop()
