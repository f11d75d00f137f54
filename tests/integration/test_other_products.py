"""klite and KafScale start on what kbroker exports, serve it and append to it; kbroker imports the result."""

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
from kafka import KafkaConsumer
from kafka import TopicPartition as Place
from s3_server import BUCKET, S3Server

pytestmark = [pytest.mark.s3, pytest.mark.slow]

ORDERS, LARGE, EMPTIED, MANY, SEGMENTS = "sales", "large", "emptied", "many", "segments"
PARTITIONS = {ORDERS: 3, LARGE: 1, EMPTIED: 1, MANY: 1, SEGMENTS: 3}  # the last ones of three stay empty
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
GROUP, COMMITTED = "readers", [100, 101, 0]
LOG_START = 37
BATCHES = 2_500  # of one record: more index entries than klite reads in one tail
QUIET = {"log_level": 0}

Row = tuple[int, int, int, bytes | None, bytes | None, object]


def rows(bootstrap: str, topic: str, partitions: int | None = None) -> list[Row]:
    """(partition, offset, timestamp, key, value, headers) of all that a consumer gets."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "x", "isolation.level": "read_uncommitted",
         "enable.partition.eof": True, "enable.auto.commit": False, "auto.offset.reset": "error", "check.crcs": True,
         **QUIET}
    )  # fmt: skip
    places = [TopicPartition(topic, partition) for partition in range(partitions or PARTITIONS[topic])]
    for place in places:
        place.offset = consumer.get_watermark_offsets(place, timeout=30)[0]
    consumer.assign(places)
    found: list[Row] = []
    ended: set[int] = set()
    while len(ended) < len(places):
        message = consumer.poll(30)
        assert message is not None, f"no answer after {found[-1][:2] if found else 'nothing'}"
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ended.add(message.partition())
            continue
        place = message.partition(), message.offset(), message.timestamp()[1]
        found.append((*place, message.key(), message.value(), message.headers()))
    consumer.close()
    return sorted(found, key=lambda row: row[:2])


def rows_of_kafscale(bootstrap: str, topic: str, **options: object) -> list[Row]:
    """The same, by another client. It never fetches at the end of a log: null records there are an error to many."""
    found: list[Row] = []
    for partition, (start, end) in enumerate(watermarks(bootstrap, topic)):
        consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="none", **options)
        place = Place(topic, partition)
        consumer.assign([place])
        consumer.seek(place, start)
        silent = 0
        while consumer.position(place) < end:
            messages = consumer.poll(10_000).get(place, [])
            silent = 0 if messages else silent + 1
            assert silent < 3, f"no answer after {found[-1][:2] if found else 'nothing'}"
            for message in messages:
                at = partition, message.offset, message.timestamp
                found.append((*at, message.key, message.value, list(message.headers) or None))
        consumer.close()
    return found


def watermarks(bootstrap: str, topic: str, partitions: int | None = None) -> list[tuple[int, int]]:
    """(log start, end) of each partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "x", **QUIET})
    found = [
        consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
        for partition in range(partitions or PARTITIONS[topic])
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


def create_topics(bootstrap: str, partitions: dict[str, int]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    configs = {SEGMENTS: {"kbroker.object.format": "kfs"}}  # KafScale skips keys that it does not know
    topics = [NewTopic(name, count, 1, config=configs.get(name, {})) for name, count in partitions.items()]
    for future in admin.create_topics(topics).values():
        future.result(30)


def fill(broker: BrokerProcess) -> None:
    bootstrap = broker.bootstrap
    create_topics(bootstrap, PARTITIONS)
    for codec in CODECS:
        for topic in (ORDERS, SEGMENTS):
            produce(
                bootstrap, topic, 1_500, 500, codec, **{"enable.idempotence": True, "linger.ms": 5,
                "batch.num.messages": 50},
            )  # fmt: skip
        broker.flush()
    transact(bootstrap)
    produce(bootstrap, LARGE, 8, 900_000, **{"batch.num.messages": 1})
    produce(bootstrap, EMPTIED, 10, 10)
    produce(bootstrap, MANY, BATCHES, 10, **{"batch.num.messages": 1})
    broker.flush()
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    starts = {TopicPartition(ORDERS, 0, LOG_START): LOG_START, TopicPartition(EMPTIED, 0, 10): 10}
    for place, future in admin.delete_records(list(starts)).items():
        assert future.result(30).low_watermark == starts[place]
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, **QUIET})
    offsets = [TopicPartition(ORDERS, partition, offset) for partition, offset in enumerate(COMMITTED)]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def assert_goes_on(before: list[Row], after: list[Row]) -> None:
    """All of `before`, and 200 records after it, with consecutive offsets."""
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
    """They are not fetched, not in CI either: they are named where they are installed."""
    reason = other_products.missing(*programs)
    return pytest.mark.skipif(bool(reason), reason=reason)


@needs(other_products.KLITE)
def test_klite_serves_an_export_and_is_imported_again(source: Source, s3: S3Server, tmp_path: Path) -> None:
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
            assert rows(broker.bootstrap, topic) == found[topic], topic
            produce(broker.bootstrap, topic, 200, 100, "zstd", **{"enable.idempotence": True})
            assert_goes_on(found[topic], rows(broker.bootstrap, topic))
        assert committed(broker.bootstrap) == COMMITTED
    finally:
        broker.kill()


@needs(other_products.KAFSCALE, other_products.ETCD)
def test_kafscale_serves_an_export_and_is_imported_again(source: Source, s3: S3Server, tmp_path: Path) -> None:
    """Its logs begin with a batch, and where nothing is left, at 0: its layout has no other place for log starts."""
    topics = {name: count for name, count in PARTITIONS.items() if name != EMPTIED}
    s3.create_bucket("for-kafscale")
    kbroker(source.store, "export", "kafscale", *topics, "s3://for-kafscale", "--namespace", "theirs")
    with other_products.kafscale(s3, tmp_path, "for-kafscale", "theirs") as server:
        create_topics(server.bootstrap, topics)
        before = {topic: read_of_kafscale(server.bootstrap, source, topic) for topic in topics}
        for topic in topics:
            for codec in CODECS:
                produce(server.bootstrap, topic, 200 // len(CODECS), 100, codec)
        found = {topic: rows_of_kafscale(server.bootstrap, topic) for topic in topics}
        ends = {topic: watermarks(server.bootstrap, topic) for topic in topics}
        server.stop()
    for topic in topics:
        assert_goes_on(before[topic], found[topic])
    back = bucket_store(s3)
    data_dir = str(tmp_path / "data")
    kbroker(back, "import", "kafscale", "s3://for-kafscale", "--namespace", "theirs", "--data-dir", data_dir)
    assert "no faults" in kbroker(back, "object", "verify")
    broker = serve(back, tmp_path)
    try:
        for topic, count in topics.items():
            filled = count if count == 1 else count - 1  # the empty one has nothing in the bucket that names it
            assert watermarks(broker.bootstrap, topic, filled) == ends[topic][:filled], topic
            assert rows(broker.bootstrap, topic, filled) == found[topic], topic
            produce(broker.bootstrap, topic, 200, 100, "zstd", **{"enable.idempotence": True})
            assert_goes_on(found[topic], rows(broker.bootstrap, topic, filled))
    finally:
        broker.kill()


@needs(other_products.KAFSCALE, other_products.ETCD)
def test_kafscale_reads_a_topic_that_a_broker_writes(source: Source, s3: S3Server, tmp_path: Path) -> None:
    """It reads a topic in its format where the broker put it."""
    prefix = source.store.options[1].removeprefix(f"s3://{BUCKET}/")
    (root,) = (s3.folder / BUCKET / prefix).glob("kbroker-*")
    with other_products.kafscale(s3, tmp_path, BUCKET, f"{prefix}/{root.name}") as server:
        create_topics(server.bootstrap, {SEGMENTS: PARTITIONS[SEGMENTS]})
        read_of_kafscale(server.bootstrap, source, SEGMENTS)


def read_of_kafscale(bootstrap: str, source: Source, topic: str) -> list[Row]:
    """All its records of a topic: the source's, from the first batch of the first segment on."""
    assert [end for _, end in watermarks(bootstrap, topic)] == [end for _, end in source.watermarks[topic]], topic
    found = rows_of_kafscale(bootstrap, topic)
    starts = [start for start, _ in source.watermarks[topic]]
    assert [row for row in found if row[1] >= starts[row[0]]] == source.rows[topic], topic
    return found
