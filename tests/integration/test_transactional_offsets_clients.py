"""send_offsets_to_transaction of a real client: offsets and records become visible together or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.integration.broker_process import BrokerProcess

TIMEOUT = 30.0


@pytest.fixture
def broker(tmp_path: Path) -> BrokerProcess:
    broker = BrokerProcess(tmp_path / "data", "--object-store", f"file:{tmp_path}/objects").start()
    yield broker
    broker.kill()


def consumer(broker: BrokerProcess) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "g",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )


def committed(broker: BrokerProcess) -> int:
    reader = consumer(broker)
    try:
        (found,) = reader.committed([TopicPartition("input", 0)], timeout=TIMEOUT)
        return int(found.offset)
    finally:
        reader.close()


def test_offsets_follow_their_transaction_despite_a_kill(broker: BrokerProcess) -> None:
    feed = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(10):
        feed.produce("input", str(number).encode(), partition=0)
    assert feed.flush(TIMEOUT) == 0
    reader = consumer(broker)
    reader.subscribe(["input"])
    read = []
    while len(read) < 10:
        message = reader.poll(TIMEOUT)
        assert message is not None
        assert message.error() is None
        read.append(message)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "x"})
    producer.init_transactions(TIMEOUT)

    def send(offset: int) -> None:
        producer.begin_transaction()
        producer.produce("output", b"out", partition=0)
        offsets = [TopicPartition("input", 0, offset)]
        producer.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), TIMEOUT)

    send(4)
    producer.commit_transaction(TIMEOUT)
    assert committed(broker) == 4
    send(7)
    producer.abort_transaction(TIMEOUT)
    assert committed(broker) == 4
    send(9)
    broker.kill()
    broker.start()
    producer.commit_transaction(TIMEOUT)
    assert committed(broker) == 9
    reader.close()
