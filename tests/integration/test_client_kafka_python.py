"""kafka-python: every codec and acknowledgement, large messages, restarts, over a folder and S3."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import scenarios
from broker_process import BrokerProcess
from conftest import ON_A_FOLDER, every_codec
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import MessageSizeTooLargeError
from scenarios import IDEMPOTENT, Mode, assert_all_read, new_topic
from workload import Delivered, Message, Read, Sent, Shape, generated, sized, spread

pytestmark = pytest.mark.feature("kafka-python")

DEADLINE_SECONDS = 60.0


class KafkaPython:
    """The pure Python client."""

    name = "kafka-python"
    shape = Shape.BYTES  # the client refuses the rest
    partitions = 3

    def send(
        self, bootstrap: str, topic: str, messages: Sequence[tuple[int | None, Message]], *, codec: str, mode: Mode
    ) -> None:
        producer = open_producer(bootstrap, codec, mode)
        try:
            futures = [queue(producer, topic, partition, message) for partition, message in messages]
            producer.flush(DEADLINE_SECONDS)
            for future in futures:
                future.get(timeout=DEADLINE_SECONDS)
        finally:
            producer.close(timeout=10)

    def read_assigned(self, bootstrap: str, topic: str, counts: Mapping[int, int]) -> Read:
        consumer = open_consumer(bootstrap)
        try:
            partitions = [TopicPartition(topic, partition) for partition in counts]
            consumer.assign(partitions)
            consumer.seek_to_beginning(*partitions)
            return poll_messages(consumer, sum(counts.values()))
        finally:
            consumer.close()

    def read_subscribed(self, bootstrap: str, topic: str, group: str, count: int) -> Read:
        consumer = open_member(bootstrap, topic, group)
        try:
            read = poll_messages(consumer, count)
            consumer.commit()
            for partition, messages in read.items():
                assert consumer.committed(TopicPartition(topic, partition)) == len(messages)
            return read
        finally:
            consumer.close()


def open_producer(bootstrap: str, codec: str, mode: Mode, **options: Any) -> KafkaProducer:
    """A producer of one codec and mode."""
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "compression_type": None if codec == "none" else codec,
        "acks": mode.acks if mode.acks == "all" else int(mode.acks),
        "enable_idempotence": mode.idempotent,
        "max_request_size": 8 << 20,
        "linger_ms": 5,
        "max_block_ms": 30_000,
        "delivery_timeout_ms": 40_000,
    }
    return KafkaProducer(**settings | options)


def queue(producer: KafkaProducer, topic: str, partition: int | None, message: Message) -> Any:
    """Sends one message; its future."""
    return producer.send(
        topic,
        key=message.key,
        value=message.value,
        headers=list(message.headers),
        partition=partition,
        timestamp_ms=message.timestamp_ms,
    )


def open_consumer(bootstrap: str, **options: Any) -> KafkaConsumer:
    """A consumer that starts at the beginning and commits only when told."""
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "group_id": None,
    }
    return KafkaConsumer(**settings | options)


def open_member(bootstrap: str, topic: str, group: str, **options: Any) -> KafkaConsumer:
    """A consumer that is subscribed and knows the topic's partitions before it joins its group.

    In 3.0.12 a leader that learns of them later may forget to rejoin, with any broker.
    """
    consumer = open_consumer(bootstrap, group_id=group, **options)
    consumer.subscribe([topic])
    assert consumer.partitions_for_topic(topic)
    return consumer


def poll_messages(consumer: KafkaConsumer, count: int) -> Read:
    """Polls until `count` messages have come. Raises AssertionError if they do not."""
    read: Read = {}
    left = count
    deadline = time.monotonic() + DEADLINE_SECONDS
    while left > 0:
        assert time.monotonic() < deadline, f"{left} of {count} messages did not come"
        for partition, records in consumer.poll(timeout_ms=1000, max_records=left).items():
            left -= len(records)
            read.setdefault(partition.partition, []).extend(
                Delivered(record.offset, record.key, record.value, tuple(record.headers), record.timestamp)
                for record in records
            )
    return read


CLIENT = KafkaPython()


@pytest.mark.feature("produce and consume")
@every_codec(in_a_bucket="lz4")
def test_every_codec_and_acks_is_read_back(broker: BrokerProcess, codec: str) -> None:
    scenarios.every_mode(broker, CLIENT, codec)


@pytest.mark.feature("produce and consume")
@ON_A_FOLDER
def test_large_messages_are_read_back(broker: BrokerProcess) -> None:
    scenarios.large_messages(broker, CLIENT, "gzip")


@pytest.mark.feature("restarts")
@ON_A_FOLDER
def test_restarts_keep_everything(broker: BrokerProcess) -> None:
    scenarios.restarts(broker, CLIENT)


@pytest.mark.feature("produce and consume")
@ON_A_FOLDER
def test_keyed_text_keeps_its_order(broker: BrokerProcess) -> None:
    scenarios.real_text(broker, CLIENT, "zstd", 6_000)


@ON_A_FOLDER
def test_a_message_above_the_topic_limit_is_refused(broker: BrokerProcess) -> None:
    topic = new_topic(broker, CLIENT, "limit", 1, max_message_bytes="1000")
    with pytest.raises(MessageSizeTooLargeError):
        CLIENT.send(broker.bootstrap, topic, [(0, sized([2000], seed=1)[0])], codec="none", mode=IDEMPOTENT)


@pytest.mark.feature("idempotence")
@ON_A_FOLDER
def test_an_idempotent_producer_survives_kills_of_the_broker(broker: BrokerProcess) -> None:
    """One producer, in the middle of sending when the broker is killed: nothing lost, doubled or out of order."""
    topic = new_topic(broker, CLIENT, "through-kill")
    sent: Sent = spread(generated(1500, 9, CLIENT.shape), CLIENT.partitions)
    producer = open_producer(
        broker.bootstrap, "none", IDEMPOTENT, linger_ms=1, batch_size=2000, reconnect_backoff_max_ms=500
    )
    futures = []
    for number, (partition, message) in enumerate(scenarios.in_turn(sent)):
        futures.append(queue(producer, topic, partition, message))
        if number in (400, 1000):
            broker.kill()
            broker.start()
    producer.flush(DEADLINE_SECONDS)
    for future in futures:
        future.get(timeout=DEADLINE_SECONDS)
    producer.close(timeout=10)
    assert_all_read(broker, CLIENT, topic, sent)
