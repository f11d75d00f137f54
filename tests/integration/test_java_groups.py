"""Java consumer groups whose members leave, stop without leaving, are interrupted and are killed.

Every record is processed; none by two members that live at once; none twice but by the successor of a member that was
stopped between processing and commit.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import java_tools
import pytest
from broker_process import BrokerProcess
from confluent_kafka import Producer
from conftest import ON_A_FOLDER, SMALL, Store, require
from group_ledger import Place, check_ownership, check_processing, owners, processed
from java_program import JavaProgram
from java_tools import CLIENT_VERSIONS, NEWEST_CLIENTS
from scenarios import end_offsets, new_topic
from served_apis import need, settings
from test_client_confluent import CLIENT, QUIET
from until import until

from kbroker.protocol.api_keys import ApiKey

pytestmark = [pytest.mark.java, pytest.mark.slow, ON_A_FOLDER]
PARTITIONS = 6
BATCH = 300  # records sent before each step
SESSION_MS = 6_000
SEED = 20_26
FAST_GROUPS = settings(
    group_consumer_session_timeout_ms=SESSION_MS,
    group_consumer_min_session_timeout_ms=SESSION_MS,
    group_consumer_heartbeat_interval_ms=500,
    group_consumer_min_heartbeat_interval_ms=500,
)


@pytest.fixture(scope="module")
def broker_process(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with short sessions."""
    require(not java_tools.missing(), java_tools.missing())
    data_dir: Path = tmp_path_factory.mktemp(store.kind) / "data"
    process = BrokerProcess(data_dir, *store.options, *SMALL, environ={**store.environ, **FAST_GROUPS})
    yield process
    process.kill()


class Group:
    """The members of a group in several JVMs, and the topic that they read."""

    def __init__(self, broker: BrokerProcess, class_path: str, folder: Path, **options: str | int) -> None:
        self.broker = broker
        self.topic = new_topic(broker, CLIENT, "java-group", PARTITIONS)
        self.programs: list[JavaProgram] = []
        self._class_path = class_path
        self._folder = folder
        self._options = {
            "bootstrap.servers": broker.bootstrap,
            "group.id": f"group-of-{self.topic}",
            "max.poll.records": 20,
            "reconnect.backoff.max.ms": 500,
            **options,
        }

    def new_program(self, *members: str) -> JavaProgram:
        """Another JVM with these members."""
        log = self._folder / f"members-{len(self.programs)}.log"
        options = [f"{name}={value}" for name, value in self._options.items()]
        program = JavaProgram(self._class_path, "GroupMembers", self.topic, *options, log_path=log)
        self.programs.append(program)
        for member in members:
            program.tell("add", member)
        return program

    def send(self) -> None:
        """Sends a batch of records, which all are acknowledged."""
        producer = Producer({**QUIET, "bootstrap.servers": self.broker.bootstrap, "enable.idempotence": True})
        for number in range(BATCH):
            producer.produce(self.topic, b"%d" % number, partition=number % PARTITIONS)
        assert producer.flush(30) == 0

    def wait_processed(self) -> None:
        """Waits until all sent records have been processed."""
        ends = dict(enumerate(end_offsets(self.broker, self.topic, PARTITIONS)))
        whole = {(partition, offset) for partition, end in ends.items() for offset in range(end)}

        def missing() -> set[Place]:
            return whole - {place for step in processed(self.programs) for place in step.places}

        until(lambda: not missing(), lambda: f"processing of {sorted(missing())[:10]}; {owners(self.programs)}")

    def wait_shared(self, members: int) -> None:
        """Waits until so many members own all partitions between them."""

        def shared() -> bool:
            owned = owners(self.programs)
            return len(set(owned.values())) == members and len(owned) == PARTITIONS

        until(shared, lambda: f"sharing by {members}: {owners(self.programs)}")

    def kill(self) -> None:
        for program in self.programs:
            program.kill()


def run_members(group: Group, draw: random.Random) -> None:
    """Adds and removes members in every way, while records are produced."""
    first = group.new_program("a", "b", "stay-c")
    group.send()
    group.wait_shared(3)
    first.tell("add", "d")
    second = group.new_program("e", "f")
    group.send()
    group.wait_shared(6)
    steps = [("close", "a"), ("interrupt", "b")]
    draw.shuffle(steps)
    for remaining, (how, name) in zip((5, 4), steps, strict=True):
        group.send()
        first.tell(how, name)
        first.wait_event("ended", name)
        group.wait_shared(remaining)
    group.send()
    second.kill()
    first.tell("abandon", "stay-c")
    first.wait_event("ended", "stay-c", "closed")
    third = group.new_program("g")
    group.send()
    group.wait_shared(2)
    group.send()
    group.wait_processed()
    first.finish()
    third.finish()


@pytest.mark.parametrize(
    ("version", "options"),
    [
        *((version, {"group.protocol": "classic"}) for version in CLIENT_VERSIONS),
        (NEWEST_CLIENTS, {"group.protocol": "classic", "partition.assignment.strategy": "cooperative"}),
        (NEWEST_CLIENTS, {"group.protocol": "consumer", "group.remote.assignor": "uniform"}),
        (NEWEST_CLIENTS, {"group.protocol": "consumer", "group.remote.assignor": "range"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value.values()),
)
def test_members_that_leave_stop_or_die_lose_no_record(
    broker: BrokerProcess,
    tmp_path: Path,
    version: str,
    options: dict[str, str],
) -> None:
    if options["group.protocol"] == "consumer":
        need(broker, ApiKey.CONSUMER_GROUP_HEARTBEAT)
    class_path = java_tools.compiled_clients(version)
    group = Group(broker, class_path, tmp_path, **client_options(options))
    try:
        run_members(group, random.Random(SEED))
        check_ownership(group.programs)
        check_processing(group.programs, end_offsets(broker, group.topic, PARTITIONS))
    finally:
        group.kill()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_keeps_its_assignment_over_a_kill_of_the_broker(
    broker: BrokerProcess, tmp_path: Path, protocol: str
) -> None:
    """No member is reassigned, and nothing is processed twice."""
    if protocol == "consumer":
        need(broker, ApiKey.CONSUMER_GROUP_HEARTBEAT)
    class_path = java_tools.compiled_clients(NEWEST_CLIENTS)
    group = Group(broker, class_path, tmp_path, **client_options({"group.protocol": protocol}))
    try:
        program = group.new_program("a", "b", "c")
        group.send()
        group.wait_shared(3)
        before, assigned = owners(group.programs), len(list(program.find("assigned")))
        for _ in range(2):
            group.send()
            broker.kill()
            broker.start()
            group.send()
            group.wait_processed()
        assert owners(group.programs) == before
        assert len(list(program.find("assigned"))) == assigned, broker.log()
        assert list(program.find("lost")) == []
        program.finish()
        check_ownership(group.programs)
        check_processing(group.programs, end_offsets(broker, group.topic, PARTITIONS))
    finally:
        group.kill()


def client_options(options: dict[str, str]) -> dict[str, str | int]:
    """The consumer's settings; sessions of the new protocol are the broker's."""
    chosen: dict[str, str | int] = dict(options)
    if chosen["group.protocol"] == "classic":
        chosen |= {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 500}
    if chosen.get("partition.assignment.strategy") == "cooperative":
        chosen["partition.assignment.strategy"] = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
    return chosen
