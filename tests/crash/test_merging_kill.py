"""Many small flushes are merged into few objects while the broker is killed and loses its disk: all is read back."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from kbroker.storage.formats.object_keys import KlixKey, PackKey, parse_key, split_root
from kbroker.storage.stores.store_url import open_store
from tests.crash.small_broker import Place, free_port, metrics, small_broker
from tests.integration.broker_process import BrokerProcess
from tests.integration.until import until

TOPIC = "many-flushes"
PARTITIONS = 3
SMALL = (
    "--memory-bytes", "64MiB", "--arena-bytes", "8MiB", "--wal-bytes", "12MiB", "--flush-seconds", "0.05",
    "--set", "kbroker.merge.enable=false",
)  # fmt: skip
CONFIGS = {"file.delete.delay.ms": "100"}
FLUSHES = 40  # more than are merged at once

Expected = dict[int, list[bytes]]


def write(broker: BrokerProcess, expected: Expected, port: int) -> None:
    """Records in so many flushes, each with some of every partition."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    before = metrics(port)["kbroker_flushes_total"]
    while metrics(port)["kbroker_flushes_total"] < before + FLUSHES:
        for partition in range(PARTITIONS):
            value = b"%d-%d" % (partition, len(expected[partition])) * 20
            producer.produce(TOPIC, value, partition=partition)
            expected[partition].append(value)
        assert producer.flush(30) == 0


def read_all(broker: BrokerProcess) -> Expected:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "none", "enable.partition.eof": True,
         "enable.auto.commit": False}
    )  # fmt: skip
    found: Expected = {}
    for partition in range(PARTITIONS):
        consumer.assign([TopicPartition(TOPIC, partition, 0)])
        values = []
        while (message := consumer.poll(30)) is not None and not message.error():
            assert message.offset() == len(values)
            values.append(message.value())
        found[partition] = values
    consumer.close()
    return found


def set_merging(broker: BrokerProcess, **values: str) -> None:
    """Alters broker configs while it runs."""
    entries = [
        ConfigEntry(f"kbroker.merge.{name.replace('_', '.')}", value, incremental_operation=AlterConfigOpType.SET)
        for name, value in values.items()
    ]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


class Objects:
    """The bucket's contents, as another process sees them."""

    def __init__(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in place.environ.items():
            monkeypatch.setenv(name, value)
        options = dict(zip(place.options[::2], place.options[1::2], strict=True))
        self._store = open_store(options["--object-store"], options.get("--s3-endpoint"), create=True)

    def _keys(self) -> list[KlixKey | PackKey]:
        rests = [split_root(meta.key) for meta in self._store.list("kbroker-")]
        return [key for rest in rests if rest and (key := parse_key(rest[2])) is not None]

    def packs(self) -> list[PackKey]:
        return [key for key in self._keys() if isinstance(key, PackKey)]

    def merged(self) -> list[KlixKey | PackKey]:
        return [key for key in self._keys() if key.generation > 0]


def verify(place: Place) -> str:
    command = [sys.executable, "-m", "kbroker", "object", "verify", *place.options]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **place.environ}, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.crash
def test_merging_survives_kills_and_a_lost_disk(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    broker = small_broker(tmp_path / "data", place, "--http-listen", f"127.0.0.1:{port}", small=SMALL)
    objects = Objects(place, monkeypatch)
    expected: Expected = {partition: [] for partition in range(PARTITIONS)}
    try:
        broker.start()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, config=CONFIGS)])[TOPIC].result(30)
        write(broker, expected, port)
        broker.flush()
        assert len(objects.packs()) >= FLUSHES
        set_merging(broker, enable="true")
        until(lambda: not objects.packs(), "end of the packs", seconds=60)
        assert metrics(port)["kbroker_merge_failures_total"] == 0
        assert metrics(port)["kbroker_merge_replaced_total"] >= FLUSHES * PARTITIONS
        assert "note:" not in verify(place)
        assert read_all(broker) == expected

        # Again, so slowly that the kill is between the first new object and the record that names it.
        set_merging(broker, enable="false", io_max_bytes_per_second="20000")
        write(broker, expected, port)
        before = objects.merged()
        set_merging(broker, enable="true")
        until(lambda: objects.merged() != before, "new object", seconds=60)
        broker.kill()
        broker.start()
        assert read_all(broker) == expected
        set_merging(broker, io_max_bytes_per_second="50000000")
        until(lambda: len(objects.packs()) < FLUSHES, "end of most packs", seconds=60)
        broker.flush()
        assert broker.stop() == 0
        shutil.rmtree(broker.data_dir)
        broker.start()
        assert read_all(broker) == expected
        assert broker.stop() == 0
        verify(place)
        assert "Traceback" not in broker.log()
        assert " ERROR " not in broker.log()
    finally:
        broker.kill()
