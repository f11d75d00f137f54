"""Producers that wait for room in the WAL, because the store is slow, beside a producer of single records."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.crash.fault_proxy import Fault, FaultProxy, Strike
from tests.crash.small_broker import free_port
from tests.integration.broker_process import BrokerProcess
from tests.integration.s3_server import BUCKET, S3Server, find_server, s3_server
from tests.integration.until import until

pytestmark = [pytest.mark.s3, pytest.mark.skipif(find_server() is None, reason="no S3 server (versitygw)")]

SMALL = (
    "--memory-bytes", "64MiB", "--arena-bytes", "8MiB", "--wal-bytes", "12MiB", "--flush-seconds", "3600",
    "--io-threads", "1",
)  # fmt: skip
BULK, LONE, READERS = "bulk", "lone", "readers"
PRODUCERS = 2  # each with a partition of its own
RECORDS = 1500  # of each: together twice what the log may take
RECORD_BYTES = 8192
SLOW_RECORDS = 1000  # of them, appended while the store is slow
PUT_SECONDS = 0.1  # of each PUT to a store that is slow
SECONDS = 10.0  # for what takes milliseconds
STORED_SECONDS = 60.0  # for what waits until much is stored


def value(number: int) -> bytes:
    return str(number).encode().ljust(RECORD_BYTES, b".")


class Running:
    """A broker whose log is small, with both topics."""

    def __init__(self, broker: BrokerProcess, http_port: int) -> None:
        self.http_port = http_port
        self.settings = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
        self.admin = AdminClient(self.settings)  # on a connection of its own
        for name, partitions in ((BULK, PRODUCERS), (LONE, 1)):
            self.admin.create_topics([NewTopic(name, partitions, 1)])[name].result(SECONDS)

    def waits(self) -> int:
        """How often a request has found no room in the log; a waiting one counts repeatedly."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/metrics", timeout=SECONDS) as answer:
            found = re.search(rb"^kbroker_wal_append_waits_total (\S+)$", answer.read(), re.MULTILINE)
        assert found
        return int(float(found[1]))

    def answers(self) -> None:
        """Without waiting for delivery. KafkaException when it fails."""
        assert {BULK, LONE} <= self.admin.list_topics(timeout=SECONDS).topics.keys()

    def consumer(self, *partitions: TopicPartition) -> Consumer:
        settings = {"group.id": READERS, "enable.auto.commit": False, "fetch.wait.max.ms": 5000}
        consumer = Consumer({**self.settings, **settings})
        consumer.assign(list(partitions))
        return consumer


@pytest.fixture
def s3(memory_path: Path) -> Iterator[S3Server]:
    """An S3 server of its own."""
    with s3_server(memory_path) as server:
        yield server


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[FaultProxy]:
    """Makes the store slow."""
    proxy = FaultProxy(s3.endpoint)
    yield proxy
    proxy.close()


@pytest.fixture
def running(memory_path: Path, s3: S3Server, proxy: FaultProxy) -> Iterator[Running]:
    """A broker that logs no error."""
    http_port = free_port()
    options = (
        "--object-store", f"s3://{BUCKET}/log-limit", "--s3-endpoint", proxy.endpoint,
        "--http-listen", f"127.0.0.1:{http_port}",
    )  # fmt: skip
    broker = BrokerProcess(memory_path / "data", *SMALL, *options, environ=s3.environment())
    try:
        yield Running(broker.start(), http_port)
    finally:
        broker.kill()
    log = broker.log()
    assert " ERROR " not in log, log
    assert "Traceback" not in log, log


class Bulk:
    """Producers with large batches, many of them in flight, and all records queued."""

    def __init__(self, settings: dict[str, object]) -> None:
        self.delivered = 0
        self.failed: list[KafkaError] = []
        tuning = {"linger.ms": 5, "batch.size": 65536}
        self.producers = [Producer({**settings, **tuning}) for _ in range(PRODUCERS)]
        for number in range(RECORDS):
            for partition, producer in enumerate(self.producers):
                producer.produce(BULK, value(number), partition=partition, on_delivery=self._note)

    def _note(self, error: KafkaError | None, _: Message) -> None:
        if error:
            self.failed.append(error)
        else:
            self.delivered += 1

    def seen(self) -> int:
        """Records that were acknowledged so far."""
        for producer in self.producers:
            producer.poll(0)
        return self.delivered


class Lone:
    """A producer of single records, and a reader that waits for each and commits its position."""

    def __init__(self, running: Running) -> None:
        self.count = 0
        self.admin = running.admin
        self.producer = Producer({**running.settings, "linger.ms": 0})
        self.consumer = running.consumer(TopicPartition(LONE, 0, 0))

    def one(self) -> None:
        self.producer.produce(LONE, value(self.count), partition=0)
        assert self.producer.flush(SECONDS) == 0
        message = self.consumer.poll(SECONDS)
        assert message is not None
        assert message.error() is None, message.error()
        assert (message.offset(), message.value()) == (self.count, value(self.count))
        self.count += 1
        self.commit()

    def commit(self) -> None:
        """A single record for which there is always room."""
        place = ConsumerGroupTopicPartitions(READERS, [TopicPartition(LONE, 0, self.count)])
        committed = self.admin.alter_consumer_group_offsets([place])[READERS].result(SECONDS)
        assert committed.topic_partitions[0].error is None


def read_all(running: Running) -> None:
    """Every record of the bulk is there once and in order, and no other."""
    consumer = running.consumer(*(TopicPartition(BULK, partition, 0) for partition in range(PRODUCERS)))
    next_offsets = [0] * PRODUCERS
    while min(next_offsets) < RECORDS:
        messages = consumer.consume(500, STORED_SECONDS)
        assert messages, f"nothing after {next_offsets}"
        for message in messages:
            assert message.error() is None, message.error()
            number = next_offsets[message.partition()]
            assert (message.offset(), message.value()) == (number, value(number))
            next_offsets[message.partition()] += 1
    for partition in range(PRODUCERS):
        assert consumer.get_watermark_offsets(TopicPartition(BULK, partition), SECONDS) == (0, RECORDS)
    consumer.close()


def test_single_records_arrive_beside_producers_that_wait_for_room(running: Running, proxy: FaultProxy) -> None:
    """Without room other requests are answered; with some, waiting producers continue; all records arrive."""
    lone = Lone(running)
    lone.one()
    before = running.waits()
    proxy.inject(Fault(Strike.DELAY, "PUT", seconds=600))
    bulk = Bulk(running.settings)
    until(lambda: running.waits() > before, "producer that waits", seconds=SECONDS)
    for _ in range(10):
        lone.commit()
        running.answers()

    before = running.waits()
    proxy.heal()
    proxy.inject(Fault(Strike.DELAY, "PUT", seconds=PUT_SECONDS))
    enough = bulk.seen() + SLOW_RECORDS
    assert enough < PRODUCERS * RECORDS
    while bulk.seen() < enough:
        lone.one()
        running.answers()
    assert running.waits() > before

    proxy.heal()
    assert [producer.flush(STORED_SECONDS) for producer in bulk.producers] == [0] * PRODUCERS
    assert bulk.failed == []
    assert bulk.seen() == PRODUCERS * RECORDS
    lone.one()
    lone.consumer.close()
    read_all(running)
