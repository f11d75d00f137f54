"""The new consumer protocol with real clients (KIP-848): sharing, take-over, restarts, static members, expressions,
and groups with members of both protocols."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import java_tools
import pytest
import scenarios
from broker_process import BrokerProcess
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from conftest import ON_A_FOLDER, SMALL, Store, require
from java_program import JavaProgram
from scenarios import IDEMPOTENT
from served_apis import ask, settings
from test_client_confluent import CLIENT, QUIET
from test_groups_clients import PARTITIONS, Member, group_topic, numbered

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.apis.configs.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

SESSION_MS = 6_000
FAST_GROUPS = settings(
    group_consumer_session_timeout_ms=SESSION_MS,
    group_consumer_min_session_timeout_ms=SESSION_MS,
    group_consumer_heartbeat_interval_ms=500,
    group_consumer_min_heartbeat_interval_ms=500,
)
EVERYTHING = set(range(PARTITIONS))

# A member that is killed: it joins and does nothing more.
DOOMED = """
import sys
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": sys.argv[2], "group.protocol": "consumer"})
def assigned(consumer, partitions):
    print("assigned", flush=True)
consumer.subscribe([sys.argv[3]], on_assign=assigned)
while True:
    consumer.poll(0.1)
"""


pytestmark = pytest.mark.feature("confluent-kafka", "consumer protocol")


@pytest.fixture(scope="module")
def broker_process(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with short sessions."""
    data_dir: Path = tmp_path_factory.mktemp(store.kind) / "data"
    process = BrokerProcess(data_dir, *store.options, *SMALL, environ={**store.environ, **FAST_GROUPS})
    yield process
    process.kill()


@pytest.fixture
def members() -> Iterator[list[Member]]:
    """Members to be closed at the end."""
    started: list[Member] = []
    yield started
    for member in started:
        member.close()


class NewMember(Member):
    """A member of the new protocol: sessions and heartbeats are the broker's business."""

    def __init__(self, bootstrap: str, topic: str, group: str, **options: object) -> None:
        absent = dict.fromkeys(("partition.assignment.strategy", "session.timeout.ms", "heartbeat.interval.ms"))
        super().__init__(bootstrap, topic, group, "", **{**absent, "group.protocol": "consumer", **options})

    def becomes(self, what: Callable[[Member], bool], seconds: float) -> bool:
        """True if `what(self)` holds within that time."""
        with self._changed:
            return self._changed.wait_for(lambda: what(self), seconds)


def both_share(first: Member, second: Member) -> None:
    """Waits until two members have half each."""
    second.wait(lambda member: len(member.owned) == 2, "half assigned")
    first.wait(lambda member: len(member.owned) == 2, "half given up")
    assert first.owned | second.owned == EVERYTHING


@ON_A_FOLDER
def test_members_share_partitions_and_take_over(broker: BrokerProcess, members: list[Member]) -> None:
    """A second member gets half; when it leaves, the first has all again and continues at the commits."""
    topic, group = group_topic(broker, "new-share")
    scenarios.send(broker, CLIENT, topic, numbered(0, 100), "none", IDEMPOTENT)
    first = NewMember(broker.bootstrap, topic, group)
    members.append(first)
    first.wait(lambda member: len(member.read) == 100, "all read")
    first.commit()
    second = NewMember(broker.bootstrap, topic, group)
    members.append(second)
    both_share(first, second)
    scenarios.send(broker, CLIENT, topic, numbered(100, 100), "none", IDEMPOTENT)
    second.wait(lambda member: len(member.read) == 50, "its half read")
    first.wait(lambda member: len(member.read) == 150, "its half read")
    first.commit()
    second.commit()
    members.remove(second)
    second.close()
    first.wait(lambda member: len(member.owned) == PARTITIONS, "all taken over")
    scenarios.send(broker, CLIENT, topic, numbered(200, 100), "none", IDEMPOTENT)
    first.wait(lambda member: len(member.read) >= 250, "the rest read")
    read = first.read + second.read
    assert sorted(read) == [(p, o) for p in range(PARTITIONS) for o in range(75)]


@ON_A_FOLDER
@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_a_group_uses_the_assignor_that_its_members_name(
    broker: BrokerProcess, members: list[Member], assignor: str
) -> None:
    """By the clients' group.remote.assignor."""
    topic, group = group_topic(broker, f"new-{assignor}")
    members += [NewMember(broker.bootstrap, topic, group, **{"group.remote.assignor": assignor}) for _ in range(2)]
    both_share(*members)
    if assignor == "range":
        assert sorted(map(sorted, (member.owned for member in members))) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("clean", [False, True], ids=["kill", "stop"])
def test_a_restart_keeps_members_and_assignments(broker: BrokerProcess, members: list[Member], clean: bool) -> None:
    """No rebalance after a restart of the broker, and every record is read once."""
    topic, group = group_topic(broker, f"new-restart-{clean}")
    both = [NewMember(broker.bootstrap, topic, group) for _ in range(2)]
    members += both
    both_share(*both)
    scenarios.send(broker, CLIENT, topic, numbered(0, 40), "none", IDEMPOTENT)
    for member in both:
        member.wait(lambda member: len(member.read) == 20, "its half read")
        member.commit()
    owned, rebalances = [set(member.owned) for member in both], [member.rebalances for member in both]
    if clean:
        assert broker.stop() == 0
    else:
        broker.kill()
    broker.start()
    scenarios.send(broker, CLIENT, topic, numbered(40, 40), "none", IDEMPOTENT)
    for member in both:
        member.wait(lambda member: len(member.read) == 40, "its half read again")
        member.commit()  # answered in the same epoch
    assert [set(member.owned) for member in both] == owned
    assert [member.rebalances for member in both] == rebalances
    assert sorted(both[0].read + both[1].read) == [(p, o) for p in range(PARTITIONS) for o in range(20)]


@ON_A_FOLDER
def test_partitions_of_a_killed_member_are_reassigned(broker: BrokerProcess, members: list[Member]) -> None:
    """A member that is killed loses its partitions when its session expires."""
    topic, group = group_topic(broker, "new-killed")
    doomed = subprocess.Popen(
        [sys.executable, "-c", DOOMED, broker.bootstrap, group, topic], stdout=subprocess.PIPE, text=True
    )
    try:
        assert doomed.stdout is not None
        assert doomed.stdout.readline() == "assigned\n"
        live = NewMember(broker.bootstrap, topic, group)
        members.append(live)
        live.wait(lambda member: len(member.owned) == 2, "half assigned")
    finally:
        doomed.kill()
        doomed.wait()
    live.wait(lambda member: member.owned == EVERYTHING, "everything taken over")


@ON_A_FOLDER
def test_a_static_member_rejoins_without_a_rebalance(broker: BrokerProcess, members: list[Member]) -> None:
    """With group.instance.id it gets the same partitions again, and the other member sees nothing."""
    topic, group = group_topic(broker, "new-static")
    one = NewMember(broker.bootstrap, topic, group, **{"group.instance.id": "one"})
    members.append(one)
    two = NewMember(broker.bootstrap, topic, group, **{"group.instance.id": "two"})
    members.append(two)
    both_share(one, two)
    owned, rebalances = set(two.owned), one.rebalances
    members.remove(two)
    two.close()
    again = NewMember(broker.bootstrap, topic, group, **{"group.instance.id": "two"})
    members.append(again)
    again.wait(lambda member: member.owned == owned, "its old partitions assigned")
    assert one.rebalances == rebalances


@ON_A_FOLDER
def test_new_partitions_and_topics_are_assigned(broker: BrokerProcess, members: list[Member]) -> None:
    """They are assigned as they are created."""
    topic, group = group_topic(broker, "new-partitions")
    member = NewMember(broker.bootstrap, topic, group)
    members.append(member)
    member.wait(lambda member: member.owned == EVERYTHING, "everything assigned")
    admin = AdminClient({**QUIET, "bootstrap.servers": broker.bootstrap})
    admin.create_partitions([NewPartitions(topic, PARTITIONS + 2)])[topic].result(20)
    member.wait(lambda member: len(member.owned) == PARTITIONS + 2, "new partitions assigned")


@ON_A_FOLDER
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_migrates_to_the_consumer_protocol_and_back(
    broker: BrokerProcess, members: list[Member], strategy: str
) -> None:
    """It is a consumer group while it has a member of the new protocol, and then a classic one again."""
    topic, group = group_topic(broker, f"new-migration-{strategy}")
    scenarios.send(broker, CLIENT, topic, numbered(0, 40), "none", IDEMPOTENT)
    old = Member(broker.bootstrap, topic, group, strategy)
    members.append(old)
    old.wait(lambda member: len(member.read) == 40, "all read")
    old.commit()
    new = NewMember(broker.bootstrap, topic, group)
    members.append(new)
    both_share(old, new)
    scenarios.send(broker, CLIENT, topic, numbered(40, 40), "none", IDEMPOTENT)
    new.wait(lambda member: len(member.read) == 20, "its half read")
    old.wait(lambda member: len(member.read) == 60, "its half read")
    old.commit()
    new.commit()
    members.remove(new)
    new.close()
    old.wait(lambda member: member.owned == EVERYTHING, "everything taken over")
    scenarios.send(broker, CLIENT, topic, numbered(80, 40), "none", IDEMPOTENT)
    old.wait(lambda member: len(member.read) >= 100, "the rest read")
    assert sorted(old.read + new.read) == [(p, o) for p in range(PARTITIONS) for o in range(30)]


@ON_A_FOLDER
def test_a_session_time_out_of_the_group_applies(broker: BrokerProcess, members: list[Member]) -> None:
    """consumer.session.timeout.ms of the group overrides the broker's."""
    topic, group = group_topic(broker, "new-configs")
    set_group_config(broker, group, "consumer.session.timeout.ms", "30000")
    doomed = subprocess.Popen(
        [sys.executable, "-c", DOOMED, broker.bootstrap, group, topic], stdout=subprocess.PIPE, text=True
    )
    try:
        assert doomed.stdout is not None
        assert doomed.stdout.readline() == "assigned\n"
        live = NewMember(broker.bootstrap, topic, group)
        members.append(live)
        live.wait(lambda member: len(member.owned) == 2, "half assigned")
    finally:
        doomed.kill()
        doomed.wait()
    assert not live.becomes(lambda member: member.owned == EVERYTHING, 2 * SESSION_MS / 1000)


def set_group_config(broker: BrokerProcess, group: str, name: str, value: str) -> None:
    """IncrementalAlterConfigs of a group, which librdkafka does not know."""
    config = AlterableConfig(name=name, config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=32, resource_name=group, configs=[config])
    request = IncrementalAlterConfigsRequest(resources=[resource])
    answer = ask(broker, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
    assert isinstance(answer, IncrementalAlterConfigsResponse)
    assert [response.error_code for response in answer.responses] == [0]


@pytest.mark.java
@pytest.mark.feature("Java", "consumer protocol")
@ON_A_FOLDER
def test_java_subscribes_to_an_expression(broker: BrokerProcess, tmp_path: Path) -> None:
    """SubscriptionPattern: the broker evaluates it, and again when a topic is created."""
    require(not java_tools.missing(), java_tools.missing())
    class_path = java_tools.compiled_apps()
    admin = AdminClient({**QUIET, "bootstrap.servers": broker.bootstrap})

    def make(name: str) -> None:
        admin.create_topics([NewTopic(name, PARTITIONS)])[name].result(20)

    make("pattern-one")
    make("other-pattern-one")
    options = {"bootstrap.servers": broker.bootstrap, "group.id": "patterns"}
    arguments = [f"{name}={value}" for name, value in options.items()]
    with JavaProgram(class_path, "PatternReader", "pattern-.+", *arguments, log_path=tmp_path / "log") as reader:
        reader.wait_event("assigned", "pattern-one")
        make("pattern-two")
        reader.wait_event("assigned", "pattern-one,pattern-two")
        scenarios.send(broker, CLIENT, "pattern-two", numbered(0, 4), "none", IDEMPOTENT)
        reader.wait_event("read", "pattern-two", "0")
        admin.delete_topics(["pattern-one"])["pattern-one"].result(20)
    with JavaProgram(class_path, "PatternReader", "pattern-(", *arguments, log_path=tmp_path / "bad") as refused:
        assert "InvalidRegularExpression" in refused.wait_event("failed").fields[0]


@ON_A_FOLDER
def test_librdkafka_subscribes_to_an_expression(broker: BrokerProcess, members: list[Member]) -> None:
    """A topic name with ^ in front is an expression."""
    topic, group = group_topic(broker, "new-expression")
    member = NewMember(broker.bootstrap, "^" + topic.replace("-", ".") + "$", group)
    members.append(member)
    member.wait(lambda member: member.owned == EVERYTHING, "everything assigned")


@ON_A_FOLDER
def test_an_empty_group_can_be_deleted(broker: BrokerProcess) -> None:
    """An Empty consumer group is deleted by an administrator."""
    topic, group = group_topic(broker, "new-short")
    where = {"bootstrap.servers": broker.bootstrap, "group.id": group}
    consumer = Consumer({**QUIET, **where, "group.protocol": "consumer"})
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(0.1)
    consumer.close()
    admin = AdminClient({**QUIET, "bootstrap.servers": broker.bootstrap})
    admin.delete_consumer_groups([group])[group].result(20)
