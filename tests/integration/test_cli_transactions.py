"""``kbroker transaction`` with real transactions, and with some that no coordinator knows; Kafka's own tool agrees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import java_tools
import pytest
from broker_process import BrokerProcess
from confluent_kafka import Producer
from conftest import ON_A_FOLDER, require
from test_client_confluent import QUIET
from tool_shell import SHELL
from topic_commands import TopicCommands
from until import until

pytestmark = ON_A_FOLDER
LOST = 99_000  # a producer id that nothing has given out
VERIFICATION = "transaction.partition.verification.enable"


@pytest.fixture
def commands(broker: BrokerProcess) -> TopicCommands:
    return TopicCommands(broker.bootstrap)


@contextmanager
def open_transaction(commands: TopicCommands, name: str, topic: str) -> Iterator[Producer]:
    """A transaction with one record in the topic, aborted at the end if it is still open."""
    producer = Producer({**QUIET, "bootstrap.servers": commands.bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"value", partition=0)
    producer.flush(30)
    yield producer


@contextmanager
def lost_transaction(commands: TopicCommands, topic: str) -> Iterator[None]:
    """A record of a transaction that no coordinator knows, as before brokers verified that (KIP-890)."""
    commands.run("config", "alter", "broker", "default", "--set", f"{VERIFICATION}=false")
    try:
        commands.append(topic, [1000], producer_id=LOST)
        yield
    finally:
        commands.run("config", "alter", "broker", "default", "--delete", VERIFICATION)


def test_an_open_transaction_is_listed_and_described(commands: TopicCommands) -> None:
    topic = commands.new_topic()
    with open_transaction(commands, "cli payments", topic) as producer:
        (listed,) = commands.rows("transaction", "list", "--state", "ongoing", "--transactional-id-pattern", "cli.*")
        assert (listed["transactional_id"], listed["state"]) == ("cli payments", "Ongoing")
        (described,) = commands.rows("transaction", "describe", "cli payments")
        assert described["topic_partitions"] == [f"{topic}-0"]
        (known,) = commands.rows("transaction", "describe-producers", f"{topic}:0")
        assert known["producer_id"] == listed["producer_id"] == described["producer_id"]
        assert known["transaction_start_offset"] == 0
        assert commands.partitions(topic, "last_stable_offset") == [0]
        assert commands.rows("transaction", "find-hanging", "--max-transaction-timeout", "0", "--topic", topic) == []
        refused = commands.run("transaction", "abort-hanging", f"{topic}:0", "--start-offset", "0", code=1)
        assert "does not hang" in refused.errors[-1]
        producer.commit_transaction(30)
    until(lambda: commands.partitions(topic, "last_stable_offset") == [2], lambda: "the end of the transaction")


def test_a_lost_transaction_is_found_and_aborted(commands: TopicCommands) -> None:
    topic = commands.new_topic("--config", "retention.ms=-1")
    with lost_transaction(commands, topic):
        assert commands.partitions(topic, "last_stable_offset") == [0]
        (row,) = commands.rows("transaction", "find-hanging", "--topic", topic)
        assert (row["producer_id"], row["start_offset"], row["last_timestamp"]) == (LOST, 0, 1000)
        commands.run("transaction", "abort-hanging", f"{topic}:0", "--producer-id", str(LOST))
        assert commands.partitions(topic, "last_stable_offset") == [2]
        assert commands.run("transaction", "find-hanging", "--topic", topic).errors == ["kbroker: no transaction hangs"]
        again = commands.run("transaction", "abort-hanging", f"{topic}:0", "--producer-id", str(LOST), code=1)
        assert "has no such open transaction" in again.errors[-1]


@pytest.mark.java
def test_kafkas_tool_finds_the_same(commands: TopicCommands) -> None:
    require(not java_tools.missing(), java_tools.missing())
    topic = commands.new_topic("--config", "retention.ms=-1")
    with lost_transaction(commands, topic):
        (row,) = commands.rows("transaction", "find-hanging", "--topic", topic)
        tool = ("TransactionsCommand", "--bootstrap-server", commands.bootstrap)
        _, found = SHELL.run(*tool, "find-hanging", "--broker-id", "1", "--topic", topic).lines()
        assert found.split()[:3] == [topic, "0", str(row["producer_id"])]
        SHELL.run(*tool, "abort", "--topic", topic, "--partition", "0", "--start-offset", str(row["start_offset"]))
        assert commands.rows("transaction", "find-hanging", "--topic", topic) == []


def test_a_transactional_id_that_does_not_exist_is_named(commands: TopicCommands) -> None:
    with open_transaction(commands, "cli invoices", commands.new_topic()) as producer:
        producer.abort_transaction(30)
        ended = commands.run("transaction", "describe", "cli invoice", code=1)
    assert ended.errors == ["kbroker: there is no transactional id 'cli invoice'; did you mean 'cli invoices'?"]


def test_a_pattern_that_is_none_is_said(commands: TopicCommands) -> None:
    ended = commands.run("transaction", "list", "--transactional-id-pattern", "(", code=1)
    assert "no regular expression in RE2's syntax" in ended.errors[-1]
