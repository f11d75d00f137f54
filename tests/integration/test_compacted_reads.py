"""Consumers of a compacted topic get its compacted form while the log on disk still holds every record: with the
cleaner's default settings, over restarts and kills, and in the middle of a read.
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from broker_process import BrokerProcess
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from until import until

from kbroker._fast.records.records import iter_batches, iter_records
from kbroker.pipeline.broker_tail import BrokerTail

UPDATES = 20_000
KEYS = 50
TOMBSTONES = 5  # of the keys, at the end
TRANSACTION_RECORDS = 400
READ_BEFORE = 3_000  # records, by readers that continue when the topic is compacted
NO_HURRY = {"queued.min.messages": 1, "fetch.queue.backoff.ms": 10, "fetch.message.max.bytes": 20_000}
POLL_SECONDS = 30.0
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.ms": "1000",
    "max.compaction.lag.ms": "2000",
    "delete.retention.ms": "1000",
}
QUIET = {"log_level": 0}
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "idempotent": {"enable.idempotence": True, "compression.type": "zstd"},
    "transactional": {"transactional.id": "t", "compression.type": "lz4"},
}
_serial = itertools.count()

Record = tuple[int, bytes, bytes | None]


@dataclass
class Written:
    """A topic of one partition, and its acknowledged and committed records."""

    topic: str
    kind: str
    records: dict[int, tuple[bytes, bytes | None]] = field(default_factory=dict)  # by offset
    aborted: set[int] = field(default_factory=set)

    def newest(self) -> dict[bytes, tuple[int, bytes | None]]:
        """Offset and value by key."""
        return {key: (offset, value) for offset, (key, value) in sorted(self.records.items())}

    def live(self) -> dict[bytes, tuple[int, bytes | None]]:
        """Those of `newest` that are no tombstones."""
        return {key: found for key, found in self.newest().items() if found[1] is not None}


def new_topic(broker: BrokerProcess, **configs: str) -> str:
    topic = f"compacted-{next(_serial)}"
    admin = AdminClient({**QUIET, "bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config={**CONFIGS, **configs})])[topic].result(POLL_SECONDS)
    return topic


class Writer:
    """Updates of random keys by one producer; a third of the transactions are aborted."""

    def __init__(self, broker: BrokerProcess, written: Written, seed: int) -> None:
        options = {**QUIET, "bootstrap.servers": broker.bootstrap, "linger.ms": 5, "batch.num.messages": 100}
        options |= KINDS[written.kind]
        if "transactional.id" in options:
            options["transactional.id"] = written.topic
        self._producer = Producer(options)
        self._transactional = "transactional.id" in options
        if self._transactional:
            self._producer.init_transactions(POLL_SECONDS)
        self._written = written
        self._rng = random.Random(seed)
        self._numbers = itertools.count()

    def update(self, count: int) -> None:
        """Acknowledged, and committed or aborted."""
        for first in range(0, count, TRANSACTION_RECORDS):
            part = min(TRANSACTION_RECORDS, count - first)
            last = first + part >= count
            self._transaction([self._record() for _ in range(part)], not last and self._rng.random() < 0.3)

    def delete(self, count: int) -> None:
        """Tombstones for the first keys."""
        self._transaction([(b"key-%02d" % number, None) for number in range(count)], False)

    def _record(self) -> tuple[bytes, bytes]:
        number = next(self._numbers)
        return b"key-%02d" % self._rng.randrange(KEYS), b"%06d-" % number + self._rng.randbytes(20).hex().encode()

    def _transaction(self, records: list[tuple[bytes, bytes | None]], abort: bool) -> None:
        delivered: dict[int, tuple[bytes, bytes | None]] = {}

        def on_delivery(error: object, message: Message) -> None:
            assert error is None
            delivered[message.offset()] = message.key(), message.value()

        if self._transactional:
            self._producer.begin_transaction()
        for key, value in records:
            self._producer.produce(self._written.topic, value, key, partition=0, on_delivery=on_delivery)
        assert self._producer.flush(POLL_SECONDS) == 0
        assert len(delivered) == len(records)
        if self._transactional and abort:
            self._producer.abort_transaction(POLL_SECONDS)
            self._written.aborted |= delivered.keys()
            return
        if self._transactional:
            self._producer.commit_transaction(POLL_SECONDS)
        self._written.records |= delivered


def open_reader(broker: BrokerProcess, topic: str, isolation: str = COMMITTED, **options: Any) -> Consumer:
    consumer = Consumer({
        **QUIET, "bootstrap.servers": broker.bootstrap, "group.id": "reader", "enable.auto.commit": False,
        "enable.partition.eof": True, "isolation.level": isolation, **options,
    })  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    return consumer


def read_on(consumer: Consumer, count: int | None = None) -> Iterator[Record]:
    """So many records, or all up to the end; offsets ascend."""
    previous = -1
    while count is None or count > 0:
        message = consumer.poll(POLL_SECONDS)
        assert message is not None, "no record and no end"
        if message.error():
            return
        assert message.offset() > previous
        previous = message.offset()
        count = None if count is None else count - 1
        yield message.offset(), message.key(), message.value()


def read_all(broker: BrokerProcess, topic: str, isolation: str = COMMITTED) -> list[Record]:
    consumer = open_reader(broker, topic, isolation)
    try:
        return list(read_on(consumer))
    finally:
        consumer.close()


def check_compacted(broker: BrokerProcess, written: Written) -> list[Record]:
    """A new consumer gets the newest record of each live key at its offset, and few older ones."""
    found = read_all(broker, written.topic)
    assert {offset: (key, value) for offset, key, value in found}.items() <= written.records.items()
    assert {key: (offset, value) for offset, key, value in found if value is not None} == written.live()
    assert len(found) <= 2 * len(written.live())
    for offset, key, value in read_all(broker, written.topic, UNCOMMITTED):
        assert offset not in written.aborted
        assert written.records[offset] == (key, value)
    return found


def await_compacted(broker: BrokerProcess, written: Written) -> None:
    """Also of its tombstones."""
    live = len(written.live())
    until(
        lambda: (
            len(found := read_all(broker, written.topic)) <= 2 * live
            and all(value is not None for _, _, value in found)
        ),
        f"compacted {written.kind} topic",
    )


@pytest.fixture
def written(broker: BrokerProcess) -> list[Written]:
    """A topic of each kind of writer."""
    return [Written(new_topic(broker), kind) for kind in KINDS]


def fill(broker: BrokerProcess, topics: list[Written], updates: int = UPDATES) -> None:
    for seed, written in enumerate(topics):
        writer = Writer(broker, written, seed)
        writer.update(updates)
        writer.delete(TOMBSTONES)


def test_new_and_old_readers_see_the_compacted_records(broker: BrokerProcess, written: list[Written]) -> None:
    """With default cleaner settings and without a further append or flush; after a clean stop; after kill -9."""
    fill(broker, written)
    in_the_middle = [open_reader(broker, each.topic, **NO_HURRY) for each in written]
    begun = [list(read_on(consumer, READ_BEFORE)) for consumer in in_the_middle]
    assert [len(first) for first in begun] == [READ_BEFORE] * len(written)
    for each in written:
        await_compacted(broker, each)
    found = [check_compacted(broker, each) for each in written]
    for each, consumer, first in zip(written, in_the_middle, begun, strict=True):
        rest = list(read_on(consumer))
        consumer.close()
        assert not rest or rest[0][0] > first[-1][0]
        whole = {key: (offset, value) for offset, key, value in first + rest}
        assert all(written_at(each, record) for record in first + rest)
        live = {key: last for key, last in whole.items() if each.newest()[key][1] is not None}
        assert live == each.live()  # of a key that was deleted meanwhile it may have an old value, as in Kafka
    for end in (broker.stop, broker.kill):
        end()
        broker.start()
        assert [check_compacted(broker, each) for each in written] == found
    _check_other_readers(broker, written[1])


def written_at(written: Written, record: Record) -> bool:
    offset, key, value = record
    return written.records.get(offset) == (key, value)


def _check_other_readers(broker: BrokerProcess, written: Written) -> None:
    """Offsets by timestamp, and the command line."""
    consumer = open_reader(broker, written.topic)
    messages = []
    while not (message := consumer.poll(POLL_SECONDS)).error():
        messages.append(message)
    for at in (0, len(messages) // 2, len(messages) - 1):
        timestamp = messages[at].timestamp()[1]
        expected = next(each.offset() for each in messages if each.timestamp()[1] >= timestamp)
        (answer,) = consumer.offsets_for_times([TopicPartition(written.topic, 0, timestamp)], POLL_SECONDS)
        assert answer.offset == expected
    (first,) = consumer.offsets_for_times([TopicPartition(written.topic, 0, 0)], POLL_SECONDS)
    assert first.offset == messages[0].offset()
    consumer.close()
    run = subprocess.run(
        [sys.executable, "-m", "kbroker", "consume", written.topic, "--bootstrap", broker.bootstrap,
         "--until-end", "--json"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    offsets = [each.offset() for each in messages]
    assert [json.loads(line)["offset"] for line in run.stdout.splitlines()] == offsets
    tail = BrokerTail(broker.bootstrap)  # what a Spark query reads of the part that was not flushed when it was planned
    found = tail.batches((written.topic, 0), 0, max(offsets) + 1, read_committed=True)
    assert [
        record.offset for data, _ in found for _, batch in iter_batches(data) for record in iter_records(batch)
    ] == offsets
    tail.close()


def test_kills_during_compaction_lose_no_newest_value(broker: BrokerProcess, written: list[Written]) -> None:
    """Repeatedly, at any point of writing, flushing and compacting."""
    broker.stop()
    broker.start("--set", "log.cleaner.backoff.ms=50")
    rng = random.Random(7)
    for turn in range(4):
        for each in written:
            writer = Writer(broker, each, 100 * turn)
            writer.update(1_500)
        reads = rng.randrange(4)
        for each in written[:reads]:
            list(read_on(open_reader(broker, each.topic)))
        broker.kill()
        broker.start("--set", "log.cleaner.backoff.ms=50")
        for each in written:
            found = read_all(broker, each.topic)
            assert all(written_at(each, record) for record in found)
            assert {key: (offset, value) for offset, key, value in found} == each.newest()
    for each in written:
        Writer(broker, each, 1).delete(TOMBSTONES)
        await_compacted(broker, each)
        check_compacted(broker, each)
