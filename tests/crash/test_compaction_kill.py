"""A compacted topic under load with kills: readers always get the newest value of every key, also from the bucket."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.crash.small_broker import Place, free_port, metrics, small_broker
from tests.integration.broker_process import BrokerProcess
from tests.integration.until import until

TOPIC = "kept"
KEYS = 40
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CONFIGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.001",
    "segment.ms": "1",
    "file.delete.delay.ms": "0",
    "delete.retention.ms": "0",
}
SMALL = (
    "--memory-bytes", "64MiB", "--arena-bytes", "8MiB", "--wal-bytes", "12MiB", "--flush-seconds", "0.2",
    "--pack-below-bytes", "64KiB", "--set", "log.cleaner.backoff.ms=20",
)  # fmt: skip

Expected = dict[bytes, bytes | None]


def write(broker: BrokerProcess, rng: random.Random, expected: Expected, rounds: int) -> None:
    """Values and tombstones for random keys, each acknowledged; `expected` is the newest of each key."""
    for _ in range(rounds):
        options = {"bootstrap.servers": broker.bootstrap, "compression.type": rng.choice(CODECS), "linger.ms": 2}
        if rng.random() < 0.5:
            options["enable.idempotence"] = True
        producer = Producer(options)
        for _ in range(200):
            key = b"key-%d" % rng.randrange(KEYS)
            value = None if rng.random() < 0.1 else rng.randbytes(rng.randrange(2000))
            producer.produce(TOPIC, value, key, partition=0)
            expected[key] = value
        assert producer.flush(30) == 0


def read_all(broker: BrokerProcess) -> list[tuple[int, bytes, bytes | None]]:
    """(offset, key, value) from the beginning to the high watermark."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "r", "enable.auto.commit": False,
                         "enable.partition.eof": True})  # fmt: skip
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found = []
    while (message := consumer.poll(30)) is not None:
        if message.error():
            break
        found.append((message.offset(), message.key(), message.value()))
    consumer.close()
    offsets = [offset for offset, _, _ in found]
    assert offsets == sorted(set(offsets))
    return found


def newest(found: list[tuple[int, bytes, bytes | None]]) -> Expected:
    return {key: value for _, key, value in found}


def without_tombstones(values: Expected) -> Expected:
    return {key: value for key, value in values.items() if value is not None}


def rounds_of(port: int) -> float:
    values = metrics(port)
    assert values["kbroker_compaction_failures_total"] == 0
    return values["kbroker_compaction_rounds_total"]


@pytest.mark.crash
def test_newest_values_survive_kills_and_a_lost_disk(place: Place, tmp_path: Path) -> None:
    rng = random.Random(7)
    port = free_port()
    broker = small_broker(tmp_path / "data", place, "--http-listen", f"127.0.0.1:{port}", small=SMALL)
    expected: Expected = {}
    try:
        broker.start()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, config=CONFIGS)])[TOPIC].result(30)
        for _ in range(3):
            write(broker, rng, expected, 3)
            until(lambda: rounds_of(port) >= 1, "compaction")
            broker.kill()
            broker.start()
            assert without_tombstones(newest(read_all(broker))) == without_tombstones(expected)
        before = rounds_of(port)
        write(broker, rng, expected, 1)
        broker.flush()
        until(lambda: rounds_of(port) > before, "last compaction")
        assert broker.stop() == 0
        shutil.rmtree(broker.data_dir)
        broker.start()
        found = read_all(broker)
        assert without_tombstones(newest(found)) == without_tombstones(expected)
        assert len(found) < 2000 * 3 / 4, "hardly anything was compacted"
        assert broker.stop() == 0
        verify = [sys.executable, "-m", "kbroker", "object", "verify", *place.options]
        done = subprocess.run(verify, capture_output=True, text=True, env={**os.environ, **place.environ}, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Traceback" not in broker.log()
        assert " ERROR " not in broker.log()
    finally:
        broker.kill()
