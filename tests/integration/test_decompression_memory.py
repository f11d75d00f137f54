"""Batches that decompress to many times their size, from many clients at once, on a broker with little memory."""

from __future__ import annotations

import re
import socket
import struct
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import lz4.frame
import pytest
import snappy
import zstandard
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from kbroker._fast.records.compression import CODECS, compress
from kbroker._fast.records.records import build_batch, seal
from kbroker.app.memory import PROCESS_BYTES, divide
from kbroker.errors import ErrorCode
from kbroker.protocol.apis.records.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.codec import decode_response_frame, encode_request_frame
from tests.crash.small_broker import free_port
from tests.integration.broker_process import BrokerProcess
from tests.integration.until import until

MIB = 1 << 20
MEMORY_BYTES = 192 * MIB
POOLS = divide(MEMORY_BYTES, None, False)
HEADER_BYTES, AT_ATTRIBUTES = 61, 21
CLIENTS = 16  # twice the broker's workers
MESSAGE_BYTES = 12 * MIB  # the largest batch: a raw snappy block of it can hold 250 MiB
SECONDS = 120.0
TOPIC = "bombs"
NOW_MS = 1_700_000_000_000


def batch_of(codec: str, value_bytes: int, body: bytes | None = None) -> bytes:
    """One record of zeros; `body` replaces the compressed records."""
    plain = bytes(build_batch([(b"k", bytes(value_bytes), NOW_MS, [])]))
    packed = packed_records(codec, plain[HEADER_BYTES:]) if body is None else body
    batch = bytearray(plain[:HEADER_BYTES] + packed)
    batch[AT_ATTRIBUTES + 1] = CODECS[codec.removesuffix("-raw")]
    seal(batch)
    return bytes(batch)


def packed_records(codec: str, records: bytes) -> bytes:
    """As small as the codec can: one raw snappy block, lz4 blocks of 4 MiB, a zstd window of 128 MiB."""
    if codec == "snappy-raw":
        return snappy.compress(records)
    if codec == "lz4":
        return lz4.frame.compress(records, block_size=lz4.frame.BLOCKSIZE_MAX4MB, store_size=False)
    if codec == "zstd":
        parameters = zstandard.ZstdCompressionParameters.from_level(19, window_log=27)
        stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        return stream.compress(records) + stream.flush()
    return compress(CODECS[codec], records)


class Client:
    """One connection that produces batches and reads their error codes."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._socket = socket.create_connection((broker.host, broker.port), SECONDS)

    def produce(self, batch: bytes, partition: int = 0, topic: str = TOPIC) -> int:
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])
        request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=60_000, topic_data=[data])
        self._socket.sendall(encode_request_frame(0, 9, 1, "bomber", request))
        (length,) = struct.unpack(">i", self._read(4))
        answer = decode_response_frame(0, 9, memoryview(self._read(length)))[1]
        code: int = answer.responses[0].partition_responses[0].error_code
        return code

    def _read(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            piece = self._socket.recv(length - len(data))
            assert piece, "closed by the broker"
            data += piece
        return data

    def close(self) -> None:
        self._socket.close()


def status(broker: BrokerProcess, name: str) -> int:
    """Bytes of a line of /proc/PID/status: VmRSS, or VmHWM for the most it ever was."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path(f"/proc/{broker.pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    port = free_port()
    process = BrokerProcess(
        tmp_path / "data", "--memory-bytes", str(MEMORY_BYTES), "--http-listen", f"127.0.0.1:{port}",
        "--io-threads", "1", "--set", "log.cleaner.backoff.ms=200",
    ).start()  # fmt: skip
    process.http_port = port  # type: ignore[attr-defined]
    topic = NewTopic(TOPIC, 8, 1, config={"max.message.bytes": str(MESSAGE_BYTES)})
    admin = AdminClient({"bootstrap.servers": process.bootstrap})
    admin.create_topics([topic])[TOPIC].result(SECONDS)
    yield process
    process.kill()


def metric(broker: BrokerProcess, line: str) -> float:
    url = f"http://127.0.0.1:{broker.http_port}/metrics"  # type: ignore[attr-defined]
    with urllib.request.urlopen(url, timeout=SECONDS) as answer:
        found = re.search(rf"^{re.escape(line)} (\S+)$", answer.read().decode(), re.MULTILINE)
    assert found, line
    return float(found[1])


def test_decompression_bombs_are_refused_within_the_memory_bound(broker: BrokerProcess) -> None:
    """Half of them claim more than is allowed, half just less, so that they must be decompressed."""
    near = POOLS.decompression - 2 * MIB
    bombs = []
    for codec in ("gzip", "snappy-raw", "snappy", "lz4", "zstd"):
        bombs.append((batch_of(codec, 200 * MIB if codec != "snappy" else 100 * MIB), ErrorCode.INVALID_RECORD))
        bombs.append((batch_of(codec, near, damaged(codec, near)), ErrorCode.INVALID_RECORD))
    failures: list[str] = []
    first = Client(broker)
    for codec in ("gzip", "snappy", "lz4", "zstd"):  # what they load at first stays
        assert first.produce(batch_of(codec, MIB), 0) == 0
    first.close()
    before = status(broker, "VmRSS")

    def send(number: int) -> None:
        client = Client(broker)
        for i in range(len(bombs)):
            batch, expected = bombs[(number + i) % len(bombs)]
            code = client.produce(batch, number % 8)
            if code != expected:
                failures.append(f"bomb {(number + i) % len(bombs)}: {code} instead of {expected}")
        client.close()

    threads = [threading.Thread(target=send, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    peak = status(broker, "VmHWM")
    assert peak <= MEMORY_BYTES + PROCESS_BYTES, f"{peak / MIB:.0f} MiB"
    assert not failures
    assert metric(broker, 'kbroker_decompressions_delayed_total{result="refused"}') >= CLIENTS
    assert metric(broker, 'kbroker_memory_bytes{pool="decompression"}') == 0
    until(
        lambda: status(broker, "VmRSS") < before + 32 * MIB,
        lambda: f"less than {status(broker, 'VmRSS') >> 20} MiB, {before >> 20} before",
        seconds=SECONDS,
    )


def damaged(codec: str, value_bytes: int) -> bytes:
    """The compressed form of records that do not parse: a batch that must be decompressed to be refused."""
    return packed_records(codec, b"\x01" + bytes(value_bytes))


def test_large_compressed_batches_are_compacted_within_the_bound(broker: BrokerProcess) -> None:
    """Batches of 8 MiB in every codec, all of one key: the newest stays."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    config = {"cleanup.policy": "compact", "max.message.bytes": str(MESSAGE_BYTES), "max.compaction.lag.ms": "1"}
    admin.create_topics([NewTopic("state", 4, 1, config=config)])["state"].result(SECONDS)
    client = Client(broker)
    codecs = ("gzip", "snappy-raw", "snappy", "lz4", "zstd")
    for i in range(20):
        assert client.produce(batch_of(codecs[i % len(codecs)], 8 * MIB), i % 4, "state") == 0
    client.close()
    broker.flush()
    rounds = "kbroker_compaction_rounds_total"
    until(lambda: metric(broker, rounds) >= 4, "compaction of four partitions", seconds=SECONDS)
    assert metric(broker, "kbroker_compaction_failures_total") == 0
    peak = status(broker, "VmHWM")
    assert peak <= MEMORY_BYTES + PROCESS_BYTES, f"{peak / MIB:.0f} MiB"


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy-raw", "snappy", "lz4", "zstd"])
def test_large_messages_are_accepted(broker: BrokerProcess, codec: str) -> None:
    size = (6 if codec == "none" else 8) * MIB  # a stored batch must fit a segment of the log
    client = Client(broker)
    assert client.produce(batch_of(codec, size)) == 0
    client.close()
    consumer = Consumer({
        "bootstrap.servers": broker.bootstrap, "group.id": "g", "fetch.message.max.bytes": MESSAGE_BYTES,
    })  # fmt: skip
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    message = consumer.poll(SECONDS)
    assert message is not None
    assert message.error() is None
    assert message.value() == bytes(size)
    (found,) = consumer.offsets_for_times([TopicPartition(TOPIC, 0, NOW_MS)], SECONDS)
    assert found.offset == 0
    consumer.close()


@pytest.mark.parametrize("codec", ["gzip", "snappy-raw", "snappy", "lz4", "zstd"])
def test_a_record_above_the_topics_limit_is_refused_as_in_kafka(broker: BrokerProcess, codec: str) -> None:
    """Kafka 4.4: a record's bytes after its length, in compressed batches alone."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    config = {"max.decompressed.message.bytes": "100"}
    admin.create_topics([NewTopic("limited", 1, 1, config=config)])["limited"].result(SECONDS)
    client = Client(broker)
    largest = 100 - 8  # attributes, timestamp, offset, key length, key, two bytes of the value's length, headers
    assert client.produce(batch_of(codec, largest), topic="limited") == 0
    assert client.produce(batch_of(codec, largest + 1), topic="limited") == ErrorCode.INVALID_RECORD
    assert client.produce(batch_of("none", largest + 1), topic="limited") == 0
    entry = ConfigEntry("max.decompressed.message.bytes", "101", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "limited", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(SECONDS)
    until(lambda: client.produce(batch_of(codec, largest + 1), topic="limited") == 0, "effect of the new limit")
    client.close()
