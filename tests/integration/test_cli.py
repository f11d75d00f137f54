"""The command line against a real broker: topics, records, groups, flush, objects, probes and metrics."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_process import BrokerProcess
from confluent_kafka import Consumer
from prometheus_client.parser import text_string_to_metric_families
from test_client_kafka_python import open_member

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Kbroker:
    """One broker, and its commands."""

    def __init__(self, folder: Path) -> None:
        self.http = f"127.0.0.1:{free_port()}"
        self.store = f"file:{folder}/objects"
        options = ("--http-listen", self.http, "--memory-bytes", "96MiB", "--object-store", self.store)
        self.broker = BrokerProcess(folder / "data", *options).start()

    def run(self, *arguments: str, lines: str | None = None, code: int = 0) -> list[str]:
        """A command against the broker; its output lines. Anything else than the exit code expected is an error."""
        if arguments[0] not in ("flush", "object"):
            arguments = (*arguments, "--bootstrap", self.broker.bootstrap)
        result = subprocess.run(
            [sys.executable, "-m", "kbroker", *arguments], input=lines, capture_output=True, text=True, timeout=120
        )
        assert result.returncode == code, result.stderr
        return result.stdout.splitlines() if code == 0 else result.stderr.splitlines()

    def consume(self, topic: str, count: int) -> list[dict]:
        found = self.run("consume", topic, "--from-beginning", "--json", "--count", str(count), "--timeout", "30")
        return [json.loads(line) for line in found]

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self.http}{path}", timeout=20) as answer:
            return answer.read().decode()

    def metrics(self) -> dict[str, float]:
        """Samples without labels, and the sums over labels."""
        values: dict[str, float] = {}
        for family in text_string_to_metric_families(self.get("/metrics")):
            for sample in family.samples:
                values[sample.name] = values.get(sample.name, 0.0) + sample.value
        return values


@pytest.fixture(scope="module")
def kbroker(tmp_path_factory) -> Iterator[Kbroker]:
    made = Kbroker(tmp_path_factory.mktemp("cli"))
    yield made
    made.broker.kill()


def test_topics_are_created_listed_and_deleted(kbroker) -> None:
    assert kbroker.run("topic", "create", "first", "-p", "3", "--config", "retention.ms=-1") == [
        "created first with 3 partitions"
    ]
    assert "first" in kbroker.run("topic", "list")
    described = kbroker.run("topic", "describe", "first")
    assert [line.split()[0] for line in described] == ["first-0", "first-1", "first-2"]
    kbroker.run("topic", "partitions", "first", "5")
    assert len(kbroker.run("topic", "describe", "first")) == 5
    assert kbroker.run("topic", "delete", "first") == ["deleted first"]
    assert "first" not in kbroker.run("topic", "list")


def test_topic_errors_are_one_line(kbroker) -> None:
    assert kbroker.run("topic", "describe", "no-such", code=1) == ["kbroker: no-such: UNKNOWN_TOPIC_OR_PARTITION"]
    assert kbroker.run("topic", "create", "bad name", code=1)[0].startswith("kbroker: bad name: ")
    kbroker.run("topic", "create", "twice")
    assert "twice" in kbroker.run("topic", "create", "twice", code=1)[0]
    assert kbroker.run("topic", "create", "x", "--config", "nonsense", code=2)
    assert kbroker.run("topic", "create", "x", "--config", "no.such=1", code=1)


@pytest.mark.parametrize("codec", CODECS)
def test_produced_records_are_consumed(kbroker, codec) -> None:
    topic = f"records-{codec}"
    kbroker.run("topic", "create", topic, "-p", "3")
    sent = {f"key{n}": f"välue {n}" for n in range(1200)}
    text = "".join(f"{key}:{value}\n" for key, value in sent.items())
    kbroker.run("produce", topic, "--key-separator", ":", "--codec", codec, lines=text)
    found = kbroker.consume(topic, 1200)
    assert {record["key"]: record["value"] for record in found} == sent
    assert {record["partition"] for record in found} == {0, 1, 2}
    plain = kbroker.run("consume", topic, "--from-beginning", "--count", "1200")
    assert sorted(plain) == sorted(sent.values())


def test_keys_go_to_the_partitions_that_java_chooses(kbroker) -> None:
    kafka = pytest.importorskip("kafka.partitioner.default")
    kbroker.run("topic", "create", "keyed", "-p", "7")
    kbroker.run("produce", "keyed", "--key-separator", "=", lines="".join(f"k{n}=v\n" for n in range(200)))
    for record in kbroker.consume("keyed", 200):
        assert record["partition"] == (kafka.murmur2(record["key"].encode()) & 0x7FFFFFFF) % 7


def test_produce_to_a_partition_creates_the_topic(kbroker) -> None:
    kbroker.run("produce", "made-by-produce", "--partition", "0", lines="one\ntwo")
    assert [record["value"] for record in kbroker.consume("made-by-produce", 2)] == ["one", "two"]
    assert kbroker.run("produce", "made-by-produce", "--partition", "9", lines="x", code=2)


def test_groups_are_listed_and_described(kbroker) -> None:
    kbroker.run("produce", "grouped", lines="a\nb\nc\n")
    consumer = open_member(kbroker.broker.bootstrap, "grouped", "readers")
    assert next(consumer).value == b"a"
    consumer.commit()
    assert "readers Stable" in kbroker.run("group", "list")
    described = kbroker.run("group", "describe", "readers")
    assert described[0].startswith("readers Stable protocol ")
    assert re.match(r"grouped-0 offset 1 end 3 lag 2$", described[-1])
    assert "NON_EMPTY_GROUP" in kbroker.run("group", "delete", "readers", code=1)[0]
    consumer.close(autocommit=False)
    assert kbroker.run("group", "delete", "readers") == ["deleted readers"]
    assert "no such group" in kbroker.run("group", "describe", "readers", code=1)[0]


def test_a_group_of_the_consumer_protocol_is_described(kbroker) -> None:
    kbroker.run("produce", "regrouped", lines="a\nb\nc\n")
    consumer = Consumer({
        "bootstrap.servers": kbroker.broker.bootstrap, "group.id": "new readers", "group.protocol": "consumer",
        "auto.offset.reset": "earliest", "enable.auto.commit": False, "client.id": "reader",
    })  # fmt: skip
    try:
        consumer.subscribe(["regrouped"])
        message = consumer.poll(30)
        assert message.value() == b"a"
        consumer.commit(message, asynchronous=False)
        assert "new readers Stable" in kbroker.run("group", "list")
        group, member, offset = kbroker.run("group", "describe", "new readers")
        assert group == "new readers Stable protocol uniform"
        assert re.match(r"member \S+ client reader host /127.0.0.1$", member)
        assert offset == "regrouped-0 offset 1 end 3 lag 2"
    finally:
        consumer.close()


def test_flushed_records_are_in_the_objects_listed(kbroker) -> None:
    kbroker.run("topic", "create", "flushed", "-p", "2")
    kbroker.run("produce", "flushed", "--key-separator", ":", lines="".join(f"{n}:v{n}\n" for n in range(100)))
    kbroker.run("flush", "--data-dir", str(kbroker.broker.data_dir))
    place = ("--object-store", kbroker.store)
    keys = [line.split("\t")[0] for line in kbroker.run("object", "ls", "--topic", "flushed", *place)]
    found = [
        json.loads(line) for key in keys for line in kbroker.run("object", "cat", key, "--topic", "flushed", *place)
    ]
    consumed = kbroker.consume("flushed", 100)
    order = lambda record: (record["partition"], record["offset"])  # noqa: E731
    assert sorted(found, key=order) == sorted(consumed, key=order)
    assert kbroker.run("object", "verify", *place)[-1].endswith(": no faults")


def test_probes_and_metrics_are_served(kbroker) -> None:
    assert kbroker.get("/livez") == "ok\n"
    assert json.loads(kbroker.get("/readyz")) == {"ready": True, "broker": "ok", "log": "ok", "store": "ok"}
    before = kbroker.metrics()
    kbroker.run("produce", "measured", lines="x\n" * 10)
    kbroker.run("flush", "--data-dir", str(kbroker.broker.data_dir))
    after = kbroker.metrics()
    for name in ("kbroker_requests_total", "kbroker_request_bytes_total", "kbroker_response_bytes_total",
                 "kbroker_request_seconds_count", "kbroker_wal_sync_seconds_count", "kbroker_wal_written_bytes_total",
                 "kbroker_flushes_total", "kbroker_flush_bytes_total", "kbroker_store_requests_total",
                 "kbroker_store_sent_bytes_total"):  # fmt: skip
        assert after[name] > before.get(name, 0), name
    for name in ("kbroker_memory_bytes", "kbroker_wal_disk_bytes", "kbroker_connections", "kbroker_group_members",
                 "kbroker_range_cache_lookups_total", "kbroker_cold_reads_total"):  # fmt: skip
        assert name in after
    with pytest.raises(urllib.error.HTTPError):
        kbroker.get("/no-such")


def test_commands_without_a_broker_fail_with_one_line(kbroker) -> None:
    port = free_port()
    result = subprocess.run(
        [sys.executable, "-m", "kbroker", "topic", "list", "-b", f"127.0.0.1:{port}"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert result.returncode == 1
    assert result.stderr.startswith(f"kbroker: no broker answers at 127.0.0.1:{port}: ")
    assert result.stderr.count("\n") == 1


def test_a_broker_without_its_data_directory_serves_everything_from_objects(kbroker) -> None:
    """The last test: it stops the broker. What a clean stop flushed is read back from objects."""
    kbroker.run("topic", "create", "cold", "-p", "2")
    kbroker.run("produce", "cold", "--codec", "lz4", lines="".join(f"line {n}\n" for n in range(3000)))
    assert kbroker.broker.stop() == 0
    assert kbroker.run("object", "verify", "--object-store", kbroker.store)[-1].endswith(": no faults")
    shutil.rmtree(kbroker.broker.data_dir)
    kbroker.broker.start()
    try:
        assert sorted(record["value"] for record in kbroker.consume("cold", 3000)) == sorted(
            f"line {n}" for n in range(3000)
        )
        metrics = kbroker.metrics()
        assert metrics["kbroker_cold_reads_total"] > 0
        assert metrics["kbroker_memory_bytes"] > 0
        kbroker.run("produce", "cold", lines="tail\n")
        found = kbroker.run("consume", "cold", "--from-beginning", "--count", "3001", "--timeout", "30")
        assert "tail" in found
    finally:
        assert kbroker.broker.stop() == 0


def test_object_commands_work_with_every_store(store, tmp_path) -> None:
    """They take URL and endpoint as options, as the broker does, and credentials from the usual places."""
    broker = BrokerProcess(tmp_path / "data", *store.options, "--memory-bytes", "96MiB", environ=store.environ).start()

    def run(*arguments: str, lines: str | None = None, code: int = 0) -> list[str]:
        result = subprocess.run(
            [sys.executable, "-m", "kbroker", *arguments], input=lines, capture_output=True, text=True, timeout=120,
            env={**os.environ, **store.environ},
        )  # fmt: skip
        assert result.returncode == code, result.stderr
        return (result.stdout if code == 0 else result.stderr).splitlines()

    try:
        run("produce", "t", "--bootstrap", broker.bootstrap, lines="one\ntwo\n")
        run("flush", "--data-dir", str(broker.data_dir))
        keys = [line.split("\t")[0] for line in run("object", "ls", "--topic", "t", *store.options)]
        (line, _) = run("object", "cat", keys[0], "--topic", "t", *store.options)
        assert json.loads(line)["value"] == "one"
        assert run("object", "show", keys[0], *store.options)
        assert run("object", "verify", *store.options)[-1].endswith(": no faults")
        missing = run("object", "show", "no-such", *store.options, code=1)
        assert len(missing) == 1
        if store.kind == "s3":
            wrong = [option.replace("kbroker-test/", "no-such-bucket/") for option in store.options]
            assert len(run("object", "verify", *wrong, code=2)) == 1
    finally:
        assert broker.stop() == 0
