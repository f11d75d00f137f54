"""The broker that the benchmarks take for a client's ceiling, spoken to by librdkafka."""

from __future__ import annotations

import mmap
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from bench.e2e import servers, suite
from tests.unit.bench.bench_program import running

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture(scope="module", params=[[], ["65536", "200000"]], ids=["one piece", "copies"])
def broker(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[servers.Server]:
    with running("free_broker.c", tmp_path_factory.mktemp("free-broker"), *request.param) as server:
        yield server  # it ends by itself when it is asked what it cannot follow


def produce(broker: servers.Server, topic: str, count: int, size: int) -> dict[int, int]:
    """Records delivered by partition."""
    delivered: dict[int, int] = {}

    def on_delivery(error: object, message: object) -> None:
        assert error is None
        delivered[message.partition()] = delivered.get(message.partition(), 0) + 1

    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 50, "batch.size": 1 << 18})
    for number in range(count):
        producer.produce(topic, bytes(size), partition=number % 3, on_delivery=on_delivery)
    assert producer.flush(30) == 0
    return delivered


def test_every_record_is_acknowledged_in_its_partition(broker: servers.Server):
    assert produce(broker, "acknowledged-3", 3000, 1024) == {0: 1000, 1: 1000, 2: 1000}


def test_partitions_are_logs_without_an_end(broker: servers.Server):
    """More is read than was ever written, of each partition, with offsets that count on."""
    produce(broker, "endless-3", 300, 100)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition("endless-3", partition, 0) for partition in range(3)])
    following = {0: 0, 1: 0, 2: 0}
    while min(following.values()) < 5000:
        for message in consumer.consume(1000, 30):
            assert message.error() is None
            assert message.offset() == following[message.partition()]
            assert len(message.value()) == 100
            following[message.partition()] += 1
    consumer.close()


def received_bytes(counts: Path) -> int:
    return int.from_bytes(counts.read_bytes()[:8], sys.byteorder)


@pytest.mark.parametrize("synced", [False, True])
def test_with_tail_a_log_has_an_end_and_what_comes_behind_it_is_sent_at_once(tmp_path: Path, synced: bool):
    """Records that a Fetch waits for, and such that have come meanwhile, each once and in order."""
    options = ["tail", str(tmp_path / "log")] if synced else ["tail"]
    with running("free_broker.c", tmp_path, *options) as server:
        consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "none", "enable.auto.commit": False})
        consumer.assign([TopicPartition("tail-1", 0, 0)])
        producer = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 0})
        following = 0
        for count in [1, 1, 20, 1, 300, 1]:
            assert consumer.poll(0.05) is None
            for number in range(following, following + count):
                producer.produce("tail-1", str(number).encode(), partition=0)
            for offset in range(following, following + count):
                message = consumer.poll(30)
                assert message is not None
                assert message.error() is None
                assert (message.offset(), message.value()) == (offset, str(offset).encode())
            following += count
        assert producer.flush(30) == 0
        consumer.close()


def test_with_a_log_no_more_is_received_than_is_stored_later(tmp_path: Path):
    """8 MB are sent, of which at most 4 may be received before they are stored."""
    room, counts = 4 << 20, tmp_path / "counts"
    with running("free_broker.c", tmp_path, "log", str(tmp_path / "log"), str(counts), str(room)) as server:
        with open(counts, "r+b") as file, mmap.mmap(file.fileno(), 0) as shared:
            received_and_stored = memoryview(shared).cast("q")
            delivered: list[object] = []
            producer = Producer({"bootstrap.servers": server.bootstrap, "batch.size": 1 << 18})
            for _ in range(8000):
                producer.produce("held-1", bytes(1000), on_delivery=lambda error, _: delivered.append(error))
            while received_and_stored[0] <= room:
                producer.poll(0.01)
            assert producer.flush(0.5) > 2000
            assert received_and_stored[0] < room + (1 << 20)
            received_and_stored[1] = 8_000_000
            assert producer.flush(30) == 0
            assert delivered == [None] * 8000
            assert received_and_stored[0] > 8_000_000
            received_and_stored.release()
        assert (tmp_path / "log").stat().st_size == room


def test_beside_a_log_a_topic_of_one_partition_has_an_end(tmp_path: Path):
    """What is produced there is read back, and only what goes to other topics counts as received."""
    counts = tmp_path / "counts"
    options = ["log", str(tmp_path / "log"), str(counts), str(4 << 20), str(tmp_path / "tail")]
    with running("free_broker.c", tmp_path, *options) as server:
        consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "none", "enable.auto.commit": False})
        consumer.assign([TopicPartition("tail-1", 0, 0)])
        producer = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 0})
        for offset in range(20):
            producer.produce("tail-1", str(offset).encode(), partition=0)
            message = consumer.poll(30)
            assert message is not None
            assert (message.error(), message.offset()) == (None, offset)
            assert message.value() == str(offset).encode()
        consumer.close()
        assert producer.flush(30) == 0
        assert received_bytes(counts) == 0
        assert produce(server, "logged-3", 300, 1000) == {0: 100, 1: 100, 2: 100}
        assert received_bytes(counts) > 300_000


def test_the_steady_state_begins_behind_the_first_budget():
    """4 records of 1 MB a second until 16 are written, 2 a second from then on, and once 1."""
    counts = [0, 4, 8, 12, 16, 18, 20, 21, 23, 25, 25]
    rows = [(float(second), count) for second, count in enumerate(counts)]
    result = suite.steady_state(rows, 1_000_000, 16_000_000)
    assert result.mb_by_second == [2, 2, 1, 2, 2]
    assert (result.records, result.seconds) == (9, 5)
    assert result.extra["burst_mb"] == 4
