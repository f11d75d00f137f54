"""The classes of Apache Kafka's kafka-*.sh, run against a broker: one use of each, and one failure."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import java_tools
import pytest
from broker_process import BrokerProcess
from conftest import ON_A_FOLDER, require
from served_apis import TRANSACTIONS, need
from tool_shell import SHELL, Printed
from until import until

from kbroker.protocol.api_keys import ApiKey

pytestmark = [pytest.mark.java, ON_A_FOLDER]
GROUPS = "consumer.group.ConsumerGroupCommand"
CONFIGS = "ConfigCommand"
RECORDS = 200
_serial = itertools.count()


class Tools:
    """Tools that are given this broker."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.bootstrap = ("--bootstrap-server", broker.bootstrap)
        self.property = ("--command-property", f"bootstrap.servers={broker.bootstrap}")

    def run(self, tool: str, *arguments: str) -> Printed:
        return SHELL.run(tool, *self.bootstrap, *arguments)

    def fails(self, tool: str, *arguments: str) -> str:
        return SHELL.fails(tool, *self.bootstrap, *arguments)

    def new_topic(self, *options: str, partitions: int = 2) -> str:
        topic = f"tools-{next(_serial)}"
        self.run("TopicCommand", "--create", "--topic", topic, "--partitions", str(partitions), *options)
        return topic

    def fill(self, topic: str, *options: str, records: int = RECORDS) -> str:
        """Sends records with ProducerPerformance; its output."""
        counts = ("--num-records", str(records), "--record-size", "50", "--throughput", "-1")
        printed = SHELL.run("ProducerPerformance", "--topic", topic, *counts, *options, *self.property)
        assert f"{records} records sent" in printed.output
        return printed.output

    def offsets(self, topic: str, time: str = "latest") -> list[int]:
        """Of each partition, from GetOffsetShell; -1 where it prints none."""
        lines = self.run("GetOffsetShell", "--topic", topic, "--time", time).lines()
        found = {int(partition): int(offset) for _, partition, offset in (line.split(":") for line in lines)}
        return [found.get(partition, -1) for partition in range(max(found, default=-1) + 1)]


@pytest.fixture
def tools(broker: BrokerProcess) -> Tools:
    require(not java_tools.missing(), java_tools.missing())
    return Tools(broker)


def table(printed: Printed) -> list[dict[str, str]]:
    """The rows of a printed table, by column; columns are divided by blanks."""
    header, *rows = printed.lines()
    return [dict(zip(header.split(), row.split(), strict=False)) for row in rows]


@pytest.mark.feature("Java", "admin")
def test_the_topic_command_works(tools: Tools) -> None:
    topic = tools.new_topic("--config", "retention.ms=123456", partitions=3)
    described = tools.run("TopicCommand", "--describe", "--topic", topic).lines()
    assert "PartitionCount: 3" in described[0]
    assert "retention.ms=123456" in described[0]
    assert [("Leader: 1" in line, "Isr: 1" in line) for line in described[1:]] == [(True, True)] * 3
    tools.run("TopicCommand", "--alter", "--topic", topic, "--partitions", "5")
    assert len(tools.run("TopicCommand", "--describe", "--topic", topic).lines()) == 6
    assert "already exists" in tools.fails("TopicCommand", "--create", "--topic", topic)
    assert topic in tools.run("TopicCommand", "--list").lines()
    for problems in ("--under-replicated-partitions", "--unavailable-partitions", "--under-min-isr-partitions"):
        assert tools.run("TopicCommand", "--describe", problems).lines() == []
    tools.run("TopicCommand", "--delete", "--topic", topic)
    assert topic not in tools.run("TopicCommand", "--list").lines()
    assert "does not exist" in tools.fails("TopicCommand", "--describe", "--topic", topic)


@pytest.mark.feature("Java", "admin")
def test_the_config_command_works(broker: BrokerProcess, tools: Tools) -> None:
    need(broker, ApiKey.INCREMENTAL_ALTER_CONFIGS)
    topic = tools.new_topic()
    tools.run(CONFIGS, "--alter", "--topic", topic, "--add-config", "retention.ms=7777,cleanup.policy=[compact,delete]")
    described = tools.run(CONFIGS, "--describe", "--topic", topic).output
    assert "retention.ms=7777 " in described
    assert "cleanup.policy=compact,delete " in described
    tools.run(CONFIGS, "--alter", "--topic", topic, "--delete-config", "retention.ms")
    assert "retention.ms" not in tools.run(CONFIGS, "--describe", "--topic", topic).output
    assert "retention.ms=604800000 " in tools.run(CONFIGS, "--describe", "--topic", topic, "--all").output
    tools.fails(CONFIGS, "--alter", "--topic", topic, "--add-config", "no.such.config=1")
    tools.fails(CONFIGS, "--alter", "--topic", topic, "--add-config", "retention.ms=soon")
    assert "message.max.bytes=" in tools.run(CONFIGS, "--describe", "--broker", "1", "--all").output


@pytest.mark.feature("Java", "admin")
def test_the_consumer_group_command_works(tools: Tools) -> None:
    topic, group = tools.new_topic(), f"group-{next(_serial)}"
    tools.fill(topic)
    ends = tools.offsets(topic)
    of_group = ("--group", group)
    tools.run(GROUPS, *of_group, "--topic", topic, "--reset-offsets", "--to-latest", "--execute")
    rows = table(tools.run(GROUPS, *of_group, "--describe"))
    assert {int(row["PARTITION"]): int(row["CURRENT-OFFSET"]) for row in rows} == dict(enumerate(ends))
    assert {row["LAG"] for row in rows} == {"0"}
    tools.run(GROUPS, *of_group, "--topic", f"{topic}:1", "--reset-offsets", "--shift-by", "-3", "--execute")
    rows = table(tools.run(GROUPS, *of_group, "--describe", "--offsets"))
    assert {row["PARTITION"]: row["LAG"] for row in rows} == {"0": "0", "1": str(min(3, ends[1]))}
    past = ("--to-datetime", "2001-01-01T00:00:00.000")
    tools.run(GROUPS, *of_group, "--topic", topic, "--reset-offsets", *past, "--execute")
    assert {row["CURRENT-OFFSET"] for row in table(tools.run(GROUPS, *of_group, "--describe"))} == {"0"}
    (state,) = table(tools.run(GROUPS, *of_group, "--describe", "--state"))
    assert "Empty" in state.values()
    assert group in tools.run(GROUPS, "--list").lines()
    assert any(line.startswith(group) for line in tools.run("GroupsCommand", "--list").lines())
    tools.run(GROUPS, *of_group, "--delete")
    assert group not in tools.run(GROUPS, "--list").lines()
    assert "does not exist" in tools.run(GROUPS, *of_group, "--delete").output


def test_the_consumer_group_command_deletes_offsets(broker: BrokerProcess, tools: Tools) -> None:
    need(broker, ApiKey.OFFSET_DELETE)
    topic, group = tools.new_topic(), f"group-{next(_serial)}"
    tools.fill(topic)
    tools.run(GROUPS, "--group", group, "--topic", topic, "--reset-offsets", "--to-earliest", "--execute")
    printed = tools.run(GROUPS, "--group", group, "--delete-offsets", "--topic", f"{topic}:0")
    assert "Successful" in printed.output
    rows = table(tools.run(GROUPS, "--group", group, "--describe"))
    assert [row["PARTITION"] for row in rows if row["CURRENT-OFFSET"] != "-"] == ["1"]


def test_the_offset_shell_lists_offsets(tools: Tools) -> None:
    topic = tools.new_topic()
    assert tools.offsets(topic) == [0, 0]
    tools.fill(topic)
    ends = tools.offsets(topic)
    assert sum(ends) == RECORDS
    assert tools.offsets(topic, "earliest") == [0, 0]
    assert {offset for offset in tools.offsets(topic, "0") if offset >= 0} == {0}
    assert max(tools.offsets(topic, "max-timestamp")) in range(RECORDS)
    assert tools.offsets(topic, "earliest-local") == [0, 0]


@pytest.mark.feature("Java", "admin")
def test_the_delete_records_command_works(broker: BrokerProcess, tools: Tools, tmp_path: Path) -> None:
    need(broker, ApiKey.DELETE_RECORDS)
    topic = tools.new_topic(partitions=1)
    tools.fill(topic)
    assert delete_records(tools, tmp_path, topic, 150).output.strip().endswith("low_watermark: 150")
    assert tools.offsets(topic, "earliest") == [150]
    assert "OffsetOutOfRangeException" in delete_records(tools, tmp_path, topic, RECORDS + 1).output
    delete_records(tools, tmp_path, topic, -1)
    assert tools.offsets(topic, "earliest") == tools.offsets(topic) == [RECORDS]


def delete_records(tools: Tools, folder: Path, topic: str, offset: int) -> Printed:
    """Deletes the records below an offset of partition 0."""
    asked = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": offset}]}
    (folder / "delete.json").write_text(json.dumps(asked))
    return tools.run("DeleteRecordsCommand", "--offset-json-file", str(folder / "delete.json"))


@pytest.mark.parametrize("kind", ["preferred", "unclean"])
def test_the_leader_election_command_works(broker: BrokerProcess, tools: Tools, kind: str) -> None:
    need(broker, ApiKey.ELECT_LEADERS)
    topic = tools.new_topic()
    printed = tools.run("LeaderElectionCommand", "--election-type", kind, "--topic", topic, "--partition", "0")
    assert "already" in printed.output.lower() or "Valid replica" in printed.output
    tools.run("LeaderElectionCommand", "--election-type", kind, "--all-topic-partitions")


def test_the_log_dirs_command_works(broker: BrokerProcess, tools: Tools) -> None:
    need(broker, ApiKey.DESCRIBE_LOG_DIRS)
    topic = tools.new_topic()
    tools.fill(topic)

    def sizes() -> dict[str, int]:
        *_, answer = tools.run("LogDirsCommand", "--describe", "--topic-list", topic).lines()
        (of_broker,) = json.loads(answer)["brokers"]
        (directory,) = of_broker["logDirs"]
        assert directory["logDir"] == str(broker.data_dir)
        return {replica["partition"]: replica["size"] for replica in directory["partitions"]}

    unflushed = sizes()
    assert sorted(unflushed) == [f"{topic}-0", f"{topic}-1"]
    assert sum(unflushed.values()) > RECORDS * 50
    broker.flush()
    assert all(size >= unflushed[name] for name, size in sizes().items()), "the same batches, and an index"


def test_the_cluster_and_api_versions_tools_work(tools: Tools, broker: BrokerProcess) -> None:
    assert "Cluster ID: " in SHELL.run("ClusterTool", "cluster-id", *tools.bootstrap).output
    endpoints = SHELL.run("ClusterTool", "list-endpoints", *tools.bootstrap).output
    assert f"{broker.host}" in endpoints
    assert str(broker.port) in endpoints
    versions = tools.run("BrokerApiVersionsCommand").output
    assert "Produce(0): " in versions
    assert "ERROR" not in versions


def test_the_feature_command_works(broker: BrokerProcess, tools: Tools) -> None:
    need(broker, transaction_version=2, group_version=1)
    described = tools.run("FeatureCommand", "describe").output
    assert "Feature: transaction.version" in described
    assert "Feature: group.version" in described
    assert "metadata.version" in described
    assert "4.0-IV3" in described


def test_the_reassign_command_lists_no_reassignment(broker: BrokerProcess, tools: Tools) -> None:
    need(broker, ApiKey.LIST_PARTITION_REASSIGNMENTS)
    tools.new_topic()
    assert "No partition reassignments found" in tools.run("reassign.ReassignPartitionsCommand", "--list").output


def test_a_reassignment_and_its_rollback_succeed(broker: BrokerProcess, tools: Tools, tmp_path: Path) -> None:
    """kafka-reassign-partitions.sh --execute prints what was there before, log directories included."""
    need(broker, ApiKey.ALTER_REPLICA_LOG_DIRS)
    topic, plan, rollback = tools.new_topic(), tmp_path / "plan.json", tmp_path / "rollback.json"
    reassign = "reassign.ReassignPartitionsCommand"

    def write(*log_dirs: str) -> None:
        partitions = [
            {"topic": topic, "partition": index, "replicas": [1], "log_dirs": [log_dir]}
            for index, log_dir in enumerate(log_dirs)
        ]
        plan.write_text(json.dumps({"version": 1, "partitions": partitions}))

    write("any", "any")
    printed = tools.run(reassign, "--execute", "--reassignment-json-file", str(plan))
    before = next(line for line in printed.lines() if line.startswith("{"))
    log_dirs = [each["log_dirs"] for each in json.loads(before)["partitions"]]
    assert log_dirs == [[str(broker.data_dir)]] * 2
    rollback.write_text(before)
    printed = tools.run(reassign, "--execute", "--reassignment-json-file", str(rollback))
    for index in range(2):
        moved = f"Successfully started moving log directory to {broker.data_dir} for replica {topic}-{index}"
        assert moved in printed.output
    printed = tools.run(reassign, "--verify", "--reassignment-json-file", str(rollback))
    assert f"Reassignment of partition {topic}-1 is completed" in printed.output
    assert f"Reassignment of replica {topic}-1-1 completed successfully" in printed.output
    write(str(broker.data_dir), "/no/such/directory")
    error = tools.fails(reassign, "--execute", "--reassignment-json-file", str(plan))
    assert "LogDirNotFoundException" in error


def test_the_acl_command_says_that_security_is_disabled(broker: BrokerProcess, tools: Tools) -> None:
    need(broker, ApiKey.DESCRIBE_ACLS)
    printed = SHELL.run_any("AclCommand", *tools.bootstrap, "--list")
    assert "SecurityDisabledException" in printed.output + printed.errors


def test_config_resources_are_listed(broker: BrokerProcess, tools: Tools) -> None:
    need(broker, ApiKey.LIST_CONFIG_RESOURCES)
    tools.run("ClientMetricsCommand", "--list")


def test_the_transactions_command_works(broker: BrokerProcess, tools: Tools) -> None:
    """Transactions of ProducerPerformance, seen by TransactionsCommand."""
    need(broker, *TRANSACTIONS, ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.DESCRIBE_PRODUCERS)
    topic, name = tools.new_topic(partitions=1), f"transactional-{next(_serial)}"
    tools.fill(topic, "--transactional-id", name, "--transaction-duration-ms", "50")

    def state() -> str:
        rows = table(tools.run("TransactionsCommand", "list"))
        return next(row["TransactionState"] for row in rows if row["TransactionalId"] == name)

    # A commit is answered before all of its markers are written.
    until(lambda: state() == "CompleteCommit", lambda: f"end of the transaction: {state()}")
    (row,) = table(tools.run("TransactionsCommand", "describe", "--transactional-id", name))
    assert row["TransactionState"] == "CompleteCommit"
    partition = ("--topic", topic, "--partition", "0")
    (row,) = table(tools.run("TransactionsCommand", "describe-producers", *partition))
    assert row["ProducerId"].isdigit()
    assert row["CurrentTransactionStartOffset"] == "None"
    hanging = tools.run("TransactionsCommand", "find-hanging", "--broker-id", "1").lines()
    assert len(hanging) <= 1  # the header at most
    assert tools.offsets(topic)[0] > RECORDS  # the markers have offsets of their own
