"""Buckets of every level of kbroker.version, as brokers leave them, with what clients have read of them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

from broker_process import BrokerProcess
from click.testing import CliRunner, Result
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from conftest import SMALL
from test_recover import QUIET, SECONDS, commit, produce_in_transactions, rows

from kbroker.cli.main import cli
from kbroker.cluster.features import FEATURE, NEWEST
from kbroker.cluster.metadata_state import RECORD_KIND as METADATA_KIND
from kbroker.cluster.read_only import find_cluster, load_manifest
from kbroker.pipeline.plan.batch_plan import plan_batch
from kbroker.pipeline.split_reader import read_split
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.stores.local_store import LocalStore
from tests.unit.cluster.protocol.protocol_bucket import ProtocolBucket

TOPICS: dict[str, dict[str, str]] = {
    "plain": {},
    "segments": {"kbroker.object.format": "kfs"},
    "compacted": {"cleanup.policy": "compact", "min.compaction.lag.ms": "86400000"},  # not yet
}
LOG_START = 20  # of "plain", by DeleteRecords

Values = dict[str, list[tuple[int, bytes | None]]]  # by topic: offsets and values that are committed


@dataclass(frozen=True, slots=True)
class Written:
    """A cluster in a folder; no broker runs on it. `values`: what a consumer reads of each topic's one partition."""

    path: Path
    data_dir: Path
    values: Values = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"file:{self.path}"

    @property
    def store(self) -> LocalStore:
        return LocalStore(self.path)

    @property
    def keys(self) -> ObjectKeys:
        return find_cluster(self.store, self.url, None)

    def manifest(self) -> ManifestImage:
        return load_manifest(self.store, self.keys)

    def copy(self, to: Path) -> Written:
        """Another one with the same objects."""
        shutil.copytree(self.path, to)
        return replace(self, path=to)

    def run(self, *arguments: str, code: int | None = 0) -> Result:
        """A command of the command line on it."""
        result = CliRunner().invoke(cli, [*arguments, "--object-store", self.url])
        assert code is None or result.exit_code == code, (result.output, result.exception)
        return result

    def planned(self, topic: str) -> list[tuple[int, bytes | None]]:
        """What Spark's planner finds and its tasks read of a topic."""
        options = {
            "object.store": self.url,
            "columns": "offset,value",
            "subscribe": topic,
            "kafka.isolation.level": "read_committed",
        }
        batches = [batch for split in plan_batch(options, 2, {}) for batch in read_split(options, split)]
        return sorted((row["offset"], row["value"]) for batch in batches for row in batch.to_pylist())

    def raise_beyond_ours(self) -> None:
        """As a newer release would, finalizes the level after the newest one."""
        log = NumberedLog(self.store, self.keys.metadata_dir, 99, bytes(16))
        log.load(lambda *_: None, lambda *_: None)
        log.seal_previous()
        record = {"type": "feature_level", "name": FEATURE, "level": NEWEST + 1}
        log.append(METADATA_KIND, {"version": 3, "records": [record]})


def write(folder: Path, level: int) -> Written:
    """By a broker of a new cluster of this level."""
    made = Written(folder / "objects", folder / "data")
    options = ("--object-store", made.url, "--feature-level", str(level), *SMALL)
    broker = BrokerProcess(made.data_dir, *options).start()
    try:
        client = AdminClient({**QUIET, "bootstrap.servers": broker.bootstrap})
        topics = [NewTopic(name, 1, 1, config=config) for name, config in TOPICS.items()]
        for future in client.create_topics(topics).values():
            future.result(SECONDS)
        for turn in range(3):
            for topic in TOPICS:
                send_keyed(broker, topic, f"turn {turn}")
            produce_in_transactions(broker, f"turn {turn}")
            broker.flush()
        commit(broker, 17)
        made.values.update({topic: rows(broker, topic) for topic in TOPICS})
        for future in client.delete_records([TopicPartition("plain", 0, LOG_START)]).values():
            future.result(SECONDS)
        made.values["plain"] = [row for row in made.values["plain"] if row[0] >= LOG_START]
        assert broker.stop() == 0
    finally:
        broker.kill()
    return made


def send_keyed(broker: BrokerProcess, topic: str, word: str, count: int = 20) -> None:
    """Records over few keys."""
    producer = Producer({**QUIET, "bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for n in range(count):
        producer.produce(topic, f"{word}-{n}", key=str(n % 7))
    assert producer.flush(SECONDS) == 0


def go_on_by_protocol(made: Written) -> None:
    """A cluster's broker registers, leads, and appends: objects of their own, packs, a checkpoint between."""
    bucket = ProtocolBucket(made.store, made.keys)
    for turn in range(4):
        for topic in ("plain", "compacted"):
            values = [f"protocol {turn}-{n}".encode() for n in range(3)]
            base = bucket.end(topic, 0)
            bucket.append(topic, 0, values, packed=turn % 2 == 1)
            made.values[topic] += list(enumerate(values, base))
        if turn == 1:
            bucket.checkpoint()
    bucket.stop()
