"""The bucket's metadata is restored from an older copy: topics that it does not know keep their objects."""

from __future__ import annotations

import shutil
from pathlib import Path

from broker_process import BrokerProcess
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from conftest import SMALL
from until import until

SECONDS = 30.0
AT_ONCE = ("--set", "log.segment.delete.delay.ms=0")


def filled(broker: BrokerProcess, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(SECONDS)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for _ in range(20):
        producer.produce(topic, b"v" * 10_000, partition=0)
    assert producer.flush(SECONDS) == 0


def test_topics_missing_in_older_metadata_keep_their_objects(tmp_path: Path) -> None:
    objects = tmp_path / "objects"
    options = (*SMALL, *AT_ONCE, "--object-store", f"file:{objects}", "--pack-below-bytes", "0")
    broker = BrokerProcess(tmp_path / "data", *options).start()
    filled(broker, "old")
    assert broker.stop() == 0
    (root,) = objects.glob("kbroker-*")
    shutil.copytree(root / "_metadata", tmp_path / "older")
    broker.start()
    filled(broker, "young")
    assert broker.stop() == 0
    stored = set(root.glob("young-*/**/*.obj"))
    assert stored

    shutil.rmtree(root / "_metadata")
    shutil.copytree(tmp_path / "older", root / "_metadata")
    shutil.rmtree(broker.data_dir)  # it shows that the bucket has lost records
    broker.start()
    try:
        assert "objects of 1 topics that metadata does not know" in broker.log()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.delete_topics(["old"])["old"].result(SECONDS)
        until(
            lambda: not list(root.glob("old-*/**/*.obj")),
            "the objects of the deleted topic gone",
            retried=(FileNotFoundError,),  # a folder was removed under the glob
        )
        assert set(root.glob("young-*/**/*.obj")) == stored
    finally:
        broker.kill()
