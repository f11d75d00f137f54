"""Coordinators whose partitions lose their leader and get it back in a later epoch, under real clients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from broker_in_process import BrokerInProcess, broker_in_process
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from served_apis import ask
from test_groups_clients import PARTITIONS, Member
from test_transactions_clients import committed_offset, produce, producer, read
from until import until

from kbroker.cluster.image import CONSUMER_OFFSETS, TRANSACTION_STATE
from kbroker.coordinator.runtime.key_partition import group_partition
from kbroker.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.apis.groups.k09_offset_fetch import OffsetFetchRequest
from kbroker.protocol.apis.groups.k10_find_coordinator import FindCoordinatorRequest
from kbroker.protocol.apis.groups.k16_list_groups import ListGroupsRequest

pytestmark = pytest.mark.feature("confluent-kafka", "groups", "transactions")

SECONDS = 30.0
HEARTBEAT_MS = 300
ROUNDS = 3


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerInProcess]:
    with broker_in_process(
        tmp_path_factory.mktemp("in-process"),
        **{
            "group.consumer.heartbeat.interval.ms": HEARTBEAT_MS,
            "group.consumer.min.heartbeat.interval.ms": HEARTBEAT_MS,
        },
    ) as started:
        yield started


def new_topic(broker: BrokerInProcess, name: str, partitions: int) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(SECONDS)
    return name


def write(broker: BrokerInProcess, topic: str, count: int) -> None:
    """So many records to each partition."""
    writer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    for number in range(count * PARTITIONS):
        writer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert writer.flush(SECONDS) == 0


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_go_on_after_their_coordinator_was_away(broker: BrokerInProcess, protocol: str) -> None:
    """No rebalance, no record twice, and no commit lost."""
    topic = new_topic(broker, f"members-{protocol}", PARTITIONS)
    options: dict[str, Any] = {"group.protocol": protocol, "heartbeat.interval.ms": HEARTBEAT_MS}
    if protocol == "consumer":
        options = {"group.protocol": protocol, "heartbeat.interval.ms": None, "session.timeout.ms": None}
    strategy: Any = "range" if protocol == "classic" else None
    members = [Member(broker.bootstrap, topic, topic, strategy, **options) for _ in range(2)]
    try:
        for member in members:
            member.wait(lambda member: len(member.owned) == 2, "half assigned")
        write(broker, topic, 5)
        for member in members:
            member.wait(lambda member: len(member.read) == 10, "its half read")
            member.commit()
        rebalances = [member.rebalances for member in members]
        for number in range(1, ROUNDS + 1):
            with broker.without_leader(CONSUMER_OFFSETS):
                broker.await_refusal("refused heartbeat")
                write(broker, topic, 5)
            for member in members:
                member.wait(lambda member, number=number: len(member.read) == 10 * (number + 1), "its half read")
                member.commit()
            for partition in range(PARTITIONS):
                assert committed(broker, topic, partition) == 5 * (number + 1)
        assert [member.rebalances for member in members] == rebalances
        assert [member.errors for member in members] == [[], []]
    finally:
        for member in members:
            member.close()
    everything = {(partition, offset) for partition in range(PARTITIONS) for offset in range(5 * (ROUNDS + 1))}
    assert sorted(members[0].read + members[1].read) == sorted(everything)


def committed(broker: BrokerInProcess, group: str, partition: int) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    try:
        (found,) = consumer.committed([TopicPartition(group, partition)], timeout=SECONDS)
        return int(found.offset)
    finally:
        consumer.close()


def test_what_is_not_led_is_refused_by_name(broker: BrokerInProcess) -> None:
    topic = new_topic(broker, "refused", 1)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})
    consumer.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
    consumer.close()
    fetch = OffsetFetchRequest(group_id=topic, topics=None)
    find = FindCoordinatorRequest(key_type=0, coordinator_keys=[topic])

    def listed() -> list[str]:
        return [group.group_id for group in ask(broker, ApiKey.LIST_GROUPS, 4, ListGroupsRequest()).groups]  # type: ignore[arg-type,attr-defined]

    assert topic in listed()
    with broker.without_leader(CONSUMER_OFFSETS):
        until(lambda: topic not in listed(), "resignation")
        assert ask(broker, ApiKey.OFFSET_FETCH, 5, fetch).error_code == ErrorCode.NOT_COORDINATOR  # type: ignore[arg-type,attr-defined]
        (found,) = ask(broker, ApiKey.FIND_COORDINATOR, 4, find).coordinators  # type: ignore[arg-type,attr-defined]
        assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert committed_offset(broker, topic, topic) == 7  # type: ignore[arg-type]


def test_a_decision_waits_for_the_coordinator(broker: BrokerInProcess) -> None:
    """EndTxn while the partition of the transactional id has no leader, and markers while the group's has none."""
    topic = new_topic(broker, "decision", 2)
    writer = producer(broker, topic)  # type: ignore[arg-type]
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})
    writer.begin_transaction()
    produce(writer, topic, "a", "b")
    writer.send_offsets_to_transaction([TopicPartition(topic, 0, 10)], consumer.consumer_group_metadata(), SECONDS)
    consumer.close()
    with broker.without_leader(TRANSACTION_STATE):
        with pytest.raises(KafkaException) as slow:
            writer.commit_transaction(0.5)
        assert slow.value.args[0].retriable()
        assert read(broker, topic, open_transaction=True) == []  # type: ignore[arg-type]
    with broker.without_leader(CONSUMER_OFFSETS):
        writer.commit_transaction(SECONDS)
        broker.await_refusal("refused marker")
    assert read(broker, topic) == ["a", "b"]  # type: ignore[arg-type]
    until(lambda: committed_offset(broker, topic, topic) == 10, "committed offset")  # type: ignore[arg-type]
    shard = broker.broker.logs.partition(TRANSACTION_STATE, group_partition(topic, 50))
    assert shard is not None
    for partition in range(2):
        log = broker.broker.logs.partition(topic, partition)
        assert log is not None
        (of_producer,) = log.producers.active_producers()
        assert of_producer[4] == shard.leader_epoch, "the marker's coordinator epoch"


class Copier(threading.Thread):
    """Copies positions of a group to both partitions of a topic, one in each transaction, until it is told to end."""

    def __init__(self, broker: BrokerInProcess, topic: str) -> None:
        super().__init__(name="copier")
        self._topic = topic
        self._ending = False
        self._producer = producer(broker, topic)  # type: ignore[arg-type]
        self._consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})
        self.committed = 0
        self.aborted = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._ending:
                self._copy()
        except BaseException as error:
            self.failure = error
        finally:
            self._consumer.close()

    def _copy(self) -> None:
        group = self._consumer.consumer_group_metadata()
        position = [TopicPartition(self._topic, 0, self.committed + 1)]
        try:
            self._producer.begin_transaction()
            produce(self._producer, self._topic, *[f"{self.committed:05d}"] * 2)
            _retried(lambda: self._producer.send_offsets_to_transaction(position, group, SECONDS))
            _retried(lambda: self._producer.commit_transaction(SECONDS))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            _retried(lambda: self._producer.abort_transaction(SECONDS))
            self.aborted += 1
        else:
            self.committed += 1

    def go_on(self, count: int) -> None:
        """Waits for so many more transactions."""
        expected = self.committed + count
        until(lambda: self.committed >= expected or self.failure, "transaction")
        assert self.failure is None

    def end(self) -> None:
        self._ending = True
        self.join(SECONDS)


def _retried(call: Callable[[], object]) -> None:
    while True:
        try:
            call()
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


def test_no_transaction_is_half_committed(broker: BrokerInProcess) -> None:
    """Both coordinators resign and come back between and inside transactions."""
    topic = new_topic(broker, "copies", 2)
    copier = Copier(broker, topic)
    copier.start()
    places = [TRANSACTION_STATE, CONSUMER_OFFSETS]
    try:
        for number in range(2 * ROUNDS):
            copier.go_on(2)
            with broker.without_leader(places[number % 2]):
                if number >= 2:  # else it is back before a client has seen it
                    # librdkafka looks its coordinator up once more some time after an error: it may find none before
                    # any request is refused.
                    broker.await_refusal("refused request", ErrorCode.COORDINATOR_NOT_AVAILABLE)
        copier.go_on(2)
    finally:
        copier.end()
    assert copier.failure is None
    expected = sorted(f"{number:05d}" for number in range(copier.committed))
    values = read(broker, topic)  # type: ignore[arg-type]
    assert values[::2] == values[1::2] == expected
    until(lambda: committed_offset(broker, topic, topic) == copier.committed, "committed offset")  # type: ignore[arg-type]
