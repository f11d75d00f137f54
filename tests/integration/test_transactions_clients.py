"""Transactions by confluent-kafka, kafka-python and aiokafka: commit, abort, offsets, zombies, and a broker that is
killed before, during and after the decision.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from broker_process import BrokerProcess
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from conftest import ON_A_FOLDER, SMALL
from kafka import KafkaProducer

SECONDS = 30.0
QUIET = {"log_level": 0}
_serial = itertools.count()


def new_topic(broker: BrokerProcess, partitions: int) -> str:
    """A topic of its own; its name serves as transactional id and group too."""
    topic = f"transactions-{next(_serial)}"
    admin = AdminClient({**QUIET, "bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(SECONDS)
    return topic


def producer(broker: BrokerProcess, transactional_id: str, **options: Any) -> Producer:
    """A librdkafka producer, initialised."""
    made = Producer(
        {
            **QUIET,
            "bootstrap.servers": broker.bootstrap,
            "transactional.id": transactional_id,
            "linger.ms": 0,
            **options,
        }
    )
    made.init_transactions(SECONDS)
    return made


def produce(producer: Producer, topic: str, *values: str, partitions: int = 2) -> None:
    """Values round the partitions, acknowledged by the broker."""
    for position, value in enumerate(values):
        producer.produce(topic, value, partition=position % partitions)
    assert producer.flush(SECONDS) == 0


def wait_for_markers(broker: BrokerProcess, topic: str, partitions: int) -> None:
    """A commit is answered when it is decided; its markers follow."""
    settings = {**QUIET, "bootstrap.servers": broker.bootstrap, "group.id": "none"}
    stable = Consumer({**settings, "isolation.level": "read_committed"})
    latest = Consumer({**settings, "isolation.level": "read_uncommitted"})
    deadline = time.monotonic() + SECONDS
    for partition in range(partitions):
        place = TopicPartition(topic, partition)
        while stable.get_watermark_offsets(place, SECONDS) != latest.get_watermark_offsets(place, SECONDS):
            assert time.monotonic() < deadline, "a transaction stays open"
    stable.close()
    latest.close()


def read(
    broker: BrokerProcess, topic: str, *, committed: bool = True, partitions: int = 2, open_transaction: bool = False
) -> list[str]:
    """All values up to the end, sorted, without those of open transactions."""
    if not open_transaction:
        wait_for_markers(broker, topic, partitions)
    consumer = Consumer(
        {
            **QUIET,
            "bootstrap.servers": broker.bootstrap,
            "group.id": "none",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        found: list[str] = []
        ended = 0
        while ended < partitions:
            message = consumer.poll(SECONDS)
            assert message is not None, f"no end of partition; so far {found}"
            if message.error():
                ended += 1
            else:
                found.append(message.value().decode())
        return sorted(found)
    finally:
        consumer.close()


@pytest.mark.feature("confluent-kafka", "transactions")
def test_read_committed_shows_committed_transactions_only(broker: BrokerProcess) -> None:
    topic = new_topic(broker, 2)
    writer = producer(broker, topic)
    for number, commit in enumerate([True, False, True, False, True]):
        writer.begin_transaction()
        produce(writer, topic, f"{number}-a", f"{number}-b", f"{number}-c")
        assert not any(value.startswith(str(number)) for value in read(broker, topic, open_transaction=True))
        if commit:
            writer.commit_transaction(SECONDS)
        else:
            writer.abort_transaction(SECONDS)
    committed = sorted(f"{number}-{letter}" for number in (0, 2, 4) for letter in "abc")
    assert read(broker, topic) == committed
    assert len(read(broker, topic, committed=False)) == 15


def test_aborted_records_stay_hidden_in_objects(broker: BrokerProcess) -> None:
    topic = new_topic(broker, 2)
    writer = producer(broker, topic)
    for number, commit in enumerate([False, True, False]):
        writer.begin_transaction()
        produce(writer, topic, f"{number}-a", f"{number}-b")
        (writer.commit_transaction if commit else writer.abort_transaction)(SECONDS)
    broker.flush()
    broker.kill()
    broker.start()
    assert read(broker, topic) == ["1-a", "1-b"]


@pytest.mark.feature("confluent-kafka", "transactions")
@ON_A_FOLDER
def test_a_zombie_producer_is_fenced(broker: BrokerProcess) -> None:
    topic = new_topic(broker, 2)
    zombie = producer(broker, topic)
    zombie.begin_transaction()
    produce(zombie, topic, "zombie")
    successor = producer(broker, topic)
    successor.begin_transaction()
    produce(successor, topic, "successor")
    with pytest.raises(KafkaException) as refused:
        zombie.commit_transaction(SECONDS)
    assert refused.value.args[0].fatal()
    successor.commit_transaction(SECONDS)
    assert read(broker, topic) == ["successor"]


def committed_offset(broker: BrokerProcess, group: str, topic: str) -> int:
    consumer = Consumer({**QUIET, "bootstrap.servers": broker.bootstrap, "group.id": group})
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=SECONDS)
        return int(found.offset)
    finally:
        consumer.close()


@pytest.mark.feature("confluent-kafka", "transactions")
@ON_A_FOLDER
def test_offsets_are_committed_with_the_transaction_or_not_at_all(broker: BrokerProcess) -> None:
    topic = new_topic(broker, 2)
    writer = producer(broker, topic)
    consumer = Consumer({**QUIET, "bootstrap.servers": broker.bootstrap, "group.id": topic})
    group = consumer.consumer_group_metadata()
    for number, commit in enumerate([True, False]):
        writer.begin_transaction()
        produce(writer, topic, f"{number}")
        writer.send_offsets_to_transaction([TopicPartition(topic, 0, 10 + number)], group, SECONDS)
        (writer.commit_transaction if commit else writer.abort_transaction)(SECONDS)
        assert committed_offset(broker, topic, topic) == 10
    consumer.close()
    assert read(broker, topic) == ["0"]


@pytest.mark.feature("kafka-python", "transactions")
@ON_A_FOLDER
def test_kafka_python_commits_and_aborts(broker: BrokerProcess) -> None:
    topic = new_topic(broker, 2)
    writer = KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=topic)
    writer.init_transactions()
    for number, commit in enumerate([True, False, True]):
        writer.begin_transaction()
        for partition in range(2):
            writer.send(topic, f"{number}-{partition}".encode(), partition=partition)
        if commit:
            writer.commit_transaction()
        else:
            writer.abort_transaction()
    writer.close()
    assert read(broker, topic) == ["0-0", "0-1", "2-0", "2-1"]


@pytest.mark.feature("aiokafka", "transactions")
@ON_A_FOLDER
def test_aiokafka_commits_and_aborts(broker: BrokerProcess) -> None:
    topic = new_topic(broker, 2)

    async def write() -> None:
        writer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=topic)
        await writer.start()
        async with asyncio.timeout(SECONDS):
            for number, commit in enumerate([True, False, True]):
                await writer.begin_transaction()
                for partition in range(2):
                    await writer.send_and_wait(topic, f"{number}-{partition}".encode(), partition=partition)
                if commit:
                    await writer.commit_transaction()
                else:
                    await writer.abort_transaction()
            await writer.stop()

    asyncio.run(write())
    assert read(broker, topic) == ["0-0", "0-1", "2-0", "2-1"]


# -- kill -9 -----------------------------------------------------------------------------------------------------


def test_a_transaction_survives_a_kill_before_its_commit(broker: BrokerProcess) -> None:
    topic = new_topic(broker, 2)
    writer = producer(broker, topic)
    writer.begin_transaction()
    produce(writer, topic, "before")
    broker.kill()
    broker.start()
    assert read(broker, topic, open_transaction=True) == []
    produce(writer, topic, "after-0", "after-1")
    writer.commit_transaction(SECONDS)
    assert read(broker, topic) == ["after-0", "after-1", "before"]


def test_a_successor_aborts_the_transaction_of_a_killed_producer(broker: BrokerProcess) -> None:
    topic = new_topic(broker, 2)
    lost = producer(broker, topic)
    lost.begin_transaction()
    produce(lost, topic, "lost-0", "lost-1")
    broker.kill()
    broker.start()
    successor = producer(broker, topic)
    successor.begin_transaction()
    produce(successor, topic, "kept")
    successor.commit_transaction(SECONDS)
    assert read(broker, topic) == ["kept"]


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that checks for late transactions all the time."""
    settings = "group.initial.rebalance.delay.ms=0,transaction.abort.timed.out.transaction.cleanup.interval.ms=100"
    process = BrokerProcess(tmp_path / "data", *SMALL, environ={"KBROKER_SET": settings})
    process.start()
    yield process
    process.kill()


def test_a_transaction_that_is_open_too_long_is_aborted(impatient: BrokerProcess) -> None:
    topic = new_topic(impatient, 2)
    writer = producer(impatient, topic, **{"transaction.timeout.ms": 1_000})
    writer.begin_transaction()
    produce(writer, topic, "late")
    other = producer(impatient, topic + "-other")
    other.begin_transaction()
    produce(other, topic, "in time")
    other.commit_transaction(SECONDS)
    wait_for_markers(impatient, topic, 2)
    assert read(impatient, topic) == ["in time"]
    with pytest.raises(KafkaException):
        writer.commit_transaction(SECONDS)


PARTITIONS = 24


def test_a_kill_around_the_decision_leaves_all_or_nothing(broker: BrokerProcess) -> None:
    """At any moment of a commit over many partitions: all of it or nothing, and all of it if it was acknowledged."""
    topic = new_topic(broker, PARTITIONS)
    chance = random.Random(11)
    acknowledged: set[str] = set()
    tried: set[str] = set()
    writer = producer(broker, topic)
    for number in range(8):
        name = f"{number:02}"
        tried.add(name)
        writer.begin_transaction()
        for partition in range(PARTITIONS):
            writer.produce(topic, name, partition=partition)
        assert writer.flush(SECONDS) == 0
        failure = killed_during(broker, chance.uniform(0, 0.004), writer)
        if failure is None:
            acknowledged.add(name)
        else:
            writer = producer(broker, topic)
    found = read(broker, topic, partitions=PARTITIONS)
    counts = {name: found.count(name) for name in tried}
    assert set(counts.values()) <= {0, PARTITIONS}, counts
    assert all(counts[name] == PARTITIONS for name in acknowledged), (counts, acknowledged)


def killed_during(broker: BrokerProcess, after_seconds: float, writer: Producer) -> Exception | None:
    """Kills the broker that long after a commit began, starts it again and returns how the commit ended."""
    failures: list[Exception] = []

    def run() -> None:
        try:
            writer.commit_transaction(SECONDS)
        except KafkaException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    killing = threading.Timer(after_seconds, broker.kill)
    killing.start()
    thread.start()
    killing.join()
    broker.start()
    thread.join()
    return failures[0] if failures else None
