"""Imports a stopped Apache Kafka's log folder, and exports topics to a folder on which Kafka starts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import java_tools
import pytest
from broker_process import BrokerProcess
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from conftest import ON_A_FOLDER, SMALL, Store
from kafka_server import KafkaServer
from tool_shell import SHELL

pytestmark = [pytest.mark.java, pytest.mark.skipif(bool(java_tools.missing()), reason=java_tools.missing())]

TOPIC, PARTITIONS = "orders", 2
GROUP = "readers"
TRANSACTIONAL_ID = "open-at-the-end"
CONFIGS = {"segment.bytes": "1048576", "retention.ms": "-1", "max.message.bytes": "900000"}
NOT_TAKEN = {"remote.storage.enable": "false"}
QUIET = {"log_level": 0}
LONG_MS = 900_000  # the most that Kafka allows: no transaction times out while the tests run

Row = tuple[int, int, tuple[int, int], bytes | None, bytes | None, object]


def rows(bootstrap: str, isolation: str = "read_uncommitted", topic: str = TOPIC) -> list[Row]:
    """Everything in the topic by partition and offset."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "x", "isolation.level": isolation, "enable.partition.eof": True,
         "enable.auto.commit": False, **QUIET}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: list[Row] = []
    ends = 0
    while ends < PARTITIONS:
        message = consumer.poll(30)
        assert message is not None, "no answer"
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ends += 1
            continue
        found.append(
            (
                message.partition(),
                message.offset(),
                message.timestamp(),
                message.key(),
                message.value(),
                message.headers(),
            )
        )
    consumer.close()
    return sorted(found, key=lambda row: row[:2])


def committed(bootstrap: str) -> list[int]:
    """The group's committed offsets."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, **QUIET})
    found = consumer.committed([TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)], timeout=30)
    consumer.close()
    return [item.offset for item in found]


def commit(bootstrap: str) -> None:
    """Commits 100 and 101. A new coordinator may not know the topic yet."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, **QUIET})
    for tried in range(100):
        try:
            consumer.commit(offsets=[TopicPartition(TOPIC, p, 100 + p) for p in range(PARTITIONS)], asynchronous=False)
            break
        except KafkaException:
            assert tried < 99
            consumer.poll(0.1)
    consumer.close()


def fill(bootstrap: str) -> Producer:
    """All codecs, keys, null values, headers, transactions; the last transaction stays open with its producer."""
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = Producer(
            {"bootstrap.servers": bootstrap, "compression.type": codec, "enable.idempotence": True, "linger.ms": 5,
             "batch.num.messages": 50, **QUIET}
        )  # fmt: skip
        for n in range(2_000 if codec == "none" else 300):
            value = None if n % 100 == 99 else bytes(1_500) + str(n).encode()
            key = f"{codec}-{n}" if n % 7 else None
            producer.produce(
                TOPIC, value, key, n % PARTITIONS, timestamp=1_700_000_000_000 + n, headers=[("h", b"\0x")]
            )
        assert producer.flush(30) == 0
    producer = transactional(bootstrap)
    for n in range(6):
        producer.begin_transaction()
        for index in range(10):
            producer.produce(TOPIC, f"transaction {n} record {index}", partition=index % PARTITIONS)
        assert producer.flush(30) == 0
        if n == 5:
            break
        if n % 2:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    return producer


def transactional(bootstrap: str) -> Producer:
    """Of the one transactional id; aborts the transaction that its last owner left open."""
    options = {"transactional.id": TRANSACTIONAL_ID, "transaction.timeout.ms": LONG_MS, **QUIET}
    producer = Producer({"bootstrap.servers": bootstrap, **options})
    producer.init_transactions(60)
    return producer


@dataclass(frozen=True)
class Source:
    """A Kafka's folder after a clean stop, and what its clients read from it."""

    folder: Path
    rows: list[Row]
    committed_rows: list[Row]
    committed: list[int]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    server = KafkaServer(tmp_path_factory.mktemp("kafka") / "logs").start()
    try:
        admin = AdminClient({"bootstrap.servers": server.bootstrap, **QUIET})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, config=CONFIGS | NOT_TAKEN)])[TOPIC].result(60)
        producer = fill(server.bootstrap)
        commit(server.bootstrap)
        found = rows(server.bootstrap), rows(server.bootstrap, "read_committed")
        offsets = committed(server.bootstrap)
        data_dir = str(tmp_path_factory.mktemp("refused") / "data")
        assert "a Kafka runs on" in kbroker(
            "import", "kafka-log", str(server.log_folder), "--data-dir", data_dir, code=1
        )
        server.stop()
        del producer
        return Source(server.log_folder, *found, offsets)
    finally:
        server.kill()


def kbroker(*arguments: str, environ: dict[str, str] | None = None, code: int = 0) -> str:
    """Runs a command; what it printed."""
    import os

    done = subprocess.run(
        [sys.executable, "-m", "kbroker", *arguments], capture_output=True, text=True, timeout=120,
        env={**os.environ, **(environ or {})},
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def imported(source: Source, store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A stopped broker on the imported cluster, which has not run before."""
    data_dir = tmp_path_factory.mktemp(f"imported-{store.kind}") / "data"
    output = kbroker(
        "import", "kafka-log", str(source.folder), "--data-dir", str(data_dir), *store.options, environ=store.environ
    )
    assert "__consumer_offsets, __transaction_state: as they were" in output
    process = BrokerProcess(data_dir, *store.options, *SMALL, environ=store.environ)
    yield process
    process.kill()


def log_bytes(folder: Path, partition: int, topic: str = TOPIC) -> bytes:
    """The batches of all segments of a partition."""
    return b"".join(path.read_bytes() for path in sorted((folder / f"{topic}-{partition}").glob("*.log")))


def test_an_imported_kafka_log_is_served(source: Source, store: Store, imported: BrokerProcess) -> None:
    assert len(source.committed_rows) < len(source.rows)
    assert "no faults" in kbroker("object", "verify", *store.options, environ=store.environ)
    imported.start()
    assert rows(imported.bootstrap) == source.rows
    assert rows(imported.bootstrap, "read_committed") == source.committed_rows
    assert committed(imported.bootstrap) == source.committed == [100, 101]
    admin = AdminClient({"bootstrap.servers": imported.bootstrap, **QUIET})
    resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC)
    described = admin.describe_configs([resource])[resource].result(30)
    assert {name: described[name].value for name in CONFIGS} == CONFIGS
    refused = kbroker(
        "import", "kafka-log", str(source.folder), "--data-dir", str(imported.data_dir), *store.options,
        environ=store.environ, code=1,
    )  # fmt: skip
    assert "already runs on" in refused
    assert imported.stop() == 0


def test_a_round_trip_keeps_batches_byte_for_byte(
    source: Source, store: Store, imported: BrokerProcess, tmp_path: Path
) -> None:
    out = tmp_path / "logs"
    topics = (TOPIC, "__consumer_offsets", "__transaction_state")
    kbroker("export", "kafka-log", *topics, str(out), *store.options, environ=store.environ)
    for partition in range(PARTITIONS):
        assert log_bytes(out, partition) == log_bytes(source.folder, partition)
        assert len(list((out / f"{TOPIC}-{partition}").glob("*.log"))) > 1
    again = kbroker("export", "kafka-log", TOPIC, str(out), *store.options, environ=store.environ, code=1)
    assert "is not empty" in again


@ON_A_FOLDER
def test_dump_log_segments_finds_no_fault_in_an_export(store: Store, imported: BrokerProcess, tmp_path: Path) -> None:
    out = tmp_path / "logs"
    kbroker("export", "kafka-log", TOPIC, str(out), *store.options, environ=store.environ)
    folders = [out / f"{TOPIC}-{partition}" for partition in range(PARTITIONS)]
    kinds = ("*.log", "*.snapshot", "*.txnindex")
    files = ",".join(str(path) for folder in folders for kind in kinds for path in sorted(folder.glob(kind)))
    dumped = SHELL.run("DumpLogSegments", "--files", files, "--deep-iteration").output
    assert "isvalid: false" not in dumped
    assert "Found" not in dumped
    assert "Non-consecutive" not in dumped
    indexes = [path for folder in folders for path in sorted([*folder.glob("*.index"), *folder.glob("*.timeindex")])]
    assert all(path.stat().st_size for path in indexes if path.name.startswith("0" * 20))
    names = ",".join(map(str, indexes))
    for option in ("--index-sanity-check", "--verify-index-only"):
        checked = SHELL.run("DumpLogSegments", "--files", names, option).output
        for word in ("ismatch", "ndexed offset", "Found timestamp", "out of order", "not found", "Exception"):
            assert word not in checked, checked[-2000:]
    assert dumped.count("producerId: ") >= 8
    assert "currentTxnFirstOffset: OptionalLong[" in dumped or "currentTxnFirstOffset: Some(" in dumped


@ON_A_FOLDER
def test_kafka_starts_on_an_export(source: Source, store: Store, imported: BrokerProcess, tmp_path: Path) -> None:
    """First on a whole folder with a clean-stop marker, so that it trusts indexes and snapshots; then, with a topic of
    the same name and another id, on partitions that were moved in, of which it checks every batch."""
    out = tmp_path / "logs"
    topics = (TOPIC, "__consumer_offsets", "__transaction_state")
    kbroker("export", "kafka-log", *topics, str(out), *store.options, environ=store.environ)
    assert (out / ".kafka_cleanshutdown").exists()
    server = KafkaServer(out).start()
    try:
        assert rows(server.bootstrap) == source.rows
        assert rows(server.bootstrap, "read_committed") == source.committed_rows
        assert committed(server.bootstrap) == source.committed
        before = len(source.committed_rows)
        producer = transactional(server.bootstrap)  # aborts what was open
        producer.begin_transaction()
        producer.produce(TOPIC, b"goes on", partition=0)
        producer.commit_transaction(30)
        assert len(rows(server.bootstrap, "read_committed")) == before + 1
        del producer
        recreate_topic(server)
        server.stop()
        move_in(store, server.log_folder, tmp_path / "out")
        server.start()
        assert rows(server.bootstrap) == source.rows
        server.stop()
    finally:
        server.kill()


def recreate_topic(server: KafkaServer) -> None:
    """Deletes the topic and creates it again: it gets another id."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap, **QUIET})
    admin.delete_topics([TOPIC])[TOPIC].result(60)
    for tried in range(100):
        try:
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, config=CONFIGS)])[TOPIC].result(60)
            break
        except KafkaException:  # it is still being deleted
            assert tried < 99
            admin.poll(0.1)
    assert rows(server.bootstrap) == []


def move_in(store: Store, log_folder: Path, out: Path) -> None:
    """Replaces partitions of a stopped Kafka by exported ones."""
    kbroker(
        "export", "kafka-log", TOPIC, str(out), "--ids-from", str(log_folder), *store.options, environ=store.environ
    )
    assert sorted(path.name for path in out.iterdir()) == [f"{TOPIC}-{p}" for p in range(PARTITIONS)]
    for partition in range(PARTITIONS):
        there, moved = log_folder / f"{TOPIC}-{partition}", out / f"{TOPIC}-{partition}"
        assert (moved / "partition.metadata").read_text() == (there / "partition.metadata").read_text()
        shutil.rmtree(there)
        moved.rename(there)
    (log_folder / ".kafka_cleanshutdown").unlink()


@ON_A_FOLDER
def test_an_imported_open_transaction_ends_and_its_producer_continues(
    source: Source, imported: BrokerProcess, tmp_path: Path
) -> None:
    imported.start()
    producer = transactional(imported.bootstrap)  # aborts what Kafka's last owner of the id left open
    producer.begin_transaction()
    producer.produce(TOPIC, b"goes on", partition=1)
    producer.commit_transaction(30)
    found = rows(imported.bootstrap, "read_committed")
    assert found[: len(source.committed_rows)] != found
    assert [row[4] for row in found if row not in source.committed_rows] == [b"goes on"]
    assert imported.stop() == 0


@ON_A_FOLDER
def test_committed_offsets_are_imported_with_chosen_topics(source: Source, store: Store, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    output = kbroker("import", "kafka-log", str(source.folder), "--topic", TOPIC, "--data-dir", str(data_dir))
    assert f"{PARTITIONS} committed offsets" in output
    assert "have no coordinator here" in output
    process = BrokerProcess(data_dir, *SMALL).start()
    try:
        assert committed(process.bootstrap) == source.committed
        assert process.stop() == 0
    finally:
        process.kill()
    assert "no faults" in kbroker("object", "verify", "--object-store", f"file:{data_dir / 'objects'}")
