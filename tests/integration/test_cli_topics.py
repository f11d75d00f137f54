"""``kbroker topic``, ``config`` and ``cluster`` against a real broker, and against Apache Kafka."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import java_tools
import pytest
from broker_process import BrokerProcess
from conftest import SMALL, require
from kafka_server import KafkaServer
from topic_commands import TopicCommands
from until import until

DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def broker_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with its objects in the data directory."""
    process = BrokerProcess(tmp_path_factory.mktemp("topics") / "data", *SMALL)
    yield process
    process.kill()


@pytest.fixture
def kbroker(broker: BrokerProcess) -> TopicCommands:
    return TopicCommands(broker.bootstrap)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    require(not java_tools.missing(), java_tools.missing())
    server = KafkaServer(tmp_path_factory.mktemp("kafka") / "logs").start()
    yield server
    server.kill()


@pytest.fixture(params=["kbroker", pytest.param("kafka", marks=pytest.mark.java)])
def commands(request: pytest.FixtureRequest) -> TopicCommands:
    if request.param == "kafka":
        return TopicCommands(request.getfixturevalue("kafka").bootstrap, is_kbroker=False)
    return request.getfixturevalue("kbroker")


def test_topics_are_created_listed_described_and_deleted(commands: TopicCommands) -> None:
    topic = commands.new_topic("--config", "retention.ms=-1", partitions=3)
    commands.append(topic, [1000, 2000], partition=2)
    (row,) = [row for row in commands.rows("topic", "list") if row["topic"] == topic]
    assert (row["partitions"], row["records"], row["cleanup_policy"]) == (3, 2, "delete")
    assert row["size_bytes"] > 200
    described = commands.described(topic)
    assert described["configs"]["retention.ms"] == "-1"
    assert [part["end_offset"] for part in described["partitions"]] == [0, 0, 2]
    last = described["partitions"][2]
    assert (last["start_offset"], last["last_stable_offset"], last["high_watermark"]) == (0, 2, 2)
    assert (last["newest_timestamp"], last["size_bytes"]) == (2000, row["size_bytes"])
    assert commands.run("topic", "delete", topic).output == [f"deleted {topic}"]
    until(lambda: topic not in [row["topic"] for row in commands.rows("topic", "list")], lambda: "the topic's end")


def test_unflushed_bytes_go_to_zero_with_a_flush(kbroker: TopicCommands, broker: BrokerProcess) -> None:
    topic = kbroker.new_topic()
    kbroker.append(topic, [1, 2, 3])
    (before,) = kbroker.partitions(topic, "unflushed_bytes")
    assert before > 300
    assert kbroker.partitions(topic, "size_bytes") == [before]
    broker.flush()
    assert kbroker.partitions(topic, "unflushed_bytes") == [0]
    assert kbroker.partitions(topic, "size_bytes")[0] >= before


@pytest.mark.java
def test_what_a_kafka_does_not_say_is_left_open(kafka: KafkaServer) -> None:
    commands = TopicCommands(kafka.bootstrap)
    assert commands.partitions(commands.new_topic(), "unflushed_bytes") == [None]


def test_a_topic_is_altered(commands: TopicCommands) -> None:
    topic = commands.new_topic()
    commands.run("topic", "alter", topic, "-p", "3", "--config", "retention.ms=1000", "--config", "retention.bytes=5")
    commands.run("topic", "alter", topic, "--delete-config", "retention.bytes")
    until(lambda: len(commands.partitions(topic, "leader")) == 3, lambda: "three partitions")
    configs = commands.described(topic)["configs"]
    assert (configs["retention.ms"], configs.get("retention.bytes")) == ("1000", None)
    commands.run("topic", "partitions", topic, "4")
    until(lambda: len(commands.partitions(topic, "leader")) == 4, lambda: "four partitions")


@pytest.mark.parametrize(
    ("before", "starts"),
    [("2", [2, 2]), ("latest", [4, 2]), ("-1d", [3, 2]), ("@1", [0, 0]), ("1970-01-02T00:00Z", [2, 2])],
)
def test_a_topic_is_trimmed(commands: TopicCommands, before: str, starts: list[int]) -> None:
    topic = commands.new_topic("--config", "retention.ms=-1", partitions=2)
    commands.append(topic, [10, 20, DAY_MS, int(time.time() * 1000)])
    commands.append(topic, [10, 20], partition=1)
    rows = commands.rows("topic", "trim", topic, "--before", before, "--dry-run")
    assert [row["start_offset"] for row in rows] == starts
    assert commands.partitions(topic, "start_offset") == [0, 0]
    assert commands.rows("topic", "trim", topic, "--before", before) == rows
    assert commands.partitions(topic, "start_offset") == starts


def test_a_compacted_topic_is_not_trimmed(commands: TopicCommands) -> None:
    topic = commands.new_topic("--config", "cleanup.policy=compact")
    commands.append(topic, [1])
    ended = commands.run("topic", "trim", topic, "--before", "1", code=1)
    assert "cleanup.policy" in ended.errors[-1]
    assert commands.partitions(topic, "start_offset") == [0]


def test_failures_of_topics_are_one_line(commands: TopicCommands) -> None:
    topic = commands.new_topic()
    for said, *arguments in (
        (f"did you mean '{topic}'?", "describe", f"{topic}x"),
        (f"did you mean '{topic}'?", "delete", f"{topic}x"),
        ("INVALID_TOPIC_EXCEPTION", "describe", "bad name"),
        ("INVALID_TOPIC_EXCEPTION", "create", "bad name"),
        ("TOPIC_ALREADY_EXISTS", "create", topic),
        ("did you mean retention.ms?", "create", "x", "--config", "retenton.ms=1"),
        ("INVALID_CONFIG", "create", "x", "--config", "retention.ms=\n"),
        ("INVALID_PARTITIONS", "alter", topic, "-p", "1"),
        ("did you mean retention.ms?", "alter", topic, "--config", "retenton.ms=1"),
        ("is longer than 32767 bytes", "describe", "x" * 40_000),
    ):
        ended = commands.run("topic", *arguments, code=1)
        assert said in ended.errors[-1], ended
        assert ended.output == []


def test_what_may_exist_or_not_is_no_failure(commands: TopicCommands) -> None:
    topic = commands.new_topic()
    assert commands.run("topic", "create", topic, "--if-not-exists").errors == [f"kbroker: {topic} exists already"]
    assert commands.run("topic", "delete", "no-such", "--if-exists").errors == ["kbroker: there is no topic no-such"]


def test_some_topics_can_fail_while_others_are_changed(commands: TopicCommands) -> None:
    topic = commands.new_topic()
    ended = commands.run("topic", "delete", topic, "no-such-topic-of-all", code=1)
    assert ended.output == [f"deleted {topic}"]
    assert "there is no topic 'no-such-topic-of-all'" in ended.errors[-1]


def test_configs_of_topics_and_groups_are_altered(commands: TopicCommands) -> None:
    topic = commands.new_topic()
    for kind, name, config in (("topic", topic, "retention.ms"), ("group", "g", "consumer.session.timeout.ms")):
        commands.run("config", "alter", kind, name, "--set", f"{config}=50000")

        def row(kind: str = kind, name: str = name, config: str = config) -> dict[str, object] | None:
            return next((r for r in commands.rows("config", "describe", kind, name) if r["config"] == config), None)

        until(lambda row=row: row() is not None, lambda: "the config")
        assert row()["value"] == "50000"
        assert row()["source"] == f"DYNAMIC_{kind.upper()}_CONFIG"
        commands.run("config", "alter", kind, name, "--delete", config)
        until(lambda row=row: row() is None, lambda: "the default")


def test_configs_of_brokers_are_altered(commands: TopicCommands) -> None:
    for name, source in (("1", "DYNAMIC_BROKER_CONFIG"), ("default", "DYNAMIC_DEFAULT_BROKER_CONFIG")):
        config = "log.cleaner.backoff.ms" if name == "1" else "log.retention.bytes"
        commands.run("config", "alter", "broker", name, "--set", f"{config}=99999")

        def row(name: str = name, config: str = config) -> dict[str, object]:
            rows = commands.rows("config", "describe", "broker", name)
            return next((row for row in rows if row["config"] == config), {})

        until(lambda row=row: row().get("value") == "99999", lambda: "the config")
        assert row()["source"] == source
        commands.run("config", "alter", "broker", name, "--delete", config)
    assert "log.dirs" in [row["config"] for row in commands.rows("config", "describe", "broker", "1")]


def test_the_cluster_is_described(commands: TopicCommands) -> None:
    topic = commands.new_topic(partitions=2)
    (found,) = commands.rows("cluster", "status")
    assert found["controller_id"] == 1
    assert [(broker["broker_id"], broker["host"]) for broker in found["brokers"]] == [(1, "127.0.0.1")]
    assert found["features"]["transaction.version"] == 2
    assert found["partitions"] >= 2
    assert found["offline_partitions"] == []
    assert found["brokers"][0]["leads"] == found["partitions"]
    printed = commands.run("cluster", "describe").output
    assert f"cluster           {found['cluster_id']}" in printed
    commands.run("topic", "delete", topic)


def run_with(output: int | None, *arguments: str, **environ: str) -> tuple[int, str]:
    """Exit code and stderr of a command with this standard output."""
    done = subprocess.run(
        [sys.executable, "-m", "kbroker", *arguments], stdout=output, stderr=subprocess.PIPE, text=True, timeout=120,
        env={**os.environ, **environ}, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


def test_a_reader_that_stops_early_ends_the_command_without_a_word(kbroker: TopicCommands) -> None:
    kbroker.new_topic()
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert run_with(writer, "topic", "list", "-b", kbroker.bootstrap) == (1, "")
    finally:
        os.close(writer)


def test_the_bootstrap_address_may_come_from_the_environment_or_a_file(kbroker: TopicCommands, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text(f"bootstrap.servers={kbroker.bootstrap}\n")
    nothing = subprocess.DEVNULL
    assert run_with(nothing, "cluster", "status", KBROKER_BOOTSTRAP=kbroker.bootstrap)[0] == 0
    assert run_with(nothing, "cluster", "status", "--command-config", str(config))[0] == 0


def test_a_broker_that_is_killed_is_said_in_one_line(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", "--memory-bytes", "96MiB").start()
    broker.kill()
    code, said = run_with(subprocess.DEVNULL, "topic", "list", "-b", broker.bootstrap)
    assert code == 1
    assert said.startswith(f"kbroker: no broker answers at {broker.bootstrap}: ")
    assert said.count("\n") == 1
