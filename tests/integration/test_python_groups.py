"""Consumer groups with kafka-python and aiokafka: members come and go, a broker is killed under them, one resumes."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest
import scenarios
import test_client_aiokafka as aio
import test_client_kafka_python as plain
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from broker_process import BrokerProcess
from conftest import ON_A_FOLDER
from scenarios import IDEMPOTENT, new_topic
from until import until
from workload import Message, Sent, spread

PARTITIONS = 4
SESSION = {"session_timeout_ms": 10_000, "heartbeat_interval_ms": 500}
Place = tuple[int, int]  # partition, offset


class Member(Protocol):
    """A group member on a thread of its own that commits what it has read after each poll."""

    read: set[Place]  # committed, too
    owned: set[int]

    def close(self) -> None:
        """Leaves the group."""


class PlainMember:
    """kafka-python. In 3.0.12 a leader that rejoins because metadata changed forgets to, with any broker, when the
    answer to its SyncGroup comes after poll's time-out: it sends no heartbeat and never joins again. So a member
    without partitions for longer than a session is replaced."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.read: set[Place] = set()
        self.owned: set[int] = set()
        self._ending = threading.Event()
        self._place = bootstrap, topic, group
        self._consumer = self._opened()
        self._thread = threading.Thread(target=self._run, name="member")
        self._thread.start()

    def _opened(self) -> Any:
        bootstrap, topic, group = self._place
        return plain.open_member(bootstrap, topic, group, **SESSION)

    def _run(self) -> None:
        owned_at = time.monotonic()
        while not self._ending.is_set():
            came = self._consumer.poll(timeout_ms=100)
            self.owned = {entry.partition for entry in self._consumer.assignment()}
            now = time.monotonic()
            if self.owned:
                owned_at = now
            elif now - owned_at > 1.5 * SESSION["session_timeout_ms"] / 1000:
                self._consumer.close(autocommit=False)
                self._consumer = self._opened()
                owned_at = now
            if came and _committed(self._consumer.commit):
                self.read |= {(entry.partition, record.offset) for entry, records in came.items() for record in records}
        self._consumer.close(autocommit=False)

    def close(self) -> None:
        self._ending.set()
        self._thread.join(30)


class AioMember:
    """aiokafka."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.read: set[Place] = set()
        self.owned: set[int] = set()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(bootstrap, topic, group)), name="member")
        self._thread.start()

    async def _run(self, bootstrap: str, topic: str, group: str) -> None:
        async with aio.open_consumer(bootstrap, topic, group_id=group, **SESSION) as consumer:
            while not self._ending.is_set():
                came = await consumer.getmany(timeout_ms=100)
                self.owned = {entry.partition for entry in consumer.assignment()}
                if not came:
                    continue
                try:
                    await consumer.commit()
                except Exception:  # a rebalance, or the broker is down: the next owner reads it again
                    continue
                self.read |= {(entry.partition, record.offset) for entry, records in came.items() for record in records}

    def close(self) -> None:
        self._ending.set()
        self._thread.join(30)


def _committed(commit: Callable[[], object]) -> bool:
    try:
        commit()
    except Exception:  # a rebalance, or the broker is down: the next owner reads it again
        return False
    return True


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


CLIENTS = [
    pytest.param(plain.CLIENT, PlainMember, id="kafka-python", marks=pytest.mark.feature("kafka-python", "groups")),
    pytest.param(aio.CLIENT, AioMember, id="aiokafka", marks=pytest.mark.feature("aiokafka", "groups")),
]


@pytest.mark.parametrize(("client", "member"), CLIENTS)
def test_joining_leaving_and_a_killed_broker_lose_no_record(broker: BrokerProcess, members, client, member) -> None:
    topic = new_topic(broker, client, "members", PARTITIONS)
    group = f"group-of-{topic}"

    def send(first: int, count: int) -> None:
        scenarios.send(broker, client, topic, numbered(first, count), "gzip", IDEMPOTENT)

    def all_read(*readers: Member, each: int) -> Callable[[], bool]:
        wanted = {(partition, offset) for partition in range(PARTITIONS) for offset in range(each)}
        return lambda: set().union(*(reader.read for reader in readers)) >= wanted

    def shared(*owners: Member) -> bool:
        owned = [owner.owned for owner in owners]
        return all(owned) and sorted(itertools.chain.from_iterable(owned)) == list(range(PARTITIONS))

    send(0, 400)
    first, second = member(broker.bootstrap, topic, group), member(broker.bootstrap, topic, group)
    members += [first, second]
    until(lambda: shared(first, second), "sharing of the partitions")
    until(all_read(first, second, each=100), "reading of all by both")
    second.close()
    until(lambda: shared(first), "take-over by the one left")
    send(400, 400)
    until(all_read(first, second, each=200), "reading by the one left")
    broker.kill()
    broker.start()
    send(800, 400)
    until(all_read(first, second, each=300), "all messages after the kill")
    first.close()
    send(1200, 400)
    late = member(broker.bootstrap, topic, group)
    members.append(late)
    until(all_read(first, second, late, each=400), "reading of the rest")
    assert min(offset for _, offset in late.read) >= 300, "what was committed is not read again"


@ON_A_FOLDER
@pytest.mark.feature("aiokafka", "admin")
def test_aiokafka_administers_groups(broker: BrokerProcess) -> None:
    async def calls() -> None:
        async with asyncio.timeout(60):
            admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
            await admin.start()
            try:
                await admin.create_topics([NewTopic("aio-admin", 2, 1, topic_configs={"retention.ms": "7000"})])
                assert "aio-admin" in await admin.list_topics()
                resource = ConfigResource(ConfigResourceType.TOPIC, "aio-admin", {"retention.ms": "8000"})
                await admin.alter_configs([resource])
                (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, "aio-admin")])
                configs = {entry[0]: entry[1] for entry in answer.resources[0][4]}
                assert configs["retention.ms"] == "8000"
                await admin.create_partitions({"aio-admin": NewPartitions(5)})
                (described,) = await admin.describe_topics(["aio-admin"])
                assert len(described["partitions"]) == 5
                async with aio.open_consumer(broker.bootstrap, "aio-admin", group_id="aio-group") as consumer:
                    await consumer.getmany(timeout_ms=1000)
                    groups = await admin.list_consumer_groups()
                    assert ("aio-group", "consumer") in [tuple(entry[:2]) for entry in groups]
                    (found,) = await admin.describe_consumer_groups(["aio-group"])
                    assert found.groups[0][0] == 0
                await admin.delete_topics(["aio-admin"])
                assert "aio-admin" not in await admin.list_topics()
            finally:
                await admin.close()

    asyncio.run(calls())
