"""Leaderships end and begin again while clients produce and consume: no record is lost, none is doubled.

The broker runs in the test's process, which moves its leaderships as a controller would.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import java_tools
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from conftest import require
from moving_broker import DEADLINE_SECONDS, MovingBroker
from tool_shell import SHELL
from until import until

from kbroker.app.stopping import EXIT_CLEAN
from kbroker.errors import ErrorCode

PARTITIONS = 3
RECORDS = 3_000
MOVED_EVERY = 250  # records


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MovingBroker]:
    made = MovingBroker(tmp_path_factory.mktemp("moving"))
    yield made
    assert made.stop() == EXIT_CLEAN


def value(number: int) -> bytes:
    return b"%06d" % number + b"v" * 200


def expected() -> dict[int, list[bytes]]:
    """Record n goes to partition n % PARTITIONS."""
    return {index: [value(n) for n in range(index, RECORDS, PARTITIONS)] for index in range(PARTITIONS)}


def read_all(bootstrap: str, topic: str) -> dict[int, list[bytes]]:
    """As a consumer reads them while they are produced, until as many have come as were sent."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([Place(topic, index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
    found: dict[int, list[bytes]] = defaultdict(list)
    try:
        for _ in range(RECORDS):
            message = consumer.poll(DEADLINE_SECONDS)
            assert message is not None, f"{sum(map(len, found.values()))} of {RECORDS} records were read"
            assert message.error() is None, message.error()
            found[message.partition()].append(message.value())
    finally:
        consumer.close()
    return dict(found)


def produce_all(bootstrap: str, topic: str, sent: Callable[[int], None], **options: object) -> None:
    """By an idempotent producer that waits for all acknowledgements; `sent` is told of each record."""
    failures = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5} | options)

    def delivered(error: object, message: object) -> None:
        if error is not None:
            failures.append(error)

    for number in range(RECORDS):
        producer.produce(topic, value(number), partition=number % PARTITIONS, on_delivery=delivered)
        producer.poll(0)
        sent(number)
    assert producer.flush(DEADLINE_SECONDS) == 0
    assert not failures


@pytest.mark.feature("confluent-kafka", "idempotence")
@pytest.mark.parametrize("durability", ["wal", "object"])
def test_confluent_loses_and_doubles_nothing_when_leaderships_move(moving: MovingBroker, durability: str) -> None:
    topic = moving.create(PARTITIONS, **{"kbroker.durability": durability})

    def sent(number: int) -> None:
        if number % MOVED_EVERY == MOVED_EVERY - 1:
            moving.move(topic, moving.moves // 2 % PARTITIONS, has_tail=durability == "wal")

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_all, moving.bootstrap, topic)
        produce_all(moving.bootstrap, topic, sent)
        assert reading.result(DEADLINE_SECONDS) == expected()


@pytest.mark.feature("aiokafka", "idempotence")
def test_aiokafka_loses_and_doubles_nothing_when_leaderships_move(moving: MovingBroker) -> None:
    topic = moving.create(PARTITIONS)

    async def produce() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=moving.bootstrap, enable_idempotence=True, acks="all")
        await producer.start()
        try:
            waiting = []
            for number in range(RECORDS):
                waiting.append(await producer.send(topic, value(number), partition=number % PARTITIONS))
                if number % MOVED_EVERY == MOVED_EVERY - 1:
                    await asyncio.to_thread(moving.move, topic, moving.moves // 2 % PARTITIONS, has_tail=True)
            await asyncio.gather(*waiting)
        finally:
            await producer.stop()

    async def read() -> dict[int, list[bytes]]:
        consumer = AIOKafkaConsumer(bootstrap_servers=moving.bootstrap, auto_offset_reset="earliest")
        found: dict[int, list[bytes]] = defaultdict(list)
        await consumer.start()
        try:
            consumer.assign([TopicPartition(topic, index) for index in range(PARTITIONS)])
            await consumer.seek_to_beginning()
            for _ in range(RECORDS):
                record = await consumer.getone()
                found[record.partition].append(record.value)
        finally:
            await consumer.stop()
        return dict(found)

    async def both() -> dict[int, list[bytes]]:
        async with asyncio.timeout(2 * DEADLINE_SECONDS):
            found, _ = await asyncio.gather(read(), produce())
        return found

    assert asyncio.run(both()) == expected()


@pytest.mark.feature("Java", "idempotence")
def test_java_loses_and_doubles_nothing_when_leaderships_move(moving: MovingBroker) -> None:
    require(not java_tools.missing(), java_tools.missing())
    topic = moving.create(PARTITIONS)
    log = moving.broker.logs.by_name[topic]
    options = ["bootstrap.servers=" + moving.bootstrap, "acks=all", "enable.idempotence=true", "linger.ms=5"]
    sizes = ["--num-records", str(RECORDS), "--record-size", "200", "--throughput", "2000"]

    def end() -> int:
        return sum(partition.high_watermark() for partition in log.partitions)

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(SHELL.run, "ProducerPerformance", "--topic", topic, *sizes, "--producer-props", *options)
        for moved_at in range(MOVED_EVERY, RECORDS, MOVED_EVERY):
            until(lambda moved_at=moved_at: end() >= moved_at or sending.done(), f"{moved_at} records")
            moving.move(topic, moving.moves // 2 % PARTITIONS, has_tail=False)
        printed = sending.result(DEADLINE_SECONDS)
    assert f"{RECORDS} records sent" in printed.output
    assert end() == RECORDS


@pytest.mark.feature("confluent-kafka", "transactions")
def test_a_transaction_goes_on_in_the_next_leadership(moving: MovingBroker) -> None:
    topic = moving.create(PARTITIONS)
    producer = Producer({"bootstrap.servers": moving.bootstrap, "transactional.id": topic})
    producer.init_transactions(DEADLINE_SECONDS)
    for ends in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for number in range(RECORDS):
            producer.produce(topic, value(number), partition=number % PARTITIONS)
            if number % (RECORDS // 4) == 0:
                producer.flush(DEADLINE_SECONDS)
                moving.move(topic, moving.moves // 2 % PARTITIONS, has_tail=False)
        ends(DEADLINE_SECONDS)
    assert read_all(moving.bootstrap, topic) == expected()


def test_metadata_names_no_leader_between_two_leaderships(moving: MovingBroker) -> None:
    topic = moving.create(PARTITIONS)
    logs, node_id = moving.broker.logs, moving.broker.config.node_id
    where = logs.by_name[topic].topic_id, 1
    admin = AdminClient({"bootstrap.servers": moving.bootstrap})
    logs.resign([where])
    partitions = admin.list_topics(topic, DEADLINE_SECONDS).topics[topic].partitions
    assert [partitions[index].leader for index in range(PARTITIONS)] == [node_id, -1, node_id]
    assert partitions[1].error.code() == ErrorCode.LEADER_NOT_AVAILABLE
    arrived = threading.Event()
    producer = Producer({"bootstrap.servers": moving.bootstrap})
    producer.produce(topic, b"v", partition=1, on_delivery=lambda error, message: arrived.set())
    producer.poll(0)
    moving.lead([where], takes_tail=False)
    assert producer.flush(DEADLINE_SECONDS) == 0
    assert arrived.is_set()
    assert admin.list_topics(topic, DEADLINE_SECONDS).topics[topic].partitions[1].leader == node_id
