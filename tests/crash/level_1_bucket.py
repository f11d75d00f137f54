"""level_1_bucket.zip: a bucket and a data directory of the release before feature levels, whose broker was killed.

Made by that release, with this file in its tests: `python -m tests.crash.level_1_bucket FILE`. There are packs and
objects of their own, a topic in KafScale's format, a compacted one that was compacted, a log start that DeleteRecords
moved, committed and aborted transactions, one that is open, committed offsets, and records that only the log has.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.storage.formats.object_keys import KlixKey, parse_key, split_root
from kbroker.storage.stores.object_store import ObjectStore
from kbroker.storage.stores.store_url import open_store
from tests.crash.small_broker import in_s3, small_broker
from tests.integration.broker_process import BrokerProcess
from tests.integration.s3_server import BUCKET, S3Server, s3_server

FILE = Path(__file__).with_name("level_1_bucket.zip")
SECONDS = 30.0
QUIET = {"log_level": 0}
TOPICS: dict[str, dict[str, str]] = {
    "plain": {},
    "segments": {"kbroker.object.format": "kfs"},
    "compacted": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.ms": "1"},
}
LARGE = 70_000  # bytes of a record that gets its flush an object of its own
LOG_START = 7  # of "plain"
LEFT = "left"  # the transactional id of the open transaction

Row = tuple[int, str]  # offset, value


def store_of(server: S3Server, prefix: str) -> ObjectStore:
    """The objects under a prefix, for this process."""
    os.environ.update(server.environment())
    return open_store(f"s3://{BUCKET}/{prefix}", server.endpoint, None, create=False)


def rows(bootstrap: str, topic: str) -> list[Row]:
    """The committed records of a topic's one partition, up to the last stable offset."""
    consumer = Consumer({
        **QUIET, "bootstrap.servers": bootstrap, "group.id": "x", "isolation.level": "read_committed",
        "enable.partition.eof": True, "enable.auto.commit": False, "auto.offset.reset": "earliest",
    })  # fmt: skip
    consumer.assign([TopicPartition(topic, 0)])
    found: list[Row] = []
    while True:
        message = consumer.poll(SECONDS)
        assert message is not None, "no answer"
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            consumer.close()
            return found
        found.append((message.offset(), message.value()[:60].decode()))


def committed(bootstrap: str) -> int:
    """The offset of the group "readers" in "plain"."""
    consumer = Consumer({**QUIET, "bootstrap.servers": bootstrap, "group.id": "readers"})
    offset: int = consumer.committed([TopicPartition("plain", 0)], SECONDS)[0].offset
    consumer.close()
    return offset


def producer(bootstrap: str, **settings: Any) -> Producer:
    """An idempotent one, or a transactional one that is ready to begin."""
    made = Producer({**QUIET, "bootstrap.servers": bootstrap, "enable.idempotence": True, **settings})
    if settings:
        made.init_transactions(SECONDS)
    return made


def send(made: Producer, topic: str, *values: str, key: str | None = None) -> None:
    """Produces records, each acknowledged before the next."""
    for value in values:
        made.produce(topic, value, key=key)
        assert made.flush(SECONDS) == 0


def _fill(broker: BrokerProcess) -> None:
    bootstrap = broker.bootstrap
    plain, inside = producer(bootstrap), producer(bootstrap, **{"transactional.id": "ended"})
    for turn in range(4):
        send(plain, "plain", f"plain {turn}", f"large {turn} ".ljust(LARGE if turn == 2 else 10, "."))
        send(plain, "segments", f"segment {turn}")
        for key in "ab":
            send(plain, "compacted", f"{key} {turn}", key=key)
        for end in (inside.abort_transaction, inside.commit_transaction):
            inside.begin_transaction()
            for topic in ("plain", "segments"):
                send(inside, topic, f"{end.__name__} {turn}")
            end(SECONDS)
        broker.flush()
    client = AdminClient({**QUIET, "bootstrap.servers": bootstrap})
    for future in client.delete_records([TopicPartition("plain", 0, LOG_START)]).values():
        future.result(SECONDS)
    consumer = Consumer({**QUIET, "bootstrap.servers": bootstrap, "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition("plain", 0, 11)], asynchronous=False)
    consumer.close()
    broker.flush()


def _is_compacted(store: ObjectStore) -> bool:
    keys = [parse_key(found[2]) for meta in store.list("") if (found := split_root(meta.key)) is not None]
    return any(isinstance(key, KlixKey) and key.topic == "compacted" and key.generation > 0 for key in keys)


def make(file: Path) -> None:
    """Runs a broker, kills it, and keeps what it leaves and what a consumer read."""
    with tempfile.TemporaryDirectory() as name, s3_server(Path(name) / "s3") as server:
        folder = Path(name) / "data"
        broker = small_broker(folder, in_s3(server, "made"), "--set", "log.cleaner.backoff.ms=100").start()
        client = AdminClient({**QUIET, "bootstrap.servers": broker.bootstrap})
        for future in client.create_topics([NewTopic(t, 1, 1, config=c) for t, c in TOPICS.items()]).values():
            future.result(SECONDS)
        _fill(broker)
        store = store_of(server, "made")
        while not _is_compacted(store):
            broker.flush()
        left = producer(broker.bootstrap, **{"transactional.id": LEFT, "transaction.timeout.ms": 60_000})
        left.begin_transaction()
        for topic in ("plain", "segments"):
            send(left, topic, "never committed")
        broker.flush()
        for topic in ("plain", "segments"):
            send(left, topic, "never committed, and only in the log")
        expected = {topic: rows(broker.bootstrap, topic) for topic in TOPICS}
        broker.kill()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            archive.writestr("expected.json", json.dumps(expected, indent=1))
            for meta in store.list(""):
                archive.writestr(f"bucket/{meta.key}", store.get(meta.key))
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    archive.write(path, f"data/{path.relative_to(folder)}")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
