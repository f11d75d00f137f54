"""Scenarios that every client runs; each client's test module brings a driver.

The broker's state is such that reads come from all three places: objects alone (the write-ahead log is gone), log
files (after a kill -9 the memory is empty) and memory (just written).
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from broker_process import BrokerProcess
from until import until
from workload import (
    CODECS,
    Message,
    Read,
    Sent,
    Shape,
    assert_delivered,
    assert_text_delivered,
    generated,
    in_turn,
    sized,
    spread,
    text,
)

MIB = 1 << 20
TEXT_PARTITIONS = 3
MESSAGES = 90  # per codec and mode
LARGE_SIZES = (1, 1_000, 60_000, 200_000, 1_000_000)
LARGEST = 5 * MIB
_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class Mode:
    """How a producer asks for acknowledgement."""

    acks: str
    idempotent: bool = False

    def __str__(self) -> str:
        return f"acks-{self.acks}" + ("-idempotent" if self.idempotent else "")


MODES = (Mode("0"), Mode("1"), Mode("all"), Mode("all", idempotent=True))
IDEMPOTENT = MODES[-1]


class Driver(Protocol):
    """One client library or tool."""

    name: str
    shape: Shape
    partitions: int  # 1 for tools that cannot choose a partition

    def send(
        self, bootstrap: str, topic: str, messages: Sequence[tuple[int | None, Message]], *, codec: str, mode: Mode
    ) -> None:
        """Sends in order, to the given partition (None: the client's own choice by key).

        Returns when all is acknowledged (acks 0: written). Raises on a failed delivery.
        """

    def read_assigned(self, bootstrap: str, topic: str, counts: Mapping[int, int]) -> Read:
        """Reads that many messages of each partition from its beginning with assign(). Raises when they do not come."""

    def read_subscribed(self, bootstrap: str, topic: str, group: str, count: int) -> Read:
        """Reads that many messages as a group of one with subscribe(), and leaves with the offsets committed."""


def new_topic(broker: BrokerProcess, driver: Driver, what: str, partitions: int | None = None, **configs: str) -> str:
    """Creates a topic of its own and returns its name."""
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = f"{driver.name}-{what}-{next(_serial)}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    named = {name.replace("_", "."): value for name, value in configs.items()}
    created = admin.create_topics(
        [NewTopic(topic, partitions or driver.partitions, 1, config=named)], operation_timeout=20
    )
    created[topic].result(30)
    return topic


def end_offsets(broker: BrokerProcess, topic: str, partitions: int) -> list[int]:
    """The high watermarks as the broker returns them."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    asked = {TopicPartition(topic, index): OffsetSpec.latest() for index in range(partitions)}
    return [future.result(20).offset for _, future in sorted(admin.list_offsets(asked).items())]


def wait_for_end(broker: BrokerProcess, topic: str, end: int) -> None:
    """Waits until partition 0 ends there: unacknowledged messages may be appended later."""
    until(lambda: end_offsets(broker, topic, 1) == [end], f"end of {topic} at {end}")


def send(broker: BrokerProcess, driver: Driver, topic: str, sent: Sent, codec: str, mode: Mode) -> None:
    """Sends everything, to the partitions given."""
    driver.send(broker.bootstrap, topic, list(in_turn(sent)), codec=codec, mode=mode)


def add(total: Sent, sent: Sent) -> None:
    """Adds messages of a later send to those of the earlier ones."""
    for partition, messages in sent.items():
        total.setdefault(partition, []).extend(messages)


def assert_all_read(broker: BrokerProcess, driver: Driver, topic: str, total: Sent, *, subscribe: bool = True) -> None:
    """Reads the topic back by assign() and by subscribe(): exactly what was sent."""
    counts = {partition: len(messages) for partition, messages in total.items()}
    assert_delivered(total, driver.read_assigned(broker.bootstrap, topic, counts))
    assert end_offsets(broker, topic, len(counts)) == list(counts.values())
    if subscribe:
        read = driver.read_subscribed(broker.bootstrap, topic, f"group-of-{topic}", sum(counts.values()))
        assert_delivered(total, read)


def every_mode(broker: BrokerProcess, driver: Driver, codec: str, modes: Sequence[Mode] = MODES) -> None:
    """Every mode of acknowledgement with one codec; half is flushed to objects before the other half is sent."""
    topic = new_topic(broker, driver, codec)
    total: Sent = {}
    for number, mode in enumerate(modes):
        messages = generated(MESSAGES, number * 10 + CODECS.index(codec), driver.shape)
        sent = spread(messages, driver.partitions)
        send(broker, driver, topic, sent, codec, mode)
        add(total, sent)
        if number == len(modes) // 2 - 1:
            broker.flush()
    assert_all_read(broker, driver, topic, total)


def large_messages(broker: BrokerProcess, driver: Driver, codec: str) -> None:
    """Messages up to the default limit, and 5 MiB where the topic allows it; read from memory and after a kill -9."""
    topic = new_topic(broker, driver, "large", 1, max_message_bytes=str(LARGEST + MIB))
    sent = spread(sized((*LARGE_SIZES, LARGEST, *reversed(LARGE_SIZES)), 5, driver.shape), 1)
    send(broker, driver, topic, sent, codec, IDEMPOTENT)
    assert_all_read(broker, driver, topic, sent, subscribe=False)
    broker.kill()
    broker.start()
    assert_all_read(broker, driver, topic, sent)


def restarts(broker: BrokerProcess, driver: Driver, codecs: Sequence[str] = CODECS) -> None:
    """Acknowledged records survive kill -9, a clean stop, a move to an empty disk and, once flushed, a lost disk."""
    topic = new_topic(broker, driver, "restarts")
    total: Sent = {}

    def more(seed: int) -> None:
        sent = spread(generated(MESSAGES, seed, driver.shape), driver.partitions)
        send(broker, driver, topic, sent, codecs[seed % len(codecs)], IDEMPOTENT)
        add(total, sent)

    more(1)
    broker.kill()
    broker.start()
    more(2)
    assert broker.stop() == 0
    broker.start()
    more(3)
    assert broker.stop() == 0
    lose_disk(broker)
    broker.start()
    assert_all_read(broker, driver, topic, total, subscribe=False)  # objects alone
    more(4)
    broker.flush()
    broker.kill()
    lose_disk(broker)
    broker.start("--take-over")
    more(5)
    broker.kill()
    broker.start()
    more(6)
    assert_all_read(broker, driver, topic, total)  # objects, log files, memory


def lose_disk(broker: BrokerProcess) -> None:
    """Removes the data directory of a broker that does not run; its objects are elsewhere."""
    shutil.rmtree(broker.data_dir)


def real_text(broker: BrokerProcess, driver: Driver, codec: str, count: int) -> None:
    """Text lines, keyed, partitioned by the client; a part is flushed; read by a group."""
    topic = new_topic(broker, driver, "text", TEXT_PARTITIONS)
    lines = text()[:count]
    half = len(lines) // 2
    for part in (lines[:half], lines[half:]):
        driver.send(broker.bootstrap, topic, [(None, line) for line in part], codec=codec, mode=IDEMPOTENT)
        if part is not lines[half:]:
            broker.flush()
    read = driver.read_subscribed(broker.bootstrap, topic, f"group-of-{topic}", len(lines))
    assert_text_delivered(lines, read)
