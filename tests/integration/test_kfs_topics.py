"""Topics in KafScale's format: written by a client, read from the bucket without the disk, deleted and recreated."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from broker_process import BrokerProcess
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from conftest import SMALL, Store, bucket_store, folder_store
from until import until

SECONDS = 30.0
QUIET = {"log_level": 0}
TOPIC, PARTITIONS = "segments", 2
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
KFS = {"kbroker.object.format": "kfs"}

Row = tuple[int, int, tuple[int, int], bytes | None, bytes | None, object]


def admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient({**QUIET, "bootstrap.servers": broker.bootstrap})


def create(broker: BrokerProcess, name: str, partitions: int, **configs: str) -> None:
    topic = NewTopic(name, partitions, 1, config={**KFS, **configs})
    client = admin(broker)  # its requests end with it
    client.create_topics([topic])[name].result(SECONDS)


def fill(broker: BrokerProcess) -> None:
    """All codecs, null values, headers, a committed and an aborted transaction."""
    for codec in CODECS:
        producer = Producer(
            {**QUIET, "bootstrap.servers": broker.bootstrap, "compression.type": codec, "enable.idempotence": True,
             "batch.num.messages": 20}
        )  # fmt: skip
        for n in range(200):
            value = None if n % 50 == 49 else bytes(400) + str(n).encode()
            key = f"{codec}-{n}"
            producer.produce(
                TOPIC, value, key, n % PARTITIONS, timestamp=1_700_000_000_000 + n, headers=[("h", b"\0x")]
            )
        assert producer.flush(SECONDS) == 0
    producer = Producer({**QUIET, "bootstrap.servers": broker.bootstrap, "transactional.id": "kfs"})
    producer.init_transactions(SECONDS)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for n in range(10):
            producer.produce(TOPIC, f"{end.__name__}-{n}", partition=n % PARTITIONS)
        producer.flush(SECONDS)
        end(SECONDS)


def rows(
    broker: BrokerProcess, topic: str = TOPIC, partitions: int = PARTITIONS, isolation: str = "read_committed"
) -> list[Row]:
    """Everything in the topic by partition and offset."""
    consumer = Consumer(
        {**QUIET, "bootstrap.servers": broker.bootstrap, "group.id": "x", "isolation.level": isolation,
         "enable.partition.eof": True, "enable.auto.commit": False}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found: list[Row] = []
    ends = 0
    while ends < partitions:
        message = consumer.poll(SECONDS)
        assert message is not None, "no answer"
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ends += 1
            continue
        found.append(
            (message.partition(), message.offset(), message.timestamp(), message.key(), message.value(),
             message.headers())
        )  # fmt: skip
    consumer.close()
    return sorted(found, key=lambda row: row[:2])


def objects(store: Store, *arguments: str) -> tuple[int, list[str]]:
    """Exit code and lines of a `kbroker object` command."""
    run = subprocess.run(
        [sys.executable, "-m", "kbroker", "object", *arguments, *store.options],
        env={**os.environ, **store.environ}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert run.returncode == 0 or not run.stderr, run.stderr  # `ls` says the sum there
    return run.returncode, run.stdout.splitlines()


def keys(store: Store, topic: str) -> list[str]:
    """Keys below the root of everything under the name of a topic."""
    code, lines = objects(store, "ls", "--topic", topic)
    assert code == 0
    return [line.partition("\t")[0] for line in lines]


def delete(store: Store, key: str) -> None:
    """Directly, without a broker."""
    from kbroker.cli.offline.bucket import Bucket, Place

    options = dict(zip(store.options[::2], store.options[1::2], strict=True))
    before = dict(os.environ)
    os.environ.update(store.environ)
    try:
        bucket = Bucket(Place(options["--object-store"], options.get("--s3-endpoint"), None, None))
        bucket.store.delete([bucket.full_key(key)])
        bucket.store.close()
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture
def own_store(store: Store, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """An empty store of the same kind."""
    return bucket_store(request.getfixturevalue("s3")) if store.kind == "s3" else folder_store(tmp_path_factory)


def test_records_are_read_from_the_bucket_without_the_disk(own_store: Store, tmp_path: Path) -> None:
    store = own_store
    broker = BrokerProcess(tmp_path / "data", *store.options, *SMALL, environ=store.environ).start()
    try:
        create(broker, TOPIC, PARTITIONS)
        fill(broker)
        broker.flush()
        fill(broker)  # the stop flushes these
        committed, all_rows = rows(broker), rows(broker, isolation="read_uncommitted")
        assert len(committed) == 2 * (200 * len(CODECS) + 10)
        assert len(all_rows) == len(committed) + 20
        assert broker.stop() == 0

        segments = [key for key in keys(store, TOPIC) if key.endswith(".kfs")]
        assert sorted(keys(store, TOPIC)) == sorted([*segments, *(key[:-4] + ".index" for key in segments)])
        assert f"{TOPIC}/0/segment-{0:020d}.kfs" in segments
        code, lines = objects(store, "verify")
        assert code == 0, lines
        assert lines[-1].endswith("no faults")
        assert not [line for line in lines if line.startswith("note")]
        assert len(objects(store, "cat", segments[0])[1]) > 100
        assert "created" in objects(store, "show", segments[0])[1][0]
        assert "entries" in objects(store, "show", segments[0][:-4] + ".index")[1][0]

        shutil.rmtree(broker.data_dir)
        broker.start("--take-over")
        assert rows(broker) == committed
        assert rows(broker, isolation="read_uncommitted") == all_rows

        delete(store, segments[0][:-4] + ".index")
        code, lines = objects(store, "verify")
        assert code == 1
        assert [line for line in lines if f"{segments[0][:-4]}.index" in line]
        broker.kill()
        shutil.rmtree(broker.data_dir)
        broker.start("--take-over")
        assert rows(broker) == committed  # the index is not needed

        delete(store, segments[0])
        code, lines = objects(store, "verify")
        assert code == 1
        assert [
            line
            for line in lines
            if line.endswith(f"{segments[0]}: the manifest names it, the bucket does not have it")
        ]
    finally:
        broker.kill()


def test_a_topic_name_is_free_once_its_objects_are_deleted(store: Store, broker: BrokerProcess) -> None:
    name = "again"
    for value in ("first", "second"):
        create_when_free(broker, name)
        producer = Producer({**QUIET, "bootstrap.servers": broker.bootstrap})
        producer.produce(name, value)
        assert producer.flush(SECONDS) == 0
        broker.flush()
        assert keys(store, name) == [f"{name}/0/segment-{0:020d}.index", f"{name}/0/segment-{0:020d}.kfs"]
        assert [row[4] for row in rows(broker, name, 1)] == [value.encode()]
        client = admin(broker)
        client.delete_topics([name])[name].result(SECONDS)
    create_when_free(broker, name)
    assert keys(store, name) == []


def create_when_free(broker: BrokerProcess, name: str) -> None:
    """The objects of a deleted topic are deleted at once, but the name is free only after that."""

    def created() -> bool:
        error = refusal(broker, name)
        if error is not None:
            assert error.code() == KafkaError.TOPIC_ALREADY_EXISTS
            assert name in error.str()
        return error is None

    until(created, f"topic {name}", seconds=SECONDS)


def refusal(broker: BrokerProcess, name: str) -> KafkaError | None:
    try:
        create(broker, name, 1)
    except KafkaException as error:
        return error.args[0]
    return None


def test_the_format_is_fixed_at_creation_and_is_not_for_compacted_topics(broker: BrokerProcess) -> None:
    with pytest.raises(KafkaException) as raised:
        create(broker, "compacted", 1, **{"cleanup.policy": "compact"})
    assert raised.value.args[0].code() == KafkaError.INVALID_CONFIG
    create(broker, "fixed", 1)
    client = admin(broker)
    for entry in (("kbroker.object.format", "klix"), ("cleanup.policy", "compact")):
        resource = ConfigResource(
            ConfigResource.Type.TOPIC,
            "fixed",
            incremental_configs=[ConfigEntry(*entry, incremental_operation=AlterConfigOpType.SET)],
        )
        with pytest.raises(KafkaException) as raised:
            client.incremental_alter_configs([resource])[resource].result(SECONDS)
        assert raised.value.args[0].code() == KafkaError.INVALID_CONFIG
