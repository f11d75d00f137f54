"""kbroker.durability=object with a real client: codecs, transactions, groups, an empty disk, switches at run time."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from broker_process import BrokerProcess
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from conftest import SMALL, Store

SECONDS = 30.0
QUIET = {"log_level": 0}
PARTITIONS = 3
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
OBJECT = {"kbroker.durability": "object"}
GROUP = "readers"


@pytest.fixture
def running(store: Store, tmp_path: Path):
    """A broker that does not flush by age or size."""
    broker = BrokerProcess(
        tmp_path / "data", *store.options, *SMALL, "--flush-seconds", "3600", "--take-over", environ=store.environ
    ).start()
    yield broker
    broker.kill()


def admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient({**QUIET, "bootstrap.servers": broker.bootstrap})


def create(broker: BrokerProcess, name: str, configs: dict[str, str]) -> None:
    client = admin(broker)  # its requests end with it
    client.create_topics([NewTopic(name, PARTITIONS, 1, config=configs)])[name].result(SECONDS)


def set_durability(broker: BrokerProcess, topic: str, mode: str) -> None:
    entry = ConfigEntry("kbroker.durability", mode, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    client = admin(broker)
    client.incremental_alter_configs([resource])[resource].result(SECONDS)


def produce(broker: BrokerProcess, topic: str, codec: str, count: int, prefix: str, acks: str = "all") -> list[bytes]:
    """Acknowledged records of an idempotent producer, each delivery checked."""
    failed: list[KafkaError] = []
    producer = Producer({
        **QUIET, "bootstrap.servers": broker.bootstrap, "compression.type": codec, "acks": acks,
        "enable.idempotence": acks == "all",
    })  # fmt: skip
    values = [f"{prefix}-{n}".encode() for n in range(count)]
    for n, value in enumerate(values):
        producer.produce(topic, value, partition=n % PARTITIONS, on_delivery=lambda e, _: e and failed.append(e))
    assert producer.flush(SECONDS) == 0
    assert not failed
    return values


def transaction(broker: BrokerProcess, topic: str, commit: bool) -> list[bytes]:
    producer = Producer({**QUIET, "bootstrap.servers": broker.bootstrap, "transactional.id": "t"})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    values = [f"{'committed' if commit else 'aborted'}-{n}".encode() for n in range(6)]
    for n, value in enumerate(values):
        producer.produce(topic, value, partition=n % PARTITIONS)
    consumer = Consumer({**QUIET, "bootstrap.servers": broker.bootstrap, "group.id": GROUP})
    if commit:
        offsets = [TopicPartition(topic, 2, 7)]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), SECONDS)
        producer.commit_transaction(SECONDS)
    else:
        producer.abort_transaction(SECONDS)
    consumer.close()
    return values if commit else []


def read(broker: BrokerProcess, topic: str) -> list[bytes]:
    """Every value that a read_committed consumer gets."""
    consumer = Consumer({
        **QUIET, "bootstrap.servers": broker.bootstrap, "group.id": "all", "auto.offset.reset": "error",
        "isolation.level": "read_committed", "enable.partition.eof": True, "enable.auto.commit": False,
    })  # fmt: skip
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    values, ended = [], set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(SECONDS)
        assert message is not None
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ended.add(message.partition())
        else:
            values.append(message.value())
    consumer.close()
    return values


def committed(broker: BrokerProcess, topic: str) -> list[int]:
    consumer = Consumer({**QUIET, "bootstrap.servers": broker.bootstrap, "group.id": GROUP})
    found = consumer.committed([TopicPartition(topic, partition) for partition in range(PARTITIONS)], SECONDS)
    consumer.close()
    return [partition.offset for partition in found]


def lose_disk(broker: BrokerProcess) -> None:
    broker.kill()
    shutil.rmtree(broker.data_dir)
    broker.start()


def test_acknowledged_records_survive_the_loss_of_the_disk(running: BrokerProcess) -> None:
    create(running, "o", OBJECT)
    values = []
    for codec in CODECS:
        values += produce(running, "o", codec, 300, codec)
    values += produce(running, "o", "none", 30, "one", acks="1")
    values += transaction(running, "o", commit=True)
    transaction(running, "o", commit=False)
    consumer = Consumer({**QUIET, "bootstrap.servers": running.bootstrap, "group.id": GROUP})
    consumer.commit(offsets=[TopicPartition("o", 0, 5), TopicPartition("o", 1, 6)], asynchronous=False)
    consumer.close()
    for turn in range(2):
        lose_disk(running)
        assert sorted(read(running, "o")) == sorted(values)
        assert committed(running, "o") == [5, 6, 7]
        values += produce(running, "o", "lz4", 50, f"after-{turn}")
    assert running.stop() == 0, running.log()[-3000:]


def test_a_group_reads_an_object_topic(running: BrokerProcess) -> None:
    create(running, "followed", OBJECT)
    expected = produce(running, "followed", "none", 60, "g")
    seen: list[bytes] = []
    for _ in range(2):  # the second member continues where the first has committed
        consumer = Consumer({
            **QUIET, "bootstrap.servers": running.bootstrap, "group.id": "g", "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        })  # fmt: skip
        consumer.subscribe(["followed"])
        want = len(seen) + 60
        while len(seen) < want:
            message = consumer.poll(SECONDS)
            assert message is not None
            assert not message.error(), message.error()
            seen.append(message.value())
        consumer.commit(asynchronous=False)
        consumer.close()
        expected += produce(running, "followed", "none", 60, "again") if len(seen) == 60 else []
    assert sorted(seen) == sorted(expected)


def test_durability_is_switched_at_run_time(running: BrokerProcess) -> None:
    create(running, "t", {})
    values = produce(running, "t", "none", 30, "wal")
    assert sorted(read(running, "t")) == sorted(values)
    set_durability(running, "t", "object")
    assert sorted(read(running, "t")) == sorted(values)  # what was visible stays so
    values += produce(running, "t", "none", 30, "object")
    lose_disk(running)
    assert sorted(read(running, "t")) == sorted(values)
    set_durability(running, "t", "wal")
    values += produce(running, "t", "none", 30, "wal again")
    assert sorted(read(running, "t")) == sorted(values)
    running.kill()
    running.start()
    assert sorted(read(running, "t")) == sorted(values)


def test_an_unknown_durability_is_refused(running: BrokerProcess) -> None:
    with pytest.raises(KafkaException, match=r"kbroker\.durability"):
        create(running, "refused", {"kbroker.durability": "disk"})
