"""The wire protocol over raw sockets: versions out of range, unknown and malformed requests, order of answers."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import scenarios
from broker_process import BrokerProcess
from conftest import SMALL
from scenarios import end_offsets, new_topic
from served_apis import ask
from test_client_confluent import CLIENT
from workload import Message, spread

from kbroker._fast.records.records import build_batch
from kbroker.protocol.api_keys import FLEXIBLE_FROM, SERVED, TELEMETRY, ApiKey, request_class
from kbroker.protocol.apis.records.k00_produce import ProduceRequest
from kbroker.protocol.apis.records.k01_fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.codec import decode_response_frame, encode_request_frame
from kbroker.protocol.fields import Struct
from tests.reference.protocol_values import random_message

TIMEOUT_SECONDS = 20.0
CORRELATION = 0x01020304
UNSUPPORTED_VERSION = 35
CORRUPT_MESSAGE = 2
UNKNOWN_TOPIC_OR_PARTITION = 3
FETCH_SESSIONS = 2


@pytest.fixture(scope="module")
def broker_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with its default store, which plays no part here."""
    slots = f"max.incremental.fetch.session.cache.slots={FETCH_SESSIONS}"
    process = BrokerProcess(tmp_path_factory.mktemp("wire") / "data", *SMALL, "--set", slots)
    yield process
    process.kill()


class Connection:
    """One raw connection."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.socket = socket.create_connection((broker.host, broker.port), timeout=TIMEOUT_SECONDS)

    def send_frame(self, frame: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def read_frame(self) -> bytes:
        """One answer without its length. Raises EOFError if the broker closed the connection."""
        (length,) = struct.unpack(">i", self._read(4))
        return self._read(length)

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                piece = self.socket.recv(count - len(data))
            except ConnectionResetError:
                piece = b""
            if not piece:
                raise EOFError(f"closed after {len(data)} of {count} bytes")
            data += piece
        return data

    def is_closed(self) -> bool:
        """Waits for the broker to close; False if it answers instead. Raises TimeoutError if it does neither."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True


@contextmanager
def connected(broker: BrokerProcess) -> Iterator[Connection]:
    """A connection, closed at the end."""
    connection = Connection(broker)
    try:
        yield connection
    finally:
        connection.socket.close()


def is_flexible(key: ApiKey, version: int) -> bool:
    """Whether this version of a request has tagged fields; some APIs have none at all."""
    return version >= FLEXIBLE_FROM.get(key, 32768)


def header(api_key: int, version: int, correlation: int = CORRELATION, *, flexible: bool = False) -> bytes:
    """Request header v1, or v2 when flexible; the client id is "raw"."""
    return struct.pack(">hhih3s", api_key, version, correlation, 3, b"raw") + (b"\0" if flexible else b"")


def api_versions(version: int = 3) -> bytes:
    """An ApiVersions request of version 3 or above."""
    cluster = b"\0" + struct.pack(">i", -1) if version >= 5 else b""
    return header(18, version, flexible=True) + b"\x05test\x021" + cluster + b"\0"


def produce(topic: str, batch: bytes, acks: int, correlation: int = CORRELATION) -> bytes:
    """A Produce v3 request of one batch for partition 0."""
    name = topic.encode()
    body = struct.pack(">hhiih", -1, acks, 10_000, 1, len(name)) + name
    return header(0, 3, correlation) + body + struct.pack(">iii", 1, 0, len(batch)) + batch


def batch_of(*values: bytes) -> bytes:
    """A batch of records without keys."""
    return build_batch([(None, value, 1_700_000_000_000, []) for value in values])


def assert_alive(connection: Connection) -> None:
    """The connection, and so the broker, still answers."""
    connection.send_frame(api_versions())
    assert struct.unpack_from(">ih", connection.read_frame()) == (CORRELATION, 0)


@pytest.fixture
def bystander(broker: BrokerProcess) -> Iterator[Connection]:
    """Another client's connection, which must stay usable."""
    with connected(broker) as connection:
        assert_alive(connection)
        yield connection
        assert_alive(connection)


@pytest.mark.parametrize("version", [6, 100, 32767])
def test_api_versions_above_the_range_is_answered_with_version_0(
    broker: BrokerProcess, bystander: Connection, version: int
) -> None:
    """The answer is a version 0 body with error 35 and the range of ApiVersions itself (KIP-511)."""
    with connected(broker) as connection:
        connection.send_frame(api_versions(version))
        answer = connection.read_frame()
        served = SERVED[ApiKey.API_VERSIONS]
        expected = struct.pack(">ihihhh", CORRELATION, UNSUPPORTED_VERSION, 1, 18, served.first, served.last)
        assert answer == expected
        assert_alive(connection)  # and the client asks again on the same connection


@pytest.mark.parametrize("version", range(6))
def test_api_versions_lists_what_is_served(broker: BrokerProcess, version: int) -> None:
    """Every served version answers, with response header 0 always, and lists every API with its range."""
    with connected(broker) as connection:
        connection.send_frame(api_versions(version) if version >= 3 else header(18, version))
        answer = connection.read_frame()
    correlation, error = struct.unpack_from(">ih", answer)
    assert (correlation, error) == (CORRELATION, 0)
    if version >= 3:
        count, position, size = answer[6] - 1, 7, 7
    else:
        (count,), position, size = struct.unpack_from(">i", answer, 6), 10, 6
    listed = {}
    for _ in range(count):
        key, first, last = struct.unpack_from(">hhh", answer, position)
        listed[key] = (first, last)
        position += size
    assert set(listed) == {int(key) for key in SERVED} - set(TELEMETRY)  # there is no client metrics resource
    assert listed[0][0] == 0  # librdkafka turns compression off otherwise
    assert all(listed[key][1] == SERVED[ApiKey(key)].last for key in listed)


@pytest.mark.parametrize("name", [b"", b"-bad", b"with space", b"\xff\xfe"])
def test_a_bad_client_software_name_is_refused(broker: BrokerProcess, bystander: Connection, name: bytes) -> None:
    """Refused with INVALID_REQUEST (42), or closed where it is no text at all."""
    with connected(broker) as connection:
        connection.send_frame(header(18, 3, flexible=True) + bytes([len(name) + 1]) + name + b"\x021\0")
        if name == b"\xff\xfe":
            assert connection.is_closed()
        else:
            assert struct.unpack_from(">ih", connection.read_frame()) == (CORRELATION, 42)


@pytest.mark.parametrize("key", [4, 5, 6, 7, 34, 49, 51, 95, 999, -1, 32767, -32768])
def test_an_unknown_api_closes_the_connection(broker: BrokerProcess, bystander: Connection, key: int) -> None:
    with connected(broker) as connection:
        connection.send_frame(header(key, 0) + bytes(20))
        assert connection.is_closed()


@pytest.mark.parametrize("key", sorted(key for key in SERVED if key != ApiKey.API_VERSIONS))
def test_a_version_out_of_range_closes_the_connection(
    broker: BrokerProcess, bystander: Connection, key: ApiKey
) -> None:
    for version in (SERVED[key].last + 1, SERVED[key].first - 1, -1, 32767):
        with connected(broker) as connection:
            connection.send_frame(header(key, version, flexible=is_flexible(key, version)) + bytes(50))
            assert connection.is_closed(), f"version {version}"


@pytest.mark.parametrize("length", [-1, 0, 7, 104_857_601, 0x7FFFFFFF, -0x80000000])
def test_a_bad_frame_length_closes_the_connection(broker: BrokerProcess, bystander: Connection, length: int) -> None:
    """Negative, too short for a header, above socket.request.max.bytes."""
    with connected(broker) as connection:
        connection.socket.sendall(struct.pack(">i", length) + bytes(max(0, min(length, 8))))
        assert connection.is_closed()


@pytest.mark.parametrize("key", sorted(SERVED))
def test_malformed_bodies_hurt_no_other_connection(broker: BrokerProcess, bystander: Connection, key: ApiKey) -> None:
    """Random bodies for every API: an answer or a closed connection, and other connections are answered."""
    chosen = random.Random(int(key))
    for version in {SERVED[key].first, SERVED[key].last}:
        start = header(key, version, flexible=is_flexible(key, version))
        for noise in (b"", b"\x7f\xff\xff\xff" * 3, b"\xff" * 40, chosen.randbytes(60), chosen.randbytes(300)):
            with connected(broker) as connection:
                connection.send_frame(start + noise)
                connection.socket.shutdown(socket.SHUT_WR)
                try:
                    assert struct.unpack_from(">i", connection.read_frame()) == (CORRELATION,)
                except EOFError:
                    pass


def test_truncated_request_is_dropped(broker: BrokerProcess, bystander: Connection) -> None:
    """A client that disconnects in the middle of a frame leaves no state."""
    topic = new_topic(broker, CLIENT, "cut", 1)
    frame = produce(topic, batch_of(b"x" * 1000), acks=1)
    for cut in (1, 3, 4, 12, 100, len(frame)):
        with connected(broker) as connection:
            connection.socket.sendall((struct.pack(">i", len(frame)) + frame)[:cut])
    assert end_offsets(broker, topic, 1) == [0]


def test_answers_come_in_the_order_of_requests(broker: BrokerProcess) -> None:
    """Pipelined requests of slow and quick APIs on one connection: answers in order."""
    topic = new_topic(broker, CLIENT, "order", 1)
    with connected(broker) as connection:
        frames = []
        for number in range(60):
            if number % 3 == 0:
                frames.append(produce(topic, batch_of(b"%d" % number), acks=1, correlation=number))
            elif number % 3 == 1:
                frames.append(header(18, 0, number))
            else:
                frames.append(header(3, 0, number) + struct.pack(">i", 0))  # Metadata of all topics
        connection.socket.sendall(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))
        got = [struct.unpack_from(">i", connection.read_frame())[0] for _ in frames]
    assert got == list(range(60))


def test_an_acks_0_record_is_appended_although_the_client_disconnects(broker: BrokerProcess) -> None:
    """Also after a slower request on the same connection."""
    topic = new_topic(broker, CLIENT, "leaves", 1)
    sent = 0
    for turn in range(20):
        frames = [
            header(3, 0) + struct.pack(">i", 0),
            *(produce(topic, batch_of(b"%d" % n), acks=0) for n in range(50)),
        ]
        with connected(broker) as connection:
            connection.socket.sendall(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))
            if turn % 2:
                connection.read_frame()
        sent += 50
    scenarios.send(broker, CLIENT, topic, spread([Message(None, b"last")], 1), "none", scenarios.IDEMPOTENT)
    scenarios.wait_for_end(broker, topic, sent + 1)


def test_acks_0_gets_no_answer(broker: BrokerProcess) -> None:
    """Not one byte: the next answer is that of the next request."""
    topic = new_topic(broker, CLIENT, "silent", 1)
    with connected(broker) as connection:
        for _ in range(3):
            connection.send_frame(produce(topic, batch_of(b"x"), acks=0, correlation=7))
        assert_alive(connection)
    scenarios.wait_for_end(broker, topic, 3)  # durable a moment later


def test_a_failed_acks_0_request_closes_the_connection(broker: BrokerProcess, bystander: Connection) -> None:
    with connected(broker) as connection:
        connection.send_frame(produce("no-such-topic-here", batch_of(b"x"), acks=0))
        assert connection.is_closed()


def _produce_error(connection: Connection, topic: str, batch: bytes, acks: int = 1) -> int:
    connection.send_frame(produce(topic, batch, acks))
    answer = connection.read_frame()
    position = 4 + 4 + 2 + len(topic) + 4 + 4  # correlation id, topics, name, partitions, index
    return struct.unpack_from(">h", answer, position)[0]


def test_damaged_batches_are_refused(broker: BrokerProcess) -> None:
    """A flipped bit anywhere under the CRC, a cut batch, two batches, an unknown topic: an error, nothing appended."""
    topic = new_topic(broker, CLIENT, "damaged", 1)
    good = batch_of(b"value", b"other")
    with connected(broker) as connection:
        for position in (17, 21, 22, 27, 40, 57, len(good) - 1):
            damaged = bytearray(good)
            damaged[position] ^= 0x10
            assert _produce_error(connection, topic, bytes(damaged)) != 0, f"byte {position}"
        assert _produce_error(connection, topic, good[:-1]) != 0
        assert _produce_error(connection, topic, b"") != 0
        assert _produce_error(connection, topic, good + good) != 0  # one batch per partition and request
        assert _produce_error(connection, "unknown-topic-of-raw", good) == UNKNOWN_TOPIC_OR_PARTITION
        assert _produce_error(connection, topic, good, acks=2) == 21  # INVALID_REQUIRED_ACKS
        assert end_offsets(broker, topic, 1) == [0]
        assert _produce_error(connection, topic, good) == 0
    assert end_offsets(broker, topic, 1) == [2]


def test_fetch_sessions_are_limited_as_configured(broker: BrokerProcess) -> None:
    topic = new_topic(broker, CLIENT, "sessions", 1)
    asked = FetchTopic(topic=topic, partitions=[FetchPartition(partition=0, partition_max_bytes=1)])
    request = FetchRequest(session_epoch=0, max_bytes=1, topics=[asked])
    opened = [ask(broker, ApiKey.FETCH, 12, request) for _ in range(FETCH_SESSIONS + 1)]
    assert [answer.session_id > 0 for answer in opened] == [True] * FETCH_SESSIONS + [False]


def test_five_hundred_connections_at_once_are_answered(broker: BrokerProcess, bystander: Connection) -> None:
    """500 connections that send nothing, then a request on each."""
    connections = [Connection(broker) for _ in range(500)]
    try:
        for connection in connections:
            connection.send_frame(api_versions())
        for connection in connections:
            assert struct.unpack_from(">ih", connection.read_frame()) == (CORRELATION, 0)
    finally:
        for connection in connections:
            connection.socket.close()


def make_familiar(message: Struct, topic: str, chosen: random.Random) -> None:
    """Replaces random values by known ones: the broker's topic, a few groups, partition 0, short waits."""
    for field in message.__fields__:
        value = getattr(message, field.name)
        if isinstance(value, Struct):
            make_familiar(value, topic, chosen)
        elif isinstance(value, list):
            if value and isinstance(value[0], str):
                setattr(message, field.name, [chosen.choice((topic, "g", "h")) for _ in value])
            for each in value:
                if isinstance(each, Struct):
                    make_familiar(each, topic, chosen)
        elif field.name.endswith("_ms"):
            setattr(message, field.name, chosen.choice((0, 5, 6_000 if "session" in field.name else 20)))
        elif isinstance(value, str) and chosen.random() < 0.8:
            setattr(message, field.name, chosen.choice((topic, topic, "g", "h", "consumer", "range", "")))
        elif "partition" in field.name and isinstance(value, int) and chosen.random() < 0.8:
            setattr(message, field.name, 0)


@pytest.mark.parametrize("key", sorted(SERVED))
def test_well_formed_requests_are_answered(broker: BrokerProcess, bystander: Connection, key: ApiKey) -> None:
    """Whatever values their fields have: no exception of a handler, and an answer in the form of its version."""
    topic = new_topic(broker, CLIENT, f"random{int(key)}", 1)
    chosen = random.Random(int(key))
    with connected(broker) as connection:
        for version in range(SERVED[key].first, SERVED[key].last + 1):
            for _ in range(12):
                request = random_message(request_class(key), version, chosen)
                make_familiar(request, topic, chosen)
                if isinstance(request, ProduceRequest):
                    request.acks = chosen.choice((-1, 1, 2))
                connection.socket.sendall(encode_request_frame(key, version, CORRELATION, "raw", request))
                assert decode_response_frame(key, version, connection.read_frame())[0] == CORRELATION, request
    assert "ERROR kbroker" not in broker.log()
