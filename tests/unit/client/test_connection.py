"""A client's connection: answers that are not the one that is due, and connections that end."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from kbroker.client.connection import ClientConnection
from kbroker.clock import ManualClock
from kbroker.errors import ProtocolError
from kbroker.limits import FRAME_BYTES_MAX
from kbroker.protocol.apis.cluster.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from kbroker.protocol.apis.records.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.codec import encode_request_frame, encode_response

VERSION = 7


@pytest.fixture
def pair() -> Iterator[tuple[ClientConnection, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    connection = ClientConnection(ours, "a-client", {0: VERSION, 3: VERSION})
    yield connection, theirs
    connection.close()
    theirs.close()


def frame(number: int, cluster_id: str = "c", throttle_time_ms: int = 0) -> bytes:
    response = MetadataResponse(cluster_id=cluster_id, throttle_time_ms=throttle_time_ms)
    body = encode_response(3, VERSION, response)
    return struct.pack(">ii", len(body) + 4, number) + body


def test_requests_are_numbered_and_answered_in_order(pair: tuple[ClientConnection, socket.socket]) -> None:
    connection, broker = pair
    for number in range(3):
        broker.sendall(frame(number, f"cluster-{number}"))
        assert connection.call(MetadataRequest(topics=[])).cluster_id == f"cluster-{number}"
        sent = broker.recv(1000)
        length, key, version, correlation = struct.unpack(">ihhi", sent[:12])
        assert (length, key, version, correlation) == (len(sent) - 4, 3, VERSION, number)
        assert b"a-client" in sent


def test_requests_may_wait_for_their_answers_together(pair: tuple[ClientConnection, socket.socket]) -> None:
    connection, broker = pair
    for _ in range(3):
        connection.send(MetadataRequest(topics=[]))
    for number in range(3):
        broker.sendall(frame(number, f"cluster-{number}"))
    assert [connection.receive().cluster_id for _ in range(3)] == ["cluster-0", "cluster-1", "cluster-2"]


def test_a_request_waits_for_as_long_as_the_broker_throttles() -> None:
    """From the answer on, however many are answered meanwhile; other connections do not wait."""
    clock = ManualClock()
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        clock.advance(seconds)

    ours, broker = socket.socketpair()
    with ours, broker:
        connection = ClientConnection(ours, "a-client", {3: VERSION}, clock, wait)
        for _ in range(3):
            connection.send(MetadataRequest(topics=[]))
        broker.sendall(frame(0, throttle_time_ms=2000) + frame(1, throttle_time_ms=500) + frame(2))
        for _ in range(3):
            connection.receive()
        clock.advance(0.5)
        connection.send(MetadataRequest(topics=[]))
        connection.send(MetadataRequest(topics=[]))
    assert waited == [1.5]


def test_a_throttle_longer_than_the_time_out_is_an_error() -> None:
    ours, broker = socket.socketpair()
    with ours, broker:
        ours.settimeout(30)
        connection = ClientConnection(ours, "a-client", {3: VERSION}, ManualClock())
        connection.send(MetadataRequest(topics=[]))
        broker.sendall(frame(0, throttle_time_ms=2**31 - 1))
        connection.receive()
        with pytest.raises(TimeoutError, match="the broker asks to wait for 2147484 s"):
            connection.send(MetadataRequest(topics=[]))


def test_a_long_request_is_sent_in_pieces_as_the_socket_takes_them() -> None:
    """More pieces than one call takes, and more bytes than the socket does."""
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    parts = [PartitionProduceData(index=index, records=bytes([index % 256]) * 20_000) for index in range(600)]
    request = ProduceRequest(acks=-1, timeout_ms=1, topic_data=[TopicProduceData(name="t", partition_data=parts)])
    connection = ClientConnection(ours, "a-client", {0: VERSION})
    expected = encode_request_frame(0, VERSION, 0, "a-client", request)
    received: list[bytes] = []

    def receive() -> None:
        with theirs.makefile("rb") as stream:
            received.append(stream.read(len(expected)))

    reader = threading.Thread(target=receive)
    reader.start()
    connection.send(request)
    reader.join()
    connection.close()
    theirs.close()
    assert received == [expected]


def test_produce_without_acks_has_no_answer(pair: tuple[ClientConnection, socket.socket]) -> None:
    connection, _ = pair
    assert connection.call(ProduceRequest(acks=0, timeout_ms=1, topic_data=[])) is None


def test_an_answer_in_pieces_is_joined(pair: tuple[ClientConnection, socket.socket]) -> None:
    connection, broker = pair
    for byte in frame(0):
        broker.send(bytes([byte]))
    assert connection.call(MetadataRequest(topics=[])).cluster_id == "c"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (frame(5), "answer to request 5, 0 expected"),
        (struct.pack(">i", 0), "an answer of 0 bytes"),
        (struct.pack(">i", -1), "an answer of -1 bytes"),
        (struct.pack(">i", FRAME_BYTES_MAX + 1), f"an answer of {FRAME_BYTES_MAX + 1} bytes"),
        (struct.pack(">ii", 9, 0) + b"\xff" * 5, "."),
    ],
)
def test_a_bad_answer_is_an_error(pair: tuple[ClientConnection, socket.socket], answer: bytes, message: str) -> None:
    connection, broker = pair
    broker.sendall(answer)
    with pytest.raises(ProtocolError, match=message):
        connection.call(MetadataRequest(topics=[]))


def test_a_value_too_long_for_the_protocol_is_not_sent() -> None:
    ours, broker = socket.socketpair()
    with ours, broker:
        connection = ClientConnection(ours, "a-client", {3: 12})
        request = MetadataRequest(topics=[MetadataRequestTopic(name="x" * 32_768)])
        with pytest.raises(ValueError, match=r"topics\[0\].name is longer than 32767 bytes"):
            connection.call(request)
        broker.setblocking(False)
        with pytest.raises(BlockingIOError):
            broker.recv(1)


@pytest.mark.parametrize("part", [0, 2, 10])
def test_a_closed_connection_is_an_error(pair: tuple[ClientConnection, socket.socket], part: int) -> None:
    connection, broker = pair
    broker.sendall(frame(0)[:part])
    broker.shutdown(socket.SHUT_WR)
    with pytest.raises(OSError, match="closed the connection"):
        connection.call(MetadataRequest(topics=[]))
