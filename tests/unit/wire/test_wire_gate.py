"""The gate of a connection: a request is refused by its length and key alone."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kbroker.protocol.apis.cluster.k18_api_versions import ApiVersionsRequest
from kbroker.protocol.apis.groups.k12_heartbeat import HeartbeatRequest
from tests.unit.wire.wire_harness import (
    Client,
    WireBroker,
    batch,
    fetch_request,
    produce_request,
    produced,
    until,
    wire_broker,
)

CLOSED_MS = 0
OPEN_MS = 2**63 - 1
GATED_FRAME_BYTES_MAX = 524_288
HEADER = struct.pack(">hhih", 18, 0, 7, -1)


class Doorkeeper:
    """Answers every request, after a change of its connection's gate."""

    def __init__(self) -> None:
        self.gate_closes_ms = CLOSED_MS
        self.served: list[int] = []

    def __call__(self, request: Any) -> None:
        self.served.append(request.api_key)
        request.connection.open_gate_until(self.gate_closes_ms)
        request.complete_parts([b"yes"])


@contextmanager
def guarded(folder: Path) -> Iterator[tuple[WireBroker, Client, Doorkeeper]]:
    """A connection whose gate is closed."""
    doorkeeper = Doorkeeper()
    with wire_broker(folder, dispatch=doorkeeper) as broker, Client(broker) as client:
        greet(client)
        yield broker, client, doorkeeper


def greet(client: Client) -> None:
    client.send(18, 0, ApiVersionsRequest())
    assert client.receive_frame().endswith(b"yes")


REFUSED: list[Callable[[Client], bytes]] = [
    lambda client: client.frame(0, 9, produce_request(batch(b"x"))),
    lambda client: client.frame(1, 11, fetch_request(("t", 0, 0))),
    lambda client: client.frame(12, 4, HeartbeatRequest(group_id="g")),
    lambda client: struct.pack(">ih", 100, 0),  # a length and a key alone
    lambda client: struct.pack(">ih", 100, -1),
    lambda client: struct.pack(">i", GATED_FRAME_BYTES_MAX + 1),
    lambda client: struct.pack(">i", 1),
]


@pytest.mark.parametrize("frame", REFUSED)
@pytest.mark.parametrize("cut", [1, 3, 4, 5, 6, 1000])
def test_a_closed_gate_closes_on_any_other_request(tmp_path: Path, frame: Callable[[Client], bytes], cut: int) -> None:
    with guarded(tmp_path) as (broker, client, doorkeeper):
        sent = frame(client)
        with contextlib.suppress(ConnectionError):  # it may close after the first part
            for part in (sent[:cut], sent[cut:]):
                client.socket.sendall(part)
        assert client.is_closed()
        assert broker.wal.entries == 0
        assert doorkeeper.served == [18]
        assert broker.server.frame_memory_used == 0


@pytest.mark.parametrize("key", [17, 18, 36])
@pytest.mark.parametrize("cut", [0, 1, 4, 5, 6, 9])
def test_a_closed_gate_lets_a_handshake_pass(tmp_path: Path, key: int, cut: int) -> None:
    body = struct.pack(">hhih", key, 0, 7, -1)
    frames = (struct.pack(">i", len(body)) + body) * 3
    with guarded(tmp_path) as (broker, client, doorkeeper):
        client.socket.sendall(frames[:cut])
        client.socket.sendall(frames[cut:])
        for _ in range(3):
            assert client.receive_frame().endswith(b"yes")
        assert doorkeeper.served == [18, key, key, key]
        assert broker.server.frame_memory_used == 0


def test_the_largest_frame_passes_a_closed_gate(tmp_path: Path) -> None:
    with guarded(tmp_path) as (_, client, _):
        client.socket.sendall(struct.pack(">i", GATED_FRAME_BYTES_MAX) + HEADER.ljust(GATED_FRAME_BYTES_MAX, b"\0"))
        assert client.receive_frame().endswith(b"yes")


def test_requests_received_before_the_gate_closes_are_not_started(tmp_path: Path) -> None:
    doorkeeper = Doorkeeper()
    with wire_broker(tmp_path, dispatch=doorkeeper) as broker, Client(broker) as client:
        frames = client.frame(18, 0, ApiVersionsRequest()) + client.frame(0, 9, produce_request(batch(b"x")))
        client.socket.sendall(frames)
        assert client.receive_frame().endswith(b"yes")
        assert client.is_closed()
        assert broker.wal.entries == 0
        assert broker.server.frame_memory_used == 0


def test_an_opened_gate_lets_every_request_pass(tmp_path: Path) -> None:
    with guarded(tmp_path) as (_, client, doorkeeper):
        doorkeeper.gate_closes_ms = OPEN_MS
        greet(client)
        assert produced(client.ask(0, 9, produce_request(batch(b"x")))).base_offset == 0


def test_a_gate_closes_at_its_time(tmp_path: Path) -> None:
    with guarded(tmp_path) as (broker, client, doorkeeper):
        doorkeeper.gate_closes_ms = time.monotonic_ns() // 1_000_000 + 60_000
        greet(client)
        assert produced(client.ask(0, 9, produce_request(batch(b"x")))).base_offset == 0
        broker.reactor.clock_offset_ms += 61_000
        greet(client)
        client.send(0, 9, produce_request(batch(b"y")))
        assert client.is_closed()
        until(lambda: broker.server.connection_count == 0)
        assert broker.wal.entries == 1
