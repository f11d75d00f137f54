"""`kbroker consume` and `kbroker produce` when the broker dies or is another product."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import java_tools
import pytest
from broker_process import BrokerProcess
from confluent_kafka.admin import AdminClient
from conftest import SMALL, require
from kafka_server import KafkaServer
from record_commands import RecordCommands, new_topic, transactions
from slow_relay import slow_relay
from tool_shell import SHELL
from until import until

from kbroker.cli.records.following import POLL_MS
from kbroker.protocol.api_keys import ApiKey

SECONDS = 30


class Mortal:
    """A broker that tests kill."""

    def __init__(self, folder: Path) -> None:
        self.process = BrokerProcess(folder / "data", *SMALL)
        self.process.start()
        self.kbroker = RecordCommands(self.process.bootstrap)


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Mortal]:
    made = Mortal(tmp_path)
    yield made
    made.process.kill()


def test_each_line_is_stored_once_when_the_broker_dies_in_the_middle(mortal: Mortal) -> None:
    topic = new_topic(mortal.process.bootstrap, 3)
    with mortal.kbroker.started("produce", topic, "--key-separator", "=") as running:
        assert running.stdin is not None
        for start in range(0, 30_000, 10_000):
            running.stdin.write(b"".join(b"%d=%d\n" % (n % 50, n) for n in range(start, start + 10_000)))
            running.stdin.flush()
            until(lambda: mortal.kbroker.records(topic, "--count", "1"), "record")  # it has reached the broker
            if start < 20_000:
                mortal.process.kill()
                mortal.process.start()
        running.stdin.close()
        assert running.wait(SECONDS) == 0, running.stderr.read()
    found = mortal.kbroker.records(topic)
    for partition in range(3):
        values = [int(record["value"]) for record in found if record["partition"] == partition]
        by_key = {number % 50 for number in values}
        assert values == [number for number in range(30_000) if number % 50 in by_key]


def test_consume_goes_on_when_the_broker_is_back(mortal: Mortal) -> None:
    topic = new_topic(mortal.process.bootstrap)
    with mortal.kbroker.started("consume", topic, "--from-beginning") as running:
        mortal.kbroker.produce(topic, b"before\n")
        assert running.stdout is not None
        assert running.stdout.readline() == b"before\n"
        mortal.process.kill()
        mortal.process.start()
        mortal.kbroker.produce(topic, b"after\n")
        assert running.stdout.readline() == b"after\n"
        running.send_signal(signal.SIGINT)
        assert running.wait(SECONDS) == 0


def test_a_broker_that_stays_away_is_one_line(mortal: Mortal, tmp_path: Path) -> None:
    topic = new_topic(mortal.process.bootstrap)
    (tmp_path / "client").write_text("delivery.timeout.ms=500\ndefault.api.timeout.ms=500\nrequest.timeout.ms=500\n")
    impatient = ("--command-config", str(tmp_path / "client"))
    with (
        mortal.kbroker.started("consume", topic, "--from-beginning", *impatient) as consume,
        mortal.kbroker.started("produce", topic, *impatient) as produce,
    ):
        assert produce.stdin is not None
        assert consume.stdout is not None
        produce.stdin.write(b"one\n")
        produce.stdin.flush()
        assert consume.stdout.readline() == b"one\n"
        mortal.process.kill()
        produce.stdin.write(b"two\n")
        produce.stdin.close()
        away = f"no broker answers at {mortal.process.bootstrap}".encode()
        assert produce.wait(SECONDS) == 1
        remark, said = produce.stderr.read().splitlines(keepends=True)
        assert remark.startswith(b"kbroker: " + away)
        assert remark.endswith(b"; trying again for 0.5 s\n")
        assert said.startswith(b"kbroker: line 2: " + away)
        assert said.endswith(b"; what comes before is stored\n")
        assert consume.wait(SECONDS) == 1
        remark, said = consume.stderr.read().splitlines()
        assert remark == said + b"; trying again for 0.5 s"
        assert said.startswith(b"kbroker: " + away)


def test_a_topic_that_is_deleted_ends_consume(mortal: Mortal) -> None:
    topic = new_topic(mortal.process.bootstrap)
    with mortal.kbroker.started("consume", topic, "--from-beginning") as running:
        mortal.kbroker.produce(topic, b"one\n")
        assert running.stdout is not None
        assert running.stdout.readline() == b"one\n"
        admin = AdminClient({"bootstrap.servers": mortal.process.bootstrap, "log_level": 0})
        admin.delete_topics([topic])[topic].result(SECONDS)
        assert running.wait(SECONDS) == 1
        assert b"there is no such topic or partition" in running.stderr.read()


def test_a_group_is_joined_when_an_assignment_takes_longer_than_a_poll(tmp_path: Path) -> None:
    with slow_relay(ApiKey.SYNC_GROUP, 1.3 * POLL_MS / 1000) as relay:
        process = BrokerProcess(tmp_path / "data", *SMALL, "--advertise", f"127.0.0.1:{relay.port}").start()
        try:
            relay.broker_port = process.port
            kbroker = RecordCommands(process.bootstrap)
            topic = new_topic(process.bootstrap, 3)
            kbroker.produce(topic, b"one\ntwo\n")
            assert sorted(kbroker.values(topic, "--group", topic)) == ["one", "two"]
            assert kbroker.values(topic, "--group", topic) == []
        finally:
            process.kill()


@pytest.mark.java
def test_apache_kafka_is_served_too(tmp_path: Path) -> None:
    """Kafka's own producer chooses the same partitions for the same keys."""
    require(not java_tools.missing(), java_tools.missing())
    kafka = KafkaServer(tmp_path / "log", auto_create_topics_enable="true").start()
    try:
        kbroker = RecordCommands(kafka.bootstrap)
        topic, theirs = new_topic(kafka.bootstrap, 5), new_topic(kafka.bootstrap, 5)
        lines = b"".join(b"key %d=%d\n" % (n, n) for n in range(300))
        kbroker.produce(topic, lines, "--key-separator", "=", "--compression", "zstd", "--header", "h=1")
        SHELL.run(
            "ConsoleProducer", "--bootstrap-server", kafka.bootstrap, "--topic", theirs,
            "--reader-property", "parse.key=true", "--reader-property", "key.separator==", stdin=lines,
        )  # fmt: skip
        placed = [
            sorted((record["partition"], record["key"], record["value"]) for record in kbroker.records(name))
            for name in (topic, theirs)
        ]
        assert placed[0] == placed[1]
        assert kbroker.values(topic, "--group", "readers", "--offset", "earliest", "--partition", "0")
        assert len(kbroker.values(topic, "--group", "others")) == 300
        assert kbroker.values(topic, "--group", "others") == []
        copy = kbroker.ended(
            "produce", "made-by-produce", "--json", "-p", "0", lines=kbroker.consume(topic, "--json").output
        )
        created = "kbroker: topic made-by-produce did not exist: created with 1 partition\n"
        assert (copy.code, copy.errors) == (0, f"{created}300 records\n")
        transactional = new_topic(kafka.bootstrap)
        transactions(kafka.bootstrap, transactional)
        committed = kbroker.values(transactional, "--isolation", "read_committed")
        assert committed == [str(number) for number in (*range(10), *range(15, 20))]
        assert "did you mean" in kbroker.ended("consume", f"{topic}x").errors
        assert json.loads(kbroker.consume(topic, "--json", "-o", "-1", "-p", "0").output)["headers"] == [["h", "1"]]
    finally:
        kafka.kill()
