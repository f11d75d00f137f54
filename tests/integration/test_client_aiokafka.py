"""aiokafka: every codec and acknowledgement, large messages, restarts, over a folder and S3."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import scenarios
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import MessageSizeTooLargeError
from broker_process import BrokerProcess
from conftest import ON_A_FOLDER, every_codec
from scenarios import IDEMPOTENT, Mode, assert_all_read, new_topic
from workload import Delivered, Message, Read, Sent, Shape, generated, sized, spread

pytestmark = pytest.mark.feature("aiokafka")

DEADLINE_SECONDS = 60.0


class AioKafka:
    """The asyncio client."""

    name = "aiokafka"
    shape = Shape.BYTES  # the client refuses the rest
    partitions = 3

    def send(
        self, bootstrap: str, topic: str, messages: Sequence[tuple[int | None, Message]], *, codec: str, mode: Mode
    ) -> None:
        _run(_send(bootstrap, topic, messages, codec, mode))

    def read_assigned(self, bootstrap: str, topic: str, counts: Mapping[int, int]) -> Read:
        return _run(_read_assigned(bootstrap, topic, counts))

    def read_subscribed(self, bootstrap: str, topic: str, group: str, count: int) -> Read:
        return _run(_read_subscribed(bootstrap, topic, group, count))


def _run(work: Any) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await work

    return asyncio.run(bounded())


def open_producer(bootstrap: str, codec: str, mode: Mode, **options: Any) -> AIOKafkaProducer:
    """A producer of one codec and mode."""
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "compression_type": None if codec == "none" else codec,
        "acks": mode.acks if mode.acks == "all" else int(mode.acks),
        "enable_idempotence": mode.idempotent,
        "max_request_size": 8 << 20,
        "linger_ms": 5,
    }
    return AIOKafkaProducer(**settings | options)


async def queue(producer: AIOKafkaProducer, topic: str, partition: int | None, message: Message) -> Any:
    """Queues one message; the future of its acknowledgement."""
    return await producer.send(
        topic,
        key=message.key,
        value=message.value,
        headers=list(message.headers),
        partition=partition,
        timestamp_ms=message.timestamp_ms,
    )


async def _send(
    bootstrap: str, topic: str, messages: Sequence[tuple[int | None, Message]], codec: str, mode: Mode
) -> None:
    async with open_producer(bootstrap, codec, mode) as producer:
        futures = [await queue(producer, topic, partition, message) for partition, message in messages]
        await producer.flush()
        await asyncio.gather(*futures)


def open_consumer(bootstrap: str, *topics: str, **options: Any) -> AIOKafkaConsumer:
    """A consumer that starts at the beginning and commits only when told."""
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "group_id": None,
    }
    return AIOKafkaConsumer(*topics, **settings | options)


async def _read_assigned(bootstrap: str, topic: str, counts: Mapping[int, int]) -> Read:
    async with open_consumer(bootstrap) as consumer:
        partitions = [TopicPartition(topic, partition) for partition in counts]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        return await poll_messages(consumer, sum(counts.values()))


async def _read_subscribed(bootstrap: str, topic: str, group: str, count: int) -> Read:
    async with open_consumer(bootstrap, topic, group_id=group) as consumer:
        read = await poll_messages(consumer, count)
        await consumer.commit()
        for partition, messages in read.items():
            assert await consumer.committed(TopicPartition(topic, partition)) == len(messages)
        return read


async def poll_messages(consumer: AIOKafkaConsumer, count: int) -> Read:
    """Polls until `count` messages have come; the caller bounds the time."""
    read: Read = {}
    left = count
    while left > 0:
        for partition, records in (await consumer.getmany(timeout_ms=1000, max_records=left)).items():
            left -= len(records)
            read.setdefault(partition.partition, []).extend(
                Delivered(record.offset, record.key, record.value, tuple(record.headers), record.timestamp)
                for record in records
            )
    return read


CLIENT = AioKafka()


@pytest.mark.feature("produce and consume")
@every_codec(in_a_bucket="gzip")
def test_every_codec_and_acks_is_read_back(broker: BrokerProcess, codec: str) -> None:
    scenarios.every_mode(broker, CLIENT, codec)


@pytest.mark.feature("produce and consume")
@ON_A_FOLDER
def test_large_messages_are_read_back(broker: BrokerProcess) -> None:
    scenarios.large_messages(broker, CLIENT, "snappy")


@pytest.mark.feature("restarts")
@ON_A_FOLDER
def test_restarts_keep_everything(broker: BrokerProcess) -> None:
    scenarios.restarts(broker, CLIENT)


@pytest.mark.feature("produce and consume")
@ON_A_FOLDER
def test_keyed_text_keeps_its_order(broker: BrokerProcess) -> None:
    scenarios.real_text(broker, CLIENT, "gzip", 6_000)


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

    def restart() -> None:
        broker.kill()
        broker.start()

    async def send_all() -> None:
        futures = []
        async with open_producer(
            broker.bootstrap, "none", IDEMPOTENT, linger_ms=1, max_batch_size=2000, retry_backoff_ms=50
        ) as producer:
            for number, (partition, message) in enumerate(scenarios.in_turn(sent)):
                futures.append(await queue(producer, topic, partition, message))
                if number in (400, 1000):
                    await asyncio.to_thread(restart)
            await asyncio.gather(*futures)

    _run(send_all())
    assert_all_read(broker, CLIENT, topic, sent)
