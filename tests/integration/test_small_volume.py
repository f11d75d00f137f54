"""A small or full volume: writes wait for room and continue once there is some, and the broker starts."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.app.data_dir import DataDir, Identity
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.stores.local_store import LocalStore
from kbroker.storage.stores.object_store import StoreFull
from tests.crash.small_broker import free_port, in_s3, metrics
from tests.integration.broker_process import BrokerProcess
from tests.integration.s3_server import find_server, s3_server
from tests.integration.small_volume import MIB, OtherProgram, free_bytes, small_volume
from tests.integration.until import until

VOLUME_BYTES = 300 * MIB
TOPIC = "bulk"
RECORD_BYTES = 64 * 1024
RETRIABLE = (KafkaError._MSG_TIMED_OUT, KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.REQUEST_TIMED_OUT)
SECONDS = 20.0
OPTIONS = ("--io-threads", "1", "--flush-seconds", "3600")


class Running:
    """A broker on a volume, with a topic."""

    def __init__(self, data_dir: Path, *options: str) -> None:
        self.http_port = free_port()
        self.broker = BrokerProcess(data_dir, *OPTIONS, "--http-listen", f"127.0.0.1:{self.http_port}", *options)
        self.broker.start()
        self.settings = {"bootstrap.servers": self.broker.bootstrap, "log_level": 0}
        self.admin = AdminClient(self.settings)

    def create(self, name: str = TOPIC) -> None:
        self.admin.create_topics([NewTopic(name, 1, 1)])[name].result(SECONDS)

    def readiness(self) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/readyz", timeout=SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def gauge(self, name: str) -> float:
        return metrics(self.http_port)[name]


class Bulk:
    """A producer that counts what is acknowledged and what fails."""

    def __init__(self, running: Running, topic: str = TOPIC, timeout_ms: int = 300_000) -> None:
        self.topic = topic
        self.sent = self.acknowledged = 0
        self.failed: list[KafkaError] = []
        self.producer = Producer({
            **running.settings, "linger.ms": 5, "batch.size": 1_000_000, "message.timeout.ms": timeout_ms,
            "queue.buffering.max.kbytes": 64 * 1024, "request.timeout.ms": min(timeout_ms, 30_000),
        })  # fmt: skip

    def _note(self, error: KafkaError | None, _: Message) -> None:
        if error:
            self.failed.append(error)
        else:
            self.acknowledged += 1

    def send(self, count: int) -> None:
        for _ in range(count):
            value = str(self.sent).encode().ljust(RECORD_BYTES, b".")
            self.sent += 1
            until(lambda value=value: self._sent(value), "room in the producer's queue", retried=(BufferError,))

    def _sent(self, value: bytes) -> bool:
        self.producer.poll(0)
        self.producer.produce(self.topic, value, partition=0, on_delivery=self._note)
        return True

    def settled(self) -> bool:
        """Whether all that was sent is acknowledged or has failed."""
        self.producer.poll(0)
        return self.acknowledged + len(self.failed) == self.sent

    def until_failure(self, seconds: float = SECONDS) -> None:
        """Sends until records fail: with an error that may be tried again."""
        until(lambda: self.send(16) or self.failed, "error for a producer without room", seconds=seconds)
        until(self.settled, "answer", seconds=SECONDS)
        assert {error.code() for error in self.failed} <= set(RETRIABLE), self.failed


def count_records(running: Running, topic: str, expected: int) -> None:
    """Reads `expected` records, in order."""
    settings = {"group.id": "all", "enable.auto.commit": False, "max.partition.fetch.bytes": 16 * MIB}
    consumer = Consumer({**running.settings, **settings})
    consumer.assign([TopicPartition(topic, 0, 0)])
    offset = 0

    def reads() -> bool:
        nonlocal offset
        for message in consumer.consume(100, 0.1):
            assert message.error() is None, message.error()
            assert (message.offset(), int(message.value().rstrip(b"."))) == (offset, offset)
            offset += 1
        return offset >= expected

    until(reads, lambda: f"record {offset}", seconds=60)
    consumer.close()


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    with small_volume(tmp_path / "volume", VOLUME_BYTES) as folder:
        yield folder


@pytest.fixture
def elsewhere(memory_path: Path) -> str:
    """Objects on another volume."""
    return f"file:{memory_path / 'objects'}"


def lines_about_room(broker: BrokerProcess) -> list[str]:
    return re.findall(r".*(?:wait for room|has room again|trying again).*", broker.log())


def test_a_gibibyte_passes_through_a_volume_of_300_mib(volume: Path, elsewhere: str) -> None:
    """The default budget is fourteen times the volume; all records arrive, and the log names the limit used."""
    running = Running(volume / "data", "--object-store", elsewhere)
    try:
        running.create()
        bulk = Bulk(running)
        bulk.send(1024 * MIB // RECORD_BYTES)
        assert bulk.producer.flush(60) == 0
        assert bulk.failed == []
        count_records(running, TOPIC, bulk.sent)
        assert 0 < running.gauge("kbroker_wal_room_bytes") < VOLUME_BYTES
        assert len(re.findall("may take .* not --wal-bytes 4GiB", running.broker.log())) == 1
        assert " ERROR " not in running.broker.log()
        assert len(lines_about_room(running.broker)) <= 4
        until(lambda: running.readiness()[0] == 200, "readiness")
        assert running.broker.stop() == 0
    finally:
        running.broker.kill()


def test_a_volume_shared_with_the_store_is_freed_by_a_deleted_topic(volume: Path) -> None:
    """Retained records fill the volume; deleting a topic makes room for the others without a restart."""
    settings = ("--set", "log.segment.delete.delay.ms=0", "--set", "log.retention.check.interval.ms=200")
    running = Running(volume / "data", *settings)
    try:
        for name in (TOPIC, "kept"):
            running.create(name)
        kept, bulk = Bulk(running, "kept"), Bulk(running, timeout_ms=3000)
        kept.send(16)
        assert kept.producer.flush(SECONDS) == 0
        bulk.until_failure(60)
        assert bulk.acknowledged * RECORD_BYTES > VOLUME_BYTES // 2
        assert running.readiness()[0] == 503
        assert "room" in running.readiness()[1]

        running.admin.delete_topics([TOPIC])[TOPIC].result(SECONDS)
        kept.send(64)
        until(kept.settled, "room for a topic that stays", seconds=SECONDS)
        assert kept.failed == []
        until(lambda: running.readiness()[0] == 200, "readiness", seconds=SECONDS)
        running.broker.flush()
        count_records(running, "kept", kept.sent)
        assert len(lines_about_room(running.broker)) <= 12
    finally:
        running.broker.kill()


def test_writes_continue_after_another_program_filled_the_volume(volume: Path, elsewhere: str) -> None:
    """Nothing is lost, no restart is needed, and a broker that is killed meanwhile starts on the full volume."""
    running = Running(volume / "data", "--object-store", elsewhere)
    other = OtherProgram(volume)
    try:
        running.create()
        bulk = Bulk(running)
        bulk.send(64)
        assert bulk.producer.flush(SECONDS) == 0
        other.fill()
        bulk.send(1000)
        until(lambda: other.fill() or bulk.settled() or running.readiness()[0] == 503, "shortage", seconds=SECONDS)
        until(lambda: bulk.settled(), "what the log's own files can take", seconds=60)
        assert bulk.failed == []
        other.fill()
        running.create("meanwhile")  # SQLite's copy of it may come later

        running.broker.kill()
        other.fill()
        running.broker.start()
        bulk.send(100)
        until(bulk.settled, "room in the log's own files after a start", seconds=60)
        other.empty()
        bulk.send(1000)
        assert bulk.producer.flush(60) == 0
        assert bulk.failed == []
        until(lambda: running.readiness()[0] == 200, "readiness", seconds=SECONDS)
        count_records(running, TOPIC, bulk.sent)
        assert {TOPIC, "meanwhile"} <= running.admin.list_topics(timeout=SECONDS).topics.keys()
        assert "Traceback" not in running.broker.log()
        assert len(lines_about_room(running.broker)) <= 12
    finally:
        running.broker.kill()


class LimitedBroker(BrokerProcess):
    """A broker whose files may not be larger than this."""

    file_bytes_max = 0

    def command(self, *extra: str) -> list[str]:
        return ["prlimit", f"--fsize={self.file_bytes_max}", *super().command(*extra)]


@pytest.mark.s3
@pytest.mark.skipif(find_server() is None, reason="no S3 server (versitygw)")
def test_a_file_size_limit_makes_segments_smaller(memory_path: Path) -> None:
    """A folder of objects is refused, with an error that names the limit to raise."""
    with s3_server(memory_path) as server:
        place = in_s3(server, "fsize")
        broker = LimitedBroker(memory_path / "data", *OPTIONS, *place.options, environ=place.environ)
        broker.file_bytes_max = 20 * MIB
        try:
            broker.start()
            producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
            for number in range(1000):
                producer.produce(TOPIC, str(number).encode().ljust(RECORD_BYTES, b"."), partition=0)
            assert producer.flush(SECONDS) == 0
            segments = list((memory_path / "data" / "wal").glob("*.wal"))
            assert len(segments) > 3
            assert {path.stat().st_size for path in segments} == {16 * MIB + 4096}
            assert broker.stop() == 0
        finally:
            broker.kill()
    refused = LimitedBroker(memory_path / "other")
    refused.file_bytes_max = 20 * MIB
    assert "RLIMIT_FSIZE" in refused.refused_start()


def test_objects_leave_room_for_the_records_that_delete_them(tmp_path: Path) -> None:
    with small_volume(tmp_path / "volume", 32 * MIB) as folder:
        store = LocalStore(folder / "objects", create=True)
        root = ObjectKeys("A" * 22)
        stored: list[str] = []

        def fill(size: int) -> None:
            for number in range(8192):
                stored.append(store.put(root.full(f"_packs/{size}-{number}.pack"), bytes(size)).key)  # noqa: PERF401

        for size in (MIB, 64 * 1024, 1):
            with pytest.raises(StoreFull):
                fill(size)
        assert free_bytes(folder) > MIB // 2
        for number in range(64):
            store.put(root.full(f"_manifest/{number:020d}.rec"), bytes(1000))
        store.delete(stored[:4])
        store.put(root.full("_packs/small.pack"), b"small")
        store.close()


def test_a_data_directory_keeps_room_for_its_next_start(tmp_path: Path) -> None:
    with small_volume(tmp_path / "volume", 64 * MIB) as volume:
        first = DataDir(volume / "data")
        first.save(Identity(first.identity.data_dir_id, "A" * 22, 1))
        first.hold_start_room()
        first.close()
        OtherProgram(volume).fill()
        with pytest.raises(OSError, match="No space"):
            (volume / "data" / "any").write_bytes(b"any")
        second = DataDir(volume / "data")
        second.save(Identity(second.identity.data_dir_id, "A" * 22, 2))
        assert free_bytes(volume) > MIB // 2
        second.hold_start_room()
        OtherProgram(volume).empty()
        second.hold_start_room()
        second.close()
        OtherProgram(volume).fill()
        DataDir(volume / "data").close()
