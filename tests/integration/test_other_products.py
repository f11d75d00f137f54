"""klite starts on what kbroker exports, serves it and goes on with it; kbroker takes that back."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import other_products
import pytest
from broker_process import BrokerProcess
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from conftest import SMALL, Store, bucket_store
from s3_server import BUCKET, S3Server

pytestmark = [pytest.mark.s3, pytest.mark.slow]

ORDERS, LARGE, EMPTIED, MANY = "sales", "large", "emptied", "many"
PARTITIONS = {ORDERS: 3, LARGE: 1, EMPTIED: 1, MANY: 1}  # the last partition of the first stays empty
GROUP, COMMITTED = "readers", [100, 101, 0]
LOG_START = 37
BATCHES = 2_500  # of one record: more index entries than klite reads in one tail
QUIET = {"log_level": 0}

Row = tuple[int, int, int, bytes | None, bytes | None, object]


def rows(bootstrap: str, topic: str, isolation: str = "read_uncommitted") -> list[Row]:
    """(partition, offset, timestamp, key, value, headers) of all that a consumer gets."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "x", "isolation.level": isolation, "enable.partition.eof": True,
         "enable.auto.commit": False, "auto.offset.reset": "error", "check.crcs": True, **QUIET}
    )  # fmt: skip
    places = [TopicPartition(topic, partition) for partition in range(PARTITIONS[topic])]
    for place in places:
        place.offset = consumer.get_watermark_offsets(place, timeout=30)[0]
    consumer.assign(places)
    found: list[Row] = []
    ended: set[int] = set()
    while len(ended) < len(places):
        message = consumer.poll(30)
        assert message is not None, f"no answer behind {found[-1][:2] if found else 'nothing'}"
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ended.add(message.partition())
            continue
        place = message.partition(), message.offset(), message.timestamp()[1]
        found.append((*place, message.key(), message.value(), message.headers()))
    consumer.close()
    return sorted(found, key=lambda row: row[:2])


def watermarks(bootstrap: str, topic: str) -> list[tuple[int, int]]:
    """(log start, end) of each partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "x", **QUIET})
    found = [
        consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
        for partition in range(PARTITIONS[topic])
    ]
    consumer.close()
    return found


def produce(bootstrap: str, topic: str, records: int, size: int, codec: str = "none", **options: object) -> None:
    """Records with keys, null values and headers in turn over all partitions but an empty last one."""
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, **QUIET, **options})
    failed: list[object] = []
    for n in range(records):
        value = None if n % 100 == 99 else bytes(size) + str(n).encode()
        producer.produce(
            topic, value, f"{codec}-{n}" if n % 7 else None, n % max(1, PARTITIONS[topic] - 1),
            timestamp=1_700_000_000_000 + n, headers=[("h", b"\0x"), ("n", None)],
            on_delivery=lambda error, message: failed.append(error) if error else None,
        )  # fmt: skip
        producer.poll(0)
    assert producer.flush(60) == 0
    assert failed == []


def transact(bootstrap: str) -> None:
    """Two transactions over two partitions: one is aborted, one committed."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t", **QUIET})
    producer.init_transactions(60)
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for index in range(10):
            producer.produce(ORDERS, f"{end.__name__} {index}", partition=index % 2)
        assert producer.flush(30) == 0
        end(30)


def kbroker(store: Store, *arguments: str, code: int = 0) -> str:
    """Runs a command; what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "kbroker", *arguments, *store.options], capture_output=True, text=True, timeout=120,
        env={**os.environ, **store.environ},
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@dataclass(frozen=True)
class Source:
    """A stopped kbroker's cluster, and what its clients read from it."""

    store: Store
    rows: dict[str, list[Row]] = field(default_factory=dict)
    watermarks: dict[str, list[tuple[int, int]]] = field(default_factory=dict)


@pytest.fixture(scope="module")
def source(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    source = Source(bucket_store(s3))
    broker = BrokerProcess(
        tmp_path_factory.mktemp("source") / "data", *source.store.options, *SMALL, environ=source.store.environ
    )
    try:
        broker.start()
        fill(broker)
        for topic in PARTITIONS:
            source.rows[topic] = rows(broker.bootstrap, topic)
            source.watermarks[topic] = watermarks(broker.bootstrap, topic)
        assert broker.stop() == 0
        yield source
    finally:
        broker.kill()


def fill(broker: BrokerProcess) -> None:
    bootstrap = broker.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    for future in admin.create_topics([NewTopic(name, count, 1) for name, count in PARTITIONS.items()]).values():
        future.result(30)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        produce(
            bootstrap, ORDERS, 300, 1_500, codec, **{"enable.idempotence": True, "linger.ms": 5,
            "batch.num.messages": 50},
        )  # fmt: skip
        broker.flush()
    transact(bootstrap)
    produce(bootstrap, LARGE, 8, 900_000, **{"batch.num.messages": 1})
    produce(bootstrap, EMPTIED, 10, 10)
    produce(bootstrap, MANY, BATCHES, 10, **{"batch.num.messages": 1})
    broker.flush()
    starts = {TopicPartition(ORDERS, 0, LOG_START): LOG_START, TopicPartition(EMPTIED, 0, 10): 10}
    for place, future in admin.delete_records(list(starts)).items():
        assert future.result(30).low_watermark == starts[place]
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, **QUIET})
    offsets = [TopicPartition(ORDERS, partition, offset) for partition, offset in enumerate(COMMITTED)]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def assert_goes_on(before: list[Row], after: list[Row]) -> None:
    """All of `before`, and 200 records behind it, with offsets that follow."""
    for partition in {row[0] for row in after}:
        old, new = ([row for row in rows if row[0] == partition] for rows in (before, after))
        assert new[: len(old)] == old
        added = [row[1] for row in new[len(old) :]]
        assert added == list(range(added[0], added[0] + len(added)))
        assert not old or added[0] > old[-1][1]
    assert len(after) == len(before) + 200


def committed(bootstrap: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, **QUIET})
    found = consumer.committed([TopicPartition(ORDERS, partition) for partition in range(3)], timeout=30)
    consumer.close()
    return [item.offset for item in found]


def serve(store: Store, folder: Path) -> BrokerProcess:
    return BrokerProcess(folder / "data", *store.options, *SMALL, environ=store.environ).start()


def needs(*programs: str) -> pytest.MarkDecorator:
    """They are not fetched, in CI neither: whoever has them names them."""
    reason = other_products.missing(*programs)
    return pytest.mark.skipif(bool(reason), reason=reason)


@needs(other_products.KLITE)
def test_klite(source: Source, s3: S3Server, tmp_path: Path) -> None:
    prefix = "for-klite"
    kbroker(source.store, "export", "klite", *PARTITIONS, f"s3://{BUCKET}/{prefix}", "--klite-cluster-id", "theirs")
    with other_products.klite(s3, tmp_path, prefix, "theirs") as server:
        for topic in PARTITIONS:
            assert watermarks(server.bootstrap, topic) == source.watermarks[topic], topic
            assert rows(server.bootstrap, topic) == source.rows[topic], topic
        assert committed(server.bootstrap) == COMMITTED
        for topic in PARTITIONS:
            produce(server.bootstrap, topic, 200, 100, "lz4", **{"enable.idempotence": True})
        found = {topic: rows(server.bootstrap, topic) for topic in PARTITIONS}
        server.stop()
    for topic in PARTITIONS:
        assert_goes_on(source.rows[topic], found[topic])
    back = bucket_store(s3)
    data_dir = str(tmp_path / "data")
    kbroker(back, "import", "klite", f"s3://{BUCKET}/{prefix}", "--cluster-id", "theirs", "--data-dir", data_dir)
    assert "no faults" in kbroker(back, "object", "verify")
    broker = serve(back, tmp_path)
    try:
        for topic in PARTITIONS:
            assert rows(broker.bootstrap, topic) == found[topic]
        assert committed(broker.bootstrap) == COMMITTED
    finally:
        broker.kill()
