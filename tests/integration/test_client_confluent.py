"""confluent-kafka (librdkafka): every codec and acknowledgement, large messages, restarts, over a folder and S3."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import scenarios
from broker_process import BrokerProcess
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from conftest import ON_A_FOLDER, every_codec
from scenarios import IDEMPOTENT, Mode, assert_all_read, new_topic
from workload import Delivered, Message, Read, Sent, Shape, generated, sized, spread

pytestmark = pytest.mark.feature("confluent-kafka")

DEADLINE_SECONDS = 60.0
QUIET = {"log_level": 0}


class Confluent:
    """librdkafka by way of confluent-kafka."""

    name = "confluent"
    shape = Shape.ANY
    partitions = 3

    def send(
        self, bootstrap: str, topic: str, messages: Sequence[tuple[int | None, Message]], *, codec: str, mode: Mode
    ) -> None:
        producer = Producer(
            {
                **QUIET,
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "acks": mode.acks,
                "enable.idempotence": mode.idempotent,
                "message.max.bytes": 8 << 20,
                "linger.ms": 5,
                "message.timeout.ms": 30_000,
            }
        )
        failures: list[KafkaError] = []
        for partition, message in messages:
            produce(producer, topic, partition, message, failures)
        assert producer.flush(DEADLINE_SECONDS) == 0, "messages left unacknowledged"
        if failures:
            raise KafkaException(failures[0])

    def read_assigned(self, bootstrap: str, topic: str, counts: Mapping[int, int]) -> Read:
        consumer = open_consumer(bootstrap, "none")
        try:
            consumer.assign([TopicPartition(topic, partition, 0) for partition in counts])
            return poll_messages(consumer, sum(counts.values()))
        finally:
            consumer.close()

    def read_subscribed(self, bootstrap: str, topic: str, group: str, count: int) -> Read:
        consumer = open_consumer(bootstrap, group)
        try:
            consumer.subscribe([topic])
            read = poll_messages(consumer, count)
            consumer.commit(asynchronous=False)
            committed = consumer.committed(consumer.assignment(), timeout=20)
            expected = {partition: len(messages) for partition, messages in read.items()}
            assert {entry.partition: entry.offset for entry in committed if entry.offset >= 0} == expected
            return read
        finally:
            consumer.close()


def open_consumer(bootstrap: str, group: str, **options: Any) -> Consumer:
    """A consumer that starts at the beginning and commits only when told."""
    return Consumer(
        {
            **QUIET,
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **options,
        }
    )


def produce(
    producer: Producer, topic: str, partition: int | None, message: Message, failures: list[KafkaError]
) -> None:
    """Queues one message; what fails is added to `failures`."""
    options: dict[str, Any] = {} if partition is None else {"partition": partition}
    if message.timestamp_ms is not None:
        options["timestamp"] = message.timestamp_ms
    producer.produce(
        topic,
        key=message.key,
        value=message.value,
        headers=list(message.headers),
        on_delivery=lambda error, _: failures.append(error) if error else None,
        **options,
    )
    producer.poll(0)


def poll_messages(consumer: Consumer, count: int) -> Read:
    """Polls until `count` messages have come. Raises AssertionError if they do not."""
    read: Read = {}
    left = count
    deadline = time.monotonic() + DEADLINE_SECONDS
    while left > 0:
        assert time.monotonic() < deadline, f"{left} of {count} messages did not come"
        for message in consumer.consume(min(left, 1000), timeout=1.0):
            if message.error():
                raise KafkaException(message.error())
            left -= 1
            read.setdefault(message.partition(), []).append(
                Delivered(
                    message.offset(),
                    message.key(),
                    message.value(),
                    tuple(message.headers() or ()),
                    message.timestamp()[1],
                )
            )
    return read


CLIENT = Confluent()


@pytest.mark.feature("produce and consume")
@every_codec(in_a_bucket="none")
def test_every_codec_and_acks_is_read_back(broker: BrokerProcess, codec: str) -> None:
    scenarios.every_mode(broker, CLIENT, codec)


@pytest.mark.feature("produce and consume")
@pytest.mark.parametrize(("store", "codec"), [("folder", "none"), ("s3", "zstd")], indirect=["store"], scope="module")
def test_large_messages_are_read_back(broker: BrokerProcess, codec: str) -> None:
    scenarios.large_messages(broker, CLIENT, codec)


@pytest.mark.feature("restarts")
def test_restarts_keep_everything(broker: BrokerProcess) -> None:
    scenarios.restarts(broker, CLIENT)


@pytest.mark.feature("restarts")
@ON_A_FOLDER
def test_starts_that_write_nothing_damage_nothing(broker: BrokerProcess) -> None:
    """A later start finds no damage in what they leave."""
    topic = new_topic(broker, CLIENT, "idle", 1)
    total: Sent = {}
    for turn in range(2):
        sent = spread(generated(10, seed=turn), 1)
        scenarios.send(broker, CLIENT, topic, sent, "none", IDEMPOTENT)
        scenarios.add(total, sent)
        for _ in range(3):
            broker.kill()
            broker.start()
    assert_all_read(broker, CLIENT, topic, total)


@pytest.mark.feature("produce and consume")
def test_keyed_text_keeps_its_order(broker: BrokerProcess) -> None:
    scenarios.real_text(broker, CLIENT, "lz4", 12_000)


@ON_A_FOLDER
def test_a_message_above_the_topic_limit_is_refused(broker: BrokerProcess) -> None:
    topic = new_topic(broker, CLIENT, "limit", 1, max_message_bytes="1000")
    with pytest.raises(KafkaException) as raised:
        CLIENT.send(broker.bootstrap, topic, [(0, sized([2000], seed=1)[0])], codec="none", mode=IDEMPOTENT)
    assert raised.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    fits = spread(sized([500], seed=2), 1)
    scenarios.send(broker, CLIENT, topic, fits, "none", IDEMPOTENT)
    assert_all_read(broker, CLIENT, topic, fits)


@pytest.mark.feature("idempotence")
def test_an_idempotent_producer_survives_kills_of_the_broker(broker: BrokerProcess) -> None:
    """One producer, in the middle of sending when the broker is killed: nothing lost, doubled or out of order."""
    topic = new_topic(broker, CLIENT, "through-kill")
    sent: Sent = spread(generated(3000, seed=9), CLIENT.partitions)
    producer = Producer(
        {
            **QUIET,
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 1,
            "batch.num.messages": 10,
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 1000,
        }
    )
    failures: list[KafkaError] = []
    for number, (partition, message) in enumerate(scenarios.in_turn(sent)):
        produce(producer, topic, partition, message, failures)
        if number in (800, 2000):
            broker.kill()
            broker.start()
    assert producer.flush(DEADLINE_SECONDS) == 0
    assert failures == []
    assert_all_read(broker, CLIENT, topic, sent)


@pytest.mark.feature("restarts")
@ON_A_FOLDER
def test_an_assigned_consumer_continues_after_restarts(broker: BrokerProcess) -> None:
    """It continues at its position after a kill -9 and after a clean stop."""
    topic = new_topic(broker, CLIENT, "consumer-through", 1)
    total: Sent = {}
    read: Read = {}
    consumer = open_consumer(broker.bootstrap, "none", **{"reconnect.backoff.max.ms": 500})
    consumer.assign([TopicPartition(topic, 0, 0)])
    for turn in range(3):
        sent = spread(generated(50, seed=turn), 1)
        scenarios.send(broker, CLIENT, topic, sent, "none", IDEMPOTENT)
        scenarios.add(total, sent)
        read.setdefault(0, []).extend(poll_messages(consumer, 50)[0])
        if turn == 0:
            broker.kill()
            broker.start()
        elif turn == 1:
            assert broker.stop() == 0
            broker.start()
    consumer.close()
    scenarios.assert_delivered(total, read)
