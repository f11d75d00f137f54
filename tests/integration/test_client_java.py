"""Apache Kafka's own Java clients, driven by its console, performance and verification tools."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import java_tools
import pytest
import scenarios
from broker_process import BrokerProcess
from conftest import ON_A_FOLDER, every_codec, require
from java_tools import properties
from scenarios import IDEMPOTENT, MODES, Mode, end_offsets, new_topic
from tool_shell import SHELL
from workload import Delivered, Headers, Message, Read, Shape, text

pytestmark = [pytest.mark.java, pytest.mark.feature("Java")]
SEPARATOR = "\x1f"
NULL = "~null~"


@pytest.fixture(autouse=True)
def _java() -> None:
    require(not java_tools.missing(), java_tools.missing())


class Java:
    """The console producer and consumer."""

    name = "java"
    shape = Shape.TEXT
    partitions = 1

    def send(
        self, bootstrap: str, topic: str, messages: Sequence[tuple[int | None, Message]], *, codec: str, mode: Mode
    ) -> None:
        reader = {
            "parse.key": "true",
            "parse.headers": "true",
            "null.marker": NULL,
            "key.separator": SEPARATOR,
            "headers.delimiter": SEPARATOR,
        }
        client = {
            "acks": mode.acks,
            "enable.idempotence": str(mode.idempotent).lower(),
            "max.request.size": 8 << 20,
            "delivery.timeout.ms": 30_000,
            "request.timeout.ms": 20_000,
            "linger.ms": 5,
        }
        SHELL.run(
            "ConsoleProducer", "--bootstrap-server", bootstrap, "--topic", topic, "--compression-codec", codec,
            *properties("--reader-property", **reader), *properties("--command-property", **client),
            stdin=b"".join(map(_to_line, (message for _, message in messages))),
        )  # fmt: skip

    def read_assigned(self, bootstrap: str, topic: str, counts: Mapping[int, int]) -> Read:
        read: Read = {}
        for partition, count in counts.items():
            read |= _consume(bootstrap, topic, count, "--partition", str(partition), "--offset", "earliest")
        return read

    def read_subscribed(self, bootstrap: str, topic: str, group: str, count: int) -> Read:
        return _consume(bootstrap, topic, count, "--group", group, "--from-beginning")


def _to_line(message: Message) -> bytes:
    # Headers without any are marked null: an empty field is no header list.
    pairs = (f"{name}:".encode() + (value or b"") for name, value in message.headers)
    fields = (b",".join(pairs) or NULL.encode(), _marked(message.key), _marked(message.value))
    return SEPARATOR.encode().join(fields) + b"\n"


def _marked(data: bytes | None) -> bytes:
    return NULL.encode() if data is None else data


def _consume(bootstrap: str, topic: str, count: int, *how: str) -> Read:
    formatter = {
        "print.timestamp": "true",
        "print.partition": "true",
        "print.offset": "true",
        "print.headers": "true",
        "print.key": "true",
        "null.literal": NULL,
        "key.separator": SEPARATOR,
    }
    printed = SHELL.run(
        "consumer.ConsoleConsumer", "--bootstrap-server", bootstrap, "--topic", topic, *how,
        "--max-messages", str(count), "--timeout-ms", "30000", *properties("--formatter-property", **formatter),
    )  # fmt: skip
    read: Read = {}
    lines = printed.raw.removesuffix(b"\n").split(b"\n")
    assert len(lines) == count, f"{len(lines)} of {count} messages came"
    for line in lines:
        partition, delivered = _from_line(line)
        read.setdefault(partition, []).append(delivered)
    return read


def _from_line(line: bytes) -> tuple[int, Delivered]:
    stamp, partition, offset, headers, key, value = line.split(SEPARATOR.encode())
    return int(partition.removeprefix(b"Partition:")), Delivered(
        int(offset.removeprefix(b"Offset:")),
        _unmarked(key),
        _unmarked(value),
        _to_headers(headers),
        int(stamp.removeprefix(b"CreateTime:")),
    )


def _unmarked(data: bytes) -> bytes | None:
    return None if data == NULL.encode() else data


def _to_headers(data: bytes) -> Headers:
    if data == b"NO_HEADERS":
        return ()
    pairs = (pair.partition(b":") for pair in data.split(b","))
    return tuple((name.decode(), value) for name, _, value in pairs)


CLIENT = Java()


@pytest.mark.feature("produce and consume")
@every_codec(in_a_bucket="zstd")
def test_every_codec_and_acks_is_read_back(broker: BrokerProcess, codec: str) -> None:
    """Each mode is a run of the tool: all modes with two codecs, two modes with the others."""
    scenarios.every_mode(broker, CLIENT, codec, MODES if codec in ("gzip", "zstd") else MODES[1::2])


@pytest.mark.feature("produce and consume")
def test_large_messages_are_read_back(broker: BrokerProcess) -> None:
    scenarios.large_messages(broker, CLIENT, "lz4")


@pytest.mark.feature("restarts")
def test_restarts_keep_everything(broker: BrokerProcess) -> None:
    scenarios.restarts(broker, CLIENT)


@pytest.mark.feature("produce and consume")
@ON_A_FOLDER
def test_keyed_text_keeps_its_order(broker: BrokerProcess) -> None:
    scenarios.real_text(broker, CLIENT, "snappy", 6_000)


@ON_A_FOLDER
def test_performance_tools_count_every_record(broker: BrokerProcess) -> None:
    """The producer tool's records all arrive, and the consumer tool reads as many."""
    topic = new_topic(broker, CLIENT, "perf", 3)
    count = 40_000
    settings = {"bootstrap.servers": broker.bootstrap, "acks": "all", "compression.type": "lz4"}
    printed = SHELL.run(
        "ProducerPerformance", "--topic", topic, "--num-records", str(count), "--record-size", "1000",
        "--throughput", "-1", "--command-property", *(f"{name}={value}" for name, value in settings.items()),
    )  # fmt: skip
    assert f"{count} records sent" in printed.output
    assert sum(end_offsets(broker, topic, 3)) == count
    printed = SHELL.run(
        "ConsumerPerformance", "--bootstrap-server", broker.bootstrap, "--topic", topic, "--num-records", str(count),
        "--timeout", "20000", "--hide-header",
    )  # fmt: skip
    assert int(printed.output.split(",")[4]) == count


@ON_A_FOLDER
def test_the_end_to_end_latency_tool_works(broker: BrokerProcess) -> None:
    topic = new_topic(broker, CLIENT, "latency", 1)
    printed = SHELL.run("EndToEndLatency", broker.bootstrap, topic, "200", "all", "100").output
    assert "Percentiles" in printed
    assert end_offsets(broker, topic, 1) == [200]


@ON_A_FOLDER
def test_the_client_compatibility_tool_passes(broker: BrokerProcess) -> None:
    """Kafka's own check of a broker: offsets for times, records above the fetch size (KIP-74), admin calls."""
    topic = new_topic(broker, CLIENT, "compatible", 1)
    expected = {
        "offsets-for-times-supported": True,
        "cluster-id-supported": True,
        "expect-record-too-large-exception": False,
        "create-topics-supported": True,
        "describe-acls-supported": True,
        "describe-configs-supported": True,
        "idempotent-producer-supported": True,
    }
    flags = [part for name, value in expected.items() for part in (f"--{name}", str(value))]
    SHELL.run(
        "ClientCompatibilityTest", "--bootstrap-server", broker.bootstrap, "--topic", topic,
        "--num-cluster-nodes", "1", *flags,
    )  # fmt: skip


class _Verifiable:
    """A VerifiableProducer that runs until `stop`; what was acknowledged, as it says."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        arguments = ("--bootstrap-server", bootstrap, "--topic", topic, "--throughput", "2000", "--acks", "-1")
        self._process = subprocess.Popen(
            java_tools.command("VerifiableProducer", *arguments), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.acknowledged: list[tuple[int, int, str]] = []  # partition, offset, value
        self._enough = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _events(self) -> Iterator[dict[str, Any]]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield json.loads(line)

    def _read(self) -> None:
        for event in self._events():
            if event["name"] == "producer_send_success":
                with self._enough:
                    self.acknowledged.append((int(event["partition"]), int(event["offset"]), str(event["value"])))
                    self._enough.notify_all()

    def wait_for_more(self, count: int) -> None:
        """Returns when `count` more messages have been acknowledged."""
        with self._enough:
            goal = len(self.acknowledged) + count
            assert self._enough.wait_for(lambda: len(self.acknowledged) >= goal, timeout=40), "no acknowledgements"

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(20)
        self._reader.join(20)


@pytest.mark.feature("idempotence")
def test_acknowledged_messages_survive_kills_of_the_broker(broker: BrokerProcess) -> None:
    """A producer that does not retry, over two kills: acknowledged records are at the offsets it was given."""
    topic = new_topic(broker, CLIENT, "verifiable", 3)
    producer = _Verifiable(broker.bootstrap, topic)
    try:
        for _ in range(2):
            producer.wait_for_more(1000)
            broker.kill()
            broker.start()
        producer.wait_for_more(1000)
    finally:
        producer.stop()
    ends = end_offsets(broker, topic, 3)
    read = _consume(broker.bootstrap, topic, sum(ends), "--group", f"group-of-{topic}", "--from-beginning")
    values = {(partition, m.offset): (m.value or b"").decode() for partition, got in read.items() for m in got}
    lost = [entry for entry in producer.acknowledged if values.get(entry[:2]) != entry[2]]
    assert lost == []


@pytest.mark.feature("groups")
@ON_A_FOLDER
def test_the_verifiable_consumer_commits_all_it_read(broker: BrokerProcess) -> None:
    topic = new_topic(broker, CLIENT, "verified", 3)
    lines = text()[:500]
    CLIENT.send(broker.bootstrap, topic, [(None, line) for line in lines], codec="none", mode=IDEMPOTENT)
    printed = SHELL.run(
        "VerifiableConsumer", "--bootstrap-server", broker.bootstrap, "--topic", topic,
        "--group-id", f"group-of-{topic}", "--max-messages", str(len(lines)),
    )  # fmt: skip
    events = [json.loads(line) for line in printed.lines()]
    assert sum(event["count"] for event in events if event["name"] == "records_consumed") == len(lines)
    commits = [event for event in events if event["name"] == "offsets_committed"]
    assert commits
    assert all(event["success"] for event in commits)
    last = {entry["partition"]: entry["offset"] for event in commits for entry in event["offsets"]}
    assert sum(last.values()) == len(lines)
