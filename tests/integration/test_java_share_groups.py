"""Share groups of Java consumers: their members, what these are assigned, and the admin calls about them."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import java_tools
import pytest
from broker_process import BrokerProcess
from confluent_kafka import Producer
from conftest import ON_A_FOLDER, SMALL, Store, require
from java_program import JavaProgram
from scenarios import new_topic
from served_apis import api_versions, need, settings
from test_client_confluent import CLIENT, QUIET
from tool_shell import SHELL
from until import until

from kbroker.protocol.api_keys import SERVED_WITH_SHARE_GROUPS, ApiKey

pytestmark = [pytest.mark.java, ON_A_FOLDER]
SHARE_GROUPS = "consumer.group.ShareGroupCommand"
SESSION_MS = 6_000
FAST_GROUPS = settings(
    group_share_session_timeout_ms=SESSION_MS,
    group_share_min_session_timeout_ms=SESSION_MS,
    group_share_heartbeat_interval_ms=500,
    group_share_min_heartbeat_interval_ms=500,
)
_serial = itertools.count()


@pytest.fixture(scope="module")
def broker_process(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with share groups and short sessions."""
    require(not java_tools.missing(), java_tools.missing())
    data_dir: Path = tmp_path_factory.mktemp(store.kind) / "data"
    environ = {**store.environ, **FAST_GROUPS}
    process = BrokerProcess(data_dir, *store.options, *SMALL, "--share-groups", environ=environ)
    yield process
    process.kill()


class Groups:
    """A JVM with members and an admin client, and its answers."""

    def __init__(self, broker: BrokerProcess, folder: Path) -> None:
        self.broker = broker
        self._class_path = java_tools.compiled_share()
        self._folder = folder
        self.program = self.new_program()

    def new_program(self) -> JavaProgram:
        """Another JVM."""
        options = {"bootstrap.servers": self.broker.bootstrap, "reconnect.backoff.max.ms": 500}
        log = self._folder / f"members-{next(_serial)}.log"
        arguments = [f"{name}={value}" for name, value in options.items()]
        program = JavaProgram(self._class_path, "ShareGroupCalls", *arguments, log_path=log)
        program.wait_event("ready")
        return program

    def ask(self, call: str, *arguments: str) -> str:
        """The answer of an admin call, or the name of its error."""
        told = self._answers(call)
        self.program.tell(call, *arguments)
        self.program.wait_until(lambda: self._answers(call) > told, f"answer of {call}")
        last = [event for event in self.program.events if event.name in ("answer", "error")][-1]
        return last.fields[1]

    def _answers(self, call: str) -> int:
        return sum(len(list(self.program.find(name, call))) for name in ("answer", "error"))

    def members(self, group: str) -> dict[str, list[str]]:
        """The partitions of each member, by client id."""
        found = (pair.split("=") for pair in self.ask("describe", group).split()[3:])
        return {name: [p for p in partitions.split(",") if p] for name, partitions in found}

    def wait_members(self, group: str, *names: str, partitions: int) -> None:
        """Waits until these are the members, all partitions are assigned, and no more are shared than necessary."""

        def settled() -> bool:
            found = self.members(group)
            read = [partition for given in found.values() for partition in given]
            as_few = len(read) == max(partitions, len(names))
            return set(found) == set(names) and all(found.values()) and len(set(read)) == partitions and as_few

        until(settled, lambda: f"members {names}: {self.members(group)}")

    def send(self, topic: str, count: int, partition: int = 0) -> None:
        producer = Producer({**QUIET, "bootstrap.servers": self.broker.bootstrap})
        for number in range(count):
            producer.produce(topic, b"%d" % number, partition=partition)
        assert producer.flush(30) == 0

    def got(self, *names: str) -> list[tuple[str, int, int]]:
        """The records that these members got: topic, partition, offset."""
        return [
            (event.fields[1], int(event.fields[2]), int(event.fields[3]))
            for event in self.program.events
            if event.name == "got" and event.fields[0] in names
        ]


@pytest.fixture
def groups(broker: BrokerProcess, tmp_path: Path) -> Iterator[Groups]:
    need(broker, ApiKey.SHARE_GROUP_HEARTBEAT, share_version=1)
    made = Groups(broker, tmp_path)
    yield made
    made.program.kill()


def test_the_option_enables_every_share_api(broker: BrokerProcess) -> None:
    answer = api_versions(broker)
    listed = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
    assert {key: tuple(versions) for key, versions in SERVED_WITH_SHARE_GROUPS.items()}.items() <= listed.items()
    assert {feature.name: feature.max_version_level for feature in answer.finalized_features}["share.version"] == 1


@pytest.mark.slow
def test_joining_and_leaving_members_are_assigned_all_partitions(groups: Groups) -> None:
    topic, group = new_topic(groups.broker, CLIENT, "share", 4), "comes-and-goes"
    for name in "ab":
        groups.program.tell("add", name, group, topic)
    groups.wait_members(group, "a", "b", partitions=4)
    assert Counter(map(len, groups.members(group).values())) == {2: 2}
    for name in "cdefg":
        groups.program.tell("add", name, group, topic)
    groups.wait_members(group, *"abcdefg", partitions=4)
    readers = Counter(partition for given in groups.members(group).values() for partition in given)
    assert sorted(readers.values()) == [1, 2, 2, 2], "seven members share four partitions"
    for name in "cdefg":
        groups.program.tell("close", name)
    groups.wait_members(group, "a", "b", partitions=4)
    second = groups.new_program()
    second.tell("add", "z", group, topic)
    groups.wait_members(group, "a", "b", "z", partitions=4)
    second.kill()  # without leaving the group: its session expires
    groups.wait_members(group, "a", "b", partitions=4)
    for name in "ab":
        groups.program.tell("close", name)
        groups.program.wait_event("ended", name)
    until(lambda: groups.ask("describe", group).startswith("Empty"), "empty group")
    assert f"{group}:Share:share:Empty" in groups.ask("list").split()


def test_share_group_offsets_are_listed_altered_and_deleted(groups: Groups) -> None:
    topic, group = new_topic(groups.broker, CLIENT, "share", 2), "somewhere"
    groups.send(topic, 10)
    assert groups.ask("configure", group, "share.auto.offset.reset", "earliest") == "earliest"
    groups.program.tell("add", "one", group, topic)
    groups.program.wait_until(lambda: len(groups.got("one")) == 10, "ten records")
    assert groups.ask("alter", group, f"{topic}-0", "4") == "GroupNotEmptyException"
    assert groups.ask("forget", group, topic) == "GroupNotEmptyException"
    assert groups.ask("delete", group) == "GroupNotEmptyException"
    groups.program.tell("close", "one")
    groups.program.wait_event("ended", "one")
    until(lambda: groups.ask("describe", group).startswith("Empty"), "empty group")
    # As in Kafka, the start offset is the one before the last acknowledgements.
    until(lambda: re.search(rf"{topic}-0=\d/0\b", groups.ask("offsets", group)), lambda: groups.ask("offsets", group))

    assert groups.ask("alter", group, f"{topic}-0", "4") == group
    assert f"{topic}-0=4/6" in groups.ask("offsets", group)
    assert groups.ask("alter", group, f"{topic}-7", "4") == "UnknownTopicOrPartitionException"
    groups.program.tell("add", "two", group, topic)
    groups.program.wait_until(lambda: len(groups.got("two")) == 6, "what comes from the offset on")
    assert [offset for _, _, offset in groups.got("two")] == list(range(4, 10))
    groups.program.tell("close", "two")
    groups.program.wait_event("ended", "two")
    until(lambda: groups.ask("describe", group).startswith("Empty"), "empty group")

    assert groups.ask("forget", group, topic) == group
    assert groups.ask("offsets", group) == "{}"
    assert groups.ask("forget", group, topic) == "UnknownTopicOrPartitionException"
    groups.program.tell("add", "three", group, topic)
    groups.program.wait_until(lambda: len(groups.got("three")) == 10, "all records again")
    groups.program.tell("close", "three")
    groups.program.wait_event("ended", "three")
    until(lambda: groups.ask("delete", group) == group, "deletion")
    assert groups.ask("describe", group) == "GroupIdNotFoundException"
    assert groups.ask("offsets", group) == "{}"
    assert group not in groups.ask("list")


@pytest.mark.slow
def test_a_group_keeps_its_members_over_a_kill_of_the_broker(groups: Groups) -> None:
    topic, group = new_topic(groups.broker, CLIENT, "share", 3), "survives"
    groups.ask("configure", group, "share.auto.offset.reset", "earliest")
    names = "abc"
    for name in names:
        groups.program.tell("add", name, group, topic)
    groups.wait_members(group, *names, partitions=3)
    groups.send(topic, 20)
    groups.program.wait_until(lambda: len(groups.got(*names)) == 20, "the first records")
    before = groups.members(group)
    groups.broker.kill()
    groups.broker.start()
    assert groups.members(group) == before, "no member has moved"
    groups.send(topic, 20, partition=1)
    groups.program.wait_until(lambda: {p for p in groups.got(*names) if p[1] == 1} != set(), "records after it")
    until(lambda: len({p for p in groups.got(*names) if p[1] == 1}) == 20, "all of them")
    assert groups.members(group) == before
    for name in names:
        groups.program.tell("close", name)
        groups.program.wait_event("ended", name)
    groups.broker.kill()
    groups.broker.start()
    until(lambda: groups.ask("describe", group).startswith("Empty"), "empty group")
    assert re.search(rf"{topic}-1=1?\d/0\b", groups.ask("offsets", group))
    assert groups.ask("alter", group, f"{topic}-1", "5") == group
    groups.broker.kill()
    groups.broker.start()
    assert f"{topic}-1=5/15" in groups.ask("offsets", group)


def test_the_share_group_tool_works(broker: BrokerProcess, groups: Groups) -> None:
    topic, group = new_topic(broker, CLIENT, "share", 2), "of-a-tool"
    tool = (SHARE_GROUPS, "--bootstrap-server", broker.bootstrap)
    groups.send(topic, 8)
    groups.program.tell("add", "member", group, topic)
    groups.wait_members(group, "member", partitions=2)
    assert group in SHELL.run(*tool, "--list").output.split()
    listed = [line.split() for line in SHELL.run(*tool, "--list", "--state").lines()]
    assert [group, "Stable"] in listed
    members = SHELL.run(*tool, "--describe", "--group", group, "--members").output
    assert "member" in members
    assert f"{topic}:0,1" in members
    state = SHELL.run(*tool, "--describe", "--group", group, "--state").output
    assert "Stable" in state
    groups.program.tell("close", "member")
    groups.program.wait_event("ended", "member")
    until(lambda: groups.ask("describe", group).startswith("Empty"), "empty group")
    reset = (*tool, "--reset-offsets", "--group", group, "--topic", topic)
    assert topic in SHELL.run(*reset, "--to-earliest", "--execute").output
    rows = [line.split() for line in SHELL.run(*tool, "--describe", "--group", group, "--offsets").lines()]
    found = [row[2:5] for row in rows if row[:2] == [group, topic]]
    assert found == [["0", "0", "8"], ["1", "0", "0"]], rows
    SHELL.run(*tool, "--delete-offsets", "--group", group, "--topic", topic)
    assert f"{topic}" not in SHELL.run(*tool, "--describe", "--group", group, "--offsets").output
    assert "successful" in SHELL.run(*tool, "--delete", "--group", group).output
    assert group not in SHELL.run(*tool, "--list").output.split()
