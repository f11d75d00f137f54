"""Consumer groups with real clients: two members, rebalances, commits, and a broker that restarts under them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import scenarios
from broker_process import BrokerProcess
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from conftest import ON_A_FOLDER
from scenarios import IDEMPOTENT, new_topic
from test_client_confluent import CLIENT, QUIET, open_consumer, poll_messages
from test_client_kafka_python import open_member
from workload import Message, Sent, spread

pytestmark = pytest.mark.feature("confluent-kafka")

PARTITIONS = 4
DEADLINE_SECONDS = 20.0
Place = tuple[int, int]  # partition, offset


class Member:
    """A group member on a thread of its own: polls, notes what it reads and every assignment."""

    def __init__(self, bootstrap: str, topic: str, group: str, assignor: str, **options: object) -> None:
        settings = {
            "partition.assignment.strategy": assignor,
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 500,
            "reconnect.backoff.max.ms": 500,
            **options,
        }
        chosen = {name: value for name, value in settings.items() if value is not None}
        self._consumer = open_consumer(bootstrap, group, **chosen)
        self._changed = threading.Condition()
        self._ending = False
        self._commits_wanted = 0
        self.commits = 0
        self.owned: set[int] = set()
        self.rebalances = 0  # assignments and revocations
        self.read: list[Place] = []
        self.errors: list[KafkaError] = []
        self._consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)
        self._thread = threading.Thread(target=self._run, name="group-member")
        self._thread.start()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        with self._changed:
            self.rebalances += 1
            self.owned |= {entry.partition for entry in partitions}
            self._changed.notify_all()

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        with self._changed:
            self.rebalances += 1
            self.owned -= {entry.partition for entry in partitions}
            self._changed.notify_all()

    def _run(self) -> None:
        while not self._ending:
            message = self._consumer.poll(0.1)
            if self.commits < self._commits_wanted:
                self._consumer.commit(asynchronous=False)
                with self._changed:
                    self.commits += 1
                    self._changed.notify_all()
            if message is None:
                continue
            with self._changed:
                if message.error():
                    self.errors.append(message.error())
                else:
                    self.read.append((message.partition(), message.offset()))
                self._changed.notify_all()

    def wait(self, done: Callable[[Member], bool], what: str) -> None:
        """Waits until `done(self)`, looked at after each change."""
        with self._changed:
            assert self._changed.wait_for(lambda: done(self), DEADLINE_SECONDS), (
                f"not {what}: owns {self.owned}, read {len(self.read)}, errors {self.errors}"
            )

    def commit(self) -> None:
        """Has the member commit what it has read; returns when that is answered."""
        with self._changed:
            self._commits_wanted += 1
        self.wait(lambda member: member.commits == member._commits_wanted, "committed")

    def close(self) -> None:
        """Leaves the group."""
        self._ending = True
        self._thread.join(DEADLINE_SECONDS)
        self._consumer.close()


@pytest.fixture
def members() -> Iterator[list[Member]]:
    """Members to be closed at the end."""
    started: list[Member] = []
    yield started
    for member in started:
        member.close()


def numbered(first: int, count: int) -> Sent:
    """Messages for each partition, in turn."""
    return spread([Message(None, b"%d" % number) for number in range(first, first + count)], PARTITIONS)


def group_topic(broker: BrokerProcess, what: str) -> tuple[str, str]:
    """A topic and a group of its own."""
    topic = new_topic(broker, CLIENT, what, PARTITIONS)
    return topic, f"group-of-{topic}"


def state_of(broker: BrokerProcess, group: str) -> tuple[str, int]:
    """State and number of members of a group, as Admin sees it."""
    admin = AdminClient({**QUIET, "bootstrap.servers": broker.bootstrap})
    described = admin.describe_consumer_groups([group])[group].result(20)
    return described.state.name, len(described.members)


@pytest.mark.feature("groups")
@ON_A_FOLDER
@pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])
def test_members_share_partitions_and_take_over(broker: BrokerProcess, members: list[Member], assignor: str) -> None:
    """A second member gets half; when it leaves, the first has all again and continues at the commits."""
    topic, group = group_topic(broker, assignor)
    scenarios.send(broker, CLIENT, topic, numbered(0, 100), "none", IDEMPOTENT)
    first = Member(broker.bootstrap, topic, group, assignor)
    members.append(first)
    first.wait(lambda member: len(member.read) == 100, "all read")
    assert first.owned == set(range(PARTITIONS))
    first.commit()
    second = Member(broker.bootstrap, topic, group, assignor)
    members.append(second)
    second.wait(lambda member: len(member.owned) == 2, "half assigned")
    first.wait(lambda member: len(member.owned) == 2, "half given up")
    assert first.owned | second.owned == set(range(PARTITIONS))
    assert state_of(broker, group) == ("STABLE", 2)
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
    expected = {(partition, offset) for partition in range(PARTITIONS) for offset in range(75)}
    assert set(first.read) | set(second.read) == expected
    assert len(first.read) + len(second.read) == len(expected), "something was read twice"


@pytest.mark.feature("groups")
def test_a_group_resumes_at_its_commits_with_any_client(broker: BrokerProcess) -> None:
    """With the same client library and with another one, also after restarts."""
    topic, group = group_topic(broker, "resume")
    scenarios.send(broker, CLIENT, topic, numbered(0, 40), "none", IDEMPOTENT)
    CLIENT.read_subscribed(broker.bootstrap, topic, group, 40)
    scenarios.send(broker, CLIENT, topic, numbered(40, 40), "none", IDEMPOTENT)
    broker.kill()
    broker.start()
    consumer = open_consumer(broker.bootstrap, group)
    consumer.subscribe([topic])
    read = poll_messages(consumer, 40)
    consumer.commit(asynchronous=False)
    consumer.close()
    assert {partition: messages[0].offset for partition, messages in read.items()} == dict.fromkeys(range(4), 10)
    scenarios.send(broker, CLIENT, topic, numbered(80, 40), "none", IDEMPOTENT)
    assert broker.stop() == 0
    scenarios.lose_disk(broker)
    broker.start()
    other = open_member(broker.bootstrap, topic, group)
    places: list[Place] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(places) < 40:
        assert time.monotonic() < deadline, f"{len(places)} of 40 came"
        for partition, records in other.poll(timeout_ms=1000).items():
            places += [(partition.partition, record.offset) for record in records]
    other.close()
    assert sorted(places) == [(partition, offset) for partition in range(PARTITIONS) for offset in range(20, 30)]


@pytest.mark.feature("groups")
@pytest.mark.parametrize("clean", [False, True], ids=["kill", "stop"])
def test_a_restart_keeps_members_and_assignments(broker: BrokerProcess, members: list[Member], clean: bool) -> None:
    """No rebalance after a restart of the broker, and every record is read once."""
    topic, group = group_topic(broker, f"restart-{clean}")
    both = [Member(broker.bootstrap, topic, group, "range") for _ in range(2)]
    members += both
    for member in both:
        member.wait(lambda member: len(member.owned) == 2, "half assigned")
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
        member.commit()  # answered by the same generation
    assert [set(member.owned) for member in both] == owned
    assert [member.rebalances for member in both] == rebalances
    assert state_of(broker, group) == ("STABLE", 2)
    assert sorted(both[0].read + both[1].read) == [(p, o) for p in range(PARTITIONS) for o in range(20)]


@pytest.mark.feature("groups")
@ON_A_FOLDER
def test_a_static_member_rejoins_without_a_rebalance(broker: BrokerProcess, members: list[Member]) -> None:
    """With group.instance.id it gets the same partitions again, and the other member sees nothing."""
    topic, group = group_topic(broker, "static")
    one = Member(broker.bootstrap, topic, group, "range", **{"group.instance.id": "one"})
    members.append(one)
    two = Member(broker.bootstrap, topic, group, "range", **{"group.instance.id": "two"})
    members.append(two)
    for member in (one, two):
        member.wait(lambda member: len(member.owned) == 2, "half assigned")
    owned, rebalances = set(two.owned), one.rebalances
    members.remove(two)
    two.close()
    again = Member(broker.bootstrap, topic, group, "range", **{"group.instance.id": "two"})
    members.append(again)
    again.wait(lambda member: member.owned == owned, "its old partitions assigned")
    assert one.rebalances == rebalances


@pytest.mark.feature("groups")
@ON_A_FOLDER
def test_partitions_of_a_member_without_heartbeats_are_reassigned(broker: BrokerProcess, members: list[Member]) -> None:
    """A member that stops its heartbeats loses its partitions after the session time-out."""
    topic, group = group_topic(broker, "dead")
    times = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 500, "max_poll_interval_ms": 7000}
    silent = open_member(broker.bootstrap, topic, group, **times)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(silent.assignment()) < PARTITIONS:
        assert time.monotonic() < deadline
        silent.poll(timeout_ms=100)
    # From here on it never polls: at max.poll.interval it stops its heartbeats or leaves.
    live = Member(broker.bootstrap, topic, group, "range,roundrobin")
    members.append(live)
    live.wait(lambda member: len(member.owned) == PARTITIONS, "everything taken over")
    silent.close(autocommit=False, timeout_ms=1000)
