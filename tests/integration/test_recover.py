"""A killed broker, a lost disk and a damaged manifest in the bucket: `kbroker recover`, and the broker continues."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from broker_process import BrokerProcess
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from conftest import SMALL, Store
from served_apis import api_versions

from kbroker.cli.offline.bucket import Bucket, Place
from kbroker.cluster.features import DEFAULT, FEATURE, NEWEST

SECONDS = 30.0
QUIET = {"log_level": 0}
TOPICS = {"plain": {}, "segments": {"kbroker.object.format": "kfs"}, "holes": {}}

Row = tuple[int, bytes | None]


def below(store: Store, name: str) -> Store:
    """A place of its own for one more cluster."""
    own = store.options[1].rstrip("/") + "/" + name
    return Store(store.kind, ("--object-store", own, *store.options[2:]), store.environ)


def in_bucket(store: Store, work: Callable[[Bucket], object]) -> object:
    """Works on the bucket directly, without a broker."""
    options = dict(zip(store.options[::2], store.options[1::2], strict=True))
    before = dict(os.environ)
    os.environ.update(store.environ)
    try:
        bucket = Bucket(Place(options["--object-store"], options.get("--s3-endpoint"), None, None))
        try:
            return work(bucket)
        finally:
            bucket.store.close()
    finally:
        os.environ.clear()
        os.environ.update(before)


def kbroker(store: Store, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kbroker", *arguments, *store.options],
        env={**os.environ, **store.environ}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def produce(broker: BrokerProcess, topic: str, word: str, count: int = 50) -> None:
    producer = Producer({**QUIET, "bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for n in range(count):
        producer.produce(topic, f"{word}-{n}")
    assert producer.flush(SECONDS) == 0


def produce_in_transactions(broker: BrokerProcess, word: str) -> None:
    """One that is aborted and one that is committed, over two topics."""
    producer = Producer({**QUIET, "bootstrap.servers": broker.bootstrap, "transactional.id": "t"})
    producer.init_transactions(SECONDS)
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for n in range(10):
            for topic in ("plain", "segments"):
                producer.produce(topic, f"{word}-{end.__name__}-{n}")
        producer.flush(SECONDS)
        end(SECONDS)


def rows(broker: BrokerProcess, topic: str, isolation: str = "read_committed") -> list[Row]:
    """Everything in the topic's one partition."""
    consumer = Consumer(
        {**QUIET, "bootstrap.servers": broker.bootstrap, "group.id": "x", "isolation.level": isolation,
         "enable.partition.eof": True, "enable.auto.commit": False}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Row] = []
    while True:
        message = consumer.poll(SECONDS)
        assert message is not None, "no answer"
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            consumer.close()
            return found
        found.append((message.offset(), message.value()))


def everything(broker: BrokerProcess) -> dict[tuple[str, str], list[Row]]:
    levels = ("read_committed", "read_uncommitted")
    return {(topic, level): rows(broker, topic, level) for topic in TOPICS for level in levels}


def commit(broker: BrokerProcess, offset: int) -> None:
    consumer = Consumer({**QUIET, "bootstrap.servers": broker.bootstrap, "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition("plain", 0, offset)], asynchronous=False)
    consumer.close()


def committed(broker: BrokerProcess) -> int:
    consumer = Consumer({**QUIET, "bootstrap.servers": broker.bootstrap, "group.id": "readers"})
    found = consumer.committed([TopicPartition("plain", 0)], SECONDS)[0].offset
    consumer.close()
    return found


def damage_manifest(bucket: Bucket) -> str:
    """One byte of a record before the last."""
    metas = list(bucket.store.list(f"{bucket.keys.manifest_dir}/"))
    covered = max((meta.key[-24:-4] for meta in metas if meta.key.endswith(".ckp")), default="")
    records = [meta for meta in metas if meta.key.endswith(".rec") and meta.key[-24:-4] > covered and meta.size > 120]
    key = records[len(records) // 2].key
    data = bytearray(bucket.store.get(key))
    data[-3] ^= 1
    bucket.store.delete([key])
    bucket.store.put(key, bytes(data))
    return key


@pytest.mark.parametrize("level", [DEFAULT, NEWEST])
def test_a_damaged_manifest_is_rebuilt(store: Store, tmp_path: Path, level: int) -> None:
    store = below(store, f"level-{level}")
    options = ("--feature-level", str(level))
    broker = BrokerProcess(tmp_path / "data", *store.options, *SMALL, *options, environ=store.environ).start()
    try:
        client = AdminClient({**QUIET, "bootstrap.servers": broker.bootstrap})
        made = client.create_topics([NewTopic(name, 1, 1, config=config) for name, config in TOPICS.items()])
        for future in made.values():
            future.result(SECONDS)
        before = fill(broker)
        broker.kill()
        shutil.rmtree(broker.data_dir)
        key = str(in_bucket(store, damage_manifest))

        refusal = broker.refused_start("--take-over")
        assert key in refusal
        assert "kbroker recover" in refusal
        refused = kbroker(store, "recover", "--yes")
        assert refused.returncode == 1
        assert "--take-over" in refused.stderr
        dry = kbroker(store, "recover", "--dry-run")
        assert dry.returncode == 0, dry.stderr
        assert "taken: " in dry.stdout
        assert dry.stdout.splitlines()[-1] == "dry run: nothing was changed"
        done = kbroker(store, "recover", "--yes", "--take-over")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[:-1] == dry.stdout.splitlines()[:-1]
        again = kbroker(store, "recover", "--yes")
        assert again.returncode == 1
        assert "nothing to recover" in again.stderr

        shutil.rmtree(broker.data_dir)
        broker.start()
        (found,) = [each for each in api_versions(broker).finalized_features if each.name == FEATURE]
        assert found.max_version_level == level
        assert everything(broker) == before
        assert committed(broker) == 17
        produce(broker, "plain", "afterwards")
        produce_in_transactions(broker, "later")
        after = everything(broker)
        for place, found in before.items():
            assert after[place][: len(found)] == found
        assert len(after["plain", "read_committed"]) == len(before["plain", "read_committed"]) + 60
        broker.flush()
        verified = kbroker(store, "object", "verify")
        faults = [line for line in verified.stdout.splitlines() if not line.startswith("note")]
        assert len(faults) == 2, faults  # the damaged record, and what was counted
        assert key in faults[0]
        assert broker.stop() == 0
    finally:
        broker.kill()


def fill(broker: BrokerProcess) -> dict[tuple[str, str], list[Row]]:
    """Several flushes; what is in the bucket then."""
    for turn in range(4):
        for topic in TOPICS:
            produce(broker, topic, f"turn {turn}")
        produce_in_transactions(broker, f"turn {turn}")
        commit(broker, 14 + turn)
        broker.flush()
    return everything(broker)


def test_consumers_read_on_after_a_gap(store: Store, tmp_path: Path) -> None:
    place = below(store, "gap")
    broker = BrokerProcess(tmp_path / "data", *place.options, *SMALL, environ=store.environ).start()
    try:
        client = AdminClient({**QUIET, "bootstrap.servers": broker.bootstrap})
        client.create_topics([NewTopic("holes", 1, 1)])["holes"].result(SECONDS)
        packs: list[set[str]] = []
        for turn in range(3):
            produce(broker, "holes", f"turn {turn}")
            broker.flush()
            listed = in_bucket(place, lambda bucket: {m.key for m in bucket.store.list(bucket.keys.root + "_packs/")})
            packs.append(set(listed))  # type: ignore[call-overload]
        before = rows(broker, "holes")
        assert broker.stop() == 0
        shutil.rmtree(broker.data_dir)
        in_bucket(place, lambda bucket: bucket.store.delete(sorted(packs[1] - packs[0])))
        in_bucket(place, lambda bucket: [
            bucket.store.delete([meta.key]) for meta in bucket.store.list(f"{bucket.keys.manifest_dir}/")
        ])  # fmt: skip
        done = kbroker(place, "recover", "--yes")
        assert done.returncode == 0, done.stderr
        assert "holes-0: gap: offsets 50 to 100: no object has them: lost" in done.stdout.splitlines()
        broker.start()
        assert rows(broker, "holes") == before[:50] + before[100:]
        produce(broker, "holes", "afterwards", 1)
        assert rows(broker, "holes")[-1] == (150, b"afterwards-0")
        assert broker.stop() == 0
    finally:
        broker.kill()
