"""kbroker.durability=object: transactions and their offsets, with brokers that are killed and lose their disks.

A transaction is there, with its offset, if commit_transaction returned; it is not if it was never committed; and if
the broker was killed during the call, it is there as a whole or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.crash.checker import TOPIC
from tests.crash.small_broker import Place, connect, small_broker
from tests.integration.broker_process import BrokerProcess
from tests.integration.until import until

# Flushes by age or size would hide an acknowledgement that does not wait for its own flush.
SLOW = (
    "--memory-bytes", "64MiB", "--arena-bytes", "8MiB", "--wal-bytes", "32MiB", "--flush-seconds", "3600",
)  # fmt: skip
SECONDS = 60.0
CALL_SECONDS = 30.0
RETRY_SECONDS = 0.1
TRANSACTION_MS = 40_000
ABORTED = 4  # one transaction in so many
GROUP = "copies"
COMMITS_BETWEEN_DEATHS = (2, 8)
DEATHS = 4 if "KBROKER_CRASH_ROUNDS" in os.environ else 2  # `make crash` sets it
# Without the default rebootstrap: with it, librdkafka discards its only broker after a kill, but not from its cache of
# coordinators, and TxnOffsetCommit waits for that broker for ever (its issues 5456 and 5511).
NO_REBOOTSTRAP = {"metadata.recovery.strategy": "none"}


class Copier:
    """One transaction after another, each of three records and an offset; remembers what became of them."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.tried = 0
        self.committed: set[int] = set()
        self.unknown: set[int] = set()  # the commit was requested and not answered
        self.stop = threading.Event()

    def run(self) -> None:
        """Until told to stop; opens a new producer when a transaction cannot continue."""
        raise NotImplementedError

    def settle(self) -> None:
        """A new producer of this id: decided transactions are completed, the others aborted."""
        Producer(self.config()).init_transactions(SECONDS)

    def config(self) -> dict[str, object]:
        """Of a producer."""
        return {
            **NO_REBOOTSTRAP, "bootstrap.servers": self.bootstrap, "transactional.id": "copier", "log_level": 0,
            "transaction.timeout.ms": TRANSACTION_MS,
        }  # fmt: skip

    def next(self) -> int:
        """The number of the next transaction."""
        self.tried += 1
        return self.tried

    def parts(self, number: int) -> list[tuple[int, bytes]]:
        """Partition and value of each record."""
        return [(part % 2, b"%d/%d" % (number, part)) for part in range(3)]


class LibrdkafkaCopier(Copier):
    """With confluent-kafka."""

    def run(self) -> None:
        config = {**NO_REBOOTSTRAP, "bootstrap.servers": self.bootstrap, "group.id": GROUP, "log_level": 0}
        group = Consumer(config)
        try:
            while not self.stop.is_set():
                try:
                    self._session(group)
                except KafkaException:  # of a transaction during which the broker was killed
                    self.stop.wait(RETRY_SECONDS)
        finally:
            group.close()

    def _session(self, group: Consumer) -> None:
        producer = Producer(self.config())
        producer.init_transactions(SECONDS)
        while not self.stop.is_set():
            number = self.next()
            producer.begin_transaction()
            for partition, value in self.parts(number):
                producer.produce(TOPIC, value, partition=partition)
            offsets = [TopicPartition("source", 0, number)]
            producer.send_offsets_to_transaction(offsets, group.consumer_group_metadata(), CALL_SECONDS)
            if number % ABORTED == 0:
                producer.abort_transaction(CALL_SECONDS)
                continue
            self.unknown.add(number)
            producer.commit_transaction(CALL_SECONDS)
            self.committed.add(number)


class AiokafkaCopier(Copier):
    """With aiokafka, which has a transaction manager of its own."""

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        while not self.stop.is_set():
            producer = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap, transactional_id="copier", transaction_timeout_ms=TRANSACTION_MS
            )
            try:
                await asyncio.wait_for(producer.start(), SECONDS)
                await self._session(producer)
            except (TimeoutError, AioKafkaError):
                await asyncio.to_thread(self.stop.wait, RETRY_SECONDS)
            finally:
                with contextlib.suppress(TimeoutError, AioKafkaError):
                    await asyncio.wait_for(producer.stop(), CALL_SECONDS)

    async def _session(self, producer: AIOKafkaProducer) -> None:
        while not self.stop.is_set():
            number = self.next()
            await producer.begin_transaction()
            for partition, value in self.parts(number):
                await producer.send(TOPIC, value, partition=partition)
            offsets = {AioTopicPartition("source", 0): number}
            await asyncio.wait_for(producer.send_offsets_to_transaction(offsets, GROUP), CALL_SECONDS)
            if number % ABORTED == 0:
                await asyncio.wait_for(producer.abort_transaction(), CALL_SECONDS)
                continue
            self.unknown.add(number)
            await asyncio.wait_for(producer.commit_transaction(), CALL_SECONDS)
            self.committed.add(number)


def read_copies(bootstrap: str) -> dict[int, set[int]]:
    """What a read_committed consumer sees: parts by transaction."""
    config = {"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": "read_committed", "log_level": 0}
    consumer = Consumer({**config, "enable.partition.eof": True, "auto.offset.reset": "earliest"})
    found: dict[int, set[int]] = {}
    try:
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(2)])
        ended: set[int] = set()
        while len(ended) < 2:
            message = consumer.poll(SECONDS)
            assert message is not None
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ended.add(message.partition())
                continue
            number, part = map(int, message.value().split(b"/"))
            assert part not in found.setdefault(number, set()), f"{number}/{part} twice"
            found[number].add(part)
    finally:
        consumer.close()
    return found


def committed_offset(bootstrap: str) -> int:
    """Of the source, in the copier's group."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "log_level": 0})
    try:
        return int(consumer.committed([TopicPartition("source", 0)], SECONDS)[0].offset)
    finally:
        consumer.close()


def judge(copier: Copier, bootstrap: str) -> None:
    """All acknowledged transactions are there, none that was never committed, and none in part."""
    found = read_copies(bootstrap)
    halves = {number: parts for number, parts in found.items() if parts != {0, 1, 2}}
    assert not halves
    assert copier.committed - found.keys() == set(), "committed, and missing"
    assert found.keys() - copier.committed - copier.unknown == set(), "there, and never committed"
    assert committed_offset(bootstrap) == max(found)


def run_deaths(broker: BrokerProcess, copier: Copier, draw: random.Random, keep_disk: bool) -> None:
    """Kills the broker at random moments of transactions, then judges, before and after another kill."""

    def die() -> None:
        broker.kill()
        if not keep_disk:
            shutil.rmtree(broker.data_dir)
        broker.start("--take-over")

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(copier.run)
        try:
            for _ in range(DEATHS):
                least = len(copier.committed) + draw.randint(*COMMITS_BETWEEN_DEATHS)
                until(
                    lambda least=least: len(copier.committed) >= least or running.done(), "commit", seconds=SECONDS
                )
                die()
            before = len(copier.committed)
            until(lambda: len(copier.committed) > before or running.done(), "commit after the deaths", seconds=SECONDS)
        finally:
            copier.stop.set()
        running.result(2 * SECONDS)
    copier.settle()
    judge(copier, broker.bootstrap)
    die()
    judge(copier, broker.bootstrap)
    assert broker.stop() == 0, broker.log()[-4000:]


@pytest.mark.parametrize(
    ("client", "mode"), [(LibrdkafkaCopier, "object"), (AiokafkaCopier, "object"), (LibrdkafkaCopier, "wal")]
)
def test_transactions_and_their_offsets_survive(
    tmp_path: Path, place: Place, client: type[Copier], mode: str
) -> None:
    """In object mode each kill loses the disk; in wal mode, the control, the disk stays."""
    broker = small_broker(tmp_path / "data", place, small=SLOW).start()
    try:
        with connect(broker) as connection:
            connection.create_topic(TOPIC, 2, {"kbroker.durability": mode})
            connection.create_topic("source", 1)
        run_deaths(broker, client(broker.bootstrap), random.Random(7), keep_disk=mode == "wal")
    finally:
        broker.kill()
