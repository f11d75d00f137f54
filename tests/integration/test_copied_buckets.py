"""A cluster's objects copied into another store: the same bytes with other ETags."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest
from broker_process import BrokerProcess
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from conftest import SMALL, Store, bucket_store, folder_store
from s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from until import until

SECONDS = 30.0
QUIET = {"log_level": 0}
PART_BYTES = 5 << 20
LARGE_BYTES = 12 << 20
TOPICS = {"small": {}, "large": {}, "segments": {"kbroker.object.format": "kfs"}}
CONTROL = ("_manifest/", "_manifest_parts/", "_metadata/", "_claims/")

Row = tuple[int, bytes | None, bytes | None]


class Objects:
    """The objects of a store, read and written past kbroker."""

    def __init__(self, store: Store) -> None:
        given = dict(zip(store.options[::2], store.options[1::2], strict=True))
        self.url = given["--object-store"]
        self.client = None
        if store.kind == "s3":
            self.bucket, _, self.prefix = self.url.removeprefix("s3://").partition("/")
            self.client = boto3.client(
                "s3", endpoint_url=given["--s3-endpoint"], aws_access_key_id=ACCESS_KEY,
                aws_secret_access_key=SECRET_KEY, region_name="us-east-1",
            )  # fmt: skip
        else:
            self.folder = Path(self.url.removeprefix("file:"))

    def names(self) -> list[str]:
        if self.client is None:
            files = (path for path in self.folder.rglob("*") if path.is_file())
            return sorted(path.relative_to(self.folder).as_posix() for path in files)
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=f"{self.prefix}/")
        listed = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
        return [key.removeprefix(f"{self.prefix}/") for key in listed]

    def read(self, key: str) -> bytes:
        if self.client is None:
            return (self.folder / key).read_bytes()
        body: bytes = self.client.get_object(Bucket=self.bucket, Key=f"{self.prefix}/{key}")["Body"].read()
        return body

    def write(self, key: str, data: bytes, part_bytes: int) -> None:
        if self.client is None:
            path = self.folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            return
        target = {"Bucket": self.bucket, "Key": f"{self.prefix}/{key}"}
        if len(data) <= part_bytes:
            self.client.put_object(**target, Body=data)
            return
        upload = self.client.create_multipart_upload(**target)["UploadId"]
        parts = []
        for number, start in enumerate(range(0, len(data), part_bytes), 1):
            answer = self.client.upload_part(
                **target, UploadId=upload, PartNumber=number, Body=data[start : start + part_bytes]
            )
            parts.append({"PartNumber": number, "ETag": answer["ETag"]})
        self.client.complete_multipart_upload(**target, UploadId=upload, MultipartUpload={"Parts": parts})


def copy(source: Objects, target: Objects, keys: list[str], part_bytes: int = PART_BYTES) -> None:
    for key in keys:
        target.write(key, source.read(key), part_bytes)


def is_control(key: str) -> bool:
    return any(f"/{folder}" in key for folder in CONTROL)


def produce(broker: BrokerProcess, topic: str, count: int, value_bytes: int) -> None:
    producer = Producer(
        {**QUIET, "bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "message.max.bytes": 900_000}
    )
    for number in range(count):
        producer.produce(topic, os.urandom(value_bytes), b"%d" % number, 0)
    assert producer.flush(SECONDS) == 0


def create(broker: BrokerProcess, topics: dict[str, dict[str, str]]) -> None:
    admin = AdminClient({**QUIET, "bootstrap.servers": broker.bootstrap})
    made = admin.create_topics([NewTopic(name, 1, 1, config=configs) for name, configs in topics.items()])
    for future in made.values():
        future.result(SECONDS)


def fill(broker: BrokerProcess) -> None:
    """Packs, a KLIX object of several parts, KafScale's segments."""
    create(broker, TOPICS)
    for _ in range(3):
        produce(broker, "small", 50, 300)
        produce(broker, "segments", 50, 300)
        broker.flush()
    produce(broker, "large", LARGE_BYTES // 500_000, 500_000)
    broker.flush()


def consume(broker: BrokerProcess, topic: str, count: int) -> list[Row]:
    consumer = Consumer({**QUIET, "bootstrap.servers": broker.bootstrap, "group.id": "g", "check.crcs": True})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        rows: list[Row] = []
        while len(rows) < count:
            messages = consumer.consume(count - len(rows), SECONDS)
            assert messages, f"{len(rows)} of {count} records of {topic}"
            for message in messages:
                if message.error():
                    raise KafkaException(message.error())
                rows.append((message.offset(), message.key(), message.value()))
        return rows
    finally:
        consumer.close()


def came(broker: BrokerProcess, topic: str, offset: int, ended: Callable[[], bool]) -> list[bytes | None]:
    """The values that a consumer gets from this offset on, until `ended`; errors are none."""
    values: list[bytes | None] = []
    consumer = Consumer({**QUIET, "bootstrap.servers": broker.bootstrap, "group.id": "g"})

    def polled() -> bool:
        values.extend(message.value() for message in consumer.consume(10, 0.1) if not message.error())
        return ended()

    try:
        consumer.assign([TopicPartition(topic, 0, offset)])
        until(polled, f"end of the reads of {topic}")
    finally:
        consumer.close()
    return values


def ends(broker: BrokerProcess) -> dict[str, int]:
    consumer = Consumer({**QUIET, "bootstrap.servers": broker.bootstrap, "group.id": "g"})
    try:
        return {topic: consumer.get_watermark_offsets(TopicPartition(topic, 0), SECONDS)[1] for topic in TOPICS}
    finally:
        consumer.close()


def contents(broker: BrokerProcess) -> dict[str, list[Row]]:
    return {topic: consume(broker, topic, end) for topic, end in ends(broker).items()}


def verify(store: Store) -> tuple[int, str]:
    run = subprocess.run(
        [sys.executable, "-m", "kbroker", "object", "verify", *store.options],
        env={**os.environ, **store.environ}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "Traceback" not in run.stderr
    return run.returncode, run.stdout


@pytest.fixture(params=["folder to S3", "S3 to folder", "S3 to S3, other parts", "folder to folder, other times"])
def stores(
    request: pytest.FixtureRequest, s3: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Store, Store]:
    source, target = (
        bucket_store(s3) if kind == "S3" else folder_store(tmp_path_factory)
        for kind in request.param.partition(",")[0].split(" to ")
    )
    return source, target


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Callable[[Store], BrokerProcess]]:
    made: list[BrokerProcess] = []

    def start(store: Store) -> BrokerProcess:
        broker = BrokerProcess(tmp_path / f"data-{len(made)}", *store.options, *SMALL, environ=store.environ)
        made.append(broker)
        return broker.start()

    yield start
    for broker in made:
        broker.kill()


Start = Callable[[Store], BrokerProcess]


@pytest.mark.s3
def test_a_copy_is_complete_and_changed_bytes_are_found(stores: tuple[Store, Store], brokers: Start) -> None:
    source, target = stores
    original = brokers(source)
    fill(original)
    expected = contents(original)
    assert original.stop() == 0
    there, here = Objects(source), Objects(target)
    copy(there, here, there.names())

    code, said = verify(target)
    assert code == 0, said
    assert "objects are copies" in said
    broker = brokers(target)
    assert contents(broker) == expected
    produce(broker, "small", 10, 100)
    broker.kill()
    broker.start()
    assert {topic: rows[: len(expected[topic])] for topic, rows in contents(broker).items()} == expected
    assert broker.stop() == 0
    assert verify(target)[0] == 0

    damaged = next(key for key in here.names() if "/large-" in key and key.endswith(".obj"))
    data = bytearray(here.read(damaged))
    data[len(data) // 2] ^= 1
    here.write(damaged, bytes(data), PART_BYTES)
    code, said = verify(target)
    assert code == 1
    assert damaged in said
    assert "note: large-0 holds offsets 0 to 25; it is whole up to offset 0\n" in said


@pytest.mark.s3
@pytest.mark.parametrize("order", ["control first", "data first"])
def test_a_copy_of_a_running_broker_is_a_prefix_or_refused(
    order: str, s3: S3Server, brokers: Start, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Copied manifest first, it is the prefix of that moment; otherwise an error names the missing objects."""
    source, target = bucket_store(s3), folder_store(tmp_path_factory)
    original = brokers(source)
    fill(original)
    before = contents(original)
    there, here = Objects(source), Objects(target)
    first = [key for key in there.names() if is_control(key) == (order == "control first")]
    copy(there, here, first)
    for topic in TOPICS:
        produce(original, topic, 20, 400)
    original.flush()
    copy(there, here, [key for key in there.names() if is_control(key) == (order != "control first")])

    code, said = verify(target)
    broker = BrokerProcess(original.data_dir.with_name("copy"), *target.options, *SMALL)
    broker.start("--take-over")
    try:
        if order == "control first":
            assert code == 0, said
            assert contents(broker) == before
            return
        assert code == 1
        for topic in TOPICS:
            end, whole = len(before[topic]) + 20, len(before[topic])
            assert f"note: {topic}-0 holds offsets 0 to {end}; it is whole up to offset {whole}\n" in said
            assert consume(broker, topic, whole) == before[topic]
        missing = [line for line in said.splitlines() if "the bucket does not have it" in line]
        assert missing
        name = missing[0].partition(": ")[0].rpartition("/")[2]
        assert not came(broker, "small", len(before["small"]), lambda: name in broker.log())
    finally:
        broker.kill()
